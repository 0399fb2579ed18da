"""Reads of a LocalDisk, and the files and aligned memory that its reads and writes share.

Cached data is read immediately, small reads are made in the loop's thread while the device is fast, the rest in
threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from math import inf

from buckram.runtime.disk.inline_reads import Speed
from buckram.runtime.disk.io_errors import explained, explaining
from buckram.seams import OnRead, Read

# -- files and aligned memory ---------------------------------------------------------------------------------

STAGING_BYTES = (1 << 20) + (64 << 10)


class LocalFile:
    """A file with one descriptor, or two where writes go past the page cache and reads through it."""

    __slots__ = ("direct", "fd", "name", "path", "read_fd")

    def __init__(self, name: str, fd: int, read_fd: int, direct: bool, path: str) -> None:
        self.name, self.fd, self.read_fd, self.direct, self.path = name, fd, read_fd, direct, path

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def read(self, offset: int, length: int) -> bytes:
        try:
            return self._read(offset, length)
        except OSError as error:
            raise explained(error, f"read {length} bytes at {offset}", self.path) from error

    def _read(self, offset: int, length: int) -> bytes:
        parts = []
        while length > 0:
            part = os.pread(self.read_fd, length, offset)
            if not part:
                break
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        for fd in {self.fd, self.read_fd}:
            if fd >= 0:
                os.close(fd)
        self.fd = self.read_fd = -1


class Staging:
    """Aligned memory for what goes past the page cache; kept for the next one. Threads may take it at the same time."""

    def __init__(self) -> None:
        self._spare: list[mmap.mmap] = []

    @contextmanager
    def view(self) -> Iterator[memoryview]:
        """STAGING_BYTES of it. Slices of it must be given up before its end."""
        try:
            memory = self._spare.pop()
        except IndexError:
            memory = mmap.mmap(-1, STAGING_BYTES)
        try:
            with memoryview(memory) as view:
                yield view
        finally:
            self._spare.append(memory)

    def clear(self) -> None:
        self._spare.clear()


# -- reads ----------------------------------------------------------------------------------------------------

LARGE_BYTES = 256 << 10
"""Size in bytes from which files opened with direct=True are read past the page cache, because filling it takes
longer."""

_AT_ONCE_S = 0.002
"""Seconds that the loop spends on small reads before other work, such as a commit, has its turn."""

_HINTED = 64
"""Maximum reads of one caller that are announced to the device at a time."""

_WAITED_S = 0.00002
"""Minimum seconds of a read that measures the device's speed: a shorter one did not wait for the device."""

_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class _Small:
    """Small reads of one caller; the first `hinted` of them were announced to the device."""

    __slots__ = ("done", "found", "hinted", "reads")

    def __init__(self, reads: Sequence[Read], found: list[bytes], done: OnRead) -> None:
        self.reads, self.found, self.done = reads, found, done
        self.hinted = len(found)


