"""A mark beside an SQLite file of how much of its log is durable: who reads what another process has committed and
synced needs no sync of its own then.

The mark names the log (its file and the salts that SQLite draws whenever it begins the log anew) and a number of
frames. It is written after a sync, with the number from before it, so what it says was true when it was written, and
stays true after a loss of power. It says nothing about a copy of the files, nor about a log that was begun anew. When a
sync has failed, a second mark says that the pages of this log cannot be trusted, and everybody syncs for himself.

How far the log goes is read from the head of SQLite's index of it (sqlite.org/walformat.html). That file is opened once
in a process and never closed: closing it would drop the locks that SQLite holds on it in this process. Not here: when
to sync (`metadata/sqlite/database_file.py:SqliteConnection`).
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_HEAD = struct.Struct("=12xBxHI12x8s8x")
"""Of the index, in the machine's byte order: whether it is made, the page size, frames of the log that are valid, their
salts. It is there twice; while somebody changes it the two differ."""
_MARK = struct.Struct("<8sQQ8sI")
_CHECK = struct.Struct("<I")
_MAGIC = b"BKWALSYN"
_BYTES = 64
"""Bytes of the file for each of its two marks: what is durable, and what cannot be trusted."""
_MOST_OPEN = 64
"""Index files that a process keeps open; beyond that it syncs for itself."""

_index_files: dict[tuple[int, int], int] = {}
_opening = threading.Lock()


class LogEnd(NamedTuple):
    """How far a log goes: its salts, and the number of its valid frames."""

    salts: bytes
    frames: int


class DurableMark:
    """The mark of one open database, whose log is open as `log_fd`. Without a file that can be read and written, or off
    the form that is known, nothing counts as durable."""

    def __init__(self, path: Path, log_fd: int) -> None:
        found = os.fstat(log_fd)
        self._log = (found.st_dev, found.st_ino)
        self._index_fd = _index_file(f"{path}-shm")
        self._fd: int | None = None
        with suppress(OSError):
            self._fd = os.open(f"{path}-durable", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def end(self) -> LogEnd | None:
        """Return how far the log goes now: whatever was read or committed before is not beyond that."""
        if self._index_fd is None or self._fd is None:
            return None
        try:
            heads = os.pread(self._index_fd, 2 * _HEAD.size, 0)
        except OSError:
            return None
        if len(heads) < 2 * _HEAD.size or heads[: _HEAD.size] != heads[_HEAD.size :]:
            return None
        made, _, frames, salts = _HEAD.unpack_from(heads)
        return LogEnd(salts, frames) if made == 1 else None

    def covers(self, end: LogEnd | None) -> bool:
        """Return whether somebody has synced the log as far as that."""
        if end is None or self._fd is None:
            return False
        try:
            both = os.pread(self._fd, 2 * _BYTES, 0)
        except OSError:
            return False
        durable, failed = self._salts_and_frames(both[:_BYTES]), self._salts_and_frames(both[_BYTES:])
        trusted = failed is None or failed.salts != end.salts
        return trusted and durable is not None and durable.salts == end.salts and durable.frames >= end.frames

    def synced(self, end: LogEnd | None) -> None:
        """Note that a sync which began after `end` was read has succeeded."""
        if end is not None and not self.covers(end):
            self._write(end, 0)

    def failed(self, end: LogEnd | None) -> None:
        """Note that a sync has failed: later ones of others may succeed though pages are lost."""
        if end is not None:
            self._write(end, _BYTES)

    def close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    def _write(self, end: LogEnd, at: int) -> None:
        mark = _MARK.pack(_MAGIC, *self._log, end.salts, end.frames)
        if self._fd is not None:
            with suppress(OSError):  # a full disk, say: whoever reads syncs then
                os.pwrite(self._fd, mark + _CHECK.pack(zlib.crc32(mark)), at)

    def _salts_and_frames(self, mark: bytes) -> LogEnd | None:
        """Decode a mark; None if it is not one of this log, or was being written."""
        if len(mark) < _MARK.size + _CHECK.size:
            return None
        magic, device, inode, salts, frames = _MARK.unpack_from(mark)
        whole = _CHECK.unpack_from(mark, _MARK.size)[0] == zlib.crc32(mark[: _MARK.size])
        return LogEnd(salts, frames) if whole and magic == _MAGIC and (device, inode) == self._log else None


def _index_file(name: str) -> int | None:
    """Return a descriptor of the index file with this name that the process keeps; None if there is none."""
    with _opening:
        try:
            found = os.stat(name)
            known = _index_files.get((found.st_dev, found.st_ino))
            if known is not None or len(_index_files) >= _MOST_OPEN:
                return known
            fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            found = os.fstat(fd)  # of what was opened: it stays open whatever it is
        except OSError:
            return None
        _index_files.setdefault((found.st_dev, found.st_ino), fd)
        return fd


__all__ = ["DurableMark", "LogEnd"]
