"""When a bookie is read-only for want of room, and when it writes again. Pure decisions on free bytes."""

from __future__ import annotations

from buckram.config import StoreConfig


class SpaceWatch:
    """`writable`: normal adds. `reserve_usable`: recovery adds and fences. Recyclable files count as free."""

    def __init__(self, config: StoreConfig) -> None:
        self._reserved = config.reserved_bytes
        self._again = max(config.writable_again_bytes, config.reserved_bytes)
        self.writable = True
        self.reserve_usable = True
        self.free_bytes = 0

    def update(self, free_bytes: int, recyclable_bytes: int, disk_full: bool) -> bool:
        """Take a new measurement; True when `writable` changed. `disk_full`: a write just found no space."""
        usable = free_bytes + recyclable_bytes
        self.free_bytes = free_bytes
        self.reserve_usable = not disk_full and usable >= self._reserved // 2
        before = self.writable
        if disk_full or usable < self._reserved:
            self.writable = False
        elif usable >= self._again:
            self.writable = True
        return self.writable != before

    def may_reserve(self, size: int) -> bool:
        """Whether a file of `size` bytes may be created; half of the reserve may go, for recovery."""
        floor = self._reserved // 2
        return self.free_bytes - size >= floor
