"""Background work of a store: the next log file, sealing, the ledger table, dead files, free space.

One task runs while there is work. It never blocks the loop for long: long loops pause, and file work runs in `offload`.
Its results take effect with one atomic write of the superblock. Rewriting the ledger table takes long with many
ledgers, so it runs in slices beside sealing and requests. Those who follow the state of a store (its room, its
backpressure, its failure) have their callbacks here. Not here: what the table holds (`bookie/storage/ledger_table.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from buckram.bookie.storage.ledger_table import TableWriter
from buckram.bookie.storage.log.group_commit import INDEX_LIMIT
from buckram.bookie.storage.opening import rescan
from buckram.bookie.storage.read_results import StoreError, unless_harmless
from buckram.bookie.storage.segments.segments import Footer, FooterRepair, Segment
from buckram.bookie.storage.slices import Slices
from buckram.bookie.storage.store_state import StoreState, SuperblockChange, SuperblockWriter, no_change
from buckram.bookie.storage.superblock import TABLE_PREFIX
from buckram.bookie.storage.upkeep.log_files import Growth, LogFiles, Sealing
from buckram.core.storage.segment_format import TRAILER_SIZE, CorruptBytes, open_trailer
from buckram.runtime.disk.io_errors import NO_DESCRIPTOR, harmless, no_space, passing
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import File, Stats, Write
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


# -- callbacks of those who follow a store --------------------------------------------------------------------


class StateListener(Protocol):
    """Called, on the loop's thread, after a property of the store changed; it reads the property itself."""

    def __call__(self) -> None: ...


class FailureListener(Protocol):
    """Called once, on the loop's thread, with the error that ended the log."""

    def __call__(self, error: BaseException, /) -> None: ...


class StoreListeners:
    """Lists of callbacks, called in the order in which they were added."""

    def __init__(self) -> None:
        self.on_space: list[StateListener] = []
        self.on_backpressure_end: list[StateListener] = []
        self.on_failure: list[FailureListener] = []

    def space_changed(self) -> None:
        """Report that the store became writable or read-only."""
        for listener in self.on_space:
            listener()

    def backpressure_ended(self) -> None:
        """Report that writers need not wait any more."""
        for listener in self.on_backpressure_end:
            listener()

    def log_failed(self, error: OSError) -> None:
        """Report that the log takes nothing more."""
        for listener in self.on_failure:
            listener(error)


# -- the work -------------------------------------------------------------------------------------------------


POLL_S = 2.0
"""Seconds between measurements of free space, and between attempts of work that found no space."""

UNSEALED_LIMIT = 3
"""While this many segments wait for their footers, the log goes on in its old file."""

UNSEALED_COST = INDEX_LIMIT
"""The same while the indexes of segments that wait for their footers take more bytes of memory than this."""


