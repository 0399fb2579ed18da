"""Compaction: frees log files that hold only dead data and rewrites mixed ones, sorted by ledger.

It is incremental: each step ends with one atomic write of the superblock that replaces some segments by at most one. A
crash or cancellation before that write leaves only a stray file. Data that fails its block checks is never copied; such
a segment is left as it is. Reads continue meanwhile. The output has live entries by ledger, in blocks of about a
megabyte, then a footer; it becomes part of the store only when the superblock names it. Not here: which bytes are dead
(`bookie/storage/upkeep/dead_bytes.py`).
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from buckram.bookie.storage.read_results import StoreError, unless_harmless
from buckram.bookie.storage.segments.index import FooterBuilder, LedgerIndex, Place
from buckram.bookie.storage.segments.segments import DirEntry, Segment
from buckram.bookie.storage.store_state import StoreState
from buckram.bookie.storage.superblock import LOG_PREFIX
from buckram.bookie.storage.upkeep.dead_bytes import is_mostly_dead
from buckram.bookie.storage.upkeep.maintenance import Maintenance
from buckram.core.storage.ledger_state import StoredLedgerState
from buckram.core.storage.segment_format import (
    BLOCK_HEADER,
    EVEN,
    MAX_RUN_BYTES,
    CorruptBytes,
    open_block,
    open_trailer,
    pack_block_header,
    run_extent,
)
from buckram.runtime.disk.io_errors import no_space
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


log = logging.getLogger("buckram.store")


class Progress(Protocol):
    """Receives the bytes that are done and the bytes in all; the latter is an estimate until the end."""

    def __call__(self, done: int, total: int, /) -> None: ...


def _no_progress(done: int, total: int) -> None:
    """Ignore the progress."""


class Compaction:
    """One run over all sealed segments; `run` may be cancelled at any time.

    `threshold`: in place of the configured one.
    """

    def __init__(
        self, state: StoreState, maintenance: Maintenance, progress: Progress | None, threshold: float | None = None
    ) -> None:
        self._state, self._maintenance = state, maintenance
        self._progress = progress if progress is not None else _no_progress
        self._threshold = state.config.compaction_threshold if threshold is None else threshold
        self._done = self._total = self._moved = 0
        self._began = 0.0

    async def run(self) -> int:
        """Compact what is worth it; return the bytes of log files that became free."""
        self._began = asyncio.get_running_loop().time()
        candidates = [one for one in self._sealed() if self._worth(one)]
        if not candidates:
            return 0
        self._state.deleted_while_compacting = []
        try:
            return await self._run(candidates)
        finally:
            self._state.deleted_while_compacting = None

    async def _run(self, candidates: list[Segment]) -> int:
        # States that only these segments' footers hold must outlive them.
        try:
            await self._maintenance.checkpoint()
        except OSError as error:
            if not no_space(error):
                raise
            # On a full disk, compacting the segments that the table covers already may free room for it.
            log.warning("compaction goes on without a new ledger table: %s", error)
        self._total = sum(2 * one.log_end for one in candidates)
        given_back = 0
        group: Sources = []
        size = 0
        for segment in candidates:
            if segment.footer is None or segment.seq > self._covered(segment):
                self._advance(2 * segment.log_end)
                continue
            live = await self._live_entries(segment)
            if live is None or not self._worth(segment):
                self._advance(2 * segment.log_end)
                continue
            if live and not await self._verified(segment):
                self._advance(segment.log_end)
                continue
            live_bytes = sum(entry.bytes for entry in live)
            too_large = size + live_bytes > self._state.config.segment_bytes * 7 // 8
            if group and (too_large or not self._adjacent(group, segment)):
                given_back += await self._rewrite(group)
                group, size = [], 0
            group.append((segment, live))
            size += live_bytes
        if group:
            given_back += await self._rewrite(group)
        self._progress(self._total, self._total)
        return given_back

    def _adjacent(self, group: Sources, segment: Segment) -> bool:
        """Return whether no other segment lies between the group and `segment`, so that copies of an entry stay in
        order."""
        names = [one.name for one, _ in group]
        segments = self._state.segments
        first = min(segments.index(one) for one, _ in group)
        return all(one.name in names for one in segments[first : segments.index(segment)])

    def _covered(self, segment: Segment) -> int:
        return self._state.superblock.covered if segment.has_states else segment.seq

    def _sealed(self) -> list[Segment]:
        return [one for one in self._state.segments if one.footer is not None]

    def _worth(self, segment: Segment) -> bool:
        return is_mostly_dead(segment, self._threshold)

    def _advance(self, amount: int) -> None:
        self._done += amount
        self._progress(min(self._done, self._total), self._total)

    async def _pace(self, amount: int) -> None:
        """Keep below the configured speed, with at least one pause per call, so that requests are served."""
        self._advance(amount)
        self._moved += amount
        rate = self._state.config.compaction_bytes_per_s
        due = self._began + self._moved / rate if rate else 0.0
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))

    # -- which data is live

    def _lives(self, entry: DirEntry) -> bool:
        record = self._state.table.find(entry.ledger)
        # A ledger without a record is kept: its state was lost, its data need not be.
        return record is None or record.epoch == entry.epoch

    async def _live_entries(self, segment: Segment) -> list[DirEntry] | None:
        """Return the directory entries of live ledgers, and count the dead bytes. None if the footer is damaged."""
        footer = segment.footer
        assert footer is not None
        live: list[DirEntry] = []
        dead = 0
        try:
            for number, entry in enumerate(footer.directory(), 1):
                if self._lives(entry):
                    live.append(entry)
                else:
                    dead += entry.bytes
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
        except (CorruptBytes, OSError) as error:
            unless_harmless(error, f"the index of log file {segment.name}")
            self._maintenance.repair_footer(segment)
            return None
        if segment.footer is not footer:
            return None
        segment.dead_bytes = dead
        return live

    async def _verified(self, segment: Segment) -> bool:
        """Return whether every block of a segment passes its check. Logs why if not; also False for an error of the
        disk."""
        disk, salt, offset = self._state.disk, self._state.salt, 0
        file = self._state.files.hold(segment.name)
        segment.readers += 1
        try:
            while offset < segment.log_end:
                after = await disk.offload(partial(_check_blocks, file, segment.seq, salt, offset, segment.log_end))
                if after is None:
                    log.error("log file %s has a damaged block near %d; it is not compacted", segment.name, offset)
                    return False
                await self._pace(after - offset)
                offset = after
        except OSError as error:
            log.error("log file %s is not compacted: %s", segment.name, error)
            return False
        finally:
            segment.readers -= 1
            self._state.files.release(segment.name)
        return True

    # -- rewriting

    async def _rewrite(self, group: Sources) -> int:
        """Replace the segments of `group` by one with their live data, or by none. Returns the bytes freed."""
        state = self._state
        group = [(one, live) for one, live in group if one in state.segments and one.footer is not None]
        if not group:
            return 0
        output: Segment | None = None
        if any(live for _, live in group):
            writer = Output(state, self._pace)
            try:
                output = await writer.write(group)
            except (CorruptBytes, StoreError) as error:
                log.error("compaction skips %s: %s", ", ".join(one.name for one, _ in group), error)
                writer.discard()
                return 0
            except OSError as error:
                writer.discard()
                dead = [one for one in group if not one[1]]
                if not no_space(error):
                    raise
                log.warning("compaction frees only log files without live data: %s", error)
                return await self._rewrite(dead)
            except BaseException:
                writer.discard()
                raise
        inputs = [one for one, _ in group]
        # A cancelled compaction must not leave files that neither list has, so this step is not cancelled with it.
        await asyncio.shield(self._maintenance.spawn(self._replace(inputs, output), "compaction result"))
        return sum(one.log_end for one in inputs) - (0 if output is None else output.log_end)

    async def _replace(self, inputs: list[Segment], output: Segment | None) -> None:
        swapped = False

        def change() -> dict[str, object]:
            nonlocal swapped
            if not swapped:
                self._swap(inputs, output)
                swapped = True
            return {}

        # While there is no room for a superblock, both the inputs and the output exist, and nothing is freed.
        await self._maintenance.publish_until_written(change)
        self._maintenance.retire(inputs)

    def _swap(self, inputs: list[Segment], output: Segment | None) -> None:
        """Replace the inputs in memory, right before the superblock with the same change is written."""
        state = self._state
        at = state.segments.index(inputs[-1])
        if output is not None:
            state.segments.insert(at + 1, output)
            output.dead_bytes = sum(
                output.bytes_of(ledger, epoch) for ledger, epoch in state.deleted_while_compacting or ()
            )
        state.segments = [one for one in state.segments if one not in inputs]
        state.lookup.segments_changed()


def _check_blocks(file: File, segment: int, salt: int, offset: int, end: int) -> int | None:
    """Return the offset after the valid blocks of the next megabytes; None if the block at `offset` is damaged."""
    size = 4 << 20
    while True:
        data = file.read(offset, min(size, end - offset))
        at = 0
        while at < len(data):
            block = open_block(data, at, segment, salt, offset + at)
            if block is None:
                break
            at += block.span
        if at:
            return offset + at
        if size >= 64 << 20 or len(data) < size:
            return None
        size *= 4
