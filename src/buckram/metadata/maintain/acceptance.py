"""Accepts a metadata store that went back or was restored, so that it serves the cluster in a new epoch.

Every running bookie publishes a note of the epochs it has seen and the ids it holds. The new epoch is higher than all
of those, and new ids start after all of those. A bookie that returns later moves the ids itself when it adopts the
epoch (`bookie/trust/witness.py`).

While the store waits, bookies also report the deletions that they saw since the backup, and those are compared with
what came back with it. Bookies write apart from the recorded deletions, because those of the backup mean something
else: a ledger that had a record in the backup although its deletion was recorded there was made again since, and stays.
Not here: what bookies remember (`bookie/trust/witness_memory.py`).
"""

from __future__ import annotations

import asyncio
import json
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from buckram.core.backoff import STORE_CONFLICT, Delays
from buckram.core.cluster.store_history import encode_word, why_not_accepted
from buckram.core.ledgers.deletions import (
    BUCKET,
    NONE_DELETED,
    Deleted,
    decode_deleted,
    deletions_key,
    told_folder,
    told_key,
)
from buckram.errors import InvalidArgument, KeyExists, MetadataUnavailable, NoSuchKey, NoSuchLedger, VersionConflict
from buckram.metadata.maintain.backup import read_history, replace_history
from buckram.metadata.tree.key_operations import all_names
from buckram.metadata.tree.layout import COLLECT, SUSPECTS
from buckram.metadata.tree.removals import all_recorded, buckets_below
from buckram.metadata.tree.store import TreeStore
from buckram.seams import MetadataStore
from buckram.types import BookieId, History, LedgerId

_AT_ONCE = 32
_TRIES = 60


async def tell(store: MetadataStore, known: Mapping[int, Deleted]) -> None:
    """Report deletions that were seen, added to the reports of other bookies. Raises MetadataError."""
    buckets = list(known)
    for start in range(0, len(buckets), _AT_ONCE):
        some = buckets[start : start + _AT_ONCE]
        await asyncio.gather(*(_add(store, told_key(store.own, one), known[one]) for one in some))


async def compare(store: TreeStore) -> list[LedgerId]:
    """Record what bookies reported, and remove the records of the ledgers that the backup brought back although they
    had been deleted since. Return these, ascending.

    Only while the store is not in use. Raises MetadataError. A second call repeats the work, and finds only what was
    left.
    """
    told, recorded = await buckets_below(store, told_folder(store.own)), await all_recorded(store)
    news = {bucket: seen - recorded.get(bucket, NONE_DELETED) for bucket, seen in told.items()}
    back = await _with_records(store, news)
    for start in range(0, len(back), _AT_ONCE):
        await asyncio.gather(*(_remove(store, one) for one in back[start : start + _AT_ONCE]))
    for bucket, seen in news.items():
        if seen:
            await _add(store, deletions_key(store.own, bucket), seen)
    for bucket in told:
        await _forget(store, told_key(store.own, bucket))
    return back


async def _with_records(store: TreeStore, deleted: Mapping[int, Deleted]) -> list[LedgerId]:
    found: list[LedgerId] = []
    for bucket in sorted(deleted):
        if not deleted[bucket]:
            continue
        after, end = bucket * BUCKET - 1, (bucket + 1) * BUCKET
        while after < end and (page := await store.list_ledgers(after=after)):
            after = page[-1]
            found += [one for one in page if one < end and one in deleted[bucket]]
    return found


async def _remove(store: TreeStore, ledger_id: LedgerId) -> None:
    try:
        found = await store.keys.get(await store.ledger_key(ledger_id))
        await store.ledgers.remove(ledger_id, found.version)
    except (NoSuchKey, NoSuchLedger):
        return


async def _add(store: MetadataStore, key: str, ids: Deleted) -> None:
    delays = Delays(STORE_CONFLICT)
    for _ in range(_TRIES):
        try:
            found = await store.keys.get(key)
            before = decode_deleted(key, found.value)
            if (after := before | ids) != before:
                await store.keys.set(key, after.encode(), found.version)
            return
        except NoSuchKey:
            try:
                await store.keys.create(key, ids.encode())
                return
            except KeyExists:
                continue
        except VersionConflict:
            await asyncio.sleep(delays.take())
    raise MetadataUnavailable(f"{key}: others changed it {_TRIES} times meanwhile; try again")


async def _forget(store: MetadataStore, key: str) -> None:
    try:
        await store.keys.delete(key, (await store.keys.get(key)).version)
    except NoSuchKey:
        return


