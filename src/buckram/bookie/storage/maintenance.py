"""Background work of a store: the next log file, sealing, the ledger table, dead files, free space.

One task runs while there is work. It never blocks the loop for long: long loops pause, and file work runs in `offload`.
Its results take effect with one atomic write of the superblock.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from buckram.bookie.storage.checkpoints import Checkpoints
from buckram.bookie.storage.commit import INDEX_LIMIT
from buckram.bookie.storage.errors import StoreError, unless_harmless
from buckram.bookie.storage.growth import Growth
from buckram.bookie.storage.index import FooterBuilder, build_footer
from buckram.bookie.storage.opening import rescan
from buckram.bookie.storage.segments import Segment
from buckram.bookie.storage.store_state import StoreState, entry_of, fresh_segment
from buckram.bookie.storage.superblock import LOG_PREFIX, Superblock, write_superblock
from buckram.core.storage.segment_format import open_trailer
from buckram.disk.trouble import NO_DESCRIPTOR, passing
from buckram.net.tasks import TaskScope
from buckram.seams import File, Stats, Write

log = logging.getLogger("buckram.store")
POLL_S = 2.0
"""How often free space is measured, and work that failed for want of it is tried again."""
SPARE_FILES = 2
"""Log files whose data is dead that are kept for reuse: overwriting is cheaper than allocating."""
UNSEALED_LIMIT = 3
"""With more segments that wait for their footers the log goes on in its old file for a while."""
UNSEALED_COST = INDEX_LIMIT
"""The same with more memory than this for the indexes of segments that wait."""
_PIECE_PAGES = 128
_SLICE = 100


async def _pauses(steps: Iterator[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


class Maintenance:
    """Owns the store's background tasks and timer.

    `on_space` is called when `writable` changes, `on_backpressure_end` when `backpressure` becomes false.
    """

    def __init__(
        self, state: StoreState, on_space: Callable[[], None], on_backpressure_end: Callable[[], None], stats: Stats
    ) -> None:
        self._state, self._on_space, self._on_backpressure_end = state, on_space, on_backpressure_end
        self._scope = TaskScope("store", on_error=self._bug)
        self._publishing = asyncio.Lock()
        self._table = Checkpoints(state, self.publish, self.repair_footer)
        self._growth = Growth(state, self.publish, self.spawn)
        self.low = self._growth.low
        self._running = self._again = self._closed = self.backpressure = False
        self._timer: asyncio.TimerHandle | None = None
        # Segments that are out of the list; their files are reused when nobody reads them any more.
        self._retired: list[Segment] = []
        self._lost: set[str] = set()
        self._said = ""
        self._missing = ""
        """Why the next log file cannot be made; tried again at each poll."""
        self.sealed = 0
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
        unused = state.unused_bytes() + sum(one.made for one in self._retired)
        try:
            free = state.disk.space().free_bytes
        except OSError as error:
            if not passing(error):
                raise
            free = state.space.free_bytes
        log_ = state.log
        needed = log_.segment is not None and log_.segment.log_end > log_.soft_limit
        short, waiting = log_.short if log_.full else "", self._missing if needed else ""
        if state.space.update(free, unused, short, waiting):
            if state.space.writable:
                log.warning("the store is writable again")
            else:
                log.warning("the store is read-only: %s", state.space.reason)
            self._on_space()
        self._free.set(state.space.free_bytes)

    def wake(self) -> None:
        """There may be work."""
        self._again = True
        if not self._running and not self._closed and self._state.log.failed is None:
            self._running = True
            self._scope.spawn(self._work(), "maintenance")

    @property
    def checkpoints(self) -> int:
        """How often the ledger table was written anew."""
        return self._table.written

    async def close(self) -> None:
        self._closed = True
        self._growth.close()
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
                await self._guarded(self._pass)
        finally:
            self._running = False
            self._end_backpressure_if_possible()

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What finds something short is tried again at the next poll."""
        try:
            await work()
        except StoreError as error:
            self._postponed(error)
        except OSError as error:
            if passing(error):
                self._postponed(error)
                return
            # What a failed sync has lost is unknown, so nothing is tried twice.
            log.error("store maintenance failed: %s", error)
            self._state.log.fail(error)

    def _postponed(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
            self._state.files.close_idle()
        if str(error) != self._said:
            self._said = str(error)
            log.warning("store maintenance waits: %s", error)

    async def insist(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Until it is done, or the store is closed: what was begun in memory must become true on disk."""
        while True:
            try:
                return await work()
            except OSError as error:
                if not passing(error):
                    raise
                self._postponed(error)
            await asyncio.sleep(POLL_S)

    # -- writers that are faster than this

    def may_roll(self) -> bool:
        """Whether the log may go on in the next file: it is ready, and not too much waits for its footer."""
        if self._state.spare is None:
            return False
        active, count, cost = self._state.log.segment, 0, 0
        for one in self._state.segments:
            if one.index is not None and one is not active:
                count += 1
                cost += one.index.cost(one.runs)
        return count < UNSEALED_LIMIT and cost <= UNSEALED_COST

    def apply_backpressure(self) -> None:
        """Ask writers to wait, because the log file is far over its size. No-op while no maintenance runs to end it."""
        self.backpressure = self._running

    def _end_backpressure_if_possible(self) -> None:
        if self.backpressure and (not self._running or self.may_roll()):
            self.backpressure = False
            self._on_backpressure_end()

    async def _pass(self) -> None:
        state = self._state
        if state.spare is None:
            await self._next_file()
        for segment in list(state.segments):
            self._end_backpressure_if_possible()
            if segment.index is not None and segment is not state.log.segment:
                await self._seal(segment)
                if state.spare is None:
                    await self._next_file()
        self._end_backpressure_if_possible()
        if self._table.due():
            # By itself, because it takes long: the log must not wait for it.
            self._scope.spawn(self._guarded(self.checkpoint), "checkpoint")
        await self._reuse_retired()
        await state.disk.offload(state.reserve.make)

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
        await self.write(
            replace(block, segments=tuple(replace(entry, log_end=ends.get(entry.seq, 0)) for entry in block.segments))
        )
        await self._state.disk.offload(self._state.reserve.make)

    async def write(self, block: Superblock) -> None:
        state = self._state
        await state.disk.offload(lambda: state.reserve.run(partial(write_superblock, state.disk, block)))
        self._state.superblock = block

    # -- the next log file

    async def _next_file(self) -> None:
        try:
            await self._prepare()
        except OSError as error:
            if not passing(error):
                raise
            self._missing = str(error)
            self._postponed(error)
            self.measure()
            return
        self._missing = ""

    async def _prepare(self) -> None:
        """Have a file ready before the active one is full: creating one takes milliseconds."""
        state = self._state
        if state.free:
            name = state.free[0]
            file = await state.disk.offload(lambda: self._reopen(name))
        else:
            self.measure()
            if not state.space.may_reserve(state.first_bytes):
                return
            name = f"{LOG_PREFIX}{state.take_file():08d}"
            file = await state.disk.offload(lambda: self._create(name, state.first_bytes))
        segment = fresh_segment(state.take_number(), name)
        segment.file, segment.made = file, file.size()
        if name in state.free:
            segment.zeroed_to = segment.made
        async with self._publishing:
            free = [one for one in state.free if one != name]
            block = state.next_superblock(free=tuple(free))
            try:
                await self.write(replace(block, segments=(*block.segments, entry_of(segment))))
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
        """One whose data is dead; what it has must do for a beginning."""
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
        await self._growth.settled()  # a footer ends where the file ends
        builder = FooterBuilder(segment.seq, state.salt)
        await _pauses(build_footer(builder, index))
        parts: list[bytes] = []
        await _pauses(builder.lay_out(segment.log_end, file.size(), parts))
        await self.write_footer(file, segment.seq, parts)
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
        self.sealed += 1
        await self.publish()

    async def write_footer(self, file: File, number: int, parts: list[bytes]) -> None:
        """Pages first, then the trailer, each synced: a good trailer means good pages."""
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

    def repair_footer(self, segment: Segment | None) -> None:
        """A page of a segment's footer (None: of the ledger table) is damaged. Blocking: rare, and it must not lie.

        StoreError: something is short, and nothing has changed."""
        state = self._state
        if segment is None:
            block = state.superblock
            if not state.losses.limbo or block.lost_table != block.table:
                state.superblock = replace(block, lost_table=block.table)
                self._mark_loss(f"ledger table {block.table} is damaged")
            return
        if segment.index is not None:
            return
        log.error("the index of log file %s is damaged; rebuilding it from its blocks", segment.name)
        try:
            whole = rescan(state, segment)
        except OSError as error:
            unless_harmless(error, f"log file {segment.name}")
            self._mark_loss(f"log file {segment.name} is unreadable: {error}")
            return
        state.cache.clear()
        if not whole:
            self._mark_loss(f"log file {segment.name} has damaged blocks")
        self.wake()

    def _mark_loss(self, what: str) -> None:
        """Limbo from now on. In memory first: no negative answer leaves meanwhile; the superblock follows at once."""
        state = self._state
        if what in self._lost:
            return  # found again: one piece of damage is one loss
        self._lost.add(what)
        state.losses.count += 1
        log.error(
            "acknowledged data may be missing (loss %d): %s; absent entries are reported as unknown (limbo)",
            state.losses.count,
            what,
        )
        state.losses.limbo = True
        state.table.refresh_limbo()
        if not self._closed:
            self._scope.spawn(self.insist(self.publish), "limbo")

    # -- the ledger table

    async def checkpoint(self) -> None:
        """Bring the ledger table up to date now."""
        await self._table.checkpoint()

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
            if len(state.free) < SPARE_FILES and state.space.writable:
                state.free.append(segment.name)
                state.sizes[segment.name] = segment.made
            else:
                await state.disk.offload(partial(state.disk.remove, segment.name))
        await self.publish()
        self.measure()
