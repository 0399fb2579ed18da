"""LocalDisk: the Disk seam over one directory of a POSIX file system (Linux).

Files opened with direct=True are written past the page cache (O_DIRECT) and read through it: on the machines this was
made on, buffered writing of large blocks costs four times as much. Everything else is plain pread and pwrite.
Modes say where writes with a sync run: inline in the caller, in a thread, or adaptive: inline while the device is fast.

Not here: reads (`local_files.py`).
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import mmap
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from buckram.errors import ConfigError
from buckram.runtime.disk.descriptors import Spare, current_limit, shares
from buckram.runtime.disk.inline_reads import Speed
from buckram.runtime.disk.io_errors import NO_DESCRIPTOR, explained, explaining
from buckram.runtime.disk.local_files import STAGING_BYTES, LocalFile, LocalReads, Staging
from buckram.runtime.disk.neighbours import identity_of
from buckram.runtime.disk.syncing import sync_data, sync_file
from buckram.seams import PAGE_BYTES, File, OnRead, OnWritten, Read, Space, Write
from buckram.types import Buffer

T = TypeVar("T")
LOCK_NAME = "lock"
PROBE = ".probe-"
"""Prefix of files that probe how a device writes. They are no part of what a directory holds: a process that is killed
at that moment leaves one behind."""
MODES = ("adaptive", "inline", "thread")
_MAX_BUFFERS = 1000
_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV)
_DIRECT = getattr(os, "O_DIRECT", 0)


def _is_ours(entry: os.DirEntry[str]) -> bool:
    return entry.name != LOCK_NAME and not entry.name.startswith(PROBE)


class LocalDisk:
    """The files of one directory, which is created if it is missing. Closing it ends its threads.

    ConfigError for an unknown mode.
    """

    def __init__(self, path: str | Path, mode: str = "adaptive") -> None:
        if mode not in MODES:
            raise ConfigError(f"disk_mode {mode!r}: must be one of {', '.join(MODES)}")
        self.path = Path(path)
        with explaining("make this directory", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        self._mode = mode
        self._speed = Speed()
        self._inline = mode != "thread"
        self._in_thread = 0
        self._staging = Staging()
        self._lock_fd = -1
        self._spare = Spare()
        self.open_files = shares(current_limit()).files
        with explaining("open this directory", self.path):
            # Open all the time: a new name that cannot be made durable would be neither there nor not there.
            self._directory_fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._writer: ThreadPoolExecutor | None = None
        self._jobs: ThreadPoolExecutor | None = None
        try:
            self.alignment, self._direct = self._probe()
        except OSError as error:
            os.close(self._directory_fd)
            raise explained(error, "make files", self.path) from error
        self._spare.fill()
        self._reads = LocalReads(mode, self.alignment, self._staging)

    def _probe(self) -> tuple[int, bool]:
        """Return the device's unit of direct writing, and whether it has one: without O_DIRECT, writes are buffered."""
        # The lock's file, where a bookie was before: on a full disk no other may be made.
        name, made = self.path / LOCK_NAME, not (self.path / LOCK_NAME).exists()
        if made:
            name = self.path / f"{PROBE}{os.getpid()}"
        try:
            fd = os.open(name, os.O_CREAT | os.O_RDWR | _DIRECT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            if made:
                name.unlink(missing_ok=True)
            return 512, False
        try:
            with mmap.mmap(-1, 4096) as page, memoryview(page) as view:
                for unit in (512, 4096):
                    try:
                        os.preadv(fd, [view[:unit]], 0)
                        return unit, True
                    except OSError as error:
                        if error.errno != errno.EINVAL:
                            raise
            return 4096, False
        finally:
            os.close(fd)
            if made:
                name.unlink(missing_ok=True)

    # -- names

    def open(self, name: str, *, create: bool = False, size: int = 0, direct: bool = False) -> LocalFile:
        path = self.path / name
        with explaining("make this file" if create else "open it", path):
            file = self._open(name, path, create, size, direct and self._direct)
        self._spare.fill()
        return file

    def _open(self, name: str, path: Path, create: bool, size: int, direct: bool) -> LocalFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (_DIRECT if direct else 0)
        fd = self._descriptor(path, flags | (os.O_CREAT | os.O_EXCL if create else 0))
        read_fd = fd
        try:
            if create and size > 0:
                _reserve(fd, 0, size)
                sync_file(fd)
            if direct:
                read_fd = self._descriptor(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(fd)
            if create:
                os.unlink(path)
            raise
        return LocalFile(name, fd, read_fd, direct, str(path))

    def _descriptor(self, path: Path, flags: int) -> int:
        while True:
            try:
                return os.open(path, flags, 0o600)
            except OSError as error:
                if error.errno not in NO_DESCRIPTOR or not self._spare.give_up():
                    raise

    def extend(self, file: File, size: int) -> None:
        assert isinstance(file, LocalFile)
        _extend(file.fd, size, file.path)

    def shrink(self, file: File, size: int) -> None:
        assert isinstance(file, LocalFile)
        _shrink(file.fd, size, file.path)

    def names(self) -> list[str]:
        with explaining("list this directory", self.path):
            while True:
                try:
                    with os.scandir(self.path) as entries:
                        return sorted(entry.name for entry in entries if _is_ours(entry) and entry.is_file())
                except OSError as error:
                    if error.errno not in NO_DESCRIPTOR or not self._spare.give_up():
                        raise

    def rename(self, old: str, new: str) -> None:
        with explaining(f"give it the name {new}", self.path / old):
            os.rename(self.path / old, self.path / new)

    def remove(self, name: str) -> None:
        with explaining("remove it", self.path / name):
            os.unlink(self.path / name)

    def sync_names(self) -> None:
        try:
            sync_file(self._directory_fd)
        except OSError as error:
            raise _sync_failed(error, self.path) from error

    def map_page(self, name: str) -> memoryview:
        path = self.path / name
        with explaining("map it", path):
            fd = self._descriptor(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                if os.fstat(fd).st_size >= PAGE_BYTES:
                    return memoryview(mmap.mmap(fd, PAGE_BYTES))
            finally:
                os.close(fd)
        raise OSError(errno.EINVAL, f"{path} is shorter than a page and cannot be mapped; was it cut short?")

    def space(self) -> Space:
        with explaining("see how much room there is", self.path):
            facts = os.statvfs(self.path)
        return Space(facts.f_frsize * facts.f_blocks, facts.f_frsize * facts.f_bavail)

    def identity(self) -> str:
        return identity_of(self.path)

    def directory(self) -> str:
        return str(self.path.resolve())

    def lock(self) -> None:
        if self._lock_fd >= 0:
            return
        with explaining("make this file", self.path / LOCK_NAME):
            fd = self._descriptor(self.path / LOCK_NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise OSError(
                error.errno, f"directory {self.path} is in use by another process; stop it or choose another directory"
            ) from None
        self._lock_fd = fd
        for left in self.path.glob(f"{PROBE}*"):
            left.unlink(missing_ok=True)

    # -- writes

    def write_now(self, writes: Sequence[Write], *, sync: bool = True) -> None:
        for write in writes:
            assert isinstance(write.file, LocalFile)
            if write.buffers:
                try:
                    self._write_buffers(write.file, write.offset, write.buffers)
                except OSError as error:
                    what = f"write {sum(map(len, write.buffers))} bytes at {write.offset}"
                    raise explained(error, what, write.file.path) from error
        if sync:
            self._sync(writes)

    def _write_buffers(self, file: LocalFile, offset: int, buffers: Sequence[Buffer]) -> None:
        if file.direct:
            for one in buffers:
                if type(one) is not memoryview or one.readonly:
                    break
            else:
                try:
                    _write_all(file.fd, offset, buffers)
                    return
                except OSError as error:
                    if error.errno != errno.EINVAL:
                        raise
            self._write_staged(file, offset, b"".join(buffers))
            return
        _write_all(file.fd, offset, buffers)

    def _write_staged(self, file: LocalFile, offset: int, data: bytes) -> None:
        """Write past the page cache, which needs aligned memory: the data go through a reused, aligned buffer."""
        with self._staging.view() as view:
            for start in range(0, len(data), STAGING_BYTES):
                part = data[start : start + STAGING_BYTES]
                view[: len(part)] = part
                with view[: len(part)] as aligned:
                    _write_all(file.fd, offset + start, [aligned])

    def _sync(self, writes: Sequence[Write]) -> None:
        synced: list[int] = []
        for write in writes:
            assert isinstance(write.file, LocalFile)
            fd = write.file.fd
            if fd in synced:
                continue
            synced.append(fd)
            try:
                sync_data(fd)
            except OSError as error:
                raise _sync_failed(error, write.file.path) from error

    def write(self, writes: Sequence[Write], done: OnWritten, *, sync: bool = True) -> None:
        if self._inline and self._in_thread == 0:
            done(self._timed(writes, sync))
            return
        loop = asyncio.get_running_loop()
        if self._writer is None:
            self._writer = ThreadPoolExecutor(1, "buckram-disk")
        self._in_thread += 1

        def finish(error: OSError | None) -> None:
            self._in_thread -= 1
            done(error)

        def work() -> None:
            error = self._timed(writes, sync)
            try:
                loop.call_soon_threadsafe(finish, error)
            except RuntimeError:
                return  # the loop was closed meanwhile: nobody is left to hear of it

        self._writer.submit(work)

    def _timed(self, writes: Sequence[Write], sync: bool) -> OSError | None:
        began = time.perf_counter()
        try:
            self.write_now(writes, sync=sync)
        except OSError as error:
            return error
        finally:
            self._speed.took(time.perf_counter() - began)
            if self._mode == "adaptive":
                self._inline = self._speed.fast
        return None

    # -- reads and jobs

    def read(self, reads: Sequence[Read], done: OnRead) -> None:
        self._reads.read(reads, done)

    async def offload(self, job: Callable[[], T]) -> T:
        if self._jobs is None:
            self._jobs = ThreadPoolExecutor(2, "buckram-job")
        future = asyncio.get_running_loop().run_in_executor(self._jobs, job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The job still uses its files: whoever cancelled must not close them under it.
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    continue
            raise

    def close(self) -> None:
        for pool in (self._writer, self._jobs):
            if pool is not None:
                pool.shutdown(wait=True)
        self._writer = self._jobs = None
        self._reads.close()
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1
        if self._directory_fd >= 0:
            os.close(self._directory_fd)
            self._directory_fd = -1
        self._spare.close()
        self._staging.clear()


def _sync_failed(error: OSError, path: str | Path) -> OSError:
    """Return the error of a failed sync. Whatever its reason, the data that it should have made durable may be lost."""
    return OSError(
        errno.EIO,
        f"{path}: sync failed: {error.strerror}; what was written last may be lost: move the bookie to another device, "
        "see `A bookie is lost for good` in the manual",
    )


def _extend(fd: int, size: int, path: str | Path) -> None:
    with explaining(f"make it {size} bytes long", path):
        now = os.fstat(fd).st_size
        if size > now:
            _reserve(fd, now, size - now)
        # An earlier call that found too little room may have left it longer, and unsynced.
    try:
        sync_file(fd)
    except OSError as error:
        raise _sync_failed(error, path) from error


def _shrink(fd: int, size: int, path: str | Path) -> None:
    with explaining(f"cut it to {size} bytes", path):
        os.ftruncate(fd, size)
    try:
        sync_file(fd)  # some file systems keep the room until this is durable
    except OSError as error:
        raise _sync_failed(error, path) from error


def _reserve(fd: int, start: int, size: int) -> None:
    """Reserve `size` bytes from `start` on, which belong to the file even when the disk is full."""
    try:
        if hasattr(os, "posix_fallocate"):  # macOS has none
            os.posix_fallocate(fd, start, size)
            return
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise
    os.ftruncate(fd, start + size)  # room that is missing is then found by the write that needs it


def _write_all(fd: int, offset: int, buffers: Sequence[Buffer]) -> None:
    for start in range(0, len(buffers), _MAX_BUFFERS):
        part = buffers[start : start + _MAX_BUFFERS]
        total = sum(map(len, part))
        written = os.pwritev(fd, part, offset)
        if written < total:
            rest = memoryview(b"".join(part))
            while written < total:
                more = os.pwrite(fd, rest[written:], offset + written)
                if more == 0:
                    raise OSError(errno.EIO, "the device took no more bytes")
                written += more
        offset += total
