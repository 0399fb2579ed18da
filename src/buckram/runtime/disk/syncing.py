"""Syncs: written data are on the device when these functions return. Nothing else in Buckram calls fsync.

On macOS fsync only hands the data to the device, which may keep them in a cache that a loss of power empties. There it
is F_FULLFSYNC that waits for the device. SQLite does so by itself if it is configured to
(`metadata/sqlite/database_file.py`).
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

FULL: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""macOS's number for it; None elsewhere."""
_NOT_THERE = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY)
"""Errors with which network file systems refuse F_FULLFSYNC; then fsync is used instead."""


def sync_file(fd: int) -> None:
    """Make a file durable: its data, its length and its other attributes. Raises OSError."""
    if FULL is not None:
        try:
            fcntl.fcntl(fd, FULL)
            return
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise
    os.fsync(fd)


def sync_data(fd: int) -> None:
    """Make the data of a file durable, and as much of its attributes as reading them needs. Raises OSError."""
    if FULL is not None or not hasattr(os, "fdatasync"):
        sync_file(fd)
    else:
        os.fdatasync(fd)


def sync_directory(path: str | Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(fd)
    finally:
        os.close(fd)
