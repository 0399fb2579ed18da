"""Group commit: everything that arrived during the last sync becomes one block, one write and one sync.

At most one block is in flight, so only the last block of the log can be torn. The newest bytes stay in a ring in
memory, where blocks are also assembled: each byte is copied once, and tailing readers never touch the disk.
Not here: the choice of the next file and the meaning of frames (`bookie/storage/store.py`).
"""

from __future__ import annotations

import asyncio
import errno
import mmap
from collections import deque
from collections.abc import Callable

from buckram.bookie.storage.errors import StoreError
from buckram.bookie.storage.group import CommitStats, Group, Waiter
from buckram.bookie.storage.segments import Segment
from buckram.bookie.storage.tail_page import TailPage
from buckram.bookie.storage.tail_ring import TailRing
from buckram.core.storage.segment_format import BLOCK_HEADER, pack_block_header, padded
from buckram.disk.trouble import passing
from buckram.seams import Disk, Write
from buckram.types import Buffer

PENDING_LIMIT = 256 << 20
"""Bytes inserted but not yet handed to the disk, above which adds are refused. The server stops reading long before."""
INDEX_LIMIT = 24 << 20
"""Bytes of memory for the index of one unsealed segment; four times as much while the next file is not ready."""
OVERSHOOT = 64 << 20
"""So much at least may go into the old file while the next one is not ready."""
IDLE_S = 1.0
"""After so long without a block an empty one closes the log's tail on the device."""
RETRY_S = 0.25
"""Pause before a block that found no space is written again."""
PREZERO_BELOW, PREZERO_BYTES = 32 * 1024, 256 * 1024
"""Zeros are written after a block smaller than PREZERO_BELOW that enters untouched space of its file, up to the next
multiple of PREZERO_BYTES (shifted by a phase of the store). Syncing the first write to a place makes the file system
commit its journal, three times the cost of a small block. Large blocks do not notice, and zeros before them would
double what is written."""
_SMALL = 4096
_ZEROS = bytes(4096)
_PREZEROS: Buffer = memoryview(mmap.mmap(-1, PREZERO_BYTES))


