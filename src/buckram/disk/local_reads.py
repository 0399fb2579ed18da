"""Reads of a LocalDisk: what the page cache has at once, small ones while the device is fast, the rest in threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf

from buckram.disk.local_file import STAGING_BYTES, LocalFile, Staging
from buckram.disk.speed import Speed
from buckram.seams import Read

Done = Callable[[list[bytes] | OSError], None]
LARGE_BYTES = 256 << 10
"""From this size on files opened with direct=True are read past the page cache: its pages cost more than the read."""
_AT_ONCE_S = 0.002
"""So long the loop waits for small reads before others have their turn: a commit, for example."""
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


class LocalReads:
    """`mode` and `staging` as LocalDisk's; `alignment`: the device's unit of reading past the page cache."""

    def __init__(self, mode: str, alignment: int, staging: Staging) -> None:
        self._mode, self._alignment, self._staging = mode, alignment, staging
        self._speed = Speed()
        self._threads: ThreadPoolExecutor | None = None

    def read(self, reads: Sequence[Read], done: Done) -> None:
        """seams.Disk.read."""
        if self._mode == "inline":
            done(self._all(reads))
            return
        found = _cached(reads)
        if len(found) == len(reads):
            done(found)
        elif self._mode == "adaptive" and self._speed.fast and all(one.length < LARGE_BYTES for one in reads):
            if len(reads) > len(found) + 1:
                _begin(reads[len(found):])
            self._at_once(reads, found, done)
        else:
            self._in_thread(reads, found, done)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)
            self._threads = None

    def _at_once(self, reads: Sequence[Read], found: list[bytes], done: Done) -> None:
        """Some now, the others when the loop has looked at what else there is."""
        outcome = self._all(reads[len(found):], _AT_ONCE_S)
        if isinstance(outcome, OSError):
            done(outcome)
            return
        found += outcome
        if len(found) == len(reads):
            done(found)
        elif self._speed.fast:
            asyncio.get_running_loop().call_soon(self._at_once, reads, found, done)
        else:
            self._in_thread(reads, found, done)

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

    def _all(self, reads: Sequence[Read], within_s: float = inf) -> list[bytes] | OSError:
        """All of them, or those that were begun within so long."""
        found = []
        now = time.perf_counter()
        end = now + within_s
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


def _begin(reads: Sequence[Read]) -> None:
    """The device works at all of them while the first is waited for."""
    for one in reads:
        assert isinstance(one.file, LocalFile)
        with contextlib.suppress(OSError):  # the read itself will say it
            os.posix_fadvise(one.file.read_fd, one.offset, one.length, os.POSIX_FADV_WILLNEED)


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
