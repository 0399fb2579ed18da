"""Group commit: everything that arrived during the last sync becomes one block, one write and one sync.

At most one block is in flight, so only the last block of the log can be torn. The newest bytes stay in a ring in
memory, where blocks are also assembled: each byte is copied once, and tailing readers never touch the disk.
Not here: the choice of the next file (`bookie/storage/upkeep/maintenance.py`); how a block is put together
(`bookie/storage/log/block.py`); the meaning of frames (`bookie/storage/store.py`).
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque

from buckram.bookie.storage.log.block import (
    BlockAssembly,
    CommitEvents,
    CommitStats,
    DurableCallback,
    Group,
    GrowthNeed,
    Syncs,
    TailRing,
    copy_of,
)
from buckram.bookie.storage.log.tail_page import TailPage
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.segments.segments import Segment
from buckram.core.storage.segment_format import BLOCK_HEADER, padded
from buckram.runtime.disk.io_errors import passing
from buckram.seams import Disk, Write
from buckram.types import Buffer

PENDING_LIMIT = 256 << 20
"""Bytes inserted but not yet handed to the disk, above which adds are refused. The server stops reading long before."""
INDEX_LIMIT = 24 << 20
"""Bytes of memory for the index of one unsealed segment; four times as much while the next file is not ready."""
OVERSHOOT = 64 << 20
"""Bytes, at least, that may go into the old file beyond its usual size while the next one is not ready."""
IDLE_S = 1.0
"""After this time without a block, an empty one closes the log's tail on the device."""
BULK_TIMES = 4
"""Factor by which a group with copies of other bookies' entries may be larger than others: no client waits for a single
copy, and each sync has its price."""
RETRY_S = 0.25
"""Pause before a block that found no space is written again."""


