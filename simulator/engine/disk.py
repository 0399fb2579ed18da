"""The simulated disk: seams.Disk in virtual time over runtime/disk/memory.

A `Device` outlives processes; a `SimDisk` is the open directory of one process on it and dies with that process. Syncs
take time, so messages arrive during one. A crash of the process loses nothing that the operating system has; a loss of
power keeps what was synced, and the seed chooses which of the rest.
"""

from __future__ import annotations

import asyncio
import copy
import errno
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from buckram.runtime.disk.memory import CrashModel, Inode
from buckram.seams import File, Read, Space, Write
from simulator.engine.loop import Crashed, Process, SimLoop

T = TypeVar("T")
ALIGNMENT = 512
FLUSHES = 0.02
"""The chance that the operating system has just written mapped pages to the device, per operation."""


class Device:
    """The disk of one bookie. Faults are set here; `ops` counts operations, in any of which the process may die."""

    def __init__(self, loop: SimLoop, rng: random.Random, name: str) -> None:
        self.loop, self.rng, self.name = loop, rng, name
        self.model = CrashModel()
        self.sync_s = (0.0002, 0.004)
        self.read_s = (0.0001, 0.002)
        self.fail_writes = self.fail_reads = 0
        self.holder: Process | None = None
        self.ops = 0
        self.crash_at_op: int | None = None
        self.power_off_at_op = False
        self.syncing = 0
        self.went_back = False
        self.page_rng = random.Random(f"mapped pages of {name} {rng.getstate()[1][0]}")

    def power_loss(self) -> None:
        self.model = self.model.crash(self.rng)
        self.syncing = 0
        self.loop.trace.note(self.name, "disk loses power")

    def snapshot(self) -> CrashModel:
        """Return a copy of the directory as it is now."""
        image = copy.deepcopy(self.model)
        for name in image.names():
            image.inode(name).sync()
        image.sync_names()
        return image

    def restore(self, image: CrashModel) -> None:
        """Replace the directory by an older copy. No process may have it open."""
        total_bytes = self.model.total_bytes
        self.model = copy.deepcopy(image)
        self.model.total_bytes = total_bytes
        self.syncing = 0
        self.went_back = True
        self.loop.trace.note(self.name, "directory goes back to an older copy")

    def wipe(self) -> None:
        self.model = CrashModel(total_bytes=self.model.total_bytes)
        self.loop.trace.note(self.name, "disk is wiped")

    def flip_bits(self, name: str, offset: int, mask: int) -> None:
        """Change bits of one durable byte of a file."""
        content = self.model.inode(name).content
        if offset < len(content):
            self.loop.trace.note(self.name, f"byte {offset} of {name} changes by {mask:#x}")
            content[offset] ^= mask


