"""Tables that principals share: how nobody alone refuses places to others, or has their entries dropped.

Where a full table refuses, its last eighth is for those who hold little (`FairShare`). Where it drops something,
whoever holds most loses his oldest (`Owned`). Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

K = TypeVar("K")


def holder_of(principal: str) -> str:
    """Who a principal of this name is in a table: the name, or empty for one who is not known by a login, since he is
    whoever comes."""
    return principal if ":" in principal else ""


class FairShare:
    """Counts what holders have of `limit`. An empty holder is held to the limit alone."""

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self.kept = max(limit // 8, 1) if limit > 2 else 0
        """What is kept for those who hold no more than that."""
        self._held: Counter[str] = Counter()

    def has_room(self, holder: str, size: int = 1) -> bool:
        """Whether a holder may have so much more."""
        free = self.limit - self.total
        if size > free:
            return False
        return not holder or size <= free - self.kept or self._held[holder] + size <= self.kept

    def take(self, holder: str, size: int = 1) -> None:
        """Count it, whether there is room or not."""
        self.total += size
        self._held[holder] += size

    def give(self, holder: str, size: int = 1) -> None:
        """Count it no more."""
        self.total -= size
        self._held[holder] -= size
        if self._held[holder] <= 0:
            del self._held[holder]

    def said(self, holder: str, what: str) -> str:
        """How full it is, for the error of a holder who is refused."""
        if self.total >= self.limit or not holder:
            return f"{self.total} {what}"
        return f"{self.total} {what}, {self._held[holder]} of them of {holder}, and the last {self.kept} are for others"


class Owned(Generic[K]):
    """The keys of a table by their holders."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[K, None]] = {}
        """The oldest first."""

    def count(self, holder: str) -> int:
        """How many keys are a holder's."""
        return len(self._keys.get(holder, ()))

    def add(self, holder: str, key: K) -> None:
        """A new key, the holder's newest."""
        self._keys.setdefault(holder, {})[key] = None

    def remove(self, holder: str, key: K) -> None:
        """The key is gone. Idempotent."""
        keys = self._keys.get(holder, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(holder, None)

    def oldest(self, holder: str) -> K:
        """The oldest key of a holder who has some."""
        return next(iter(self._keys[holder]))

    def oldest_of_most(self) -> K:
        """The oldest key of whoever holds most; of a table that is not empty."""
        return self.oldest(max(self._keys, key=lambda holder: len(self._keys[holder])))


__all__ = ["FairShare", "Owned", "holder_of"]