class GroupCommit:
    """Gathers frames at the end of the log and makes them durable."""

    def __init__(
        self,
        disk: Disk,
        ring: TailRing,
        salt: int,
        commit_max_bytes: int,
        soft_limit: int,
        events: CommitEvents,
        stats: CommitStats,
    ) -> None:
        self._disk, self.ring = disk, ring
        self.assembly = BlockAssembly(ring, salt, disk.alignment, soft_limit)
        self._max, self.soft_limit = commit_max_bytes, soft_limit
        self.hard_limit = min(soft_limit + max(soft_limit, OVERSHOOT), 2**31)
        self._events, self._stats = events, stats
        self.segment: Segment | None = None
        self.segment_seq = -1
        self.runs = 0
        self.failed: OSError | None = None
        self.full = False
        self.short = ""
        """Resource that the waiting block needs; valid only while `full`."""
        self.groups = self.bytes = 0
        self._open: Group | None = None
        self._closed: deque[Group] = deque()
        self._closed_bytes = 0
        self._in_flight: Group | None = None
        self._began = 0.0
        self._retry: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.page: TailPage | None = None
        self._kicked = self._closing = False
        self._loop: asyncio.AbstractEventLoop | None = None
        # The open block: file position of its next byte, where it must end, and the slice that may still grow.
        self._pos, self._limit, self._synced_at = 0, -1, 0.0
        self._chunk: Buffer | None = None
        self._slice_start = self._slice_end = 0

    def go_on_in(self, segment: Segment) -> None:
        """Make this the active segment."""
        if self.segment is not None:
            self.segment.runs = self.runs
        self.segment, self.segment_seq, self.runs = segment, segment.seq, segment.runs

    # -- inserting

    def make_room(self, size: int, *, bulk: bool = False) -> None:
        """Make sure that the next `size` bytes go to one block of `segment`, which may become another one here.

        `bulk`: the block may become larger for them than for others. Raises StoreError when too much waits for the
        disk, the log has no room, or it has failed.
        """
        if self._pos + size > self._limit and not (bulk and self._extended(size)):
            self._begin(size)

    def begin_slice(self, chunk: Buffer, start: int, size: int) -> int:
        """Prepare for frames from chunk[start] on to be appended; return how many bytes of them the open block takes.

        A block is begun if the open one has no room for `size` bytes: `end_slice` follows, with no await in between.
        Raises StoreError as `make_room`. Afterwards an `append` of the chunk from `start` on needs no memory.
        """
        if self._pos + size > self._limit:
            self._begin(size)
        if chunk is not self._chunk or start != self._slice_end:
            if self._chunk is not None:
                self._close_slice()
            self._chunk, self._slice_start, self._slice_end = chunk, start, start
        return self._limit - self._pos

    def end_slice(self) -> None:
        """Forget the block that `begin_slice` has begun, if nothing came into it."""
        group = self._open
        if group is not None and self._pos == group.start + BLOCK_HEADER and not group.waiters:
            self._open, self._chunk, self._limit = None, None, -1

    @property
    def place(self) -> int:
        """Return the offset in the file of `segment` at which the next frame will be."""
        return self._pos

    def append(self, chunk: Buffer, start: int, end: int) -> int:
        """Take chunk[start:end] (whole frames) into the open block; returns their offset in `segment`'s file.

        `make_room` for at least as much came before, without an await between.
        """
        pos = self._pos
        if chunk is self._chunk and start == self._slice_end:
            self._slice_end = end
        else:
            if self._chunk is not None:
                self._close_slice()
            self._chunk, self._slice_start, self._slice_end = chunk, start, end
        self._pos = pos + end - start
        if not self._kicked:
            self.kick()
        return pos

    def _begin(self, size: int) -> None:
        if self.failed is not None:
            raise StoreError("io", f"the log failed: {self.failed}")
        if self.segment is None:
            raise StoreError("io", "the store is closed")
        if size > self.ring.size // 2:
            raise StoreError(
                "busy", f"a run of {size} bytes is over the limit of {self.ring.size // 2}; raise tail_cache_bytes"
            )
        if (
            waiting := self._closed_bytes + (0 if self._open is None else self._pos - self._open.start)
        ) > PENDING_LIMIT:
            raise StoreError("busy", f"{waiting} bytes wait for the disk, the limit is {PENDING_LIMIT}")
        if self._open is not None:
            self._close_group()
        start, index = self.segment.log_end, self.segment.index
        costs = 0 if index is None else index.cost(self.runs)
        if start > 0 and (start + BLOCK_HEADER + size > self.soft_limit or costs > INDEX_LIMIT):
            fresh = self._events.next_segment(self.segment)
            if fresh is not None:
                self.go_on_in(fresh)
                start = fresh.log_end
            elif start > self.soft_limit and start + BLOCK_HEADER + size > self.hard_limit:
                raise StoreError("full", "the log file is full and there is no room for the next one")
            elif costs > 4 * INDEX_LIMIT:
                raise StoreError("busy", "the index of the log file is full and the next file is not ready")
        assert self.segment is not None
        self._open = Group(self.segment, start)
        self._pos = pos = start + BLOCK_HEADER
        block_end = min(start + self._max, max(self.soft_limit, pos + size))
        self._limit = max(block_end, pos + size)

    def _extended(self, size: int) -> bool:
        """Return whether the open block has room for `size` bytes more when it may be larger than usual, and if so
        raise its limit."""
        if self._open is None:
            return False
        most = min(self._open.start + BULK_TIMES * self._max, self.soft_limit)
        if self._pos + size > most:
            return False
        self._limit = most
        return True

    def overdue(self) -> bool:
        """Return whether half of the room for going on without the next file is used up: of the file, or of its
        index."""
        segment = self.segment
        return segment is not None and (
            segment.log_end > (self.soft_limit + self.hard_limit) // 2 or self._index_cost() > 2 * INDEX_LIMIT
        )

    def _index_cost(self) -> int:
        """Return the bytes of memory of the active segment's index; who inserts into it counts `runs`."""
        return 0 if self.segment is None or self.segment.index is None else self.segment.index.cost(self.runs)

    def _close_slice(self) -> None:
        chunk, start, end = self._chunk, self._slice_start, self._slice_end
        if chunk is not None and self._open is not None and end > start:
            if end - start < len(chunk) // 2:
                # A small slice must not keep a large receive buffer in memory.
                chunk, start, end = bytes(chunk[start:end]), 0, end - start
            self._open.slices.append((chunk, start, end))
        self._chunk = None

    def _close_group(self) -> None:
        group = self._open
        if group is None:
            return
        self._close_slice()
        group.size = self._pos - group.start - BLOCK_HEADER
        group.end = group.segment.log_end = group.start + padded(BLOCK_HEADER + group.size, self._disk.alignment)
        if group.end > group.segment.grows_at:
            self._events.file_nearly_full()
        self._closed.append(group)
        self._closed_bytes += group.size
        self._open, self._limit = None, -1

    @property
    def pending_bytes(self) -> int:
        """Return the bytes that were inserted but not yet handed to the disk."""
        return self._closed_bytes + (0 if self._open is None else self._pos - self._open.start)

    @property
    def syncs(self) -> Syncs:
        """Return the number of syncs so far, and the time that they took."""
        return Syncs(self._stats.count, self._stats.taken_s)

    @property
    def sync_under_way_s(self) -> float:
        """Return the seconds that the sync under way has taken; 0.0 if there is none, or it waits for space."""
        if self._in_flight is None or self._retry is not None or self._loop is None:
            return 0.0
        return self._loop.time() - self._began

    def after_durable(self, done: DurableCallback) -> None:
        """Call `done` once everything inserted so far is durable; at once if it is."""
        if self.failed is not None:
            done(self.failed)
        elif self._open is not None:
            self._open.waiters.append(done)
            if not self._kicked:
                self.kick()
        elif self._closed:
            self._closed[-1].waiters.append(done)
        elif self._in_flight is not None:
            self._in_flight.waiters.append(done)
        else:
            done(None)

    # -- writing

    def kick(self) -> None:
        """Write at the end of this loop turn, so that all connections' chunks of one turn share a sync."""
        self._kicked = True
        if self._in_flight is None:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._in_flight is not None or self.failed is not None:
            return
        if not self._closed:
            self._close_group()
            self._kicked = False
        if not self._closed:
            return
        if self._closed[0].end > self._closed[0].segment.limit and not self._closing:
            self._events.file_nearly_full()  # the write goes on when `grown` is called
            return
        group = self._closed.popleft()
        self._closed_bytes -= group.size
        self._in_flight = group
        self._write(group, self.assembly.assemble(group))

    def growth_need(self) -> GrowthNeed | None:
        """Return which file should be longer now; None if none should."""
        if self._closed and self._in_flight is None and self._closed[0].end > self._closed[0].segment.limit:
            return GrowthNeed(self._closed[0].segment, self._closed[0].end, True)
        segment = self.segment
        if segment is None or self.failed is not None or segment.log_end <= segment.grows_at:
            return None
        return GrowthNeed(segment, segment.log_end, False)

    def grown(self) -> None:
        """Go on, if a block waited for a longer file: one is longer now."""
        if self._closed and self._in_flight is None and self._retry is None:
            self.kick()

    def short_of(self, what: str) -> None:
        """Record and report why the block that waits cannot be written yet."""
        self.full, self.short = True, what
        self._events.log_short()

    def _write(self, group: Group, write: Write) -> None:
        self._retry = None
        loop = self._loop
        assert loop is not None
        began = self._began = loop.time()

        def done(error: OSError | None) -> None:
            if error is None:
                self.full = False
                self._synced_at = now = loop.time()
                stats = self._stats
                stats.seconds.observe(now - began)
                stats.count += 1
                stats.taken_s += now - began
                self._written(group)
            elif passing(error) and not self._closing:
                # Nothing was acknowledged and nothing later was written: the same block may be written again.
                self.short_of(str(error))
                self._retry = loop.call_later(RETRY_S, lambda: self._write(group, write))
            else:
                self.fail(error)

        self._disk.write([write], done)

    def _written(self, group: Group) -> None:
        if self.failed is not None:
            return
        self._in_flight = None
        if self.page is not None:
            self.page.write(group.segment.seq, group.end, group.checksum)  # before any acknowledgement
        if group.size:
            self.groups += 1
            self.bytes += group.size
            self._stats.commits.value += 1
            self._stats.bytes.value += group.size
            if self._idle is None:
                self._watch_idleness(IDLE_S)
        if self._closed or self._open is not None:
            self.kick()
        else:
            self._kicked = False
        _call(group.waiters, None)

    def _watch_idleness(self, delay_s: float) -> None:
        """Run one timer, not one for each block, until nothing has been written for IDLE_S."""
        if not self._closing and self._loop is not None:
            self._idle = self._loop.call_later(delay_s, self._close_tail)

    def _close_tail(self) -> None:
        """Write an empty block behind the last one.

        From then on what is on the device alone distinguishes damage to the last block from an interrupted write.
        """
        self._idle = None
        segment = self.segment
        if segment is None or self.failed is not None or self._closing:
            return
        assert self._loop is not None
        left = IDLE_S if self.pending_bytes or self._in_flight else self._synced_at + IDLE_S - self._loop.time()
        if left > 0:
            self._watch_idleness(left)
            return
        group = Group(segment, segment.log_end)
        group.end = segment.log_end = group.start + padded(BLOCK_HEADER, self._disk.alignment)
        if group.end > segment.grows_at:
            self._events.file_nearly_full()
        self._closed.append(group)
        self.kick()

    def fail(self, error: OSError) -> None:
        """End the log. Nothing is retried; present and later waiters get the error."""
        if self.failed is not None:
            return
        self.failed = error
        groups = [*self._closed]
        if self._in_flight is not None:
            groups.insert(0, self._in_flight)
        if self._open is not None:
            groups.append(self._open)
        self._closed.clear()
        self._in_flight = self._open = self._chunk = None
        self._closed_bytes, self._limit = 0, -1
        self._events.log_failed(error)
        for group in groups:
            _call(group.waiters, error)

    async def close(self) -> None:
        """Write what is pending; returns when it is durable or the log has failed."""
        self._closing = True
        if self._idle is not None:
            self._idle.cancel()
        finished = asyncio.get_running_loop().create_future()
        self.after_durable(lambda error: None if finished.done() else finished.set_result(None))
        if self._retry is not None:
            self._retry.cancel()
            self.fail(OSError(errno.ENOSPC, "no space left on the device for the last block"))
        elif self._closed and self._in_flight is None and self.failed is None:
            self.kick()  # a block that waited for a longer file is written where it is
        await finished
        self.segment = None

    # -- reading what is not on disk only

    def written(self, segment: Segment, end: int) -> bool:
        """Return whether all of the segment's bytes before `end` are in the file."""
        for group in (self._in_flight, *self._closed, self._open):
            if group is not None and group.segment is segment:
                return end <= group.start
        return True

    def recent(self, segment: Segment, offset: int, length: int) -> bytes | None:
        """Return bytes of the log that are still in memory, or None."""
        if segment.base is not None:
            found = self.ring.get(segment.base + offset, length)
            if found is not None:
                return found
        for group in (*self._closed, self._open):
            if group is not None and group.segment is segment and offset >= group.start + BLOCK_HEADER:
                slices = group.slices
                if group is self._open and self._chunk is not None:
                    slices = [*slices, (self._chunk, self._slice_start, self._slice_end)]
                found = copy_of(slices, offset - group.start - BLOCK_HEADER, length)
                if found is not None:
                    return found
        return None


def _call(waiters: list[DurableCallback], error: OSError | None) -> None:
    for waiter in waiters:
        try:
            waiter(error)
        except Exception as bug:  # one waiter's bug must not keep the answer from the others
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a callback of a commit failed", "exception": bug}
            )
