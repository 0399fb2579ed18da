"""Caches large aligned chunks of log files for readers that go through a ledger in order.

The cache is bounded and shared by all ledgers, because their entries lie side by side in the log. It does not know
ledgers or entries.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Protocol

from buckram.bookie.storage.segments.file_cache import OpenFiles
from buckram.bookie.storage.segments.segments import Segment
from buckram.seams import Disk, Read

CHUNK_BYTES = 1 << 20
CHUNKS_KEPT = 16


class LoadedCallback(Protocol):
    """Called once when the chunks are in memory, or with the first error."""

    def __call__(self, error: OSError | None, /) -> None: ...


class _Batch:
    """Calls `done` once, with the first error, when `load` has returned and all its chunks have arrived."""

    def __init__(self, done: LoadedCallback) -> None:
        self.waiting = 1
        self._done = done
        self._error: OSError | None = None

    def arrived(self, error: OSError | None) -> None:
        self._error = self._error or error
        self.waiting -= 1
        if self.waiting == 0:
            self._done(self._error)


class Chunks:
    """The most recently used chunks. A chunk is loaded only when all of it is durable and will not change."""

    def __init__(self, disk: Disk, files: OpenFiles) -> None:
        self._disk, self._files = disk, files
        # Each chunk with the loop time at which it was read.
        self._ready: OrderedDict[tuple[int, int], tuple[bytes, float]] = OrderedDict()
        self._coming: dict[tuple[int, int], list[LoadedCallback]] = {}

    @property
    def held_bytes(self) -> int:
        return sum(len(data) for data, _ in self._ready.values())

    def forget_older(self, segment: Segment, offset: int, length: int, age_s: float) -> None:
        """Drop the chunks of file[offset:offset+length] that were read longer ago than `age_s` seconds."""
        since = asyncio.get_running_loop().time() - age_s
        for number in range(offset // CHUNK_BYTES, -(-(offset + length) // CHUNK_BYTES)):
            found = self._ready.get((segment.seq, number))
            if found is not None and found[1] < since:
                del self._ready[segment.seq, number]

    def cut(self, segment: Segment, offset: int, length: int) -> tuple[bytes, int] | None:
        """Return data that holds file[offset:offset+length], and where that begins in it; None if not all is here."""
        number, at = divmod(offset, CHUNK_BYTES)
        key = (segment.seq, number)
        found = self._ready.get(key)
        if found is None:
            return None
        self._ready.move_to_end(key)
        data = found[0]
        if at + length <= len(data):
            return data, at
        parts = [data[at:]]
        have = len(data) - at
        while have < length:
            number += 1
            following = self._ready.get((segment.seq, number))
            if following is None:
                return None
            parts.append(following[0][: length - have])
            have += len(parts[-1])
            if not parts[-1]:
                return None
        return b"".join(parts), 0

    def load(self, segment: Segment, begin: int, end: int, limit: int, done: LoadedCallback | None) -> None:
        """Fetch the chunks that cover file[begin:end], none of which reaches beyond `limit`, in one batch."""
        batch = None if done is None else _Batch(done)
        missing: list[int] = []
        for number in range(begin // CHUNK_BYTES, -(-end // CHUNK_BYTES)):
            key = (segment.seq, number)
            if key in self._ready:
                continue
            if key not in self._coming:
                missing.append(number)
                self._coming[key] = []
            if batch is not None:
                batch.waiting += 1
                self._coming[key].append(batch.arrived)
        if missing:
            self._read(segment, missing, limit)
        if batch is not None:
            batch.arrived(None)

    def _read(self, segment: Segment, numbers: list[int], limit: int) -> None:
        try:
            file = self._files.hold(segment.name)
        except OSError as error:
            self._arrive(segment, numbers, error)
            return
        segment.readers += 1

        def finished(outcome: list[bytes] | OSError) -> None:
            segment.readers -= 1
            self._files.release(segment.name)
            self._arrive(segment, numbers, outcome)

        reads = [Read(file, number * CHUNK_BYTES, min(CHUNK_BYTES, limit - number * CHUNK_BYTES)) for number in numbers]
        self._disk.read(reads, finished)

    def _arrive(self, segment: Segment, numbers: list[int], outcome: list[bytes] | OSError) -> None:
        waiters: list[LoadedCallback] = []
        for index, number in enumerate(numbers):
            key = (segment.seq, number)
            waiters.extend(self._coming.pop(key))
            if not isinstance(outcome, OSError):
                self._ready[key] = outcome[index], asyncio.get_running_loop().time()
        error = outcome if isinstance(outcome, OSError) else None
        for waiter in waiters:
            waiter(error)
        while len(self._ready) > CHUNKS_KEPT:
            self._ready.popitem(last=False)
