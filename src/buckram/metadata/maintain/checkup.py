"""Checking everything that a cluster keeps in its metadata store, without changing it.

The check works on every store. What only ZooKeeper has (LAYOUT, foreign nodes below the root) is reported by its ledger
tree. Bookies that are registered and are no members of the cluster are found: one of this release ends by itself when
it finds that it was replaced or taken out (`bookie/trust/witness.py`); one of an earlier release, or Apache's, goes on.
The check also covers the store's past: restores, bookies that reject the store, postponed collection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from dataclasses import dataclass, field

from buckram.core.cluster.cookie import parse_cookie
from buckram.core.cluster.store_history import WitnessStatement, parse_statement
from buckram.core.health.facts import Noted
from buckram.core.ledgers.metadata import BIRTH
from buckram.core.ledgers.metadata_codec import parse
from buckram.core.ledgers.service_info import ADMISSION_PROPERTY, decode_bookie, decode_service_info, valid_bookie_id
from buckram.errors import AccessRefused, MalformedRecord, NoSuchKey
from buckram.metadata.records.bookie_health import read_accused
from buckram.metadata.tree.key_operations import all_names
from buckram.metadata.tree.layout import BRAKES, WITNESSES
from buckram.metadata.tree.store import TreeStore
from buckram.seams import MetadataStore
from buckram.types import NO_BIRTH, BookieId, BookieInfo, LedgerId, LedgerMetadata, LedgerState

_PAGE = 1000

_AT_ONCE = 64

_HANGS = "Apache's clients hang on it when they list bookies"


@dataclass(slots=True)
class Checkup:
    """Contents of a cluster's metadata. `ledgers` counts by state; `unreadable` ones are among the problems."""

    uri: str
    instance_id: str = ""
    manager: str = ""
    epoch: int = 0
    writable: list[BookieId] = field(default_factory=list)
    readonly: list[BookieId] = field(default_factory=list)
    cookies: list[BookieId] = field(default_factory=list)
    ledgers: dict[LedgerState, int] = field(default_factory=lambda: dict.fromkeys(LedgerState, 0))
    unreadable: int = 0
    under_replicated: int = 0
    """Number of ledgers that name a bookie which is not registered now."""
    away: list[BookieId] = field(default_factory=list)
    """Bookies that ledgers name and that are not registered now."""
    problems: list[Noted] = field(default_factory=list)
    """Findings in states that the table of health knows."""
    registered: dict[BookieId, BookieInfo] = field(default_factory=dict)
    """Registrations that can be read, by bookie."""


async def examine(store: TreeStore) -> Checkup:
    """Read the cluster, and every ledger's record.

    Raises ClusterNotInitialised if there is none, MetadataUnavailable when the store goes away.
    """
    checkup = await examine_members(store)
    if checkup.manager:
        await _examine_ledgers(store, checkup)
        for node in await store.ledgers.strays():
            _add(checkup, "foreign-node", node, "a foreign node")
    return checkup


async def examine_members(store: TreeStore) -> Checkup:
    """Examine the part that does not grow with the ledgers: members, and what bookies report in records of
    their own.
    """
    checkup = Checkup(store.uri)
    try:
        checkup.manager = await store.ledgers.manager_name()
        checkup.instance_id = await store.instance_id()
    except MalformedRecord as error:
        node, _, found = str(error).partition(": ")
        _add(
            checkup,
            "metadata-damaged",
            node,
            f"{found}; until it is repaired no ledger can be read, so this check read none",
        )
        checkup.instance_id = (await _value(store, checkup, store.layout.instance_id) or b"").decode("utf-8", "replace")
    if not checkup.instance_id:
        found = "missing: the cluster's cookies carry no instance id"
        _add(checkup, "no-instance-id", store.layout.instance_id, found)
    await _examine_cookies(store, checkup)
    for readonly in (False, True):
        await _examine_registrations(store, checkup, readonly=readonly)
    checkup.epoch, found_past = await examine_past(store, [*checkup.writable, *checkup.readonly])
    checkup.problems += found_past
    checkup.problems += await no_members(store, list(checkup.registered.values()), checkup.cookies)
    await _examine_accused(store, checkup)
    return checkup


def _add(checkup: Checkup, state: str, node: str, found: str, bookie: BookieId = "") -> None:
    checkup.problems.append(Noted(state, node, found, bookie=bookie))


