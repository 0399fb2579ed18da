"""Kills its own process before the n-th change of a file below one directory; Python loads it at its start.

`BUCKRAM_DIE_IN` is the directory, `BUCKRAM_DIE_AT` the number of the change, from 1 on; the changes of all processes
that a command starts count in the file `BUCKRAM_DIE_COUNT`. What SQLite and Java do by themselves is not seen.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

ROOT = os.path.realpath(os.environ["BUCKRAM_DIE_IN"])
AT = int(os.environ["BUCKRAM_DIE_AT"])
COUNT = os.open(os.environ["BUCKRAM_DIE_COUNT"], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
_write, _pwrite, _pread = os.write, os.pwrite, os.pread
WRITES = os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_TRUNC
BY_NAME = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod")
BY_DESCRIPTOR = ("write", "pwrite", "pwritev", "writev", "fsync", "fdatasync", "ftruncate", "posix_fallocate")


def inside(path: object) -> bool:
    try:
        found = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.abspath(os.fsdecode(path))
    except (OSError, TypeError, ValueError):
        return False
    return found == ROOT or found.startswith(ROOT + "/")


def step() -> None:
    """Count one change, and die before the chosen one is made."""
    fcntl.flock(COUNT, fcntl.LOCK_EX)
    number = int(_pread(COUNT, 20, 0) or b"0") + 1
    _pwrite(COUNT, b"%d" % number, 0)
    fcntl.flock(COUNT, fcntl.LOCK_UN)
    if number == AT:
        os.killpg(0, signal.SIGKILL)  # the command and all that it started


def watched(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & WRITES and isinstance(path, str | bytes) and inside(path):
            step()
    elif event in BY_NAME and inside(arguments[0]):
        step()


def counting(call: Callable[..., Any]) -> Callable[..., Any]:
    def counted(descriptor: int, *arguments: Any) -> Any:
        if inside(descriptor):
            step()
        return call(descriptor, *arguments)

    return counted


if AT >= 0:
    for name in BY_DESCRIPTOR:
        setattr(os, name, counting(getattr(os, name)))
    sys.addaudithook(watched)
