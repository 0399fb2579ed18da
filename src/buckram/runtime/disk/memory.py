"""MemoryDisk: the Disk seam over a CrashModel, without time: everything happens in the call.

It is for tests and crash points: `before(operation)` is called ahead of each disk operation, so that a test can take
the image of a crash there. The simulator has its own disk with virtual latency over the same model.

A CrashModel is a directory as durable bytes plus all writes that were not synced yet, and the state after a crash. It
is pure: no clock, no files, randomness is passed in. It models a POSIX file system without ordered data: until its file
is synced any subset of the written sectors may survive, and until the directory is synced any subset of the changes of
names may. A mapped page is memory until `flush` (the operating system's choice), and each of its sectors survives as it
was then or as it is.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from buckram.seams import PAGE_BYTES, File, OnRead, OnWritten, Read, Space, Write
from buckram.types import Buffer

# -- the model of crashes -------------------------------------------------------------------------------------

SECTOR = 512
"""A device writes whole sectors: torn writes break between them, never inside one."""


class Inode:
    """One file: durable bytes and unsynced writes in the order they were made."""

    __slots__ = ("content", "mapped", "pending")

    def __init__(self, content: bytearray) -> None:
        self.content = content
        self.pending: list[tuple[int, bytes]] = []
        self.mapped: bytearray | None = None

    def map_page(self) -> memoryview:
        """Return the first page as memory; mapping it again returns the same memory."""
        if self.mapped is None or bytes(self.mapped) != self.read(0, PAGE_BYTES):
            self.sync()
            self.mapped = bytearray(self.content[:PAGE_BYTES])
        return memoryview(self.mapped)

    def flush(self) -> None:
        """Write the mapped page to the device."""
        if self.mapped is not None:
            self.content[: len(self.mapped)] = self.mapped

    def size(self) -> int:
        return max([len(self.content), *(offset + len(data) for offset, data in self.pending)])

    def read(self, offset: int, length: int) -> bytes:
        """Return what a running process sees, including unsynced writes."""
        end = min(offset + length, self.size())
        if end <= offset:
            return b""
        view = bytearray(self.content[offset:end])
        if self.mapped is not None and offset < len(self.mapped):
            page = self.mapped[offset:end]
            view[: len(page)] = page
        view.extend(bytes(end - offset - len(view)))
        for start, data in self.pending:
            low, high = max(start, offset), min(start + len(data), end)
            if low < high:
                view[low - offset : high - offset] = data[low - start : high - start]
        return bytes(view)

    def sync(self, upto: tuple[int, bytes] | None = None) -> None:
        """Make all writes durable, or only those up to `upto`, an element of `pending` (none if it is gone)."""
        count = len(self.pending)
        if upto is not None:
            count = next((n for n, one in enumerate(self.pending, 1) if one is upto), 0)
        self.flush()
        for offset, data in self.pending[:count]:
            _apply(self.content, offset, data)
            if self.mapped is not None:
                self.mapped[:] = self.content[: len(self.mapped)]
        del self.pending[:count]

    def survivor(self, rng: random.Random) -> Inode:
        """Return the file after a crash: each unsynced write is lost, kept, or kept in some of its sectors."""
        copy = Inode(bytearray(self.content))
        if self.mapped is not None:
            for low, high in sectors(0, len(self.mapped)):
                if rng.random() < 0.5:
                    copy.content[low:high] = self.mapped[low:high]
        for offset, data in self.pending:
            fate = rng.random()
            if fate < 0.3:
                continue
            if fate < 0.5:
                _apply(copy.content, offset, data)
                continue
            for low, high in sectors(offset, len(data)):
                if rng.random() < 0.5:
                    _apply(copy.content, low, data[low - offset : high - offset])
        return copy


def sectors(offset: int, length: int) -> list[tuple[int, int]]:
    """Cut the range [offset, offset+length) at the boundaries of sectors; returns pairs (low, high)."""
    cuts = [offset, *range(offset - offset % SECTOR + SECTOR, offset + length, SECTOR), offset + length]
    return list(itertools.pairwise(cuts))


def _apply(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class CrashModel:
    """A directory. Every method is one disk operation; `crash` gives an image that a restart could find."""

    def __init__(self, *, total_bytes: int = 1 << 40) -> None:
        self.total_bytes = total_bytes
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        # Each change of names is atomic in itself: name -> inode, None removes the name.
        self._pending_names: list[dict[str, Inode | None]] = []

    def names(self) -> list[str]:
        return sorted(self._names)

    def inode(self, name: str) -> Inode:
        try:
            return self._names[name]
        except KeyError:
            raise FileNotFoundError(2, "no such file", name) from None

    def create(self, name: str, size: int = 0, fill: int = 0) -> Inode:
        """Create a file of `size` bytes that hold `fill`. FileExistsError, or OSError with ENOSPC."""
        if name in self._names:
            raise FileExistsError(17, "file exists", name)
        if size > self.free_bytes():
            raise OSError(28, "no space left on device", name)
        inode = Inode(bytearray(bytes([fill]) * size))
        self._change({name: inode})
        return inode

    def rename(self, old: str, new: str) -> None:
        self._change({new: self.inode(old), old: None})

    def remove(self, name: str) -> None:
        self.inode(name)
        self._change({name: None})

    def _change(self, change: dict[str, Inode | None]) -> None:
        _rename(self._names, change)
        self._pending_names.append(change)

    def sync_names(self) -> None:
        self._durable_names = dict(self._names)
        self._pending_names.clear()

    def write(self, inode: Inode, offset: int, data: Buffer) -> None:
        """Write without a sync. OSError with ENOSPC if the file would outgrow the device; nothing is written then."""
        grows = offset + len(data) - inode.size()
        if grows > 0 and grows > self.free_bytes():
            raise OSError(28, "no space left on device")
        inode.pending.append((offset, bytes(data)))

    def extend(self, inode: Inode, size: int, fill: int = 0) -> None:
        """Make the file longer, durable at once. OSError with ENOSPC."""
        if size - inode.size() > self.free_bytes():
            raise OSError(28, "no space left on device")
        inode.content.extend(bytes([fill]) * (size - len(inode.content)))

    def shrink(self, inode: Inode, size: int) -> None:
        """Make a file shorter that nothing is being written to, durable at once."""
        del inode.content[size:]

    def flush_pages(self) -> None:
        """Write back all mapped pages, as the operating system does from time to time."""
        for inode in self._names.values():
            inode.flush()

    def used_bytes(self) -> int:
        return sum(inode.size() for inode in self._names.values())

    def free_bytes(self) -> int:
        return max(0, self.total_bytes - self.used_bytes())

    def crash(self, rng: random.Random) -> CrashModel:
        """Return a new model with what survived a crash; this one is not changed."""
        names = dict(self._durable_names)
        for change in self._pending_names:
            if rng.random() < 0.5:
                _rename(names, change)
        image = CrashModel(total_bytes=self.total_bytes)
        image._durable_names = {name: inode.survivor(rng) for name, inode in sorted(names.items())}
        image._names = dict(image._durable_names)
        return image

    def worst_case(self) -> CrashModel:
        """Return a new model in which nothing survived that was not synced."""
        image = CrashModel(total_bytes=self.total_bytes)
        image._durable_names = {name: Inode(bytearray(inode.content)) for name, inode in self._durable_names.items()}
        image._names = dict(image._durable_names)
        return image


def _rename(names: dict[str, Inode], change: dict[str, Inode | None]) -> None:
    for name, inode in change.items():
        if inode is None:
            names.pop(name, None)
        else:
            names[name] = inode


# -- the disk -------------------------------------------------------------------------------------------------

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
