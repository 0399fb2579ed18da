"""The parts of group commit: a block while it gathers, who waits for it, and the ring in which its bytes are assembled.

The ring holds the newest bytes of the log in memory; a block is assembled there, together with the zeros that go
before the next blocks.

Not here: which adds belong to a block, when it is written and when it is durable
(`bookie/storage/log/group_commit.py`).
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias, cast

from buckram.bookie.storage.segments.segments import Segment
from buckram.core.storage.segment_format import BLOCK_HEADER, pack_block_header, padded
from buckram.seams import Stats, Write
from buckram.types import Buffer

Slice: TypeAlias = tuple[Buffer, int, int]
"""Whole frames: the bytes chunk[start:end] of a received chunk, as (chunk, start, end)."""


class DurableCallback(Protocol):
    """Called once with None when what it waits for is durable, or with the error that ended the log."""

    def __call__(self, error: OSError | None, /) -> None: ...


class Group:
    """A block that gathers: where it goes, the slices it consists of, and who waits until it is durable."""

    __slots__ = ("checksum", "end", "segment", "size", "slices", "start", "waiters")

    def __init__(self, segment: Segment, start: int) -> None:
        self.segment, self.start = segment, start
        self.size = self.end = self.checksum = 0
        self.slices: list[Slice] = []
        self.waiters: list[DurableCallback] = []


def copy_of(slices: Sequence[Slice], at: int, length: int) -> bytes | None:
    """Return bytes [at:at+length] of the joined slices, or None if these are shorter."""
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


class CommitEvents(Protocol):
    """The store as group commit sees it: what it is asked, and what is reported to it
    (`bookie/storage/upkeep/maintenance.py`)."""

    def next_segment(self, active: Segment) -> Segment | None:
        """Return the segment to go on with once `active` is full, or None while none is ready.

        With None the log goes on in the old segment, up to `hard_limit`.
        """
        ...

    def log_short(self) -> None:
        """Report a block that found no space, or another resource short; it will be written again."""
        ...

    def file_nearly_full(self) -> None:
        """Ask for a longer file, see `growth_need`."""
        ...

    def log_failed(self, error: OSError) -> None:
        """Report the error that ended the log. It is called once."""
        ...


class GrowthNeed(NamedTuple):
    """A log file that should be longer: what it must hold at least, in bytes, and whether a block waits for that."""

    segment: Segment
    end: int
    urgent: bool


class Syncs(NamedTuple):
    """Number of writes with their syncs since the store was opened, and the seconds that they took together."""

    number: int
    seconds: float


class CommitStats:
    """Counters of group commit: commits, bytes and the time of syncs; `count` writes took `taken_s` together."""

    def __init__(self, stats: Stats) -> None:
        self.commits = stats.counter("buckram_store_commits_total", "blocks written and synced")
        self.bytes = stats.counter("buckram_store_log_bytes_total", "bytes of frames written to the log")
        self.seconds = stats.histogram("buckram_store_commit_seconds", "from handing a block to the disk to its sync")
        self.count = 0
        self.taken_s = 0.0


# -- the newest bytes of the log ------------------------------------------------------------------------------


class TailRing:
    """The last `size` bytes of the log by position. Positions only grow, across log files; `head` is the next one."""

    def __init__(self, size: int) -> None:
        self.size = padded(max(size, 4096), 4096)
        self.head = 0
        self._memory = mmap.mmap(-1, self.size)
        self._view = memoryview(self._memory)

    def parts(self, position: int, length: int) -> list[memoryview]:
        """Return views of these bytes: one, or two where the ring wraps around."""
        start = position % self.size
        end = start + length
        if end <= self.size:
            return [self._view[start:end]]
        return [self._view[start:], self._view[: end - self.size]]

    def put(self, position: int, data: Buffer) -> None:
        """Copy `data` into the ring; `head` does not move."""
        start, length = position % self.size, len(data)
        end = start + length
        if end <= self.size:
            self._view[start:end] = data
            return
        cut = self.size - start
        with memoryview(data) as whole:
            self._view[start:] = whole[:cut]
            self._view[: end - self.size] = whole[cut:]

    def get(self, position: int, length: int) -> bytes | None:
        """Return a copy of these bytes; None if they are not in the ring, or not all of them."""
        if position < max(0, self.head - self.size) or position + length > self.head:
            return None
        start = position % self.size
        if start + length <= self.size:
            return self._memory[start : start + length]
        return b"".join(self.parts(position, length))


# -- assembly of a block --------------------------------------------------------------------------------------

PREZERO_BELOW, PREZERO_BYTES = 32 * 1024, 256 * 1024
"""Zeros are written after a block smaller than PREZERO_BELOW that enters untouched space of its file, up to the next
multiple of PREZERO_BYTES (shifted by a phase of the store). Syncing the first write to a place makes the file system
commit its journal, three times the cost of a small block. Large blocks do not notice, and zeros before them would
double what is written."""

_SMALL = 4096
"""A slice of a chunk that is shorter than this is copied rather than viewed."""

_FEW = 256
"""Maximum number of parts that are handed over singly; more are joined first, because each one costs two calls."""

_ZEROS = bytes(4096)

_PREZEROS: Buffer = memoryview(mmap.mmap(-1, PREZERO_BYTES))


class BlockAssembly:
    """Turns groups into blocks of the log, one after the other.

    `alignment` is the disk's unit of writing, `soft_limit` the file offset beyond which the log goes on in the next
    file; both in bytes.
    """

    def __init__(self, ring: TailRing, salt: int, alignment: int, soft_limit: int) -> None:
        self._ring, self._salt, self._alignment, self._soft_limit = ring, salt, alignment, soft_limit
        # Replicas have the same bytes at the same places: they should not all prezero at the same entry.
        self.phase = salt % (PREZERO_BYTES // 4096) * 4096

    def assemble(self, group: Group) -> Write:
        """Copy the block of `group` to the ring's head and return the write that makes it durable."""
        parts: list[Buffer] = []
        plain = True
        for chunk, start, end in group.slices:
            if end - start == len(chunk):
                parts.append(chunk)
                plain = plain and type(chunk) is bytes
            elif end - start < _SMALL:
                parts.append(chunk[start:end])
                plain = plain and type(chunk) is bytes
            else:
                parts.append(memoryview(chunk)[start:end])
                plain = False
        # The checksum takes bytes alone. Where all parts are bytes, they are copied once, to the ring.
        payload = cast("list[bytes]", parts) if plain and len(parts) <= _FEW else [b"".join(parts)]
        group.slices.clear()
        segment, ring = group.segment, self._ring
        header, span = pack_block_header(segment.seq, self._salt, group.start, payload, self._alignment)
        group.checksum = int.from_bytes(header[-4:], "big")
        segment.base = ring.head - group.start
        head = ring.head
        gap = _ZEROS[: span - BLOCK_HEADER - group.size]
        if span < PREZERO_BELOW:
            ring.put(head, b"".join((header, *payload, gap)))
        else:
            at = head
            for part in (header, *payload, gap):
                ring.put(at, part)
                at += len(part)
        ring.head = head + span
        assert segment.file is not None
        written: list[Buffer] = [*ring.parts(head, span)]
        if group.start + span > segment.zeroed_to:
            written += self._prezero(segment, group.start, span)
        return Write(segment.file, group.start, written)

    def _prezero(self, segment: Segment, start: int, span: int) -> list[Buffer]:
        """Return the zeros to write after a small block that enters untouched space: the next ones then overwrite
        allocated space."""
        end = start + span
        segment.zeroed_to = end
        stop = min(
            end + PREZERO_BYTES - (end + self.phase) % PREZERO_BYTES,
            self._soft_limit // 4096 * 4096,
            max(end, segment.limit // 4096 * 4096),
        )
        if span > PREZERO_BELOW or stop <= end:
            return []
        segment.zeroed_to = stop
        return [_PREZEROS[: stop - end]]
