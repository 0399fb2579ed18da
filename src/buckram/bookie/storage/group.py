"""One block while it gathers, and the counters of blocks.

Not here: how a block is written (`bookie/storage/commit.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from buckram.bookie.storage.segments import Segment
from buckram.seams import Stats
from buckram.types import Buffer

Waiter = Callable[[OSError | None], None]


class Group:
    """One block to be: where it goes, the chunks' slices it consists of, and who waits for it."""

    __slots__ = ("checksum", "end", "segment", "size", "slices", "start", "waiters")

    def __init__(self, segment: Segment, start: int) -> None:
        self.segment, self.start = segment, start
        self.size = self.end = self.checksum = 0
        self.slices: list[tuple[Buffer, int, int]] = []
        self.waiters: list[Waiter] = []


class CommitStats:
    """What group commit counts."""

    def __init__(self, stats: Stats) -> None:
        self.commits = stats.counter("buckram_store_commits_total", "blocks written and synced")
        self.bytes = stats.counter("buckram_store_log_bytes_total", "bytes of frames written to the log")
        self.seconds = stats.histogram("buckram_store_commit_seconds", "from handing a block to the disk to its sync")