class LocalReads:
    """The reads of one disk, with its `mode` and `staging`; `alignment` is its unit of reading past the page cache."""

    def __init__(self, mode: str, alignment: int, staging: Staging) -> None:
        self._mode, self._alignment, self._staging = mode, alignment, staging
        self._speed = Speed()
        self._threads: ThreadPoolExecutor | None = None
        self._small: deque[_Small] = deque()
        self._round_due: asyncio.AbstractEventLoop | None = None

    def read(self, reads: Sequence[Read], done: OnRead) -> None:
        """Read as `seams.Disk.read` specifies."""
        if self._mode == "inline":
            done(self._all(reads))
            return
        found = _cached(reads)
        if len(found) == len(reads):
            done(found)
        elif self._mode == "adaptive" and self._speed.fast and all(one.length < LARGE_BYTES for one in reads):
            loop = asyncio.get_running_loop()
            small = _Small(reads, found, done)
            self._hint(small)
            self._small.append(small)
            self._schedule_round(loop)
        else:
            self._in_thread(reads, found, done)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None

    def _hint(self, small: _Small) -> None:
        """Tell the device of the next reads, so that it begins with them while the loop does other things."""
        begin, small.hinted = small.hinted, min(small.hinted + _HINTED, len(small.reads))
        began = time.perf_counter()
        for one in small.reads[begin : small.hinted]:
            assert isinstance(one.file, LocalFile)
            with contextlib.suppress(OSError, AttributeError):  # the read itself will say it; macOS takes no hints
                os.posix_fadvise(one.file.read_fd, one.offset, one.length, os.POSIX_FADV_WILLNEED)
        self._took((time.perf_counter() - began) / (small.hinted - begin))

    def _schedule_round(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._round_due is not loop:
            self._round_due = loop
            loop.call_soon(self._round)

    def _round(self) -> None:
        """Wait for small reads for some time; others, and those to which the answers lead, follow in the next turn."""
        self._round_due = None
        end = time.perf_counter() + _AT_ONCE_S
        try:
            for _ in range(len(self._small)):
                small = self._small.popleft()
                self._go_on(small, end)
                if time.perf_counter() > end:
                    break
        finally:
            if self._small:
                self._schedule_round(asyncio.get_running_loop())

    def _go_on(self, small: _Small, end: float) -> None:
        reads, found = small.reads, small.found
        outcome = self._all(reads[len(found) : small.hinted], end)
        if isinstance(outcome, OSError):
            small.done(outcome)
        elif len(found := found + outcome) == len(reads):
            small.done(found)
        elif self._speed.fast:
            small.found = found
            if len(found) == small.hinted:
                self._hint(small)
            self._small.append(small)
        else:
            self._in_thread(reads, found, small.done)

    def _took(self, seconds: float) -> None:
        if seconds >= _WAITED_S:
            self._speed.took(seconds)

    def _in_thread(self, reads: Sequence[Read], found: list[bytes], done: OnRead) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            outcome = self._all(reads[len(found) :])
            try:
                loop.call_soon_threadsafe(done, outcome if isinstance(outcome, OSError) else found + outcome)
            except RuntimeError:
                return  # the loop was closed meanwhile

        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, "buckram-read")
        self._threads.submit(work)

    def _all(self, reads: Sequence[Read], end: float = inf) -> list[bytes] | OSError:
        """Read all of them, or those that were begun before `end`, and at least one."""
        found = []
        now = time.perf_counter()
        try:
            for one in reads:
                assert isinstance(one.file, LocalFile)
                if one.length >= LARGE_BYTES and one.file.direct:
                    found.append(self._direct(one.file, one.offset, one.length))
                    now = time.perf_counter()
                    continue
                began = now
                found.append(one.file.read(one.offset, one.length))
                now = time.perf_counter()
                self._took(now - began)
                if now > end:
                    break
        except OSError as error:
            return error
        return found

    def _direct(self, file: LocalFile, offset: int, length: int) -> bytes:
        if offset % self._alignment or length > STAGING_BYTES:
            return file.read(offset, length)
        with self._staging.view() as view, view[: -(-length // self._alignment) * self._alignment] as aligned:
            with explaining(f"read {length} bytes at {offset}", file.path):
                got = os.preadv(file.fd, [aligned], offset)
            if got < length and got % self._alignment:
                return file.read(offset, length)  # the end of a file that is no multiple of the unit
            return bytes(aligned[: min(got, length)])


def _cached(reads: Sequence[Read]) -> list[bytes]:
    """Return the first ones as far as they are in the page cache, which costs microseconds."""
    found: list[bytes] = []
    if not _NOWAIT:
        return found
    for one in reads:
        assert isinstance(one.file, LocalFile)
        if one.file.direct and one.length >= LARGE_BYTES:
            break
        buffer = bytearray(one.length)
        try:
            got = os.preadv(one.file.read_fd, [buffer], one.offset, _NOWAIT)
        except OSError:
            break
        if got != one.length:
            break
        found.append(bytes(buffer))
    return found
