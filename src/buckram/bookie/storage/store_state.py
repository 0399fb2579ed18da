"""The state that the parts of one open store share: files, segments, log, table, superblock.

The superblock is written here while the store is open, one version after the other. No decisions are made here.

Not here: the superblock's format (`bookie/storage/superblock.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from buckram.bookie.storage.disk_space import Reserve, SpaceWatch
from buckram.bookie.storage.ledger_table import RECORD_COST, LedgerTable, Losses
from buckram.bookie.storage.log.group_commit import BULK_TIMES, INDEX_LIMIT, PENDING_LIMIT, GroupCommit
from buckram.bookie.storage.reading.lookup import Lookup
from buckram.bookie.storage.reading.read_ahead import CHUNK_BYTES, CHUNKS_KEPT
from buckram.bookie.storage.segments.file_cache import OpenFiles, PageCache
from buckram.bookie.storage.segments.index import SegmentIndex
from buckram.bookie.storage.segments.segments import NO_LIMIT, Segment, load_footer
from buckram.bookie.storage.superblock import FORMAT, SegmentEntry, Superblock, write_superblock
from buckram.config import StoreConfig
from buckram.core.storage.segment_format import PAGE
from buckram.core.wire.messages import MemoryUse
from buckram.seams import Disk

MIN_SEGMENT, MAX_SEGMENT = 4 << 10, 1 << 30

FIRST_BYTES = 16 << 20
"""Bytes of a new log file, at most. Three quarters of that are left when the file is made longer, which is room for
several of the largest commits, so that the log hardly waits."""

MOST_INDEX = 9 * INDEX_LIMIT
"""Maximum memory for indexes, bytes: up to one INDEX_LIMIT for segments that wait for their footers, four for the last
of them and four for the active one. Usually it is two."""


@dataclass(slots=True)
class StoreState:
    """`segments` are those with data, oldest first, the active one last among the unsealed logs; `spare` is the
    prepared next one. The superblock names all of them. `free` names files whose data is dead, to be used again.
    """

    disk: Disk
    config: StoreConfig
    superblock: Superblock
    losses: Losses
    files: OpenFiles
    cache: PageCache
    space: SpaceWatch
    reserve: Reserve
    segments: list[Segment] = field(default_factory=list)
    spare: Segment | None = None
    free: list[str] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    """The bytes of the files in `free`."""
    # (ledger, epoch) of each deletion while a compaction runs, None otherwise.
    deleted_while_compacting: list[tuple[int, int]] | None = None
    next_number: int = 1
    next_file: int = 1
    log: GroupCommit = field(init=False)
    table: LedgerTable = field(init=False)
    lookup: Lookup = field(init=False)

    @property
    def salt(self) -> int:
        return self.superblock.salt

    @property
    def file_bytes(self) -> int:
        """Return the size of a whole log file: its log and room for a usual footer."""
        log = self.config.segment_bytes
        return (log + max(min(64 << 10, log), log // 128)) // PAGE * PAGE

    @property
    def first_bytes(self) -> int:
        """Return the size that a log file begins with: a quarter of a whole one, at most `FIRST_BYTES`."""
        return min(FIRST_BYTES, max(self.file_bytes // 4 // PAGE * PAGE, PAGE))

    def set_limits(self, segment: Segment) -> None:
        """Set up to where blocks may go, and when the file should grow, after the superblock recorded its length.

        A whole file has no limits: the log goes beyond it only while no other file is ready, as far as there is room.
        """
        if segment.made >= self.file_bytes:
            segment.limit = segment.grows_at = NO_LIMIT
        else:
            segment.limit, segment.grows_at = segment.made, max(0, segment.made - self.first_bytes * 3 // 4)

    def unused_bytes(self) -> int:
        """Return the bytes of files that are kept for the log and hold no live data."""
        spare = 0 if self.spare is None else self.spare.made
        return spare + sum(self.sizes.get(name, 0) for name in self.free)

    def counts(self) -> dict[str, int]:
        """Return present counts and bytes, for people and metrics."""
        return {
            "commits": self.log.groups,
            "log_bytes": self.log.bytes,
            "pending_bytes": self.log.pending_bytes,
            "segments": len(self.segments),
            "sealed_segments": sum(one.footer is not None for one in self.segments),
            "free_files": len(self.free),
            "data_bytes": sum(one.log_end for one in self.segments),
            "dead_bytes": sum(one.dead_bytes for one in self.segments),
            "uncovered_segments": sum(1 for _ in self.uncovered()),
            "free_bytes": self.space.free_bytes,
        }

    def memory(self) -> list[MemoryUse]:
        """Return the bytes in memory of each part; those of the index and of records are estimates."""
        log, table = self.log, self.table
        index = sum(one.index.cost(one.runs) for one in self.segments if one.index is not None)
        return [
            MemoryUse("write buffer", log.pending_bytes, PENDING_LIMIT + BULK_TIMES * self.config.commit_max_bytes),
            MemoryUse("tail cache", min(log.ring.head, log.ring.size), log.ring.size),
            MemoryUse("read cache", self.lookup.cached_bytes, CHUNKS_KEPT * CHUNK_BYTES),
            MemoryUse("index", index, MOST_INDEX),
            MemoryUse("footers", self.cache.held_bytes, self.cache.limit_bytes),
            MemoryUse("ledger records", (len(table.pinned) + table.cached) * RECORD_COST),
        ]

    def take_number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def take_file(self) -> int:
        self.next_file += 1
        return self.next_file - 1

    def newest_first(self) -> Iterator[Segment]:
        return reversed(self.segments)

    def uncovered(self) -> Iterator[Segment]:
        """Return the segments whose ledger states are not in the table file, newest first."""
        covered = self.superblock.covered
        return (one for one in reversed(self.segments) if one.has_states and one.seq > covered)

    def load_footer(self, segment: Segment) -> bool:
        return load_footer(segment, self.salt, self.files, self.cache)

    def next_superblock(self, **changes: Any) -> Superblock:
        """Return the superblock for what is in memory now, with `changes`."""
        listed = self.segments if self.spare is None else [*self.segments, self.spare]
        entries = tuple(map(entry_of, listed))
        return replace(
            self.superblock,
            **{
                "segments": entries,
                "free": tuple(self.free),
                "next_number": self.next_number,
                "next_file": self.next_file,
                "losses": self.losses.count,
                "limbo": self.losses.limbo,
                "format": FORMAT,
                **changes,
            },
        )


def fresh_segment(seq: int, name: str) -> Segment:
    segment = Segment(seq, name)
    segment.index = SegmentIndex()
    return segment


def entry_of(segment: Segment) -> SegmentEntry:
    log_end = 0 if segment.footer is None else segment.log_end
    return SegmentEntry(
        segment.seq, segment.name, segment.has_states, segment.dead_bytes, log_end, segment.made, segment.damage
    )


# -- writing the superblock -----------------------------------------------------------------------------------


class SuperblockChange(Protocol):
    """Changes the store's state in memory and returns the superblock fields that this state does not show.

    It is called right before the superblock is taken from memory, with no await in between.
    """

    def __call__(self) -> dict[str, Any]: ...


def no_change() -> dict[str, Any]:
    """Write the superblock for what is in memory already."""
    return {}


class SuperblockWriter:
    """Every method raises OSError if the superblock cannot be written; the one before is then still valid."""

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self.lock = asyncio.Lock()
        """Held from the snapshot of what is in memory until the superblock with it is durable."""

    async def publish(self, change: SuperblockChange = no_change) -> None:
        """Apply `change` in memory and write a superblock of the result."""
        async with self.lock:
            block = self._state.next_superblock(**change())
            await self.write(block)

    async def publish_clean(self) -> None:
        """Write the last superblock of this process: it records where every log ends and that the stop was orderly."""
        state = self._state
        block = state.next_superblock(clean=True)
        ends = {one.seq: one.log_end for one in state.segments}
        segments = tuple(replace(entry, log_end=ends.get(entry.seq, 0)) for entry in block.segments)
        await self.write(replace(block, segments=segments))
        await state.disk.offload(state.reserve.make)

    async def write(self, block: Superblock) -> None:
        """Write `block`, in the reserve if the disk is full. The caller holds `lock` or is the only one left."""
        state = self._state
        await state.disk.offload(lambda: state.reserve.run(partial(write_superblock, state.disk, block)))
        state.superblock = block
