"""Which bookies take far longer than the others, for how long: so that it is told, and another may take their place.

Pure; times are the caller's. Not here: how long adds took (`core/placement/latency.py`), telling (`client/shared/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from buckram.types import BookieId

FLOOR_S = 0.1
"""Whoever is quicker is not slow, whatever the others do."""
FACTOR = 8.0
"""So many times slower than the others; one that was slow is well again at half of it."""


class Slowness:
    """Of the bookies that one client writes to."""

    def __init__(self) -> None:
        self._since: dict[BookieId, float] = {}
        self.why: dict[BookieId, str] = {}
        """Of each bookie that is slow at the last look: against what."""

    def look(self, took: Mapping[BookieId, float], now: float) -> None:
        """`took`: about how long each bookie takes to acknowledge an add, or has not acknowledged one."""
        for bookie in [bookie for bookie in self._since if bookie not in took]:
            del self._since[bookie], self.why[bookie]
        for bookie, seconds in took.items():
            others = [other for name, other in took.items() if name != bookie]
            factor = FACTOR / 2 if bookie in self._since else FACTOR
            if others and seconds >= max(FLOOR_S, factor * median(others)):
                self._since.setdefault(bookie, now)
                self.why[bookie] = f"an add takes {seconds:.2g} s there, and {median(others):.2g} s at the others"
            elif bookie in self._since:
                del self._since[bookie], self.why[bookie]

    def longer_than(self, seconds: float, now: float) -> list[BookieId]:
        """Those that have been slow at all looks for so long."""
        return [bookie for bookie, since in self._since.items() if now - since >= seconds]


__all__ = ["FACTOR", "FLOOR_S", "Slowness"]
