"""Liveness without heartbeats: a session lives exactly as long as an OS lock on its file, held by its process.

The kernel drops the lock when the process ends, however it ends. Which keys belong to a session is sqlite_tree.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_held: dict[int, None] = {}
_fork_guard = threading.Lock()


class SessionLock:
    """The lock of one session of this process, on DIRECTORY/ID."""

    def __init__(self, directory: Path, session: int) -> None:
        """Take the lock. Raises OSError if it is held or the file cannot be made."""
        self.session = session
        self._path = directory / str(session)
        with _fork_guard:
            self._fd = os.open(self._path, _FLAGS, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._fd)
                raise
            _held[self._fd] = None

    def intact(self) -> bool:
        """Return whether the file still is the one that others look at."""
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(self._fd))
        except OSError:
            return False

    def release(self) -> None:
        """End the session: from now on it counts as dead. Idempotent."""
        with _fork_guard:
            if _held.pop(self._fd, self) is self:
                return
            if self.intact():  # else another process has the name by now
                self._path.unlink(missing_ok=True)
            os.close(self._fd)


def alive(directory: Path, session: int) -> bool:
    """Return whether some process holds the session's lock; True in doubt (no permission, no descriptors)."""
    try:
        fd = os.open(f"{directory}/{session}", os.O_RDONLY | os.O_CLOEXEC)  # often: joining paths costs more than this
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        # Shared, so that two processes that look at the same moment do not take each other for the owner.
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(fd)


def forget(directory: Path, session: int) -> None:
    """Remove the file of a dead session."""
    (directory / str(session)).unlink(missing_ok=True)


def _after_fork_in_child() -> None:
    # A forked child shares the open files, so it would keep its parent's sessions alive.
    global _fork_guard
    for fd in _held:
        os.close(fd)
    _held.clear()
    _fork_guard = threading.Lock()


# The guard is taken across a fork so that no lock is taken but not yet noted in _held.
os.register_at_fork(
    before=lambda: _fork_guard.acquire(),
    after_in_parent=lambda: _fork_guard.release(),
    after_in_child=_after_fork_in_child,
)
