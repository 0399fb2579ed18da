"""Tables that principals share, so that none of them can use up the places of others or have their entries dropped.

In a table that refuses when it is full, the last eighth is kept for holders of few places (`FairShare`). In a table
that drops an entry instead, the holder of the most loses its oldest one (`Owned`). Pure.
"""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

K = TypeVar("K")


def holder_of(principal: str) -> str:
    """Return the holder that a principal is in a table: its name, or "" for one without a login, since that may be
    anybody."""
    return principal if ":" in principal else ""


class FairShare:
    """Counts of the places that holders have of `limit`. For the holder "" only the limit applies."""

    def __init__(self, limit: int) -> None:
        self.limit, self.total = limit, 0
        self.kept = max(limit // 8, 1) if limit > 2 else 0
        """Number of places that are kept for holders who have no more than that number."""
        self._held: Counter[str] = Counter()

    def has_room(self, holder: str, size: int = 1) -> bool:
        """Return whether a holder may take this many places more."""
        free = self.limit - self.total
        if size > free:
            return False
        return not holder or size <= free - self.kept or self._held[holder] + size <= self.kept

    def take(self, holder: str, size: int = 1) -> None:
        """Count places as taken, whether there is room or not."""
        self.total += size
        self._held[holder] += size

    def give(self, holder: str, size: int = 1) -> None:
        """Count places as given back."""
        self.total -= size
        self._held[holder] -= size
        if self._held[holder] <= 0:
            del self._held[holder]

    def said(self, holder: str, what: str) -> str:
        """Return how full the table is, in words for the error of a refused holder. `what`: name of the places."""
        if self.total >= self.limit or not holder:
            return f"{self.total} {what}"
        return (
            f"{self.total} {what}, {self._held[holder]} of them of {holder}, and the last {self.kept} are "
            "kept for others"
        )


class Owned(Generic[K]):
    """The keys of a table by their holders."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[K, None]] = {}
        """Keys by holder, the oldest first."""

    def count(self, holder: str) -> int:
        """Return the number of a holder's keys."""
        return len(self._keys.get(holder, ()))

    def add(self, holder: str, key: K) -> None:
        """Add a key as the holder's newest one."""
        self._keys.setdefault(holder, {})[key] = None

    def remove(self, holder: str, key: K) -> None:
        """Remove a key of a holder. Idempotent."""
        keys = self._keys.get(holder, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(holder, None)

    def oldest(self, holder: str) -> K:
        """Return the oldest key of a holder, who must have one."""
        return next(iter(self._keys[holder]))

    def oldest_of_most(self) -> K:
        """Return the oldest key of the holder of the most keys; the table must not be empty."""
        return self.oldest(max(self._keys, key=lambda holder: len(self._keys[holder])))