WITHIN_S = 15.0
_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class Suspect:
    """Note of a bookie that does not believe the store. `why`: its reason."""

    bookie_id: BookieId
    why: str
    address: str
    epoch: int
    highest_ledger: LedgerId
    told: int | None = None
    """Version of the history's key since which it has reported all that it saw deleted; -1 if it has not, None if its
    release does not report deletions.
    """


class Acceptance(NamedTuple):
    """`deleted_again`: ledgers that came back with the backup although bookies saw them deleted since."""

    history: History
    deleted_again: list[LedgerId]


async def suspects(store: TreeStore) -> list[Suspect]:
    folder, found = f"{store.own}/{SUSPECTS}", []
    async for name in all_names(store.keys, folder):
        try:
            record = (await store.keys.get(f"{folder}/{name}")).value
        except NoSuchKey:
            continue
        one = _suspect(name, record)
        if one is not None:
            found.append(one)
    return found


def _suspect(name: BookieId, record: bytes) -> Suspect | None:
    try:
        said = json.loads(record)
        told = int(said["told"]) if "told" in said else None
        highest = int(said["highest_ledger"])
        return Suspect(name, str(said["why"]), str(said["address"]), int(said["epoch"]), highest, told)
    except (ValueError, KeyError, TypeError):
        return None


async def _nothing() -> None:
    """Repair nothing: there is nothing above ledgers."""


async def accept(
    store: TreeStore,
    rng: random.Random,
    without: Collection[BookieId] = (),
    repair: Callable[[], Awaitable[object]] = _nothing,
) -> Acceptance:
    """Begin a new epoch. What came back although it was deleted since is deleted again.

    `repair` mends what names such ledgers. It is called before the new epoch begins, so that whoever is stopped in
    between is asked to accept again, and it has to find by itself what an earlier call has left.

    Raises InvalidArgument if there is nothing to accept; MetadataUnavailable names bookies that do not show up and are
    not among `without`; MetadataError if another process restores or accepts the store at the same time.
    """
    history, version = await read_history(store)
    if history.moved and not history.accepted:
        raise InvalidArgument(f"{store.uri} cannot be accepted: {why_not_accepted(history)}")
    if history.accepted and not await suspects(store):
        raise InvalidArgument(
            f"{store.uri}: this store is in use, in epoch {history.epoch}, and no bookie reports that it went back: "
            "there is nothing to accept, and nothing is left to do"
        )
    # The store is not in use while it is looked at, and every running bookie reports what it knows.
    version = await replace_history(store, replace(history, accepted=False, moved=""), version)
    said = await _all_bookies(store, without, version)
    epoch = max([history.epoch, *(one.epoch for one in said)]) + 1
    highest = max((one.highest_ledger for one in said), default=-1)
    if highest >= 0:
        await store.raise_next_id(highest)
    deleted_again = await compare(store)
    await repair()
    accepted = History(epoch, str(uuid.UUID(int=rng.getrandbits(128), version=4)))
    await replace_history(store, accepted, version)
    await _followed(store)
    return Acceptance(accepted, deleted_again)


async def _followed(store: TreeStore) -> None:
    """Wait for the bookies to go on; the next checkup names those that do not follow in time."""
    deadline = asyncio.get_running_loop().time() + WITHIN_S
    while await suspects(store) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - of other processes
        await asyncio.sleep(_PAUSE_S)


async def _all_bookies(store: TreeStore, without: Collection[BookieId], version: int) -> list[Suspect]:
    """Wait until each bookie has written its note, and reported what it saw deleted since the history has this version:
    what it reported before may have gone with another restore.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + WITHIN_S
    known = [one for one in await store.known_bookies() if one not in without]
    while True:
        said = await suspects(store)
        whole = {one.bookie_id for one in said if one.told is None or one.told >= version}
        missing = [one for one in known if one not in whole]
        if not missing:
            return said
        if loop.time() > deadline:
            raise MetadataUnavailable(
                f"{', '.join(missing[:10])}: {len(missing)} bookies do not run, so it is not known what they "
                "hold: start "
                "them, or name each that will never come back with --without ID"
            )
        await asyncio.sleep(_PAUSE_S)


async def allow_collection(store: TreeStore, rng: random.Random) -> None:
    """Tell every bookie, once, that ledgers that it found absent may be collected."""
    history = await store.history()
    if history.moved and not history.accepted:
        raise InvalidArgument(f"{store.uri}: nothing is collected: {why_not_accepted(history)}")
    key, word = f"{store.own}/{COLLECT}", encode_word(f"{rng.getrandbits(128):032x}")
    try:
        found = await store.keys.get(key)
    except NoSuchKey:
        await store.keys.create(key, word)
    else:
        await store.keys.set(key, word, found.version)
