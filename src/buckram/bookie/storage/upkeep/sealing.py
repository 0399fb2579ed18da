"""Seals full log files: writes the footer, with which a segment needs no index in memory any more.

Not here: how a footer is read (`bookie/storage/segments/segments.py`); footers of compacted files
(`bookie/storage/upkeep/compaction_output.py`).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from functools import partial

from buckram.bookie.storage.segments.index import FooterBuilder, build_footer
from buckram.bookie.storage.segments.segments import Segment
from buckram.bookie.storage.store_state import StoreState, SuperblockWriter
from buckram.bookie.storage.upkeep.log_files import Growth
from buckram.core.storage.segment_format import open_trailer
from buckram.seams import File, Write

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
