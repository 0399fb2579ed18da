"""Checking everything that a cluster keeps in its metadata store, without changing it.

The check works on every store. What only ZooKeeper has (LAYOUT, foreign nodes below the root) is reported by its ledger
tree.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from buckram.core.cluster.cookie import parse_cookie
from buckram.core.ledgers.metadata import BIRTH
from buckram.core.ledgers.metadata_codec import parse
from buckram.core.ledgers.service_info import ADMISSION_PROPERTY, decode_service_info, valid_bookie_id
from buckram.errors import AccessRefused, MalformedRecord, NoSuchKey
from buckram.metadata.accused import ACCUSED, CONVICTED, read_accused
from buckram.metadata.checkup_past import examine_past
from buckram.metadata.store import UNREADABLE, TreeStore
from buckram.types import NO_BIRTH, BookieId, LedgerId, LedgerMetadata, LedgerState

_PAGE = 1000
_AT_ONCE = 64
_CREDENTIALS = "use the credentials that the cluster's other processes use"
_HANGS = "Apache's clients hang on it when they list bookies"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: at which node, what was found, what to do."""

    node: str
    found: str
    advice: str


@dataclass(slots=True)
class Checkup:
    """What a cluster consists of. `ledgers` counts by state; `unreadable` ones are among the problems."""

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
    """Ledgers that name a bookie which is not registered now."""
    away: list[BookieId] = field(default_factory=list)
    """Those bookies."""
    problems: list[Problem] = field(default_factory=list)


async def examine(store: TreeStore) -> Checkup:
    """Read the cluster. ClusterNotInitialised where there is none, MetadataUnavailable when the store goes away."""
    checkup = Checkup(store.uri)
    try:
        checkup.manager = await store.ledgers.manager_name()
        checkup.instance_id = await store.instance_id()
    except MalformedRecord as error:
        node, _, found = str(error).partition(": ")
        _add(checkup, node, found, "until then no ledger can be read, and none was looked at")
        checkup.instance_id = (await _value(store, checkup, store.layout.instance_id) or b"").decode("utf-8", "replace")
    if not checkup.instance_id:
        found = "missing: the cluster's cookies carry no instance id"
        _add(checkup, store.layout.instance_id, found, "nothing, if the cluster was made by software older than 4.3")
    await _examine_cookies(store, checkup)
    for readonly in (False, True):
        await _examine_registrations(store, checkup, readonly=readonly)
    listed = [*checkup.writable, *checkup.readonly]
    checkup.epoch = await examine_past(store, listed, lambda *problem: _add(checkup, *problem))
    await _examine_accused(store, checkup)
    if checkup.manager:
        await _examine_ledgers(store, checkup)
        for node in await store.ledgers.strays():
            _add(checkup, node, "a foreign node", "see whose it is and remove it: no part of a cluster")
    return checkup


def _add(checkup: Checkup, node: str, found: str, advice: str) -> None:
    checkup.problems.append(Problem(node, found, advice))


async def _names(store: TreeStore, parent: str) -> list[str]:
    names: list[str] = []
    while page := await store.keys.children(parent, after=names[-1] if names else "", limit=_PAGE):
        names += page
    return names


async def _value(store: TreeStore, checkup: Checkup, node: str) -> bytes | None:
    """What a node holds; None if it has gone or cannot be read, which is noted."""
    try:
        return (await store.keys.get(node)).value
    except NoSuchKey:
        return None
    except AccessRefused as error:
        _add(checkup, node, error.found, _CREDENTIALS)
        return None


async def _examine_cookies(store: TreeStore, checkup: Checkup) -> None:
    for name in await _names(store, store.layout.cookies):
        node = store.layout.cookie(name)
        if not valid_bookie_id(name):
            _add(checkup, node, "no bookie id", f"remove the node: {_HANGS}")
            continue
        checkup.cookies.append(name)
        record = await _value(store, checkup, node)
        if record is None:
            continue
        try:
            cookie = parse_cookie(record)
        except MalformedRecord as error:
            _add(checkup, node, str(error), f"restore it from the file VERSION of bookie {name}, which will not start")
            continue
        if cookie.bookie_host != name:
            found = f"the cookie of bookie {cookie.bookie_host!r}"
            _add(checkup, node, found, f"restore it from the file VERSION of bookie {name}, which will not start")
        if (cookie.instance_id or "") != checkup.instance_id:
            found = f"instance id {cookie.instance_id!r}, this cluster is {checkup.instance_id!r}"
            advice = f"bookie {name} belongs to another cluster, or this one was formatted: it will not start here"
            _add(checkup, node, found, advice)


async def _examine_registrations(store: TreeStore, checkup: Checkup, *, readonly: bool) -> None:
    folder = store.layout.registrations(readonly=readonly)
    for name in await _names(store, folder):
        node = f"{folder}/{name}"
        if name == "readonly" and not readonly:
            continue
        if not valid_bookie_id(name):
            _add(checkup, node, "no bookie id", f"end the process that made it: {_HANGS}")
            continue
        (checkup.readonly if readonly else checkup.writable).append(name)
        record = await _value(store, checkup, node)
        if record is None:
            continue
        try:
            info = decode_service_info(name, record)
        except MalformedRecord as error:
            _add(checkup, node, str(error), f"restart bookie {name} with software that registers well: {_HANGS}")
            continue
        admission = info.properties.get(ADMISSION_PROPERTY, "known")
        if admission != "known":
            found = f"takes adds to {admission} ledger, also to one that metadata does not know"
            advice = f'acknowledged entries can be lost: restart bookie {name} without admission = "{admission}"'
            _add(checkup, node, found, advice)
        if info.rpc_address is None:
            found = "no address" if record else "empty, and the id is no host:port"
            _add(checkup, node, found, f"nobody can reach bookie {name}: restart it with its address configured")
        if name not in checkup.cookies:
            _add(checkup, node, "registered without a cookie", f"restart bookie {name}: it makes its cookie at start")


async def _examine_accused(store: TreeStore, checkup: Checkup) -> None:
    """Who lied, and who may only be damaged: a verdict and its reasons."""
    for one in await read_accused(store):
        node = f"{store.own}/{CONVICTED if one.convicted else ACCUSED}/{one.bookie}"
        reasons = "; ".join(map(str, one.evidence[-3:]))
        if one.convicted:
            advice = (
                f"it gets no new ensembles: stop bookie {one.bookie}, repair the ledgers that name it, find out what "
                f"runs there; `buckram cluster pardon {one.bookie}` takes it back"
            )
            _add(checkup, node, f"bookie {one.bookie} is convicted: {reasons}", advice)
        else:
            advice = (
                "this may be an accident: look at its disk, repair the ledger, then "
                f"`buckram cluster pardon {one.bookie}`"
            )
            _add(checkup, node, f"bookie {one.bookie} is suspect: {reasons}", advice)


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
        advice = (
            "find out who copied records; `buckram ledger check` says which of them have entries: delete the others"
        )
        _add(checkup, store.root, found, advice)


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


async def _state(store: TreeStore, ledger_id: LedgerId) -> LedgerMetadata | Problem | None:
    """None for a ledger that was deleted since it was listed."""
    node = await store.ledgers.key(ledger_id)
    try:
        return parse((await store.keys.get(node)).value)
    except NoSuchKey:
        return None
    except MalformedRecord as error:
        return Problem(node, str(error), UNREADABLE)
    except AccessRefused as error:
        return Problem(node, error.found, _CREDENTIALS)
