"""Files and aligned memory that the writes and reads of a LocalDisk share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

from buckram.runtime.disk.io_errors import explained

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