class GroupCommit:
    """Gathers frames at the end of the log and makes them durable.

    `next_segment(active)` gives the segment to go on with once the active one is full, or None while none is ready;
    the log then goes on in the old one up to `hard_limit`. `on_failed` gets the error that ended the log,
    `on_full` of each block that found no space, or another thing short, and will be tried again.
    """

    def __init__(
        self,
        disk: Disk,
        ring: TailRing,
        salt: int,
        commit_max_bytes: int,
        soft_limit: int,
        next_segment: Callable[[Segment], Segment | None],
        on_failed: Callable[[OSError], None],
        stats: CommitStats,
    ) -> None:
        self._disk, self.ring, self._salt = disk, ring, salt
        # Replicas have the same bytes at the same places: they should not all prezero at the same entry.
        self._phase = salt % (PREZERO_BYTES // 4096) * 4096
        self._max, self.soft_limit = commit_max_bytes, soft_limit
        self.hard_limit = min(soft_limit + max(soft_limit, OVERSHOOT), 2**31)
        self._next_segment, self._on_failed, self._stats = next_segment, on_failed, stats
        self.segment: Segment | None = None
        self.segment_seq = -1
        self.runs = 0
        self.failed: OSError | None = None
        self.full = False
        self.short = ""
        """What the block that waits has found missing, while `full`."""
        self.on_full: Callable[[], None] = lambda: None
        self.on_low: Callable[[], None] = lambda: None
        """The file should be longer, see `wanting`."""
        self.groups = self.bytes = 0
        self._open: Group | None = None
        self._closed: deque[Group] = deque()
        self._closed_bytes = 0
        self._in_flight: Group | None = None
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

    def make_room(self, size: int) -> None:
        """The next `size` bytes go to one block of `segment`, which may become another one here.

        StoreError when too much waits for the disk, the log has no room, or it has failed.
        """
        if self._pos + size > self._limit:
            self._begin(size)

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
        if self.pending_bytes > PENDING_LIMIT:
            raise StoreError("busy", f"{self.pending_bytes} bytes wait for the disk, the limit is {PENDING_LIMIT}")
        self._close_group()
        start = self.segment.log_end
        if start > 0 and (start + BLOCK_HEADER + size > self.soft_limit or self._index_cost() > INDEX_LIMIT):
            fresh = self._next_segment(self.segment)
            if fresh is not None:
                self.go_on_in(fresh)
                start = fresh.log_end
            elif start > self.soft_limit and start + BLOCK_HEADER + size > self.hard_limit:
                raise StoreError("full", "the log file is full and there is no room for the next one")
            elif self._index_cost() > 4 * INDEX_LIMIT:
                raise StoreError("busy", "the index of the log file is full and the next file is not ready")
        assert self.segment is not None
        self._open = Group(self.segment, start)
        self._pos = pos = start + BLOCK_HEADER
        block_end = min(start + self._max, max(self.soft_limit, pos + size))
        self._limit = max(block_end, pos + size)

    def overdue(self) -> bool:
        """Half of the room for waiting until the next file is ready is used up."""
        segment = self.segment
        return segment is not None and (
            segment.log_end > (self.soft_limit + self.hard_limit) // 2 or self._index_cost() > 2 * INDEX_LIMIT
        )

    def _index_cost(self) -> int:
        """Memory for the index of the active segment. `runs` is counted by whoever writes the index."""
        return 0 if self.segment is None or self.segment.index is None else self.segment.index.cost(self.runs)

    def _close_slice(self) -> None:
        chunk, start, end = self._chunk, self._slice_start, self._slice_end
        if chunk is not None and self._open is not None:
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
            self.on_low()
        self._closed.append(group)
        self._closed_bytes += group.size
        self._open, self._limit = None, -1

    @property
    def pending_bytes(self) -> int:
        """Inserted but not yet handed to the disk."""
        return self._closed_bytes + (0 if self._open is None else self._pos - self._open.start)

    def after_durable(self, done: Waiter) -> None:
        """Call back once everything inserted so far is durable; at once if it is."""
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
            self.on_low()  # `grown` goes on
            return
        group = self._closed.popleft()
        self._closed_bytes -= group.size
        self._in_flight = group
        self._write(group, self._assemble(group))

    def wanting(self) -> tuple[Segment, int, bool] | None:
        """Whose file should be longer, what it must hold at least, and whether a block waits for that."""
        if self._closed and self._in_flight is None and self._closed[0].end > self._closed[0].segment.limit:
            return self._closed[0].segment, self._closed[0].end, True
        segment = self.segment
        if segment is None or self.failed is not None or segment.log_end <= segment.grows_at:
            return None
        return segment, segment.log_end, False

    def grown(self) -> None:
        """A file is longer: go on if a block waited for it."""
        if self._closed and self._in_flight is None and self._retry is None:
            self.kick()

    def short_of(self, what: str) -> None:
        """The block that waits does so for want of something."""
        self.full, self.short = True, what
        self.on_full()

    def _assemble(self, group: Group) -> Write:
        """Put the block together at the ring's head."""
        parts: list[Buffer] = []
        for chunk, start, end in group.slices:
            if end - start == len(chunk):
                parts.append(chunk)
            elif end - start < _SMALL:
                parts.append(chunk[start:end])
            else:
                parts.append(memoryview(chunk)[start:end])
        only = parts[0] if len(parts) == 1 else None
        payload = only if type(only) is bytes else b"".join(parts)
        group.slices.clear()
        segment, ring = group.segment, self.ring
        header, span = pack_block_header(segment.seq, self._salt, group.start, payload, self._disk.alignment)
        group.checksum = int.from_bytes(header[-4:], "big")
        segment.base = ring.head - group.start
        head = ring.head
        gap = _ZEROS[: span - BLOCK_HEADER - len(payload)]
        if span < PREZERO_BELOW:
            ring.put(head, header + payload + gap)
        else:
            ring.put(head, header)
            ring.put(head + BLOCK_HEADER, payload)
            ring.put(head + span - len(gap), gap)
        ring.head = head + span
        assert segment.file is not None
        return Write(segment.file, group.start, [*ring.parts(head, span), *self._prezero(segment, group.start, span)])

    def _prezero(self, segment: Segment, start: int, span: int) -> list[Buffer]:
        """Return the zeros to write after a small block: the next ones then overwrite allocated space."""
        end = start + span
        if end <= segment.zeroed_to:
            return []
        segment.zeroed_to = end
        stop = min(
            end + PREZERO_BYTES - (end + self._phase) % PREZERO_BYTES,
            self.soft_limit // 4096 * 4096,
            max(end, segment.limit // 4096 * 4096),
        )
        if span > PREZERO_BELOW or stop <= end:
            return []
        segment.zeroed_to = stop
        return [_PREZEROS[: stop - end]]

    def _write(self, group: Group, write: Write) -> None:
        self._retry = None
        loop = self._loop
        assert loop is not None
        began = loop.time()

        def done(error: OSError | None) -> None:
            if error is None:
                self.full = False
                self._synced_at = now = loop.time()
                self._stats.seconds.observe(now - began)
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
            self._stats.commits.inc()
            self._stats.bytes.inc(group.size)
            if self._idle is None:
                self._watch_idleness(IDLE_S)
        if self._closed or self._open is not None:
            self.kick()
        else:
            self._kicked = False
        _call(group.waiters, None)

    def _watch_idleness(self, delay_s: float) -> None:
        """One timer from the first block on until nothing has been written for IDLE_S, none for each of them."""
        if not self._closing and self._loop is not None:
            self._idle = self._loop.call_later(delay_s, self._close_tail)

    def _close_tail(self) -> None:
        """An empty block behind the last one: from then on damage to that one is told from a write that was cut short
        by what is on the device alone."""
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
            self.on_low()
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
        self._on_failed(error)
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
            self.kick()  # not for a longer file any more
        await finished
        self.segment = None

    # -- reading what is not on disk only

    def written(self, segment: Segment, end: int) -> bool:
        """Whether the file has everything of the segment that is before `end`."""
        for group in (self._in_flight, *self._closed, self._open):
            if group is not None and group.segment is segment:
                return end <= group.start
        return True

    def recent(self, segment: Segment, offset: int, length: int) -> bytes | None:
        """Bytes of the log that are still in memory, or None."""
        if segment.base is not None:
            found = self.ring.get(segment.base + offset, length)
            if found is not None:
                return found
        for group in (*self._closed, self._open):
            if group is not None and group.segment is segment and offset >= group.start + BLOCK_HEADER:
                found = self._in_group(group, offset - group.start - BLOCK_HEADER, length)
                if found is not None:
                    return found
        return None

    def _in_group(self, group: Group, at: int, length: int) -> bytes | None:
        slices = group.slices
        if group is self._open and self._chunk is not None:
            slices = [*slices, (self._chunk, self._slice_start, self._slice_end)]
        found = b""
        for chunk, start, end in slices:
            if at < end - start:
                found += bytes(chunk[start + at : min(end, start + at + length - len(found))])
                at = 0
                if len(found) == length:
                    return found
            else:
                at -= end - start
        return None


def _call(waiters: list[Waiter], error: OSError | None) -> None:
    for waiter in waiters:
        try:
            waiter(error)
        except Exception as bug:  # one waiter's bug must not keep the answer from the others
            asyncio.get_running_loop().call_exception_handler(
                {"message": "a callback of a commit failed", "exception": bug}
            )
