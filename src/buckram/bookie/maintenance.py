"""Work behind the scenes of a store: the next log file, sealing, the ledger table, dead files, free space.

One task that runs while there is something to do. It never blocks the loop for long: long loops pause, file work runs
in `offload`. What it publishes becomes true with one atomic write of the superblock.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from buckram.bookie.index import FooterBuilder, build_footer
from buckram.bookie.ledger_table import TableWriter
from buckram.bookie.opening import rescan
from buckram.bookie.segments import Footer, Segment
from buckram.bookie.store_state import StoreState, entry_of, fresh_segment
from buckram.bookie.superblock import LOG_PREFIX, TABLE_PREFIX, Superblock, write_superblock
from buckram.core.segment_format import TRAILER_SIZE, CorruptBytes, LedgerState, open_trailer
from buckram.net.tasks import TaskScope
from buckram.seams import File, Stats, Write

log = logging.getLogger("buckram.store")
POLL_S = 2.0
"""How often free space is measured, and work that failed for want of it is tried again."""
SPARE_FILES = 2
"""Log files whose data is dead that are kept for reuse: overwriting is cheaper than allocating."""
CHECKPOINT_AFTER, CHECKPOINT_LATEST = 8, 64
"""The table is rewritten after so many sealed segments if their states are a quarter of it, at the latest after ..."""
_PIECE_PAGES = 128
_SLICE = 200


async def _pauses(steps: Iterator[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


class Maintenance:
    """Owns the store's background task and timer. `on_space` is called when `writable` changed."""

    def __init__(self, state: StoreState, on_space: Callable[[], None], stats: Stats) -> None:
        self._state, self._on_space = state, on_space
        self._scope = TaskScope("store", on_error=self._bug)
        self._publishing, self._checkpointing = asyncio.Lock(), asyncio.Lock()
        self._running = self._again = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        # Segments that are out of the list; their files are reused when nobody reads them any more.
        self._retired: list[Segment] = []
        self.sealed = self.checkpoints = 0
        self._free = stats.gauge("buckram_store_free_bytes", "free bytes of the device")
        self._data = stats.gauge("buckram_store_log_file_bytes", "bytes of blocks in log files, dead ones included")

    def _bug(self, error: BaseException) -> None:
        if not isinstance(error, OSError):
            error = OSError(errno.EIO, f"maintenance failed: {error!r}")
        self._state.log.fail(error)

    # -- running

    def start(self) -> None:
        if not self._closed and self._timer is None:
            self._poll()

    def _poll(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(POLL_S, self._poll)
        self.measure()
        self.wake()

    def measure(self) -> None:
        """Look at free space now."""
        state = self._state
        self._data.set(sum(one.log_end for one in state.segments))
        unused = len(state.free) + len(self._retired) + (state.spare is not None)
        if state.space.update(state.disk.space().free_bytes, unused * state.file_bytes, state.log.full):
            log.warning("the store is %s", "writable again" if state.space.writable else "read-only: the disk is full")
            self._on_space()
        self._free.set(state.space.free_bytes)

    def wake(self) -> None:
        """There may be work."""
        self._again = True
        if not self._running and not self._closed and self._state.log.failed is None:
            self._running = True
            self._scope.spawn(self._work(), "maintenance")

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.close()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """A task that ends with the store at the latest."""
        return self._scope.spawn(work, name)

    async def _work(self) -> None:
        try:
            while self._again and self._state.log.failed is None:
                self._again = False
                await self._pass()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                # What a failed sync has lost is unknown, so nothing is tried twice.
                log.error("store maintenance failed: %s", error)
                self._state.log.fail(error)
        finally:
            self._running = False

    async def _pass(self) -> None:
        state = self._state
        if state.spare is None:
            await self._prepare()
        for segment in list(state.segments):
            if segment.index is not None and segment is not state.log.segment:
                await self._seal(segment)
                if state.spare is None:
                    await self._prepare()
        if self.checkpoint_due():
            await self.checkpoint()
        await self._reuse_retired()

    # -- the superblock

    async def publish(self, change: Callable[[], dict[str, Any]] = dict) -> None:
        """Write a superblock of what is in memory. `change` runs right before, with no await up to the snapshot."""
        state = self._state
        async with self._publishing:
            block = state.next_superblock(**change())
            await self.write(block)

    async def publish_clean(self) -> None:
        """The last superblock of this process: where every log ends, and that the stop was orderly."""
        block = self._state.next_superblock(clean=True)
        ends = {one.seq: one.log_end for one in self._state.segments}
        await self.write(replace(block, segments=tuple(
            replace(entry, log_end=ends.get(entry.seq, 0)) for entry in block.segments
        )))

    async def write(self, block: Superblock) -> None:
        await self._state.disk.offload(partial(write_superblock, self._state.disk, block))
        self._state.superblock = block

    # -- the next log file

    async def _prepare(self) -> None:
        """Have a file ready before the active one is full: creating one takes milliseconds."""
        state = self._state
        if state.free:
            name = state.free[0]
            file = await state.disk.offload(lambda: state.disk.open(name, direct=True))
        else:
            self.measure()
            if not state.space.may_reserve(state.file_bytes):
                return
            name = f"{LOG_PREFIX}{state.take_file():08d}"
            file = await state.disk.offload(lambda: self._create(name, state.file_bytes))
        segment = fresh_segment(state.take_number(), name)
        segment.file = file
        if name in state.free:
            segment.laid_to = state.file_bytes
        async with self._publishing:
            free = [one for one in state.free if one != name]
            block = state.next_superblock(free=tuple(free))
            try:
                await self.write(replace(block, segments=(*block.segments, entry_of(segment))))
            except BaseException:
                file.close()
                if name not in state.free:
                    state.free.append(name)
                raise
            state.free = [one for one in state.free if one != name]
            state.spare = segment

    def _create(self, name: str, size: int) -> File:
        file = self._state.disk.open(name, create=True, size=size, direct=True)
        self._state.disk.sync_names()
        return file

    # -- sealing

    async def _durable(self) -> None:
        """Everything inserted so far is durable. OSError: the log failed."""
        future: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
        self._state.log.after_durable(lambda error: None if future.done() else future.set_result(error))
        error = await future
        if error is not None:
            raise error

    async def _seal(self, segment: Segment) -> None:
        """Write the footer of a segment that is full."""
        state, index, file = self._state, segment.index, segment.file
        assert index is not None
        assert file is not None
        await self._durable()
        builder = FooterBuilder(segment.seq, state.salt)
        await _pauses(build_footer(builder, index))
        parts: list[bytes] = []
        await _pauses(builder.lay_out(segment.log_end, file.size(), parts))
        await self.write_footer(file, segment.seq, parts)
        if not state.load_footer(segment):
            raise OSError(errno.EIO, f"the footer of {segment.name} reads back differently")
        segment.index = segment.file = None
        state.lookup.segments_changed()
        file.close()
        for number, slot in enumerate(index.slots.values(), 1):
            state.table.unpin(slot)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        self.sealed += 1
        await self.publish()

    async def write_footer(self, file: File, number: int, parts: list[bytes]) -> None:
        """Pages first, then the trailer, each synced: a good trailer means good pages."""
        disk = self._state.disk
        trailer = open_trailer(parts[-1], number, self._state.salt)
        assert trailer is not None
        offset, pages = trailer.footer_at, parts[:-1]
        for start in range(0, len(pages), _PIECE_PAGES):
            piece = pages[start : start + _PIECE_PAGES]
            last = start + _PIECE_PAGES >= len(pages)
            await disk.offload(partial(disk.write_now, [Write(file, offset, piece)], sync=last))
            offset += sum(map(len, piece))
        await disk.offload(partial(disk.write_now, [Write(file, offset, [parts[-1]])]))

    def mend(self, segment: Segment | None) -> None:
        """A page of a segment's footer (None: of the ledger table) is damaged. Blocking: rare, and it must not lie."""
        state = self._state
        if segment is None:
            self._mark_loss(f"ledger table {state.superblock.table} is damaged")
            return
        if segment.index is not None:
            return
        log.error("the index of log file %s is damaged; rebuilding it from its blocks", segment.name)
        try:
            whole = rescan(state, segment)
        except OSError as error:
            self._mark_loss(f"log file {segment.name} is unreadable: {error}")
            return
        state.cache.clear()
        if not whole:
            self._mark_loss(f"log file {segment.name} has damaged blocks")
        self.wake()

    def _mark_loss(self, what: str) -> None:
        """Limbo from now on. In memory first: no negative answer leaves meanwhile; the superblock follows at once."""
        state = self._state
        log.error("acknowledged data may be missing: %s; absent entries are reported as unknown (limbo)", what)
        if not state.losses.limbo or state.losses.count == state.superblock.losses:
            state.losses.count += 1
        state.losses.limbo = True
        state.table.refresh_limbo()
        if not self._closed:
            self._scope.spawn(self.publish(), "limbo")

    # -- the ledger table

    def checkpoint_due(self) -> bool:
        waiting = [one for one in self._state.uncovered() if one.footer is not None]
        if len(waiting) < CHECKPOINT_AFTER:
            return False
        table = self._state.table.file
        states = sum(one.footer.trailer.states for one in waiting if one.footer is not None)
        return len(waiting) >= CHECKPOINT_LATEST or table is None or states * 4 >= table.trailer.states

    async def checkpoint(self) -> None:
        """Merge the states of all sealed segments, up to the first unsealed one, into a new table file."""
        async with self._checkpointing:
            await self._checkpoint()

    async def _checkpoint(self) -> None:
        state = self._state
        sources: list[Segment] = []
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
        try:
            await self._write_table(file, TableWriter(number, state.salt), state.table.states(-1, sources))
        except CorruptBytes as error:
            log.error("the ledger table is not rewritten: %s", error)
            for segment in sources:
                if segment.footer is not None and not _readable(segment.footer):
                    self.mend(segment)
            state.disk.remove(name)
            return
        finally:
            file.close()
        await state.disk.offload(state.disk.sync_names)
        old = state.superblock.table
        await self.publish(lambda: {"table": name, "table_number": number, "covered": sources[0].seq})
        self._adopt_table(name, number)
        self.checkpoints += 1
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

    async def _write_table(self, file: File, writer: TableWriter, states: Iterator[LedgerState]) -> None:
        disk, offset = self._state.disk, 0
        for number, one in enumerate(states, 1):
            data = writer.add(one)
            if data:
                await disk.offload(partial(disk.write_now, [Write(file, offset, [data])], sync=False))
                offset += len(data)
            if number % _SLICE == 0:
                await asyncio.sleep(0)
        await disk.offload(partial(disk.write_now, [Write(file, offset, [writer.finish()])]))

    # -- dead files

    def retire(self, segments: list[Segment]) -> None:
        """These segments are out of the superblock: use their files again when nobody reads them."""
        for segment in segments:
            self._state.files.forget(segment.name)
        self._retired.extend(segments)
        self.wake()

    async def _reuse_retired(self) -> None:
        state = self._state
        ready = [one for one in self._retired if one.readers == 0]
        if not ready:
            return
        for segment in ready:
            self._retired.remove(segment)
            state.files.forget(segment.name)
            if len(state.free) < SPARE_FILES:
                state.free.append(segment.name)
            else:
                await state.disk.offload(partial(state.disk.remove, segment.name))
        await self.publish()
        self.measure()


def _readable(footer: Footer) -> bool:
    try:
        for _ in footer.states():
            pass
    except (CorruptBytes, OSError):
        return False
    return True
