"""MemoryDisk: the Disk seam over a CrashModel, without time: everything happens in the call.

For tests and crash points. `before(operation)` is called ahead of each disk operation, so that a test can take the
image of a crash there. The simulator has its own disk with virtual latency over the same model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from buckram.runtime.disk.crash_model import CrashModel, Inode
from buckram.seams import File, OnRead, OnWritten, Read, Space, Write

T = TypeVar("T")


class MemoryFile:
    def __init__(self, disk: MemoryDisk, name: str, inode: Inode) -> None:
        self.name, self.inode = name, inode
        self._disk = disk

    def size(self) -> int:
        return self.inode.size()

    def read(self, offset: int, length: int) -> bytes:
        return self._disk.read_inode(self.inode, offset, length)

    def close(self) -> None:
        pass


class MemoryDisk:
    """A disk in memory. Reserved space holds the byte `stale`; a test may set `fail` to the error of the next write."""

    def __init__(
        self,
        model: CrashModel | None = None,
        *,
        before: Callable[[str], None] | None = None,
        alignment: int = 512,
        stale: int = 0,
    ) -> None:
        self.model = model if model is not None else CrashModel()
        self.alignment = alignment
        self.open_files = 256
        self.before: Callable[[str], None] = before if before is not None else lambda operation: None
        self.fail: OSError | None = None
        self._stale = stale

    def open(self, name: str, *, create: bool = False, size: int = 0, direct: bool = False) -> MemoryFile:
        if not create:
            return MemoryFile(self, name, self.model.inode(name))
        self.before(f"create {name}")
        return MemoryFile(self, name, self.model.create(name, size, self._stale))

    def extend(self, file: File, size: int) -> None:
        assert isinstance(file, MemoryFile)
        self.before(f"extend {file.name} {size}")
        self.model.extend(file.inode, size, self._stale)

    def shrink(self, file: File, size: int) -> None:
        assert isinstance(file, MemoryFile)
        self.before(f"shrink {file.name} {size}")
        self.model.shrink(file.inode, size)

    def names(self) -> list[str]:
        return self.model.names()

    def rename(self, old: str, new: str) -> None:
        self.before(f"rename {old} {new}")
        self.model.rename(old, new)

    def remove(self, name: str) -> None:
        self.before(f"remove {name}")
        self.model.remove(name)

    def sync_names(self) -> None:
        self.before("sync_names")
        self.model.sync_names()

    def write_now(self, writes: Sequence[Write], *, sync: bool = True) -> None:
        if self.fail is not None:
            error, self.fail = self.fail, None
            raise error
        inodes: list[Inode] = []
        for write in writes:
            assert isinstance(write.file, MemoryFile)
            inode, offset = write.file.inode, write.offset
            inodes.append(inode)
            data = b"".join(write.buffers)
            if data:
                self.before(f"write {write.file.name} {offset}+{len(data)}")
                self.model.write(inode, offset, data)
        if sync:
            for inode in inodes:
                self.before("sync")
                inode.sync()

    def write(self, writes: Sequence[Write], done: OnWritten, *, sync: bool = True) -> None:
        try:
            self.write_now(writes, sync=sync)
        except OSError as error:
            done(error)
            return
        done(None)

    def read_inode(self, inode: Inode, offset: int, length: int) -> bytes:
        return inode.read(offset, length)

    def read(self, reads: Sequence[Read], done: OnRead) -> None:
        try:
            done([one.file.read(one.offset, one.length) for one in reads])
        except OSError as error:
            done(error)

    async def offload(self, job: Callable[[], T]) -> T:
        return job()

    def map_page(self, name: str) -> memoryview:
        return self.model.inode(name).map_page()

    def space(self) -> Space:
        return Space(self.model.total_bytes, self.model.free_bytes())

    def identity(self) -> str:
        return ""

    def directory(self) -> str:
        return ""

    def lock(self) -> None:
        pass

    def close(self) -> None:
        pass