async def _value(store: TreeStore, checkup: Checkup, node: str) -> bytes | None:
    """Return the value of a node; None if it has gone or cannot be read; the latter is noted."""
    try:
        return (await store.keys.get(node)).value
    except NoSuchKey:
        return None
    except AccessRefused as error:
        _add(checkup, "metadata-refused", node, error.found)
        return None


async def _examine_cookies(store: TreeStore, checkup: Checkup) -> None:
    async for name in all_names(store.keys, store.layout.cookies):
        node = store.layout.cookie(name)
        if not valid_bookie_id(name):
            _add(checkup, "foreign-node", node, f"no bookie id: {_HANGS}")
            continue
        checkup.cookies.append(name)
        record = await _value(store, checkup, node)
        if record is None:
            continue
        try:
            cookie = parse_cookie(record)
        except MalformedRecord as error:
            _add(checkup, "wrong-cookie", node, str(error), name)
            continue
        if cookie.bookie_host != name:
            found = f"the cookie of bookie {cookie.bookie_host!r}"
            _add(checkup, "wrong-cookie", node, found, name)
        if (cookie.instance_id or "") != checkup.instance_id:
            found = (
                f"instance id {cookie.instance_id!r}, this cluster is {checkup.instance_id!r}: it is of another "
                "cluster, or this one was formatted"
            )
            _add(checkup, "wrong-cookie", node, found, name)


async def _examine_registrations(store: TreeStore, checkup: Checkup, *, readonly: bool) -> None:
    folder = store.layout.registrations(readonly=readonly)
    async for name in all_names(store.keys, folder):
        node = f"{folder}/{name}"
        if name == "readonly" and not readonly:
            continue
        if not valid_bookie_id(name):
            _add(checkup, "foreign-node", node, f"no bookie id: {_HANGS}")
            continue
        (checkup.readonly if readonly else checkup.writable).append(name)
        record = await _value(store, checkup, node)
        if record is None:
            continue
        try:
            info = decode_service_info(name, record)
        except MalformedRecord as error:
            _add(checkup, "bad-registration", node, f"{error}: {_HANGS}", name)
            continue
        checkup.registered[name] = decode_bookie(name, record)
        admission = info.properties.get(ADMISSION_PROPERTY, "known")
        if admission != "known":
            found = f"takes adds to {admission} ledger, also to one that metadata does not know"
            checkup.problems.append(Noted("open-admission", name, found, {"admission": admission}, name))
        if info.rpc_address is None:
            found = "no address" if record else "empty, and the id is no host:port"
            _add(checkup, "bad-registration", node, f"{found}: no client can reach it", name)


async def _examine_accused(store: TreeStore, checkup: Checkup) -> None:
    """Add convicted bookies, which lied, and suspects, which may only be damaged, with the reasons."""
    for one in await read_accused(store):
        reasons = "; ".join(map(str, one.evidence[-3:]))
        state = "bookie-convicted" if one.convicted else "bookie-accused"
        _add(checkup, state, one.bookie, f"{'convicted' if one.convicted else 'suspect'}: {reasons}", one.bookie)


