"""Decides from free bytes when a bookie becomes read-only and when it is writable again. Pure.

Not here: measuring (`bookie/storage/upkeep/maintenance.py`).
"""

from __future__ import annotations

from buckram.config import StoreConfig


class SpaceWatch:
    """`writable`: whether normal adds have room; `reason` says why not. `reserve_usable`: whether recovery adds and
    fences have room. Files that can be reused count as free.
    """

    def __init__(self, config: StoreConfig) -> None:
        self._reserved = config.reserved_bytes
        self._again = max(config.writable_again_bytes, config.reserved_bytes)
        self._scarce = False
        self.writable = True
        self.reserve_usable = True
        self.free_bytes = 0
        self.reason = ""

    def update(self, free_bytes: int, recyclable_bytes: int, short: str, waiting: str = "") -> bool:
        """Take a new measurement, in bytes. Returns True if `writable` changed.

        `short`: the resource that a block has just found missing. `waiting`: why the next log file cannot be created,
        once the log needs it.
        """
        usable = free_bytes + recyclable_bytes
        self.free_bytes = free_bytes
        self.reserve_usable = not short and usable >= self._reserved // 2
        before = self.writable
        self._scarce = usable < (self._again if self._scarce else self._reserved)
        self.writable = not (short or waiting or self._scarce)
        if not self.writable:
            self.reason = (
                short
                or waiting
                or (
                    f"{usable} bytes of its device are free, it keeps {self._reserved} and writes again from "
                    f"{self._again}: free space there"
                )
            )
        return self.writable != before

    def may_reserve(self, size: int) -> bool:
        """Return whether `size` bytes may be allocated for a file; half of the reserved bytes stay free, for
        recovery."""
        floor = self._reserved // 2
        return self.free_bytes - size >= floor
