"""Garbage collection: deletes ledgers of this bookie that were deleted on purpose, and those that metadata no longer
lists (F17).

Not here: which deletions are recorded, and limits on deletions (`bookie/garbage/gc_limits.py`); what a deletion does to
the files (`bookie/storage/store_ledgers.py`, `bookie/storage/upkeep/compaction.py`); what is kept, and why
(`bookie/garbage/collection_account.py`); collecting on request (`bookie/operator_requests.py`).
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from buckram.bookie.garbage.collection_account import Account, UncollectedLedgers, sum_of
from buckram.bookie.garbage.gc_limits import DeletionLimits, RecordedDeletions
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.slices import Slices
from buckram.bookie.storage.store import Store
from buckram.bookie.trust.witness_memory import DeletionMemory
from buckram.config import BookieConfig
from buckram.core.cluster.bookie_report import Collected, KeptGarbage
from buckram.errors import AccessRefused, MalformedRecord, MetadataError, NoSuchKey, NoSuchLedger
from buckram.metadata.records.incomplete_copies import forget_deleted
from buckram.seams import MetadataStore, Stats
from buckram.types import BookieId, LedgerId, LedgerMetadata

log = logging.getLogger("buckram.bookie")
PAGE = 1000
COMPARED_AT_ONCE = 400
DELETED_AT_ONCE = 8
"""Deletions per slice of work: each reads the index of every file and writes a state frame to the log."""
ASKED_AT_ONCE = 64
DEAD_SHARES = (0.1, 0.3, 0.6, 1.0, 1.25)
"""Live shares below which files are rewritten, as multiples of [store] compaction_threshold, one after the other. After
recorded deletions the first is used: files that are nearly all dead cost next to nothing, and entries that die soon are
not copied before. The others follow while too much of the store is dead."""
MOST_DEAD = 0.5
"""Too much is dead when it is more than this share of what lives, and a log file."""
_LONGEST_PAUSE_S = 30.0
EXAMINED_PER_ROUND = 2000
"""Ledger records that one round reads in search of copies that moved elsewhere; the next round continues there."""


@dataclass(slots=True)
class _Moved:
    """A CLOSED ledger none of whose fragments named this bookie at `since` (loop time)."""

    since: float
    entries: list[tuple[int, int]]


class _Absent:
    """Ledgers that a listing lacked, ascending, the loop time of the first such listing, and how many others of this
    bookie that listing was the first to lack; 24 bytes for each."""

    __slots__ = ("ids", "since", "vanished")

    def __init__(self) -> None:
        self.ids: array[int] = array("q")
        self.since: array[float] = array("d")
        self.vanished: array[int] = array("q")

    def add(self, ledger_id: LedgerId, since: float, vanished: int) -> None:
        self.ids.append(ledger_id)
        self.since.append(since)
        self.vanished.append(vanished)

    def keep(self, held: frozenset[LedgerId], before: _Absent) -> None:
        """Keep ledgers that are due but may not be deleted now, so that the next round decides on them again."""
        both = {one: (since, together) for one, since, together in self._rows()}
        both |= {one: (since, together) for one, since, together in before._rows() if one in held}
        self.ids, self.since, self.vanished = array("q"), array("d"), array("q")
        for one in sorted(both):
            self.add(one, *both[one])

    def _rows(self) -> Iterator[tuple[LedgerId, float, int]]:
        return zip(self.ids, self.since, self.vanished, strict=True)

    def vanished_with(self, ledger_id: LedgerId) -> int:
        """Return with how many others the ledger vanished between two listings, itself included; 0 if it is not
        absent."""
        at = bisect_left(self.ids, ledger_id)
        return self.vanished[at] if ledger_id in self else 0

    def __contains__(self, ledger_id: LedgerId) -> bool:
        at = bisect_left(self.ids, ledger_id)
        return at < len(self.ids) and self.ids[at] == ledger_id


def _report(dead: array[int]) -> None:
    """Log the number of ledgers that are deleted for their absence, and each of them on a line of its own."""
    if dead:
        what = "1 ledger is" if len(dead) == 1 else f"{len(dead)} ledgers are"
        log.warning("%s deleted here, absent from every listing of the metadata store", what)
    for ledger_id in dead:
        log.info("ledger %d: deleted here, absent from metadata", ledger_id)


def is_foreign(metadata: LedgerMetadata, bookie_id: BookieId) -> bool:
    """Return whether a ledger is CLOSED and no fragment names the bookie.

    It is never true for an open or recovering ledger (F17): a recovery may have written entries here for an ensemble
    that is not in metadata yet.
    """
    return metadata.closed and not any(bookie_id in fragment.ensemble for fragment in metadata.fragments)


class DeletionListener(Protocol):
    """Called after a ledger was deleted from this bookie (`bookie/service/server.py:Service.ledger_deleted`)."""

    def __call__(self, ledger_id: LedgerId, /) -> None: ...


class Collector:
    """Finds dead ledgers in rounds. `run` repeats them for ever, `round` is one comparison.

    It works in slices and keeps only numbers in memory, because a bookie may hold millions of ledgers.
    """

    def __init__(
        self,
        store: Store,
        metadata: MetadataStore,
        bookie_id: BookieId,
        config: BookieConfig,
        on_deleted: DeletionListener,
        brake: DeletionLimits | None = None,
        stats: Stats | None = None,
        memory: DeletionMemory | None = None,
    ) -> None:
        self._store, self._metadata, self._bookie_id, self._memory = store, metadata, bookie_id, memory
        self._config, self._on_deleted, self._brake = config, on_deleted, brake
        self._absent = _Absent()
        self._recorded = RecordedDeletions(metadata)
        self._contradicted: frozenset[LedgerId] = frozenset()
        """Ledgers that have a record although their deletion is recorded: they are kept."""
        self._held: frozenset[LedgerId] = frozenset()
        """Ledgers without metadata that were absent long enough to be deleted, but that the brake keeps."""
        self._to_go: frozenset[LedgerId] = frozenset()
        """Ledgers without metadata whose deletion is recorded in the metadata store."""
        self._moved: dict[LedgerId, _Moved] = {}
        self._examined_up_to: LedgerId = -1
        self._trusted = True
        self._account = Account(store, config, stats)
        self._one_at_a_time = asyncio.Lock()
        self.rounds = 0
        self.collected = 0
        self.freed_bytes = 0
        self.suspended: frozenset[str] = frozenset()
        """The kinds of compaction that an operator has stopped, major and minor; with any of them none is done."""
        self.compacting = False
        self.compactions = 0
        self.ledgers = 0
        """Number of ledgers with data here, as of the newest round."""
        self._ended: float | None = None
        self._looked_s = 0.0
        """Duration of the newest look at the recorded deletions, seconds."""
        self.last: Collected | None = None
        """Result of the newest collection; None before the first."""

    async def follow(self) -> None:
        """Delete what is recorded as deleted, again and again until cancelled.

        It needs no listing and no age. A bookie with very many ledgers looks less often: no more than a twentieth of
        its time goes into looking. What it finds to delete takes its time in any case, so that nothing waits for that.
        """
        interval = self._config.deletions_interval_s
        while True:
            await asyncio.sleep(max(interval, min(20 * self._looked_s, _LONGEST_PAUSE_S)))
            try:
                async with self._one_at_a_time:
                    if await self.recorded_round():
                        self.freed_bytes += await self._compact_dead()
            except (MetadataError, StoreError, OSError) as error:
                log.warning("ledgers that are recorded as deleted are kept for now: %s", error)

    async def run(self) -> None:
        """Collect again and again until cancelled."""
        while True:
            await asyncio.sleep(self._config.collection_interval_s)
            try:
                await self.collect()
            except (MetadataError, StoreError, OSError) as error:
                log.warning("collection postponed: %s", error)

    async def collect(self, *, whole: bool = False) -> Collected:
        """Do one round and a compaction. Returns what they freed and what is kept, with the reasons.

        `whole`: look at the record of every ledger here for copies that moved, not only at the next ones.

        Raises what `round` raises, after the compaction; StoreError or OSError if the files cannot be rewritten now.
        """
        async with self._one_at_a_time:
            trouble: MetadataError | StoreError | None = None
            deleted: array[int] = array("q")
            try:
                try:
                    deleted = await self.recorded_round()
                finally:  # what lacks a record has nothing to do with the records
                    deleted += await self.round(whole=whole)
                with suppress(AccessRefused):  # then administrators' processes do so, as autorecovery
                    await forget_deleted(self._metadata)
            except (MetadataError, StoreError) as error:
                trouble = error
            before = await self._kept()
            freed = await self._compact()
            self.freed_bytes += freed
            kept = await self._kept()
            self.last = self._account.note(Collected(len(deleted), sum_of(before), freed, kept))
            if trouble is not None:
                raise trouble
            return self.last

    async def _compact_dead(self) -> int:
        """Give back what is dead: all that costs next to nothing, and more as long as too much of the store is dead.

        So files that hold a little of what stays among much that lived for a minute do not wait for a collection.
        """
        freed = 0
        for share in DEAD_SHARES:
            freed += await self._compact(share * self._store.compaction_threshold)
            if not await self._store.is_dead_beyond(MOST_DEAD):
                break
        return freed

    async def _compact(self, threshold: float | None = None) -> int:
        """Rewrite files that are mostly dead, unless that is suspended. Return the bytes that it freed.

        `threshold`: only those of which less than this share is alive.
        """
        if self.suspended:
            return 0
        self.compacting = True
        try:
            freed = await self._store.compact(None, threshold=threshold)
        finally:
            self.compacting = False
            self._ended = asyncio.get_running_loop().time()
        self.compactions += 1
        return freed

    def ended_ago_s(self) -> float | None:
        """Return the seconds since the newest compaction ended; None before the first."""
        return None if self._ended is None else asyncio.get_running_loop().time() - self._ended

    async def _kept(self) -> tuple[KeptGarbage, ...]:
        return await self._account.kept(
            UncollectedLedgers(
                frozenset(self._absent.ids),
                frozenset(self._moved),
                self._brake.unknown if self._brake is not None else frozenset(),
                self._held,
                self._trusted,
                self._to_go,
            )
        )

    async def recorded_round(self) -> array[int]:
        """Delete the ledgers here whose deletion is recorded, and return them. Raises MetadataError and StoreError.

        Each is looked up once more: one that has a record all the same is kept, because nothing shows which of the two
        is right.
        """
        deleted: array[int] = array("q")
        if self._brake is not None and not await self._brake.trusted():
            return deleted
        if self._memory is not None:
            await self._memory.note_ids(await self._metadata.next_ledger_id())
        loop = asyncio.get_running_loop()
        began = loop.time()
        own = await self._store.live_ledger_ids()
        self._recorded.forget_others(own)
        dead = await self._recorded.among(own)
        self._looked_s = loop.time() - began
        if self._brake is not None:
            dead = self._brake.unambiguous(dead)
        if not dead or (self._brake is not None and not await self._brake.trusted()):
            return deleted
        kept: set[LedgerId] = set()
        for start in range(0, len(dead), ASKED_AT_ONCE):
            some = dead[start : start + ASKED_AT_ONCE]
            there = await asyncio.gather(*map(self._has_record, some))
            kept.update(one for one, is_there in zip(some, there, strict=True) if is_there)
            going = array("q", [one for one in some if one not in kept])
            if self._memory is not None:
                await self._memory.remember(going)
            await self._delete(going, deleted)
        for one in sorted(kept - self._contradicted):
            log.warning("ledger %d is kept: its deletion is recorded, but the metadata store has a record of it", one)
        self._contradicted = frozenset(kept)
        if deleted:
            log.info("%d ledgers deleted here, because their deletion is recorded", len(deleted))
        return deleted

    async def round(self, *, whole: bool = False) -> array[int]:
        """Compare once and return the deleted ledgers.

        Raises MetadataError if the listing failed; nothing was deleted then. Raises StoreError if the store refuses a
        deletion now; the remaining ones follow in the next round.
        """
        # Own ledgers are listed before the metadata, so that one created in between does not count as deleted.
        if self._brake is not None and not await self._brake.trusted():
            self._trusted = False
            return array("q")
        self._trusted = True
        own = await self._store.live_ledger_ids()
        self.ledgers = len(own)
        began = asyncio.get_running_loop().time()
        present, missing = await self._compare(own)
        recorded = frozenset(await self._recorded.among(missing, anew=True))
        if self._brake is not None:
            recorded = frozenset(self._brake.unambiguous(array("q", sorted(recorded))))
        dead, absent = await self._absent_long_enough(missing, began, recorded)
        deleted: array[int] = array("q")
        reviewed, held = True, frozenset[LedgerId]()
        if self._brake is not None:
            if not await self._brake.trusted():  # the listing may be of another history
                self._trusted = False
                return deleted
            vanished = {one: self._absent.vanished_with(one) for one in dead}
            reviewed, allowed = await self._brake.released(dead, len(own), vanished)
            if len(allowed) < len(dead):
                held = frozenset(dead) - frozenset(allowed)
                absent.keep(held, self._absent)
            dead = allowed
        _report(dead)
        await self._delete_absent(dead, deleted)
        self._absent, self._held, self._to_go = absent, held, recorded
        if reviewed:
            await self._collect_moved(present if whole else self._slice(present), deleted)
        self.rounds += 1
        return deleted

    async def _compare(self, own: array[int]) -> tuple[array[int], array[int]]:
        """Return the own ledgers that metadata lists, and those that it lacks. Raises if the listing is incomplete."""
        slices = Slices(1)
        present: array[int] = array("q")
        missing: array[int] = array("q")
        at, after = 0, -1
        while page := await self._metadata.list_ledgers(after=after, limit=PAGE):
            after = page[-1]
            listed = frozenset(page)
            stop = bisect_right(own, after, at)
            while at < stop:
                some = own[at : min(stop, at + COMPARED_AT_ONCE)]
                present.extend(one for one in some if one in listed)
                missing.extend(one for one in some if one not in listed)
                at += len(some)
                await slices.step()
        missing.extend(own[at:])
        return present, missing

    async def _absent_long_enough(
        self, missing: array[int], began: float, recorded: frozenset[LedgerId]
    ) -> tuple[array[int], _Absent]:
        """Return the ledgers that were absent for `collection_age_s`, and the others with the time of first absence.
        The `recorded` ones do not count as vanished: their deletion was intended."""
        ended, age = asyncio.get_running_loop().time(), self._config.collection_age_s
        known, slices = self._absent, Slices(COMPARED_AT_ONCE)
        dead: array[int] = array("q")
        absent = _Absent()
        at, count = 0, len(known.ids)
        vanished = sum(one not in known and one not in recorded for one in missing)
        for ledger_id in missing:
            while at < count and known.ids[at] < ledger_id:
                at += 1
            since = known.since[at] if at < count and known.ids[at] == ledger_id else None
            if since is not None and began - since >= age:
                dead.append(ledger_id)
            else:
                together = known.vanished[at] if since is not None else 0 if ledger_id in recorded else vanished
                absent.add(ledger_id, ended if since is None else since, together)
            await slices.step()
        return dead, absent

    async def _delete_absent(self, dead: array[int], deleted: array[int]) -> None:
        """Delete ledgers that the listings lacked, each after one more look for its very record (F17). If a ledger was
        made under the id since the listing it is left, and its time begins anew."""
        for start in range(0, len(dead), DELETED_AT_ONCE):
            some = dead[start : start + DELETED_AT_ONCE]
            there = await asyncio.gather(*(self._is_there(one) for one in some))
            await self._delete(
                array("q", [one for one, is_there in zip(some, there, strict=True) if not is_there]), deleted
            )

    async def _is_there(self, ledger_id: LedgerId) -> bool:
        if not await self._has_record(ledger_id):
            return False
        log.warning(
            "ledger %d is kept: the listings lacked it, but the metadata store has a record of it now", ledger_id
        )
        return True

    async def _has_record(self, ledger_id: LedgerId) -> bool:
        try:
            await self._metadata.read_ledger(ledger_id)
        except (NoSuchLedger, NoSuchKey):
            return False
        except (MalformedRecord, AccessRefused):
            pass
        return True

    async def _delete(self, dead: array[int], deleted: array[int]) -> None:
        slices = Slices(DELETED_AT_ONCE)
        for ledger_id in dead:
            record = self._store.ledger(ledger_id)
            if record is not None and not record.tombstone:
                self._store.delete_ledger(ledger_id)
                self.collected += 1
                deleted.append(ledger_id)
                self._on_deleted(ledger_id)
            await slices.step()

    async def _collect_moved(self, looked_at: array[int], deleted: array[int]) -> None:
        """Delete copies of closed ledgers that metadata places elsewhere, in two looks `collection_age_s` apart.

        If a ledger changed here between the two looks, the time begins again: a repair copies it to this bookie, and
        names the bookie in metadata only when the copy is complete (M7).
        """
        loop = asyncio.get_running_loop()
        for ledger_id in [known for known in self._moved if known in self._absent or self._store.ledger(known) is None]:
            del self._moved[ledger_id]
        for ledger_id in looked_at:
            try:
                metadata = (await self._metadata.read_ledger(ledger_id)).metadata
            except (NoSuchLedger, NoSuchKey):
                continue  # deleted since the listing; the next listings will lack it
            except (MalformedRecord, AccessRefused) as error:
                log.warning("ledger %d: its metadata cannot be read, so it is kept: %s", ledger_id, error)
                continue
            if not is_foreign(metadata, self._bookie_id):
                self._moved.pop(ledger_id, None)
                continue
            now, entries = loop.time(), self._store.entries(ledger_id)
            seen = self._moved.get(ledger_id)
            if seen is None or seen.entries != entries:
                self._moved[ledger_id] = _Moved(now, entries)
            elif now - seen.since >= self._config.collection_age_s:
                del self._moved[ledger_id]
                await self._delete(array("q", [ledger_id]), deleted)

    def _slice(self, present: array[int]) -> array[int]:
        """Return the next ledgers to examine, in rotation, so that a round reads a bounded number of records."""
        if len(present) <= EXAMINED_PER_ROUND:
            return present
        at = bisect_right(present, self._examined_up_to)
        chosen = present[at : at + EXAMINED_PER_ROUND]
        self._examined_up_to = chosen[-1] if at + EXAMINED_PER_ROUND < len(present) else -1
        return chosen
