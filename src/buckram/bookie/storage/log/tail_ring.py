"""A ring that holds the newest bytes of the log in memory.

Not here: what the bytes are and when they are durable (`bookie/storage/log/group_commit.py`).
"""

from __future__ import annotations

import mmap

from buckram.core.storage.segment_format import padded
from buckram.types import Buffer


class TailRing:
    """The last `size` bytes of the log by position. Positions only grow, across log files; `head` is the next one."""

    def __init__(self, size: int) -> None:
        self.size = padded(max(size, 4096), 4096)
        self.head = 0
        self._memory = mmap.mmap(-1, self.size)
        self._view = memoryview(self._memory)

    def parts(self, position: int, length: int) -> list[memoryview]:
        """Return views of these bytes: one, or two where the ring wraps around."""
        start = position % self.size
        end = start + length
        if end <= self.size:
            return [self._view[start:end]]
        return [self._view[start:], self._view[: end - self.size]]

    def put(self, position: int, data: Buffer) -> None:
        """Copy `data` into the ring; `head` does not move."""
        start, length = position % self.size, len(data)
        end = start + length
        if end <= self.size:
            self._view[start:end] = data
            return
        cut = self.size - start
        with memoryview(data) as whole:
            self._view[start:] = whole[:cut]
            self._view[: end - self.size] = whole[cut:]

    def get(self, position: int, length: int) -> bytes | None:
        """Return a copy of these bytes; None if they are not in the ring, or not all of them."""
        if position < max(0, self.head - self.size) or position + length > self.head:
            return None
        parts = self.parts(position, length)
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