class SimFile:
    def __init__(self, disk: SimDisk, name: str, inode: Inode, direct: bool) -> None:
        self.disk, self.name, self.inode, self.direct = disk, name, inode, direct

    def size(self) -> int:
        return self.inode.size()

    def read(self, offset: int, length: int) -> bytes:
        self.disk.check_alive()
        return self.inode.read(offset, length)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class SimDisk:
    """seams.Disk of one process."""

    alignment = ALIGNMENT
    open_files = 256

    def __init__(self, device: Device, process: Process) -> None:
        self.device, self._process, self._loop = device, process, device.loop

    def check_alive(self) -> None:
        if self._process.dead:
            raise Crashed(self._process.name)

    def _op(self) -> bool:
        """Count an operation. Return whether the process must die in it, with its effect done but not synced."""
        self.check_alive()
        device = self.device
        device.ops += 1
        if device.page_rng.random() < FLUSHES:
            device.model.flush_pages()
        return device.crash_at_op is not None and device.ops >= device.crash_at_op

    def _die(self) -> None:
        self.device.crash_at_op = None
        self._process.crash()
        raise Crashed(self._process.name)

    # names

    def open(self, name: str, *, create: bool = False, size: int = 0, direct: bool = False) -> SimFile:
        self.check_alive()
        if create:
            dies = self._op()
            # The content of reserved space is undefined, and old bytes may be mistaken for data where zeros are not.
            self.device.model.create(name, size, self.device.rng.choice((0, 0xFF, 0x51)))
            if dies:
                self._die()
        return SimFile(self, name, self.device.model.inode(name), direct)

    def extend(self, file: File, size: int) -> None:
        assert isinstance(file, SimFile)
        dies = self._op()
        self.device.model.extend(file.inode, size, self.device.rng.choice((0, 0xFF, 0x51)))
        if dies:
            self._die()

    def shrink(self, file: File, size: int) -> None:
        assert isinstance(file, SimFile)
        dies = self._op()
        self.device.model.shrink(file.inode, size)
        if dies:
            self._die()

    def names(self) -> list[str]:
        self.check_alive()
        return self.device.model.names()

    def rename(self, old: str, new: str) -> None:
        dies = self._op()
        self.device.model.rename(old, new)
        if dies:
            self._die()

    def remove(self, name: str) -> None:
        dies = self._op()
        self.device.model.remove(name)
        if dies:
            self._die()

    def sync_names(self) -> None:
        if self._op():
            self._die()
        self.device.model.sync_names()

    # writing

    def _apply(self, writes: Sequence[Write]) -> list[Inode]:
        touched: dict[int, Inode] = {}
        for write in writes:
            file, data = write.file, b"".join([bytes(buffer) for buffer in write.buffers])
            assert isinstance(file, SimFile)
            if file.direct and (write.offset % ALIGNMENT or len(data) % ALIGNMENT):
                raise OSError(errno.EINVAL, f"unaligned direct write of {len(data)} bytes at {write.offset}")
            if data:
                self.device.model.write(file.inode, write.offset, data)
            touched[id(file.inode)] = file.inode
        return list(touched.values())

    def _failure(self) -> OSError | None:
        if not self.device.fail_writes:
            return None
        self.device.fail_writes -= 1
        self._loop.trace.note(self.device.name, "a write or sync fails")
        return OSError(errno.EIO, "input/output error")

    def write_now(self, writes: Sequence[Write], *, sync: bool = True) -> None:
        dies = self._op()
        touched = self._apply(writes)
        if dies:
            self._die()
        failure = self._failure()
        if failure is not None:
            raise failure
        if sync:
            for inode in touched:
                inode.sync()

    def write(self, writes: Sequence[Write], done: Callable[[OSError | None], None], *, sync: bool = True) -> None:
        dies = self._op()
        try:
            touched = self._apply(writes)
        except OSError as error:
            self._loop.call_soon(done, error, context=self._process.context)
            return
        if dies:
            self._die()
        device, failure = self.device, self._failure()
        marks = [(inode, inode.pending[-1]) for inode in touched if inode.pending]
        device.syncing += 1

        def complete() -> None:
            # This is code of the device, which also runs while the process is paused. Writes of a dead process stay
            # unsynced, and power_loss() chooses which of them survive.
            device.syncing -= 1
            if self._process.dead:
                return
            if failure is None and sync:
                for inode, last in marks:
                    inode.sync(last)
            self._loop.call_soon(done, failure, context=self._process.context)

        self._loop.call_later(self._latency(device.sync_s), complete, context=self._loop.world.context)

    # reading

    def read(self, reads: Sequence[Read], done: Callable[[list[bytes] | OSError], None]) -> None:
        self.check_alive()
        device, failure = self.device, None
        if device.fail_reads:
            device.fail_reads -= 1
            failure = OSError(errno.EIO, "input/output error")
            self._loop.trace.note(device.name, "a read fails")

        def complete() -> None:
            done(failure or [item.file.read(item.offset, item.length) for item in reads])

        self._loop.call_later(self._latency(device.read_s), complete, context=self._process.context)

    def _latency(self, bounds: tuple[float, float]) -> float:
        low, high = bounds
        return low + (high - low) * self.device.rng.random()

    async def offload(self, job: Callable[[], T]) -> T:
        """Run the job, which takes no virtual time itself, between two delays."""
        self.check_alive()
        await asyncio.sleep(self._latency(self.device.sync_s))
        result = job()
        await asyncio.sleep(self._latency(self.device.sync_s))
        return result

    # the directory

    def map_page(self, name: str) -> memoryview:
        self.check_alive()
        return self.device.model.inode(name).map_page()

    def space(self) -> Space:
        return Space(self.device.model.total_bytes, self.device.model.free_bytes())

    def identity(self) -> str:
        return self.device.name

    def directory(self) -> str:
        return self.device.name

    def lock(self) -> None:
        holder = self.device.holder
        if holder is not None and not holder.dead and holder is not self._process:
            raise OSError(errno.EAGAIN, f"{self.device.name} is in use by {holder.name}")
        self.device.holder = self._process

    def close(self) -> None:
        if self.device.holder is self._process:
            self.device.holder = None
