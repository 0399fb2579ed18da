"""The parts of group commit: a block while it gathers, who waits for it, and what its store is asked.

Not here: how a block is written (`bookie/storage/log/group_commit.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from buckram.bookie.storage.segments.segments import Segment
from buckram.seams import Stats
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
    """Counters of group commit: commits, bytes and the time of syncs."""

    def __init__(self, stats: Stats) -> None:
        self.commits = stats.counter("buckram_store_commits_total", "blocks written and synced")
        self.bytes = stats.counter("buckram_store_log_bytes_total", "bytes of frames written to the log")
        self._seconds = stats.histogram("buckram_store_commit_seconds", "from handing a block to the disk to its sync")
        self.count = 0
        self.taken_s = 0.0

    def took(self, seconds: float) -> None:
        """Count one write with its sync."""
        self._seconds.observe(seconds)
        self.count += 1
        self.taken_s += seconds