class Maintenance:
    """Owns the store's background tasks and timer.

    It implements CommitEvents for group commit, and FooterRepair.
    """

    def __init__(self, state: StoreState, listeners: StoreListeners, stats: Stats) -> None:
        self._state, self._listeners = state, listeners
        self._scope = TaskScope("store", on_error=self._bug)
        self.superblocks = SuperblockWriter(state)
        self._table = Checkpoints(state, self.superblocks, self)
        self._growth = Growth(state, self.superblocks, self._scope)
        self._sealing = Sealing(state, self.superblocks, self._growth)
        self._files = LogFiles(state, self.superblocks)
        self._running = self._again = self._closed = self.backpressure = False
        self._timer: asyncio.TimerHandle | None = None
        self._lost: set[str] = set()
        self._said = ""
        self._missing = ""
        """Reason why the next log file cannot be created, which is tried again at each poll; "" if there is none."""
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
        """Measure free space now, and report when the store becomes read-only or writable."""
        state = self._state
        self._data.set(sum(one.log_end for one in state.segments))
        unused = state.unused_bytes() + self._files.retired_bytes
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
            self._listeners.space_changed()
        self._free.set(state.space.free_bytes)

    def wake(self) -> None:
        """Look for work now, unless that is under way."""
        self._again = True
        if not self._running and not self._closed and self._state.log.failed is None:
            self._running = True
            self._scope.spawn(self._work(), "maintenance")

    @property
    def checkpoints(self) -> int:
        """Return the number of times that the ledger table was rewritten."""
        return self._table.written

    async def close(self) -> None:
        self._closed = True
        self._growth.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._scope.close()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that ends with the store at the latest."""
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
        """Run `work`; if it lacks space or descriptors, the next poll tries again. Other errors end the log."""
        try:
            await work()
        except StoreError as error:
            self._postponed(error)
        except OSError as error:
            if passing(error):
                self._postponed(error)
                return
            # After a failed sync nobody knows what the disk holds, so nothing is tried again.
            log.error("store maintenance failed: %s", error)
            self._state.log.fail(error)

    def _postponed(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTOR:
            self._state.files.close_idle()
        if str(error) != self._said:
            self._said = str(error)
            log.warning("store maintenance waits: %s", error)

    async def publish_until_written(self, change: SuperblockChange = no_change) -> None:
        """Write a superblock, and try again while the disk is full: the change is in memory already."""
        while True:
            try:
                return await self.superblocks.publish(change)
            except OSError as error:
                if not passing(error):
                    raise
                self._postponed(error)
            await asyncio.sleep(POLL_S)

    # -- group commit

    def may_roll(self) -> bool:
        """Return whether the log may go on in the next file: it is ready, and not too much waits for its footer."""
        if self._state.spare is None:
            return False
        active, count, cost = self._state.log.segment, 0, 0
        for one in self._state.segments:
            if one.index is not None and one is not active:
                count += 1
                cost += one.index.cost(one.runs)
        return count < UNSEALED_LIMIT and cost <= UNSEALED_COST

    def next_segment(self, active: Segment) -> Segment | None:
        """Make the prepared segment the active one. None while it may not be, with backpressure if that lasts."""
        state = self._state
        spare = state.spare
        self.wake()
        active.runs = state.log.runs
        if spare is None or not self.may_roll():
            if state.log.overdue():
                # Writers have to wait, because the log file is far over its size; only running work can end that.
                self.backpressure = self._running
            return None
        state.spare = None
        state.segments.append(spare)
        return spare

    def log_short(self) -> None:
        """Measure free space at once, because a block found none."""
        self.measure()

    def file_nearly_full(self) -> None:
        """Start to make the active file longer."""
        self._growth.start()

    def log_failed(self, error: OSError) -> None:
        """Pass the error on to those who follow the store."""
        self._listeners.log_failed(error)

    def _end_backpressure_if_possible(self) -> None:
        if self.backpressure and (not self._running or self.may_roll()):
            self.backpressure = False
            self._listeners.backpressure_ended()

    async def _pass(self) -> None:
        state = self._state
        if state.spare is None:
            await self._next_file()
        for segment in list(state.segments):
            self._end_backpressure_if_possible()
            if segment.index is not None and segment is not state.log.segment:
                await self._sealing.seal(segment)
                if state.spare is None:
                    await self._next_file()
        self._end_backpressure_if_possible()
        if self._table.due():
            # In a task of its own, because it takes long and the log must not wait for it.
            self._scope.spawn(self._guarded(self.checkpoint), "checkpoint")
        if await self._files.reuse_retired():
            self.measure()
        await state.disk.offload(state.reserve.make)

    async def _next_file(self) -> None:
        """Have the next log file ready; without room for it, say what is missing and try again at the next poll."""
        if not self._state.free:
            self.measure()
        try:
            await self._files.prepare_next()
        except OSError as error:
            if not passing(error):
                raise
            self._missing = str(error)
            self._postponed(error)
            self.measure()
            return
        self._missing = ""

    # -- damage

    def repair_footer(self, segment: Segment | None) -> None:
        """See FooterRepair. It blocks, because no answer may leave before the index is right or the loss is marked."""
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
        """Count a loss and set limbo, first in memory, so that no negative answer leaves; the superblock follows."""
        state = self._state
        if what in self._lost:
            return  # the same damage was found again, which is no new loss
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
            self._scope.spawn(self.publish_until_written(), "limbo")

    # -- the ledger table

    async def checkpoint(self) -> None:
        """Bring the ledger table up to date now."""
        await self._table.checkpoint()

    # -- dead files

    def retire(self, segments: list[Segment]) -> None:
        """Reuse the files of these segments, which are out of the superblock, when nobody reads them."""
        self._files.retire(segments)
        self.wake()
