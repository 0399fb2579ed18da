"""Store: the log is the database. What the rest of the bookie sees of storage; synchronous unless it says otherwise.

Everything is readable as soon as it is inserted and durable when `after_durable` says so. Checks (keys, fences) belong
to the caller: between its check and the insertion there is no await. A LedgerRecord is valid until the next await.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable
from functools import partial

from buckram.bookie.commit import CommitStats, GroupCommit, Waiter
from buckram.bookie.compaction import Compaction, Progress
from buckram.bookie.index import Slot
from buckram.bookie.ledger_table import LedgerRecord, LedgerTable
from buckram.bookie.lookup import Lookup
from buckram.bookie.maintenance import Maintenance
from buckram.bookie.opening import Opening, open_state
from buckram.bookie.segments import Segment
from buckram.bookie.store_errors import StoreError
from buckram.bookie.store_reads import ReadableStore
from buckram.bookie.store_state import StoreState
from buckram.bookie.tail_ring import TailRing
from buckram.config import StoreConfig
from buckram.core.messages import MemoryUse
from buckram.core.segment_format import MAX_LAC_PACKET, STATE_FRAME_SIZE
from buckram.errors import InvalidArgument, invariant_failed
from buckram.seams import Disk, Stats
from buckram.types import MASTER_KEY_SIZE, NO_ENTRY, Buffer, EntryId, LedgerId

log = logging.getLogger("buckram.store")
__all__ = ["LedgerRecord", "Store", "StoreError"]
_RING_ROOM = 16 << 20


def _call_all(listeners: list[Callable[[], None]]) -> None:
    for callback in listeners:
        callback()


class Store(ReadableStore):
    """One bookie's data in one directory. Made by `open`; every method runs on the loop's thread."""

    def __init__(self, state: StoreState, stats: Stats) -> None:
        self._state, self._disk = state, state.disk
        self._was_clean = state.fresh or state.superblock.clean
        self._closed = self._compacting = False
        self._space_listeners: list[Callable[[], None]] = []
        self._failure_listeners: list[Callable[[BaseException], None]] = []
        config = state.config
        self._room_listeners: list[Callable[[], None]] = []
        self._maintenance = Maintenance(
            state, partial(_call_all, self._space_listeners), partial(_call_all, self._room_listeners), stats
        )
        ring = TailRing(max(config.tail_cache_bytes, config.commit_max_bytes + _RING_ROOM))
        self._log = state.log = GroupCommit(
            state.disk, ring, state.salt, config.commit_max_bytes, config.segment_bytes, self._next_segment,
            self._failed, CommitStats(stats),
        )
        self._log.on_full = self._maintenance.measure
        self._table = state.table = LedgerTable(
            config.ledger_cache_entries, state.losses, state.uncovered, self._maintenance.mend
        )
        self._pinned = self._table.pinned
        self._lookup = state.lookup = Lookup(
            state.disk, state.files, self._log, self._table, state.losses, state.newest_first, self._maintenance.mend
        )

    @classmethod
    def open(cls, disk: Disk, config: StoreConfig, stats: Stats, rng: random.Random) -> Store:
        """Lock the directory and read what is there; an empty one becomes a new store with a new incarnation.

        OSError (in use, unreadable), CorruptStore (damaged superblock, newer format), ConfigError. Blocking. Background
        work starts at once when a loop runs, else with the first insertion.
        """
        disk.lock()
        store = cls(open_state(disk, config, rng), stats)
        Opening(store._state).run()
        store._maintenance.measure()
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(store._maintenance.start)
        return store

    # -- facts

    @property
    def incarnation(self) -> str:
        return self._state.superblock.incarnation

    @property
    def unclean(self) -> bool:
        """The store was not closed properly before. That alone loses nothing."""
        return not self._was_clean

    @property
    def limbo(self) -> bool:
        """Acknowledged data may be missing: absence proves nothing for ledgers that are not known to be younger."""
        return self._state.losses.limbo

    @property
    def failed(self) -> OSError | None:
        """The error that ended the log, usually a failed sync. Nothing is retried; the bookie stops."""
        return self._log.failed

    @property
    def is_writable(self) -> bool:
        return self._state.space.writable and self._log.failed is None

    @property
    def reserve_usable(self) -> bool:
        """Recovery adds and fences still have room."""
        return self._state.space.reserve_usable and self._log.failed is None

    def on_space_change(self, callback: Callable[[], None]) -> None:
        """Called when `is_writable` changed."""
        self._space_listeners.append(callback)

    def on_failed(self, callback: Callable[[BaseException], None]) -> None:
        """Called once when the log failed."""
        self._failure_listeners.append(callback)

    @property
    def crowded(self) -> bool:
        """Adds come faster than log files are finished: whoever can wait sends no more until `on_room`."""
        return self._maintenance.crowded

    def on_room(self, callback: Callable[[], None]) -> None:
        """Called when `crowded` ends."""
        self._room_listeners.append(callback)

    def _failed(self, error: OSError) -> None:
        for callback in self._failure_listeners:
            callback(error)

    def stats(self) -> dict[str, int]:
        """Counts and bytes of now, for people and metrics."""
        return {
            **self._state.counts(), "ledgers_in_memory": len(self._pinned), "checkpoints": self._maintenance.checkpoints
        }

    def memory(self) -> list[MemoryUse]:
        """Who holds how much of the process's memory."""
        return self._state.memory()

    # -- inserting

    def ledger(self, ledger_id: LedgerId) -> LedgerRecord | None:
        """None: never seen by this incarnation (in limbo: not known to have been seen)."""
        return self._table.find(ledger_id)

    def add_run(
        self, ledger_id: LedgerId, first: EntryId, count: int, lac: EntryId, chunk: Buffer, start: int, end: int,
        *, even: bool = False,
    ) -> None:  # fmt: skip
        """Insert the frames chunk[start:end]: `count` ADD packets with consecutive ids from `first` on.

        The ledger's record exists. `chunk` must not change afterwards. `lac` is the highest LAC among the frames.
        `even`: all frames have one size, so that who reads one of them need not read them all.
        StoreError (kinds busy, full, io) if it cannot be taken in; then nothing has changed.
        """
        commit = self._log
        commit.make_room(end - start + STATE_FRAME_SIZE)
        record = self._pinned.get(ledger_id)
        slot = record.slot if record is not None else None
        if record is None or slot is None or slot.segment != commit.segment_seq or record.tombstone:
            record, slot = self._first_touch(ledger_id)
        offset = commit.append(chunk, start, end)
        if grown := slot.insert(first, count, offset, end - start, even=even):
            segment = commit.segment
            assert segment is not None
            assert segment.index is not None
            segment.index.overlays += grown
        slot.bytes += end - start
        commit.runs += 1
        if first + count - 1 > record.last:
            record.last = first + count - 1
        if lac > record.lac:
            record.lac = lac

    def _first_touch(self, ledger_id: LedgerId) -> tuple[LedgerRecord, Slot]:
        """The active segment gets the ledger's state before its first add there, so that it can be read by itself."""
        record = self._known(ledger_id)
        slot = self._slot(record)
        record.tombstone = False
        self._append_state(record)
        return record, slot

    def _slot(self, record: LedgerRecord) -> Slot:
        """The record's slot in the active segment; an older one keeps the state as it is now. Before any change."""
        segment = self._log.segment
        assert segment is not None
        assert segment.index is not None
        slot = record.slot
        if slot is not None:
            if slot.segment == segment.seq:
                return slot
            slot.frozen = record.snapshot()
        slot = record.slot = segment.index.slots[record.ledger_id] = Slot(segment.seq, record)
        self._table.pin(record)
        return slot

    def _append_state(self, record: LedgerRecord) -> None:
        frame = record.frame()
        self._log.append(frame, 0, len(frame))

    def _change(self, record: LedgerRecord) -> Slot:
        """Get ready to change the record; `_append_state` follows, with no await between."""
        self._log.make_room(STATE_FRAME_SIZE)
        return self._slot(record)

    def put_ledger(
        self, ledger_id: LedgerId, master_key: bytes, admitted: bool = True, *, born: bool = False
    ) -> None:
        """First sight of a ledger, or its return after a burial (it stays fenced). Nothing for one that is here.

        `admitted`: metadata allowed normal adds. `born`: the ledger is certainly younger than any loss of this store.
        """
        if len(master_key) != MASTER_KEY_SIZE:
            raise InvalidArgument(f"a master key has {MASTER_KEY_SIZE} bytes, not {len(master_key)}")
        record = self._table.find(ledger_id)
        losses = self._state.losses
        if record is None:
            mark = losses.count if born or not losses.limbo else losses.count - 1
            record = LedgerRecord(ledger_id, master_key, admitted=admitted, born=mark)
            record.limbo = losses.marks(record)
        elif not record.tombstone:
            if admitted:
                self.admit(ledger_id)
            return
        else:
            self._change(record)
            record.tombstone, record.admitted = False, admitted
            self._append_state(record)
            return
        self._change(record)
        self._append_state(record)

    def _known(self, ledger_id: LedgerId) -> LedgerRecord:
        if (record := self._table.find(ledger_id)) is None:
            invariant_failed("put_ledger", f"ledger {ledger_id} has no record")
        return record

    def admit(self, ledger_id: LedgerId) -> None:
        """Metadata allows normal adds: remembered, so that it is asked once."""
        record = self._known(ledger_id)
        if not record.admitted:
            self._change(record)
            record.admitted = True
            self._append_state(record)

    def fence(self, ledger_id: LedgerId) -> None:
        """For ever; durable with the next commit."""
        record = self._known(ledger_id)
        if not record.fenced:
            self._change(record)
            record.fenced = True
            self._append_state(record)

    def set_explicit_lac(self, ledger_id: LedgerId, lac: EntryId, packet: bytes) -> None:
        """Keep the newest packet; the known LAC only grows. InvalidArgument for a packet that cannot be one."""
        if len(packet) > MAX_LAC_PACKET:
            raise InvalidArgument(f"explicit LAC packet of {len(packet)} bytes: the limit is {MAX_LAC_PACKET}")
        record = self._known(ledger_id)
        self._change(record)
        record.explicit_lac = bytes(packet)
        record.lac = max(record.lac, lac)
        self._append_state(record)

    def bury(self, ledger_id: LedgerId) -> None:
        """Tombstone: the ledger's data is dead, its key and fence stay for ever. Nothing for an unknown ledger."""
        record = self._table.find(ledger_id)
        if record is None or record.tombstone:
            return
        slot = self._change(record)
        state = self._state
        for segment in state.segments:
            if segment is self._log.segment:
                continue  # there the index itself forgets the data
            try:
                segment.dead_bytes += segment.bytes_of(ledger_id, record.epoch)
            except (ValueError, OSError):
                self._maintenance.mend(segment)
        if state.buried is not None:
            state.buried.append((ledger_id, record.epoch))
        record.epoch += 1
        record.tombstone = record.fenced = True
        record.admitted = False
        record.lac = record.last = NO_ENTRY
        record.explicit_lac = None
        slot.clear(record.epoch)
        slot.bytes = 0
        self._append_state(record)

    def after_durable(self, done: Waiter) -> None:
        """done(None | OSError) once everything inserted so far is durable; at once if it is."""
        self._log.after_durable(done)

    def after_written(self, done: Waiter) -> None:
        """For DEFERRED_SYNC adds, which may be acknowledged earlier. A block without its sync could not be told from a
        lost one after a crash, so this store gives them the stronger promise."""
        self._log.after_durable(done)

    def _next_segment(self, active: Segment) -> Segment | None:
        state = self._state
        spare = state.spare
        self._maintenance.wake()
        active.runs = self._log.runs
        if spare is None or not self._maintenance.may_roll():
            if self._log.overdue():
                self._maintenance.crowd()
            return None
        state.spare = None
        state.segments.append(spare)
        return spare

    # -- upkeep

    async def compact(self, progress: Progress | None = None) -> int:
        """Give back the space of dead data; returns the bytes won. May be cancelled and started again at any time.

        One at a time: a second call returns 0 at once. StoreError or OSError leave everything as it was.
        """
        if self._compacting or self._closed or self._log.failed is not None:
            return 0
        self._compacting = True
        try:
            return await Compaction(self._state, self._maintenance, progress).run()
        finally:
            self._compacting = False

    def clear_limbo(self) -> None:
        """An operator's word that every ledger was compared with its other replicas and repaired. It lasts once the
        damaged log file is sealed."""
        self._state.losses.limbo = False
        self._table.refresh_limbo()
        self._maintenance.spawn(self._maintenance.publish(), "clear limbo")

    async def close(self) -> None:
        """Write what is pending, remember that the stop was clean, release the files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._log.close()
        await self._maintenance.close()
        state = self._state
        if self._log.failed is None:
            try:
                await self._maintenance.publish_clean()
            except OSError as error:
                log.warning("the clean stop is not recorded: %s", error)
        for segment in (*state.segments, state.spare):
            if segment is not None and segment.file is not None:
                segment.file.close()
        state.files.close()

