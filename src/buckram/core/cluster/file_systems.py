"""Detection of bookies that share a file system, whose space is counted once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

FILE_SYSTEM_FIGURE: Final = "file_system"
"""The figure of a bookie's answer (`GetBookieInfo`) that has the number of its file system."""


def file_system_number(identity: str) -> int:
    """Return a number for the file system of a `Disk.identity()`, which no other machine or file system has; 0:
    unknown.
    """
    boot, _, rest = identity.partition(" ")
    device = rest.partition(" ")[0]
    if not device:
        return 0
    return int.from_bytes(blake2b(f"{boot} {device}".encode(), digest_size=8).digest(), "big") >> 1


def file_system_space(bookies: Iterable[tuple[str, int, int | None, int | None]]) -> tuple[int, int]:
    """Return free and total bytes of bookies, each given by id, number of its file system, free and total bytes."""
    free: dict[str | int, int] = {}
    total: dict[str | int, int] = {}
    for bookie, number, free_bytes, total_bytes in bookies:
        where = number or bookie
        # The bookies answered one after the other, and free space may have changed in between.
        free[where] = min(free.get(where, free_bytes or 0), free_bytes or 0)
        total[where] = max(total.get(where, 0), total_bytes or 0)
    return sum(free.values()), sum(total.values())


__all__ = ["FILE_SYSTEM_FIGURE", "file_system_number", "file_system_space"]
