"""Bookies that share a file system: how they tell, and its space, which counts once. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

FIGURE: Final = "file_system"
"""The figure of a bookie's answer (`GetBookieInfo`) that has the number of its file system."""


def number_of(identity: str) -> int:
    """A number for the file system of a `Disk.identity()`, which no other machine or file system has; 0: unknown."""
    boot, _, rest = identity.partition(" ")
    device = rest.partition(" ")[0]
    if not device:
        return 0
    return int.from_bytes(blake2b(f"{boot} {device}".encode(), digest_size=8).digest(), "big") >> 1


def space(bookies: Iterable[tuple[str, int, int | None, int | None]]) -> tuple[int, int]:
    """Free bytes and all bytes of bookies, each given by id, number of its file system, free and all bytes."""
    free: dict[str | int, int] = {}
    total: dict[str | int, int] = {}
    for bookie, number, free_bytes, total_bytes in bookies:
        where = number or bookie
        # They were asked one after the other, and what is free may have changed in between.
        free[where] = min(free.get(where, free_bytes or 0), free_bytes or 0)
        total[where] = max(total.get(where, 0), total_bytes or 0)
    return sum(free.values()), sum(total.values())


__all__ = ["FIGURE", "number_of", "space"]
