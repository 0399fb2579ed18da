"""File descriptors: how many a process may have, and how a bookie divides them between files and connections.

Each connection takes a descriptor, and clients cannot be kept from connecting. So the bookie accepts fewer connections
than there are descriptors and keeps a few descriptors in reserve for files that must be opened.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from buckram.errors import ConfigError

SPARE = 8
"""Descriptors held in reserve for files that must be opened when nothing else is left."""
OWN = 48
"""For listeners, metadata, log files that are written, the event loop, and the spare ones."""
OPERATORS = 16
"""Connections of this machine's clients beyond the limit: an operator can look at a bookie that is full."""
MOST_FILES = 256
LEAST = 96
"""Smallest limit of descriptors with which a bookie starts: below it too few would be left for connections."""


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of a limit of `limit` descriptors: for log files kept open for reading, and for connections."""

    limit: int
    files: int
    connections: int


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit, as far as allowed; return the new limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            return current_limit()  # not allowed here: the soft one has to do
    return current_limit()


def current_limit() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 30) if soft == resource.RLIM_INFINITY else soft


def in_use() -> int:
    """Return how many descriptors this process has open; 0 if that is unknown. Blocks for some microseconds."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the one that reads the folder
    except OSError:
        return 0


def shares(limit: int) -> Shares:
    """Share `limit` descriptors. A log file takes two: one past the page cache, one through it."""
    files = max(2, min(MOST_FILES, (limit - OWN - OPERATORS) // 8))
    return Shares(limit, files, max(0, limit - OWN - OPERATORS - 2 * files))


def shares_of_bookie() -> Shares:
    """Raise the limit of open files and return its shares. Raises ConfigError if it is too low for a bookie."""
    limit = raise_limit()
    if limit < LEAST:
        raise ConfigError(
            f"this process may have {limit} open files, a bookie needs {LEAST}: raise the limit (ulimit -n, or "
            "LimitNOFILE= of its service)"
        )
    return shares(limit)


class Spare:
    """Descriptors of /dev/null, given up one by one when a file finds none. Methods may be called from any thread."""

    def __init__(self, count: int = SPARE) -> None:
        self._count = count
        self._held: list[int] = []

    def fill(self) -> None:
        """Open again those that were given up, as far as the limit allows."""
        try:
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return

    def give_up(self) -> bool:
        """Give one up; False if none is left."""
        try:
            fd = self._held.pop()
        except IndexError:
            return False
        os.close(fd)
        return True

    def close(self) -> None:
        while self.give_up():
            pass
