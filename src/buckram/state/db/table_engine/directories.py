"""Directories for the files of databases: each is locked while its process lives; those of dead processes are deleted.

The files are a cache of the replicated log, so those of a killed process are not needed by any other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_PREFIX = "buckram-db-"
_LOCK = "lock"
_swept: set[str] = set()


class Directory:
    """A new directory of this process. `close` removes it."""

    def __init__(self, parent: Path | None) -> None:
        """Create and lock the directory below `parent`. Raises OSError."""
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._lock = -1
        begun = self.path / f"{_LOCK}-begun"
        try:
            self._lock = os.open(begun, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Others look at it only under its final name, which it gets when the lock is held.
            begun.rename(self.path / _LOCK)
        except OSError:
            self.close()
            raise

    def sweep(self) -> int:
        """Remove the directories of dead processes beside this one, once for each process; returns their number."""
        parent = str(self.path.parent)
        if parent in _swept:
            return 0
        _swept.add(parent)
        gone = 0
        with suppress(OSError):
            for other in self.path.parent.glob(f"{_PREFIX}*"):
                if other != self.path:
                    gone += _remove_dead(other)
        return gone

    def close(self) -> None:
        """Remove the directory. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_dead(directory: Path) -> bool:
    try:
        lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # It is being made or removed, or belongs to another user.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except OSError:
        return False  # Its process lives.
    finally:
        os.close(lock)
    return True
