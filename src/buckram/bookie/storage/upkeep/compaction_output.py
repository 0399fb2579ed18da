"""Writes the output segment of a compaction: live entries by ledger, in blocks of about a megabyte, then a footer.

The segment becomes part of the store only when the superblock names it (`bookie/storage/upkeep/compaction.py`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from buckram.bookie.storage.errors import StoreError
from buckram.bookie.storage.segments.index import FooterBuilder, LedgerIndex, Place
from buckram.bookie.storage.segments.segments import DirEntry, Segment
from buckram.bookie.storage.store_state import StoreState
from buckram.bookie.storage.superblock import LOG_PREFIX
from buckram.core.storage.ledger_state import StoredLedgerState
from buckram.core.storage.segment_format import (
    BLOCK_HEADER,
    EVEN,
    MAX_RUN_BYTES,
    open_trailer,
    pack_block_header,
    run_extent,
)
from buckram.seams import File, Write
from buckram.types import LedgerId

BLOCK_BYTES = 1 << 20
BATCH_BYTES, BATCH_RUNS = 1 << 20, 128
_PIECE_PAGES = 256
_SLICE = 100

Sources: TypeAlias = list[tuple[Segment, list[DirEntry]]]
"""The segments that one output replaces, oldest first, with the directory entries of their live ledgers."""


class Pace(Protocol):
    """Awaited after `copied` bytes were copied, for the speed limit and the progress."""

    async def __call__(self, copied: int, /) -> None: ...


class _GrowingRun(NamedTuple):
    """The run that still grows. `stride` is the size of each frame in bytes, 0 if the frames differ."""

    first: int
    entries: int
    offset: int
    length: int
    stride: int


class Output:
    """One output file, written once."""

    def __init__(self, state: StoreState, pace: Pace) -> None:
        self._state, self._pace = state, pace
        self._number = state.take_number()
        self._name = f"{LOG_PREFIX}{state.take_file():08d}"
        self._builder = FooterBuilder(self._number, state.salt)
        self._file: File | None = None
        self._parts: list[bytes] = []
        self._size = self._block_at = 0
        # It must not extend beyond its block.
        self._run: _GrowingRun | None = None

    def discard(self) -> None:
        """Remove the file. A file that a crash leaves is removed by the next start: the superblock does not name it."""
        self._state.files.forget(self._name)
        if self._file is not None:
            self._file.close()
            self._file = None
            self._state.disk.remove(self._name)

    async def write(self, sources: Sources) -> Segment:
        """Copy the live entries of all sources and return the sealed segment.

        Raises CorruptBytes or StoreError if the data is not what the index says, and OSError.
        """
        state, disk = self._state, self._state.disk
        self._file = await disk.offload(partial(disk.open, self._name, create=True, direct=True))
        # Oldest first, so that the newest copy of an entry that was written twice wins.
        by_ledger: dict[int, list[tuple[Segment, DirEntry]]] = {}
        for segment, live in sources:
            for entry in live:
                by_ledger.setdefault(entry.ledger, []).append((segment, entry))
        for number, ledger in enumerate(sorted(by_ledger), 1):
            await self._copy_ledger(ledger, by_ledger[ledger])
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        await self._flush()
        parts: list[bytes] = []
        for _ in self._builder.lay_out(self._block_at, self._file.size(), parts):
            await asyncio.sleep(0)
        await self._write_footer(self._file, parts)
        await disk.offload(disk.sync_names)
        segment = Segment(self._number, self._name, has_states=False)
        if not state.load_footer(segment):
            raise StoreError("corrupt", f"the footer of {self._name} reads back differently")
        segment.made = self._file.size()
        self._file.close()
        return segment

    async def _write_footer(self, file: File, parts: list[bytes]) -> None:
        trailer = open_trailer(parts[-1], self._number, self._state.salt)
        assert trailer is not None
        disk, offset = self._state.disk, trailer.footer_at
        for start in range(0, len(parts), _PIECE_PAGES):
            piece = parts[start : start + _PIECE_PAGES]
            last = start + _PIECE_PAGES >= len(parts)
            await disk.offload(partial(disk.write_now, [Write(file, offset, piece)], sync=last))
            offset += sum(map(len, piece))

    async def _copy_ledger(self, ledger: LedgerId, sources: list[tuple[Segment, DirEntry]]) -> None:
        epoch = max(entry.epoch for _, entry in sources)
        record = self._state.table.find(ledger)
        state = StoredLedgerState(ledger, bytes(20)) if record is None else record.snapshot()
        state.epoch = epoch
        # A frame for rebuilding the footer from the blocks; reads of ledger states ignore it.
        await self._put(state.frame())
        ledger_index = LedgerIndex(self._number, state)
        for segment, entry in sources:
            if entry.epoch == epoch:
                await self._copy_runs(ledger_index, segment, entry)
        self._end_run(ledger_index)
        self._builder.add(ledger, ledger_index.merged(), ledger_index.bytes, epoch)

    async def _copy_runs(self, ledger_index: LedgerIndex, segment: Segment, entry: DirEntry) -> None:
        footer = segment.footer
        if footer is None:
            raise StoreError("corrupt", f"the index of log file {segment.name} is being rebuilt")
        batch: list[Place] = []
        size = 0
        for place in footer.runs(entry):
            batch.append(place)
            size += place[4]
            if size >= BATCH_BYTES or len(batch) >= BATCH_RUNS:
                await self._copy_batch(ledger_index, segment, batch)
                batch, size = [], 0
        if batch:
            await self._copy_batch(ledger_index, segment, batch)

    async def _copy_batch(self, ledger_index: LedgerIndex, segment: Segment, batch: list[Place]) -> None:
        state = self._state
        file = state.files.hold(segment.name)
        segment.readers += 1
        try:
            data = await state.disk.offload(lambda: [file.read(place[3], place[4]) for place in batch])
        finally:
            segment.readers -= 1
            state.files.release(segment.name)
        moved = 0
        for (first, count, skip, _, _), frames in zip(batch, data, strict=True):
            even = skip == EVEN
            start, end = run_extent(
                frames, 0, len(frames), 0 if even else skip, ledger_index.record.ledger_id, first, count
            )
            stride = (end - start) // count if even or count == 1 else 0
            await self._place(ledger_index, first, count, frames[start:end], stride)
            moved += end - start
        await self._pace(moved)

    async def _place(self, ledger_index: LedgerIndex, first: int, count: int, frames: bytes, stride: int) -> None:
        """Append frames of consecutive entries, growing the last run where they continue it."""
        if self._size and self._size + len(frames) > BLOCK_BYTES:
            self._end_run(ledger_index)
            await self._flush()
        offset = self._block_at + BLOCK_HEADER + self._size
        self._parts.append(frames)
        self._size += len(frames)
        run = self._run
        if run is not None and run.first + run.entries == first and run.length + len(frames) <= MAX_RUN_BYTES:
            same = stride if stride == run.stride else 0
            self._run = _GrowingRun(run.first, run.entries + count, run.offset, run.length + len(frames), same)
            return
        self._end_run(ledger_index)
        self._run = _GrowingRun(first, count, offset, len(frames), stride)

    def _end_run(self, ledger_index: LedgerIndex) -> None:
        if self._run is None:
            return
        first, count, offset, length, stride = self._run
        self._run = None
        ledger_index.insert(first, count, offset, length, even=stride > 0)
        ledger_index.bytes += length

    async def _put(self, frame: bytes) -> None:
        """Append a frame that is not an entry, between runs."""
        if self._size and self._size + len(frame) > BLOCK_BYTES:
            await self._flush()
        self._parts.append(frame)
        self._size += len(frame)

    async def _flush(self) -> None:
        if not self._size:
            return
        state, payload = self._state, b"".join(self._parts)
        header, span = pack_block_header(self._number, state.salt, self._block_at, [payload], state.disk.alignment)
        block = (header + payload).ljust(span, b"\0")
        assert self._file is not None
        write = [Write(self._file, self._block_at, [block])]
        await state.disk.offload(partial(state.disk.write_now, write, sync=False))
        self._block_at += span
        self._parts, self._size = [], 0
