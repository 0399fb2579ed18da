"""A file that has its name only when all of it is there. What a process that died has left of it is written over.

Not here: files of a store, which are synced with their directory (`runtime/disk/local.py`).
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_SUFFIX = ".part"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which gets the name at the end of the block, and goes after an error.

    Meanwhile it is beside its name, with a lock, so that the same leftover is used again and again, and never by two
    processes. Raises OSError; BlockingIOError while another process writes the same file.
    """
    part = path.with_name(path.name + _SUFFIX)
    with _locked(part) as out:
        try:
            yield out
            out.flush()
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _locked(part: Path) -> BinaryIO:
    """Return the file of this name, which is empty, and locked until it is closed."""
    while True:
        out = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb")
        try:
            fcntl.flock(out.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_named(out.fileno(), part):
                os.ftruncate(out.fileno(), 0)
                return out
        except BlockingIOError:
            out.close()
            raise BlockingIOError(errno.EAGAIN, "another process is writing this file now", str(part)) from None
        except BaseException:
            out.close()
            raise
        out.close()  # It was given its name, or removed, before it was locked.


def _is_named(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
