"""Finding the process that holds the write lock of an SQLite file, for error messages.

This module reads /proc only. It must not open the locked file: closing it would drop the locks that SQLite holds on it
in this process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_WRITE_LOCK = 120
"""The byte of the -shm file that whoever writes in WAL mode has locked."""
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Holder:
    """`program` is "" and `stopped` False where the system does not tell."""

    pid: int
    program: str
    stopped: bool


def held_by(path: Path) -> Holder | None:
    """Return who is in a write; None if nobody is, or if that is unknown (not Linux, or another container)."""
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
    """Lines are `1: POSIX ADVISORY WRITE pid major:minor:inode first last`; those who wait have an arrow in them."""
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
    program, stopped = "", False
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        program = line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "..."
    with suppress(OSError, IndexError):
        stopped = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] in ("T", "t")
    return Holder(pid, program, stopped)


def advice(path: Path, waited_s: float) -> str:
    """Why a change could not be made, and what to do."""
    holder = held_by(path)
    if holder is None:
        return (
            f"{path}: another process has been changing it for {waited_s:g} s, and it is not known which. Look for one "
            f"that is stopped or hangs (`fuser {path}`); reads go on, nothing was changed"
        )
    who = f"process {holder.pid}" + (f" ({holder.program})" if holder.program else "")
    if holder.stopped:
        return (
            f"{path}: {who} was stopped in the middle of a change {waited_s:g} s ago or earlier, and nobody else can "
            f"change anything. `kill -CONT {holder.pid}` lets it go on, `kill -9 {holder.pid}` takes its change back; "
            "reads go on, nothing was changed"
        )
    return (
        f"{path}: {who} has been changing it for {waited_s:g} s. If it hangs, `kill -9 {holder.pid}` takes its change "
        "back; reads go on, nothing was changed"
    )
