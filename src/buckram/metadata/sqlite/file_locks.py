"""Locks of the SQLite file of a metadata store: the lock by which a session lives, and waiting for SQLite's write lock.

A session lives exactly as long as an OS lock on its file, held by its process: the kernel drops it when the process
ends, however it ends, so no heartbeat is needed.

SQLite keeps no order among those who wait for its write lock; each asks again and again, and threads of one process
would besides take the interpreter from the one that is at work. So threads of one process that change the same file
queue up: one of them at a time tries, the others sleep, and it is known whether other processes complete changes, and
which one keeps the lock. Each SQL statement lets other threads run, and one that computes keeps the interpreter for 5
ms at a time; inside a transaction that would be the time for which all other processes wait, so a thread in one gets
the interpreter back at once (`quick_turns`).

For the write lock /proc is read only. The locked file must not be opened: closing it would drop the locks that SQLite
holds on it in this process. Not here: which keys belong to a session (`metadata/sqlite/tree.py`).
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
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


def _forget_sessions_in_child() -> None:
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
    after_in_child=_forget_sessions_in_child,
)


_WRITE_LOCK = 120
"""Offset of the byte of the -shm file that a writer in WAL mode has locked."""

_LONGEST = 80

_LOOKS = 4
"""Number of looks at the holder of the lock in the time after which a wait is given up."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Process that holds the lock. `program` is "" and `stopped` False if the system does not show them; `began`: start
    of the process.
    """

    pid: int
    program: str
    stopped: bool
    began: str = ""


def held_by(path: Path) -> Holder | None:
    """Return the process that is writing; None if there is none, or it is unknown (not Linux, or another container)."""
    try:
        shared = os.stat(f"{path}-shm")
        locks = Path("/proc/locks").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    device = f"{os.major(shared.st_dev):02x}:{os.minor(shared.st_dev):02x}:{shared.st_ino}"
    found = [pid for pid, place in _writers(locks) if place == device]
    # A file system of layers shows another device here than there.
    found = found or [pid for pid, place in _writers(locks) if place.endswith(f":{shared.st_ino}")]
    return _holder(found[0]) if found and found[0] > 0 else None


def _writers(locks: str) -> list[tuple[int, str]]:
    """Return process and place of each write lock on the byte.

    Lines are `1: POSIX ADVISORY WRITE pid major:minor:inode first last`; those who wait have an arrow in them.
    """
    found: list[tuple[int, str]] = []
    for line in locks.splitlines():
        words = line.split()
        if len(words) != 8 or words[1] != "POSIX" or words[3] != "WRITE":
            continue
        with suppress(ValueError):
            if int(words[6]) <= _WRITE_LOCK and (words[7] == "EOF" or int(words[7]) >= _WRITE_LOCK):
                found.append((int(words[4]), words[5]))
    return found


def _holder(pid: int) -> Holder:
    program, stopped, began = "", False, ""
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        program = line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        stopped, began = fields[0] in ("T", "t"), fields[19]
    return Holder(pid, program, stopped, began)


class Wait:
    """One wait for the lock, from the first attempt that failed. `since`: when a process last completed a change.

    The holder of the lock is named only if it was the same process at each look since then.
    """

    def __init__(self, path: Path, patience_s: float, now: float) -> None:
        self._path, self._patience_s = path, patience_s
        self.since = self._looked = now
        self._progress: int | None = None
        self._holder: Holder | None = None
        self._looks = 0

    def look(self, now: float, progress: int) -> None:
        """Look after each attempt that failed; `progress` is another number when others have changed something."""
        if progress != self._progress:
            if self._progress is not None:
                self.since = now
            self._progress, self._holder, self._looks = progress, None, 0
        elif now >= self._looked + self._patience_s / _LOOKS:  # rarely: the list of a machine's locks may be long
            self._looked = now
            self._look_at_holder(now)

    def _look_at_holder(self, now: float) -> None:
        found = held_by(self._path)
        if self._looks and not _same(found, self._holder):
            self.since, self._looks = now, 0  # the lock went from hand to hand
        self._holder = found
        self._looks += 1

    def why_stuck(self) -> str:
        """Return why a change could not be made while no process completed any, and what to do."""
        before, looks, now = self._holder, self._looks, held_by(self._path)
        holder = now if looks and _same(now, before) else None
        waited = f"{self._patience_s:g} s"
        if holder is None:
            return (
                f"{self._path}: another process has been changing it for {waited}, and it is not known which. Look for "
                f"one that is stopped or hangs (`fuser {self._path}`); reads go on, nothing was changed"
            )
        who = f"process {holder.pid}" + (f" ({holder.program})" if holder.program else "")
        if holder.stopped:
            return (
                f"{self._path}: {who} was stopped in the middle of a change {waited} ago or earlier, and no "
                f"other process can change anything. `kill -CONT {holder.pid}` lets it go on, `kill -9 "
                f"{holder.pid}` takes its "
                "change back; reads go on, nothing was changed"
            )
        return (
            f"{self._path}: {who} has been changing it for {waited} and is running: see whether its disk answers and "
            "what else it does, and try again; reads go on, nothing was changed"
        )

    def why_long(self, waited_s: float) -> str:
        """Return why a change could not be made while others completed theirs."""
        return (
            f"{self._path}: so many processes change it that this change was not reached within {waited_s:g} s; let "
            "fewer begin at once, or use a ZooKeeper or an etcd; reads go on, nothing was changed: try again"
        )


def _same(one: Holder | None, other: Holder | None) -> bool:
    return one is not None and other is not None and (one.pid, one.began) == (other.pid, other.began)


# -- the queue of threads of this process ---------------------------------------------------------------------

_lines: dict[str, threading.Lock] = {}

_guard = threading.Lock()


def line_of(path: Path) -> threading.Lock:
    """Return the lock that a thread holds while it may change this file."""
    with _guard:
        return _lines.setdefault(str(path), threading.Lock())


def _forget_waiters_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    _lines.clear()


os.register_at_fork(after_in_child=_forget_waiters_in_child)


# -- the interpreter's turns ----------------------------------------------------------------------------------

_SWITCH_S = 1e-5

_switch_guard = threading.Lock()

_inside = 0

_usual = 0.005


def _forget_turns_in_child() -> None:
    """Reset what threads of the parent held: none of them is in the child, and none of them ends its turn there."""
    global _inside, _switch_guard
    _switch_guard = threading.Lock()
    if _inside:
        _inside = 0
        sys.setswitchinterval(_usual)


os.register_at_fork(after_in_child=_forget_turns_in_child)


@contextmanager
def quick_turns() -> Iterator[None]:
    """Have other threads of this process give up the interpreter after 10 µs meanwhile. For a few statements only."""
    global _inside, _usual
    with _switch_guard:
        if not _inside:
            _usual = sys.getswitchinterval()
            sys.setswitchinterval(_SWITCH_S)
        _inside += 1
    try:
        yield
    finally:
        with _switch_guard:
            _inside -= 1
            if not _inside:
                sys.setswitchinterval(_usual)
