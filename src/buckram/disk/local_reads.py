"""Reads of a LocalDisk: what the page cache has at once, small ones while the device is fast, the rest in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf

from buckram.disk.local_file import STAGING_BYTES, LocalFile, Staging
from buckram.disk.speed import Speed
from buckram.seams import Read

Done = Callable[[list[bytes] | OSError], None]
LARGE_BYTES = 256 << 10
"""From this size on files opened with direct=True are read past the page cache: its pages cost more than the read."""
_AT_ONCE_S, _HINTED = 0.002, 64
"""So long the loop waits for small reads before others have their turn: a commit, for example. The device hears of so
many of one caller's before the first is waited for."""
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class LocalReads:
    """`mode` and `staging` as LocalDisk's; `alignment`: the device's unit of reading past the page cache."""

    def __init__(self, mode: str, alignment: int, staging: Staging) -> None:
        self._mode, self._alignment, self._staging = mode, alignment, staging
        self._speed = Speed()
        self._threads: ThreadPoolExecutor | None = None
        self._small: deque[tuple[Sequence[Read], list[bytes], Done]] = deque()
        self._coming = False

    def read(self, reads: Sequence[Read], done: Done) -> None:
        """seams.Disk.read."""
        if self._mode == "inline":
            done(self._all(reads))
            return
        if self._mode == "adaptive" and self._speed.fast and all(one.length < LARGE_BYTES for one in reads):
            self._hint(reads)
            self._small.append((reads, [], done))
            if not self._coming:
                self._coming = True
                asyncio.get_running_loop().call_soon(self._turn)
            return
        found = _cached(reads)
        if len(found) == len(reads):
            done(found)
        else:
            self._in_thread(reads, found, done)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None

    def _hint(self, reads: Sequence[Read]) -> None:
        """The device begins with them while the loop looks at what else there is."""
        began = time.perf_counter()
        for one in reads[:_HINTED]:
            assert isinstance(one.file, LocalFile)
            with contextlib.suppress(OSError):  # the read itself will say it
                os.posix_fadvise(one.file.read_fd, one.offset, one.length, os.POSIX_FADV_WILLNEED)
        self._speed.took((time.perf_counter() - began) / max(1, min(len(reads), _HINTED)))

    def _turn(self) -> None:
        """Small reads are waited for, for some time; the others when the loop has looked at what else there is."""
        end = time.perf_counter() + _AT_ONCE_S
        try:
            while self._small:
                reads, found, done = self._small.popleft()
                outcome = self._all(reads[len(found):], end)
                if isinstance(outcome, OSError):
                    done(outcome)
                elif len(found := found + outcome) == len(reads):
                    done(found)
                elif self._speed.fast:
                    self._small.appendleft((reads, found, done))
                else:
                    self._in_thread(reads, found, done)
                if time.perf_counter() > end:
                    break
        finally:
            # What `done` led to has the next turn, too.
            self._coming = bool(self._small)
            if self._coming:
                asyncio.get_running_loop().call_soon(self._turn)

    def _in_thread(self, reads: Sequence[Read], found: list[bytes], done: Done) -> None:
        loop = asyncio.get_running_loop()

        def work() -> None:
            outcome = self._all(reads[len(found):])
            try:
                loop.call_soon_threadsafe(done, outcome if isinstance(outcome, OSError) else found + outcome)
            except RuntimeError:
                return  # the loop was closed meanwhile

        if self._threads is None:
            self._threads = ThreadPoolExecutor(2, "buckram-read")
        self._threads.submit(work)

    def _all(self, reads: Sequence[Read], end: float = inf) -> list[bytes] | OSError:
        """All of them, or those that were begun before `end` and at least one."""
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
                self._speed.took(now - began)
                if now > end:
                    break
        except OSError as error:
            return error
        return found

    def _direct(self, file: LocalFile, offset: int, length: int) -> bytes:
        if offset % self._alignment or length > STAGING_BYTES:
            return file.read(offset, length)
        with self._staging.view() as view, view[: -(-length // self._alignment) * self._alignment] as aligned:
            got = os.preadv(file.fd, [aligned], offset)
            if got < length and got % self._alignment:
                return file.read(offset, length)  # the end of a file that is no multiple of the unit
            return bytes(aligned[: min(got, length)])


def _cached(reads: Sequence[Read]) -> list[bytes]:
    """The first of them, as far as they are in the page cache, which costs microseconds."""
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
