"""The life of a log file: it is created ahead of the log, grows, is sealed when it is full, and reused or removed when
its data is dead.

Log files begin small, so that an empty bookie needs little disk space. New space is allocated and made durable first,
then the superblock records the new length, and only then are blocks written there: a file that is shorter than its
recorded length has lost data. Sealing writes the footer, with which a segment needs no index in memory any more.

Not here: which segment the log goes on in (`bookie/storage/upkeep/maintenance.py`); how a footer is read
(`bookie/storage/segments/segments.py`); compacted files (`bookie/storage/upkeep/compaction.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from buckram.bookie.storage.segments.index import FooterBuilder, build_footer
from buckram.bookie.storage.segments.segments import Segment
from buckram.bookie.storage.store_state import StoreState, SuperblockWriter, entry_of, fresh_segment
from buckram.bookie.storage.superblock import LOG_PREFIX
from buckram.core.storage.segment_format import PAGE, open_trailer
from buckram.runtime.disk.io_errors import NO_DESCRIPTOR, passing
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import File, Write

log = logging.getLogger("buckram.store")

SPARE_FILES = 2
"""Log files whose data is dead that are kept for reuse: overwriting is cheaper than allocating."""


class LogFiles:
    """The files of the segment after the active one, and of segments that left the superblock."""

    def __init__(self, state: StoreState, superblocks: SuperblockWriter) -> None:
        self._state, self._superblocks = state, superblocks
        # Segments that are out of the list; their files are reused when nobody reads them any more.
        self._retired: list[Segment] = []

    @property
    def retired_bytes(self) -> int:
        """Bytes of files that are neither in the superblock nor removed yet."""
        return sum(one.made for one in self._retired)

    async def prepare_next(self) -> None:
        """Have a file ready before the active one is full: creating one takes milliseconds.

        Nothing happens while the disk has no room for it. Raises OSError.
        """
        state = self._state
        if state.free:
            name = state.free[0]
            file = await state.disk.offload(lambda: self._reopen(name))
        else:
            if not state.space.may_reserve(state.first_bytes):
                return
            name = f"{LOG_PREFIX}{state.take_file():08d}"
            file = await state.disk.offload(lambda: self._create(name, state.first_bytes))
        segment = fresh_segment(state.take_number(), name)
        segment.file, segment.made = file, file.size()
        if name in state.free:
            segment.zeroed_to = segment.made
        async with self._superblocks.lock:
            free = [one for one in state.free if one != name]
            block = state.next_superblock(free=tuple(free))
            try:
                await self._superblocks.write(replace(block, segments=(*block.segments, entry_of(segment))))
            except BaseException:
                file.close()
                if name not in state.free:
                    state.free.append(name)
                    state.sizes[name] = segment.made
                raise
            state.free = [one for one in state.free if one != name]
            state.spare = segment
            state.set_limits(segment)

    def _reopen(self, name: str) -> File:
        """Open a file whose data is dead; it keeps its size, at least that of a new one."""
        file = self._state.disk.open(name, direct=True)
        try:
            self._state.disk.extend(file, self._state.first_bytes)
        except OSError:
            file.close()
            raise
        return file

    def _create(self, name: str, size: int) -> File:
        disk = self._state.disk
        file = disk.open(name, create=True, size=size, direct=True)
        try:
            disk.sync_names()
        except OSError:
            file.close()
            disk.remove(name)
            raise
        return file

    def retire(self, segments: list[Segment]) -> None:
        """Take over the files of segments that are out of the superblock."""
        for segment in segments:
            self._state.files.forget(segment.name)
        self._retired.extend(segments)

    async def reuse_retired(self) -> bool:
        """Keep retired files without readers for the log, or remove them. Return False if there were none. Raises
        OSError."""
        state = self._state
        ready = [one for one in self._retired if one.readers == 0]
        if not ready:
            return False
        for segment in ready:
            self._retired.remove(segment)
            state.files.forget(segment.name)
            if len(state.free) < SPARE_FILES and state.space.writable:
                state.free.append(segment.name)
                state.sizes[segment.name] = segment.made
            else:
                await state.disk.offload(partial(state.disk.remove, segment.name))
        await self._superblocks.publish()
        return True


# -- growth of log files --------------------------------------------------------------------------------------

RETRY_S = 0.25
"""Pause before the next attempt to make a file longer, when there was no room and a block waits for it."""


class Growth:
    """Makes one file longer at a time, in a task of `scope` that runs while a file needs it."""

    def __init__(self, state: StoreState, superblocks: SuperblockWriter, scope: TaskScope) -> None:
        self._state, self._superblocks, self._scope = state, superblocks, scope
        self._running = self._closed = False
        self._moving = asyncio.Lock()

    def start(self) -> None:
        """Make the file longer that the log needs, if any and if that is not under way."""
        if not self._running and not self._closed:
            self._running = True
            self._scope.spawn(self._run(), "growth")

    def close(self) -> None:
        """Begin no growth any more; one that is under way belongs to the scope."""
        self._closed = True

    async def settled(self) -> None:
        """Wait until no file is being made longer: a file that the log has left keeps its length from then on."""
        async with self._moving:
            return

    async def _run(self) -> None:
        failed = False
        try:
            while (need := self._state.log.growth_need()) is not None:
                segment, end, urgent = need
                size = self._size(segment, end, scarce=failed)
                if not urgent and not self._state.space.may_reserve(size - segment.made):
                    return  # once a block needs the space, it asks urgently
                try:
                    await self._grow(segment, size, reserve=failed)
                    failed = False
                except OSError as error:
                    if not passing(error):
                        raise
                    if error.errno in NO_DESCRIPTOR:
                        self._state.files.close_idle()
                    if not self._is_urgent():
                        return
                    failed = True
                    self._state.log.short_of(str(error))
                    await asyncio.sleep(RETRY_S)
        finally:
            self._running = False

    def _is_urgent(self) -> bool:
        """Return whether a block waits now: it may have come, and called `start` in vain, while the last attempt
        ran."""
        need = self._state.log.growth_need()
        return need is not None and need.urgent

    def _size(self, segment: Segment, end: int, *, scarce: bool) -> int:
        """Return the next size of the file: twice the present one, up to a whole file; with little room, less."""
        state = self._state
        least = -(-end // PAGE) * PAGE
        size = max(least, min(2 * segment.made, state.file_bytes))
        if scarce or not state.space.may_reserve(size - segment.made):
            size = max(least, min(segment.made + state.first_bytes, state.file_bytes))
        return least if scarce else size

    async def _grow(self, segment: Segment, size: int, *, reserve: bool) -> None:
        state, file = self._state, segment.file
        if file is None:
            return  # sealed meanwhile
        extend = partial(state.disk.extend, file, size)
        if reserve:
            extend = partial(state.reserve.run, extend, log_bytes=size - segment.made)

        def change() -> dict[str, Any]:
            segment.made = max(segment.made, size)
            return {}

        async with self._moving:
            await state.disk.offload(extend)
            await self._superblocks.publish(change)
            state.set_limits(segment)
        state.log.grown()


_PIECE_PAGES = 128
"""Pages of a footer that are written at once."""
_SLICE = 100
"""Ledgers that are unpinned between two pauses of the loop."""


class Sealing:
    """Seals one segment at a time; long loops pause, so that requests go on."""

    def __init__(self, state: StoreState, superblocks: SuperblockWriter, growth: Growth) -> None:
        self._state, self._superblocks, self._growth = state, superblocks, growth

    async def seal(self, segment: Segment) -> None:
        """Write the footer of a segment that is full, and record in the superblock where its blocks end. OSError."""
        state, index, file = self._state, segment.index, segment.file
        assert index is not None
        assert file is not None
        await self._durable()
        await self._growth.settled()  # a footer ends where the file ends
        builder = FooterBuilder(segment.seq, state.salt)
        await _pauses(build_footer(builder, index))
        parts: list[bytes] = []
        await _pauses(builder.lay_out(segment.log_end, file.size(), parts))
        await self._write_footer(file, segment.seq, parts)
        if not state.load_footer(segment):
            raise OSError(errno.EIO, f"the footer of {segment.name} reads back differently")
        assert segment.footer is not None
        segment.made = file.size()
        segment.footer.ids = builder.ids
        segment.index = segment.file = None
        state.lookup.segments_changed()
        file.close()
        for number, ledger_index in enumerate(index.ledgers.values(), 1):
            state.table.unpin(ledger_index)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        await self._superblocks.publish()

    async def _durable(self) -> None:
        """Wait until everything inserted so far is durable. Raises OSError if the log failed."""
        future: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self._state.log.after_durable(lambda error: None if future.done() else future.set_result(error))
        error = await future
        if error is not None:
            raise error

    async def _write_footer(self, file: File, number: int, parts: list[bytes]) -> None:
        """Write the pages first, then the trailer, each synced: a good trailer means good pages."""
        disk, run = self._state.disk, self._state.reserve.run
        trailer = open_trailer(parts[-1], number, self._state.salt)
        assert trailer is not None
        offset, pages = trailer.footer_at, parts[:-1]
        for start in range(0, len(pages), _PIECE_PAGES):
            piece = pages[start : start + _PIECE_PAGES]
            last = start + _PIECE_PAGES >= len(pages)
            await disk.offload(partial(run, partial(disk.write_now, [Write(file, offset, piece)], sync=last)))
            offset += sum(map(len, piece))
        await disk.offload(partial(run, partial(disk.write_now, [Write(file, offset, [parts[-1]])])))


async def _pauses(steps: Iterator[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)
