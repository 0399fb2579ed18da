"""FaultyDisk: a LocalDisk that fails on demand: no space, a write or a sync that fails or takes long, changed bytes.

For tests of whole processes. The failures are set in a small JSON file, which is read before each operation: {"number":
3, "full": true, "writes": 1, "syncs": 0, "reads": 0, "slow_ms": 0}. The counts say how many of the next operations
fail; they count anew when `number` is another. While `slow_ms` is set each sync takes so much longer. The data on the
device stay intact: only answers are changed.
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from buckram.runtime.disk.local import LocalDisk, _sync_failed
from buckram.runtime.disk.local_files import LocalFile
from buckram.seams import File, Read, Space, Write
from buckram.types import Buffer


class DiskFaults(NamedTuple):
    """Operations that are to fail: all that need space if `full`, and as many of the next writes, syncs and reads as
    given."""

    number: int = 0
    full: bool = False
    writes: int = 0
    syncs: int = 0
    reads: int = 0
    slow_ms: int = 0

    def save(self, path: Path) -> None:
        """Replace the file in one step, so that no disk reads half of it."""
        partial = path.with_suffix(".new")
        partial.write_text(json.dumps(self._asdict()))
        partial.replace(path)


class FaultyDisk(LocalDisk):
    """A LocalDisk that fails as the file `faults` requests; nothing fails as long as there is no such file."""

    def __init__(self, path: str | Path, faults: str | Path, mode: str = "adaptive") -> None:
        self._faults_path = Path(faults)
        self._lock = threading.Lock()
        self._seen = (0, 0)
        self._faults = DiskFaults()
        super().__init__(path, mode)

    def _now(self) -> DiskFaults:
        """Return the faults in force. The caller holds the lock."""
        try:
            status = os.stat(self._faults_path)
        except FileNotFoundError:
            return self._faults
        seen = (status.st_ino, status.st_mtime_ns)
        if seen != self._seen:
            found = DiskFaults(**json.loads(self._faults_path.read_text()))
            self._seen = seen
            if found.number != self._faults.number:
                self._faults = found
        return self._faults

    def _fails(self, what: str) -> bool:
        """Return whether the next operation of this kind fails, and take one off its count."""
        with self._lock:
            faults = self._now()
            left = {"writes": faults.writes, "syncs": faults.syncs, "reads": faults.reads}
            if left[what] <= 0:
                return False
            left[what] -= 1
            self._faults = DiskFaults(faults.number, faults.full, **left, slow_ms=faults.slow_ms)
            return True

    def _is_full(self) -> bool:
        with self._lock:
            return self._now().full

    def _need_room(self, path: str | Path) -> None:
        if self._is_full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def open(self, name: str, *, create: bool = False, size: int = 0, direct: bool = False) -> LocalFile:
        if create:
            self._need_room(self.path / name)
        return super().open(name, create=create, size=size, direct=direct)

    def extend(self, file: File, size: int) -> None:
        if size > file.size():
            self._need_room(self.path / file.name)
        super().extend(file, size)

    def space(self) -> Space:
        real = super().space()
        return Space(real.total_bytes, 0) if self._is_full() else real

    def _write_buffers(self, file: LocalFile, offset: int, buffers: Sequence[Buffer]) -> None:
        if self._fails("writes"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), file.path)
        end = offset + sum(map(len, buffers))
        if end > file.size():
            self._need_room(file.path)
        super()._write_buffers(file, offset, buffers)

    def _sync(self, writes: Sequence[Write]) -> None:
        with self._lock:
            slow_ms = self._now().slow_ms
        if slow_ms:
            time.sleep(slow_ms / 1000)
        if writes and self._fails("syncs"):
            raise _sync_failed(OSError(errno.EIO, os.strerror(errno.EIO)), self.path / writes[0].file.name)
        super()._sync(writes)

    def read(self, reads: Sequence[Read], done: Callable[[list[bytes] | OSError], None]) -> None:
        def change(found: list[bytes] | OSError) -> None:
            if not isinstance(found, OSError) and any(found) and self._fails("reads"):
                found = [_changed(one) for one in found]
            done(found)

        super().read(reads, change)


def _changed(data: bytes) -> bytes:
    """Return the same bytes except for one in the middle."""
    if not data:
        return data
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x20]) + data[middle + 1 :]
