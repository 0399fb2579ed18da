"""Deletions that bookies saw since a backup was made: they report them while the restored metadata wait to be accepted,
and they are compared on acceptance.

Bookies write apart from the recorded deletions, because those of the backup mean something else: a ledger that had a
record in the backup although its deletion was recorded there was made again since, and stays. Not here: what bookies
remember (`bookie/trust/witness_memory.py`); the acceptance (`metadata/maintain/acceptance.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from buckram.core.backoff import STORE_CONFLICT, Delays
from buckram.core.ledgers.deletions import (
    BUCKET,
    NONE_DELETED,
    Deleted,
    decode_deleted,
    deletions_key,
    told_folder,
    told_key,
)
from buckram.errors import KeyExists, MetadataUnavailable, NoSuchKey, NoSuchLedger, VersionConflict
from buckram.metadata.tree.removals import all_recorded, buckets_below
from buckram.metadata.tree.store import TreeStore
from buckram.seams import MetadataStore
from buckram.types import LedgerId

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
