"""Store: what the rest of the bookie sees of storage. Its log is its only database.

What is inserted is readable at once and durable when `after_durable` reports so. The caller checks keys and fences:
there is no await between its check and the insertion. A LedgerRecord is valid until the next await.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from buckram.bookie.storage.ledger_table import LedgerRecord, LedgerTable
from buckram.bookie.storage.log.block import CommitStats, DurableCallback, Syncs, TailRing
from buckram.bookie.storage.log.group_commit import BULK_TIMES, GroupCommit
from buckram.bookie.storage.log.log_position import Position, WitnessedPosition
from buckram.bookie.storage.opening import Opening, open_state
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.reading.lookup import Lookup
from buckram.bookie.storage.store_ledgers import LedgerStates
from buckram.bookie.storage.store_state import StoreState
from buckram.bookie.storage.upkeep.compaction import Compaction, Progress
from buckram.bookie.storage.upkeep.dead_bytes import DeadBytes, bytes_by, dead_bytes
from buckram.bookie.storage.upkeep.maintenance import FailureListener, Maintenance, StateListener, StoreListeners
from buckram.bookie.storage.upkeep.verifying import Verifying
from buckram.config import StoreConfig
from buckram.core.storage.ledger_state import STATE_FRAME_SIZE
from buckram.core.storage.plain_adds import COUNTS
from buckram.core.storage.taking import take_adds, take_v3_adds
from buckram.core.wire.adds import MAX_RUN_BYTES, refused_acks
from buckram.core.wire.adds_v3 import refused_v3_replies
from buckram.core.wire.messages import MemoryUse
from buckram.errors import Code, InvalidArgument
from buckram.seams import Disk, Stats
from buckram.types import Buffer, EntryId, LedgerId

log = logging.getLogger("buckram.store")
__all__ = ["LedgerRecord", "Store", "StoreError"]
_RING_ROOM = 16 << 20
UNLIMITED = 2**63 - 1
K = TypeVar("K")


@dataclass(slots=True)
class TakenAdds:
    """Adds that were inserted together: where they end in their chunk, their number, and their bytes as stored. Their
    replies, of code OK, are the first `reply_bytes` of `replies`."""

    end: int
    entries: int
    size: int
    replies: bytearray
    reply_bytes: int
    v3: bool

    def answer(self, code: Code) -> bytearray | bytes:
        """Return the replies with this code. It may be called once."""
        del self.replies[self.reply_bytes :]
        if code is Code.OK:
            return self.replies
        return refused_v3_replies(self.replies, code) if self.v3 else refused_acks(self.replies, code)


class Store(LedgerStates):
    """One bookie's data in one directory, made by `open`. Every method runs on the loop's thread."""

    def __init__(self, state: StoreState, stats: Stats) -> None:
        self._state, self._disk = state, state.disk
        self._closed = self._compacting = False
        self._listeners = StoreListeners()
        config = state.config
        self._maintenance = Maintenance(state, self._listeners, stats)
        ring = TailRing(max(config.tail_cache_bytes, BULK_TIMES * config.commit_max_bytes + _RING_ROOM))
        self._log = state.log = GroupCommit(
            state.disk,
            ring,
            state.salt,
            config.commit_max_bytes,
            config.segment_bytes,
            self._maintenance,
            CommitStats(stats),
        )
        self.suspended = False
        """While true, no adds are taken, although there may be room."""
        self.asked_readonly = False
        """While true, an operator wants no new entries here; recoveries go on as far as there is room."""
        self._table = state.table = LedgerTable(config.ledger_cache_entries, state.losses, state, self._maintenance)
        self._pinned = self._table.pinned
        self._counts = array("q", bytes(8 * COUNTS))
        self.ledger = self._table.find  # type: ignore[method-assign,assignment]  # what is only passed on
        self.after_durable = self._log.after_durable  # type: ignore[method-assign]
        self._lookup = state.lookup = Lookup(
            state.disk,
            state.files,
            self._log,
            self._table,
            state.losses,
            state,
            self._maintenance,
        )
        self.verifying = Verifying(state, self._maintenance)
        """Checks sealed log files, and knows which entries in them are bad."""

    @classmethod
    def open(
        cls, disk: Disk, config: StoreConfig, stats: Stats, rng: random.Random, witness: WitnessedPosition | None = None
    ) -> Store:
        """Lock the directory and read what is there; an empty one becomes a new store with a new incarnation.

        `witness`: what the witness key in the metadata store says. A directory that is behind it was restored from a
        copy, which is a loss. A claim about another incarnation is ignored.

        Raises OSError (in use, unreadable), CorruptStore (damaged superblock, newer format) or ConfigError. Blocking.
        Background work starts at once if a loop runs, else with the first insertion.
        """
        disk.lock()
        store = cls(open_state(disk, config, rng), stats)
        Opening(store._state, witness).run()
        store._maintenance.measure()
        with contextlib.suppress(RuntimeError):
            asyncio.get_running_loop().call_soon(store._maintenance.start)
        return store

    # -- facts

    @property
    def incarnation(self) -> str:
        return self._state.superblock.incarnation

    @property
    def limbo(self) -> bool:
        """Return whether acknowledged data may be missing. Absence then proves nothing, except of younger ledgers."""
        return self._state.losses.limbo

    @property
    def loss(self) -> int:
        """Return the number of the newest loss, which an operator names to clear the limbo; 0 if there was none."""
        return self._state.losses.count

    @property
    def starts(self) -> int:
        """Return the number of times that the directory was opened; recorded durably before anything is served."""
        return self._state.superblock.starts

    @property
    def position(self) -> Position:
        """Return the position where the durable log ends now; it only grows."""
        page = self._log.page
        assert page is not None
        return page.end

    def in_reserve(self, job: Callable[[], None]) -> None:
        """Run `job`, which writes a small file of the directory; on a full disk it uses the reserve. Blocking."""
        self._state.reserve.run(job)

    @property
    def failed(self) -> OSError | None:
        """Return the error that ended the log, usually a failed sync; None while it works. The bookie stops then."""
        return self._log.failed

    @property
    def readonly_why(self) -> str:
        """Return why the disk takes no new entries; empty if it takes them."""
        space = self._state.space
        return "" if space.writable else space.reason

    @property
    def is_writable(self) -> bool:
        return (
            not self.asked_readonly and self._state.space.writable and self._log.failed is None and not self.suspended
        )

    @property
    def reserve_usable(self) -> bool:
        """Return whether recovery adds and fences still have room."""
        return self._state.space.reserve_usable and self._log.failed is None and not self.suspended

    def on_space_change(self, listener: StateListener) -> None:
        """Have `listener` called whenever `is_writable` changes."""
        self._listeners.on_space.append(listener)

    def on_failed(self, listener: FailureListener) -> None:
        """Have `listener` called once when the log fails."""
        self._listeners.on_failure.append(listener)

    @property
    def backpressure(self) -> bool:
        """Return whether adds outrun sealing: then connections that write are not read until `on_backpressure_end`."""
        return self._maintenance.backpressure

    def on_backpressure_end(self, listener: StateListener) -> None:
        """Have `listener` called at each end of backpressure."""
        self._listeners.on_backpressure_end.append(listener)

    @property
    def highest_ledger(self) -> LedgerId:
        """Return the highest ledger id that this store has a state of; -1 if it has none."""
        return self._table.highest

    def stats(self) -> dict[str, int]:
        """Return present counts and bytes, for people and metrics."""
        return {
            **self._state.counts(),
            "ledgers_in_memory": len(self._pinned),
            "checkpoints": self._maintenance.checkpoints,
        }

    def memory(self) -> list[MemoryUse]:
        """Return how much of the process's memory each part of the store uses."""
        return self._state.memory()

    @property
    def syncs(self) -> Syncs:
        """Return the number of commits, and the seconds that their writes and syncs took."""
        return self._log.syncs

    @property
    def sync_under_way_s(self) -> float:
        """Return the seconds that the present commit has waited for the disk; 0.0 if there is none."""
        return self._log.sync_under_way_s

    # -- inserting

    def add_run(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        count: int,
        lac: EntryId,
        chunk: Buffer,
        start: int,
        end: int,
        *,
        even: bool = False,
        bulk: bool = False,
    ) -> None:
        """Insert the frames chunk[start:end]: `count` ADD packets with consecutive ids from `first` on.

        The ledger's record exists. `chunk` must not change afterwards. `lac` is the highest LAC among the frames.
        `even`: all frames have one size, so that a single one can be read without the others. `bulk`: they are copies
        for which nobody waits alone.
        Raises StoreError (kinds busy, full, io) if the run cannot be stored; then nothing has changed.
        """
        commit = self._log
        commit.make_room(end - start + STATE_FRAME_SIZE, bulk=bulk)
        record = self._pinned.get(ledger_id)
        ledger_index = record.active_index if record is not None else None
        if record is None or ledger_index is None or ledger_index.segment != commit.segment_seq or record.tombstone:
            record, ledger_index = self._first_touch(ledger_id)
        offset = commit.append(chunk, start, end)
        if grown := ledger_index.insert(first, count, offset, end - start, even=even):
            segment = commit.segment
            assert segment is not None
            assert segment.index is not None
            segment.index.overlays += grown
        ledger_index.bytes += end - start
        commit.runs += 1
        if first + count - 1 > record.last:
            record.last = first + count - 1
        if lac > record.lac:
            record.lac = lac

    def take_adds(
        self,
        chunk: bytes,
        offset: int,
        max_packet: int,
        named: Mapping[LedgerId, bytes],
        waiting: Mapping[LedgerId, object],
        undecided: Mapping[LedgerId, object],
        allowed: Mapping[LedgerId, bytes] | None,
        most_bytes: int,
        *,
        v3: bool,
    ) -> TakenAdds | None:
        """Insert the plain adds of a received chunk from `offset` on, `most_bytes` at most, as `add_run` would one run
        after the other. Returns None if the first one is not plain (`core/storage/plain_adds.py`).

        `named`, `waiting`, `undecided` and `allowed` are as there. `chunk` must not change afterwards.
        """
        commit, counts, left = self._log, self._counts, len(chunk) - offset
        replies, frames, start = bytearray(), bytearray(left if v3 else 0), 0 if v3 else offset
        source = frames if v3 else chunk
        try:
            room = min(most_bytes, commit.begin_slice(source, start, min(left, MAX_RUN_BYTES)))
        except StoreError:
            return None  # the usual way says why
        before = (chunk, offset, max_packet, MAX_RUN_BYTES, room, commit.place, commit.segment_seq, self._pinned)
        if v3:
            take_v3_adds(*before, named, waiting, undecided, allowed, replies, counts, frames)
        else:
            take_adds(*before, named, waiting, undecided, allowed, replies, counts)
        end, entries, runs, reply_bytes, size = counts
        if not entries:
            commit.end_slice()
            return None
        commit.append(source, start, start + size)
        commit.runs += runs
        return TakenAdds(end, entries, size, replies, reply_bytes, v3)

    def fence(self, ledger_id: LedgerId) -> None:
        """Fence the ledger for good; durable with the next commit. Raises StoreError; then nothing has changed."""
        record = self._known(ledger_id)
        if not record.fenced:
            self._change(record)
            record.fenced = True
            self._append_state(record)

    def after_durable(self, done: DurableCallback) -> None:
        """Call `done` once everything inserted so far is durable, at once if it is; with an error if the log failed."""
        self._log.after_durable(done)

    def after_written(self, done: DurableCallback) -> None:
        """Call `done` when DEFERRED_SYNC adds may be acknowledged: here only once they are durable, as `after_durable`.

        After a crash, a block that was acknowledged without its sync could not be distinguished from a lost one.
        """
        self._log.after_durable(done)

    # -- upkeep

    async def compact(self, progress: Progress | None = None, *, threshold: float | None = None) -> int:
        """Free the space of dead data. Returns the bytes freed; may be cancelled and started again at any time.

        `threshold`: files of which less than this share is alive are rewritten, in place of those below
        [store] compaction_threshold.

        Only one compaction runs at a time: a second call returns 0 at once. After a StoreError or OSError the data is
        as it was before.
        """
        if self._compacting or self._closed or self._log.failed is not None:
            return 0
        self._compacting = True
        try:
            return await Compaction(self._state, self._maintenance, progress, threshold).run()
        finally:
            self._compacting = False

    async def dead_bytes(self) -> DeadBytes:
        """Count the bytes of log files that no ledger needs, by the kind of file."""
        return await dead_bytes(self._state)

    @property
    def compaction_threshold(self) -> float:
        """Return the share of live bytes below which `compact` rewrites a sealed file."""
        return self._state.config.compaction_threshold

    async def is_dead_beyond(self, share: float) -> bool:
        """Return whether dead bytes exceed this share of the live ones by more than the size of one log file."""
        state, dead = self._state, sum(await self.dead_bytes())
        live = sum(one.log_end for one in state.segments) - dead
        return dead > share * live + state.config.segment_bytes

    async def bytes_by(self, kinds: Mapping[LedgerId, K]) -> dict[K, int]:
        """Sum up the bytes of the ledgers in `kinds`, by kind. Raises OSError."""
        return await bytes_by(self._state, kinds, self._maintenance.repair_footer)

    def clear_limbo(self, loss: int) -> None:
        """Clear limbo after an operator confirms that every ledger was repaired since this loss.

        It is permanent once the damaged log file is sealed. Raises InvalidArgument for any loss but the newest.
        """
        newest = self._state.losses.count
        if loss != newest:
            raise InvalidArgument(
                f"loss {loss} is not the newest, that is {newest}: repair all ledgers of this bookie first"
            )
        self._state.losses.limbo = False
        self._table.refresh_limbo()
        self._maintenance.spawn(self._maintenance.publish_until_written(), "clear limbo")

    async def close(self) -> None:
        """Write pending data, record the clean stop and release the files. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._log.close()
        await self._maintenance.close()
        state = self._state
        if self._log.failed is None:
            try:
                await self._maintenance.superblocks.publish_clean()
            except OSError as error:
                log.warning("the clean stop is not recorded: %s", error)
        for segment in (*state.segments, state.spare):
            if segment is not None and segment.file is not None:
                segment.file.close()
        state.files.close()