async def _examine_ledgers(store: TreeStore, checkup: Checkup) -> None:
    after, births, twice = -1, _Births(), 0
    while page := await store.list_ledgers(after=after, limit=_PAGE):
        for start in range(0, len(page), _AT_ONCE):
            asked = page[start : start + _AT_ONCE]
            for answer in await asyncio.gather(*(_state(store, one) for one in asked), return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer
                if isinstance(answer, LedgerMetadata):
                    checkup.ledgers[answer.state] += 1
                    _look_at_members(checkup, answer)
                    twice += births.repeated(answer)
                elif answer is not None:
                    checkup.unreadable += 1
                    checkup.problems.append(answer)
        after = page[-1]
    if twice:
        found = f"{twice} ledgers have the birth of another one: their records are copies"
        _add(checkup, "repeated-births", store.root, found)


class _Births:
    """The births of ledgers that were seen, as numbers of 64 bits: a million of them take about 70 MB."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def repeated(self, metadata: LedgerMetadata) -> bool:
        birth = metadata.custom_metadata.get(BIRTH, NO_BIRTH)
        if birth == NO_BIRTH:
            return False
        number = int.from_bytes(birth[:8])
        if number in self._seen:
            return True
        self._seen.add(number)
        return False


def _look_at_members(checkup: Checkup, metadata: LedgerMetadata) -> None:
    there = (*checkup.writable, *checkup.readonly)
    gone = [b for b in dict.fromkeys(b for f in metadata.fragments for b in f.ensemble) if b not in there]
    checkup.under_replicated += bool(gone)
    checkup.away += [bookie for bookie in gone if bookie not in checkup.away]


async def _state(store: TreeStore, ledger_id: LedgerId) -> LedgerMetadata | Noted | None:
    """Return the metadata of a ledger, or the problem with its record; None if it was deleted since it was listed."""
    node = await store.ledgers.key(ledger_id)
    try:
        return parse((await store.keys.get(node)).value)
    except NoSuchKey:
        return None
    except MalformedRecord as error:
        return Noted("metadata-damaged", node, str(error))
    except AccessRefused as error:
        return Noted("metadata-refused", node, error.found)


# -- bookies that are no members ------------------------------------------------------------------------------


async def no_members(
    store: MetadataStore, registered: Collection[BookieInfo], cookies: Collection[BookieId]
) -> list[Noted]:
    """Compare registrations with cookies and witness keys. Raises MetadataError."""
    named = await asyncio.gather(*(_named(store, info.bookie_id) for info in registered))
    found, restored = list[Noted](), None
    for info, said in zip(registered, named, strict=True):
        if said is not None and info.incarnation and said.incarnation != info.incarnation:
            found.append(_replaced(info, said))
        elif info.bookie_id not in cookies:
            if restored is None:
                history = await store.history()
                restored = not history.accepted and not history.moved
            found.append(_without_cookie(info, restored))
    return found


async def _named(store: MetadataStore, bookie: BookieId) -> WitnessStatement | None:
    key = f"{store.own}/{WITNESSES}/{bookie}"
    try:
        return parse_statement(key, (await store.keys.get(key)).value)
    except (NoSuchKey, MalformedRecord):
        return None  # Apache's have none; one that cannot be read is named elsewhere


def _replaced(info: BookieInfo, said: WitnessStatement) -> Noted:
    why = (
        f"incarnation {info.incarnation} is registered at {info.address}, but incarnation {said.incarnation} "
        f"(generation {said.generation}) has the id: an old disk or process, which denies what was written since"
    )
    return Noted("bookie-replaced", info.bookie_id, why, bookie=info.bookie_id)


def _without_cookie(info: BookieInfo, restored: bool) -> Noted:
    bookie = info.bookie_id
    if restored:
        why = "registered without a cookie: it is younger than the restored metadata"
        return Noted("bookie-returns", bookie, why, bookie=bookie)
    why = "registered without a cookie: it was taken out of the cluster while it hung, or its cookie was lost"
    state = "bookie-without-cookie" if info.incarnation is not None else "apache-without-cookie"
    return Noted(state, bookie, why, bookie=bookie)


# -- the store's past -----------------------------------------------------------------------------------------


async def examine_past(store: TreeStore, registered: list[BookieId]) -> tuple[int, list[Noted]]:
    """Examine the store's epoch. That it was restored, and who does not believe it, is among the facts."""
    found: list[Noted] = []
    key = store.layout.history
    try:
        history = await store.history()
    except MalformedRecord as error:
        return 0, [Noted("metadata-damaged", key, str(error))]
    for name in registered:
        node = f"{store.own}/{WITNESSES}/{name}"
        try:
            said = parse_statement(node, (await store.keys.get(node)).value)
        except NoSuchKey:
            continue  # software that keeps none
        except MalformedRecord as error:
            found.append(Noted("witness-refused", name, str(error), bookie=name))
            continue
        if said.epoch != history.epoch:
            why = f"it is registered and in epoch {said.epoch}, the store is in {history.epoch}"
            found.append(Noted("witness-refused", name, why, bookie=name))
    found += await _examine_brakes(store)
    return history.epoch, found


async def _examine_brakes(store: TreeStore) -> list[Noted]:
    folder, found = f"{store.own}/{BRAKES}", list[Noted]()
    async for name in all_names(store.keys, folder):
        node = f"{folder}/{name}"
        try:
            said = json.loads((await store.keys.get(node)).value)
            waiting, unknown = int(said["waiting"]), int(said["unknown"])
        except NoSuchKey:
            continue
        except (ValueError, KeyError, TypeError):
            found.append(Noted("metadata-damaged", node, "not readable"))
            continue
        if waiting:
            why = f"it holds {waiting} ledgers that metadata does not know; they wait to be removed"
            found.append(Noted("collection-waits", name, why, bookie=name))
        if unknown:
            why = f"it holds {unknown} ledgers with ids that this store never gave, and keeps them"
            found.append(Noted("unknown-ledgers", name, why, bookie=name))
    return found
