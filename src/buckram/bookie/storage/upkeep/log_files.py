"""Creates the next log file ahead of the log, and reuses or removes files whose data is dead.

Not here: how a log file grows (`bookie/storage/upkeep/growth.py`); which segment the log goes on in
(`bookie/storage/upkeep/maintenance.py`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from buckram.bookie.storage.segments.segments import Segment
from buckram.bookie.storage.store_state import StoreState, entry_of, fresh_segment
from buckram.bookie.storage.superblock import LOG_PREFIX
from buckram.bookie.storage.superblock_writer import SuperblockWriter
from buckram.seams import File

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
