"""WithholdingDisk: real files that lose what was not synced when their process is killed. For tests of whole processes.

After kill -9 the page cache keeps every write, so a plain kill never tests a sync. Here unsynced writes and changes of
names stay in this process's memory; a seeded share of their sectors reaches the files early, in any order, as a power
failure would leave them. The model is `CrashModel` (`runtime/disk/memory.py`); only creations of files are not
withheld.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from buckram.runtime.disk.local import LocalDisk, _extend, _shrink
from buckram.runtime.disk.memory import sectors
from buckram.runtime.disk.syncing import sync_data
from buckram.seams import PAGE_BYTES, File, OnRead, Read, Write

EARLY_SHARE = 0.3
"""The share of unsynced writes, and of changes of names, that reach the directory before their sync."""


class _Inode:
    """A file in the directory, under a name that may be about to change, and its unsynced writes in order."""

    __slots__ = ("fd", "path", "pending")

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd
        self.pending: list[tuple[int, bytes]] = []

    def size(self) -> int:
        return max([os.fstat(self.fd).st_size, *(offset + len(data) for offset, data in self.pending)])

    def read(self, offset: int, length: int) -> bytes:
        found = bytearray(os.pread(self.fd, length, offset))
        for start, data in self.pending:
            low, high = max(start, offset), min(start + len(data), offset + length)
            if low < high:
                found.extend(bytes(max(0, high - offset - len(found))))
                found[low - offset : high - offset] = data[low - start : high - start]
        return bytes(found)


class WithholdingFile:
    def __init__(self, name: str, inode: _Inode, lock: threading.RLock) -> None:
        self.name, self.inode, self._lock = name, inode, lock

    def size(self) -> int:
        with self._lock:
            return self.inode.size()

    def read(self, offset: int, length: int) -> bytes:
        with self._lock:
            return self.inode.read(offset, length)

    def close(self) -> None:
        """Descriptors live as long as the disk: unsynced writes outlive the handles that made them."""


class WithholdingDisk(LocalDisk):
    """A LocalDisk that withholds unsynced writes; with `sync_does_nothing` all of them, which a test must notice."""

    def __init__(self, path: str | Path, seed: int, *, sync_does_nothing: bool = False) -> None:
        super().__init__(path, "adaptive")
        self.alignment = 512
        self._rng = random.Random(seed)
        self._nosync = sync_does_nothing
        self._guard = threading.RLock()
        self._inodes: dict[str, _Inode] = {}
        # What the running process sees: name now -> file in the directory; None: removed.
        self._renamed: dict[str, _Inode | None] = {}
        self._steps: list[Callable[[], None]] = []
        self._pages: list[tuple[_Inode, bytearray]] = []

    # -- names

    def directory(self) -> str:
        return ""  # the files lack what is withheld

    def open(  # type: ignore[override]  # the same seam, files of our own
        self, name: str, *, create: bool = False, size: int = 0, direct: bool = False
    ) -> WithholdingFile:
        with self._guard:
            if create:
                if name in self.names():
                    raise FileExistsError(17, "file exists", name)
                self._settle(len(self._steps))  # the old file of that name must be gone before
                super().open(name, create=True, size=size).close()
                self._inodes.pop(name, None)
            return WithholdingFile(name, self._inode(name), self._guard)

    def _inode(self, name: str) -> _Inode:
        if name in self._renamed:
            inode = self._renamed[name]
            if inode is None:
                raise FileNotFoundError(2, "no such file", name)
            return inode
        if name not in self._inodes:
            path = self.path / name
            self._inodes[name] = _Inode(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
        return self._inodes[name]

    def names(self) -> list[str]:
        with self._guard:
            seen = dict.fromkeys(super().names())
            for name, inode in self._renamed.items():
                if inode is None:
                    seen.pop(name, None)
                else:
                    seen[name] = None
            return sorted(seen)

    def extend(self, file: File, size: int) -> None:
        assert isinstance(file, WithholdingFile)
        with self._guard:
            _extend(file.inode.fd, size, file.inode.path)

    def shrink(self, file: File, size: int) -> None:
        assert isinstance(file, WithholdingFile)
        with self._guard:
            _shrink(file.inode.fd, size, file.inode.path)

    def rename(self, old: str, new: str) -> None:
        with self._guard:
            inode = self._inode(old)
            self._renamed[old], self._renamed[new] = None, inode

            def step() -> None:
                os.rename(inode.path, self.path / new)
                inode.path = self.path / new

            self._add_step(step)

    def remove(self, name: str) -> None:
        with self._guard:
            inode = self._inode(name)
            self._renamed[name] = None
            self._add_step(lambda: inode.path.unlink(missing_ok=True))

    def _add_step(self, step: Callable[[], None]) -> None:
        self._steps.append(step)
        if self._rng.random() < EARLY_SHARE:
            self._settle(self._rng.randrange(1, len(self._steps) + 1))

    def _settle(self, count: int) -> None:
        """Carry out the first `count` changes of names in the directory."""
        for step in self._steps[:count]:
            step()
        del self._steps[:count]
        if not self._steps:
            for name, inode in self._renamed.items():
                if inode is None:
                    self._inodes.pop(name, None)
                else:
                    self._inodes[name] = inode
            self._renamed.clear()

    def sync_names(self) -> None:
        with self._guard:
            if not self._nosync:
                self._settle(len(self._steps))
                super().sync_names()

    # -- contents

    def map_page(self, name: str) -> memoryview:
        with self._guard:
            inode = self._inode(name)
            page = bytearray(inode.read(0, PAGE_BYTES))
            self._pages.append((inode, page))
            return memoryview(page)

    def _write_back(self) -> None:
        """Write some sectors of the mapped pages to their files, as an operating system might."""
        for inode, page in self._pages:
            if self._rng.random() < EARLY_SHARE:
                cut = sectors(0, len(page))
                for low, high in self._rng.sample(cut, self._rng.randrange(len(cut) + 1)):
                    os.pwrite(inode.fd, page[low:high], low)

    def write_now(self, writes: Sequence[Write], *, sync: bool = True) -> None:
        inodes: list[_Inode] = []
        for write in writes:
            assert isinstance(write.file, WithholdingFile)
            inode, data = write.file.inode, b"".join(write.buffers)
            if inode not in inodes:
                inodes.append(inode)
            if data:
                with self._guard:
                    inode.pending.append((write.offset, data))
                    self._leak(inode, write.offset, data)
        if sync and not self._nosync:
            with self._guard:
                self._write_back()
            for inode in inodes:
                self._flush(inode)

    def _leak(self, inode: _Inode, offset: int, data: bytes) -> None:
        """Write some sectors of an unsynced write to the file, not in order."""
        if self._rng.random() >= EARLY_SHARE:
            return
        cut = sectors(offset, len(data))
        for low, high in self._rng.sample(cut, self._rng.randrange(len(cut) + 1)):
            os.pwrite(inode.fd, data[low - offset : high - offset], low)

    def _flush(self, inode: _Inode) -> None:
        with self._guard:
            count = len(inode.pending)
            for offset, data in inode.pending[:count]:
                os.pwrite(inode.fd, data, offset)
            sync_data(inode.fd)
            del inode.pending[:count]

    def read(self, reads: Sequence[Read], done: OnRead) -> None:
        try:
            found = [one.file.read(one.offset, one.length) for one in reads]
        except OSError as error:
            done(error)
            return
        done(found)

    def close(self) -> None:
        super().close()
        for inode in dict.fromkeys([*self._inodes.values(), *self._renamed.values()]):
            if inode is not None:
                os.close(inode.fd)
        self._inodes.clear()
        self._renamed.clear()
