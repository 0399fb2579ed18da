"""Decides when the ledger table on disk is due, and rewrites it.

Rewriting takes long with many ledgers, so it runs in slices beside sealing and requests.
Not here: what the table holds (`bookie/storage/ledger_table.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Iterator
from functools import partial

from buckram.bookie.storage.ledger_table import TableWriter
from buckram.bookie.storage.segments.segments import Footer, FooterRepair, Segment
from buckram.bookie.storage.slices import Slices
from buckram.bookie.storage.store_state import StoreState, SuperblockWriter
from buckram.bookie.storage.superblock import TABLE_PREFIX
from buckram.core.storage.segment_format import TRAILER_SIZE, CorruptBytes, open_trailer
from buckram.runtime.disk.io_errors import harmless, no_space, passing
from buckram.seams import File, Write
from buckram.types import LedgerId

log = logging.getLogger("buckram.store")
CHECKPOINT_AFTER, CHECKPOINT_LATEST = 8, 64
"""The table is rewritten after CHECKPOINT_AFTER sealed segments if their states are a quarter of it, and after
CHECKPOINT_LATEST in any case."""
_SLICE, _MERGED_AT_ONCE = 50, 200


class Checkpoints:
    """Decides when the ledger table is rewritten, and rewrites it."""

    def __init__(self, state: StoreState, superblocks: SuperblockWriter, repair: FooterRepair) -> None:
        self._state, self._superblocks, self._repair = state, superblocks, repair
        self._running = asyncio.Lock()
        self.written = 0

    def due(self) -> bool:
        """Return whether `checkpoint` should run now."""
        if self._running.locked():
            return False
        waiting = [one for one in self._state.uncovered() if one.footer is not None]
        if len(waiting) < CHECKPOINT_AFTER:
            return False
        table = self._state.table.file
        states = sum(one.footer.trailer.states for one in waiting if one.footer is not None)
        return len(waiting) >= CHECKPOINT_LATEST or table is None or states * 4 >= table.trailer.states

    async def checkpoint(self) -> None:
        """Merge the states of all sealed segments, up to the first unsealed one, into a new table file.

        On a full disk it uses the space of the reserve. Raises OSError.
        """
        state = self._state
        async with self._running:
            try:
                await self._checkpoint()
            except OSError as error:
                if not no_space(error) or not await state.disk.offload(state.reserve.give_up):
                    raise
                try:
                    await self._checkpoint()
                finally:
                    await state.disk.offload(state.reserve.make)

    async def _checkpoint(self) -> None:
        state = self._state
        sources: list[Segment] = []  # newest first
        for segment in state.segments:
            if segment.has_states and segment.seq > state.superblock.covered:
                if segment.footer is None:
                    break
                sources.insert(0, segment)
        if not sources:
            return
        number = state.take_number()
        name = f"{TABLE_PREFIX}{state.take_file():08d}"
        file = await state.disk.offload(lambda: state.disk.open(name, create=True))
        done = False
        try:
            await self._load_states(sources)
            await self._write_table(file, TableWriter(number, state.salt), state.table.records(sources))
            done = True
        except CorruptBytes as error:
            log.error("the ledger table is not rewritten: %s", error)
            for segment in sources:
                if segment.footer is not None and not _readable(segment.footer):
                    self._repair.repair_footer(segment)
            return
        finally:
            file.close()
            if not done:
                state.disk.remove(name)
        old = state.superblock.table
        try:
            await state.disk.offload(state.disk.sync_names)
            await self._superblocks.publish(lambda: {"table": name, "table_number": number, "covered": sources[0].seq})
        except OSError as error:
            if passing(error):  # then no superblock names it
                state.disk.remove(name)
            raise
        self._adopt_table(name, number)
        for segment in sources:
            if segment.footer is not None:
                segment.footer.ids = None
        self.written += 1
        if old:
            state.files.forget(old)
            await state.disk.offload(partial(state.disk.remove, old))

    def _adopt_table(self, name: str, number: int) -> None:
        state = self._state
        file = state.files.get(name)
        trailer = open_trailer(file.read(file.size() - TRAILER_SIZE, TRAILER_SIZE), number, state.salt)
        if trailer is None:
            raise OSError(errno.EIO, f"the ledger table {name} reads back differently")
        state.table.file = Footer(trailer, lambda: state.files.get(name), state.cache)

    async def _load_states(self, sources: list[Segment]) -> None:
        """Read the states into the page cache in another thread, because the loop then reads them page by page."""
        files = self._state.files
        for segment in sources:
            if (footer := segment.footer) is not None:
                file = files.hold(segment.name)
                try:
                    await self._state.disk.offload(partial(footer.load_states, file))
                finally:
                    files.release(segment.name)

    async def _write_table(self, file: File, writer: TableWriter, records: Iterator[tuple[LedgerId, bytes]]) -> None:
        disk, offset, slices = self._state.disk, 0, Slices(_MERGED_AT_ONCE)
        for number, (ledger, rest) in enumerate(records, 1):
            data = writer.add(ledger, rest)
            if data:
                await disk.offload(partial(disk.write_now, [Write(file, offset, [data])], sync=False))
                offset += len(data)
            if number % _SLICE == 0:
                await slices.step(_SLICE)
        await disk.offload(partial(disk.write_now, [Write(file, offset, [writer.finish()])]))


def _readable(footer: Footer) -> bool:
    try:
        for _ in footer.states():
            pass
    except (CorruptBytes, OSError) as error:
        return harmless(error)
    return True
