"""Detection of bookies that take far longer than the others, so that it is reported, and others may replace them.

Pure; times are given by the caller. Not here: latencies (`core/placement/latency.py`), reporting (`client/shared/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from buckram.types import BookieId

SLOW_FLOOR_S = 0.1
"""Seconds: a bookie whose adds take less is not slow, whatever the others take."""
SLOW_FACTOR = 8.0
"""Multiple of the others' median from which a bookie is slow; it has recovered below half of that multiple."""


class Slowness:
    """The slow ones among the bookies that one client writes to, and since when each is slow."""

    def __init__(self) -> None:
        self._since: dict[BookieId, float] = {}
        self.why: dict[BookieId, str] = {}
        """By bookie that was slow at the last look: its latency and that of the others, as a sentence."""

    def look(self, took: Mapping[BookieId, float], now: float) -> None:
        """Judge all bookies anew.

        `took`: about how many seconds each bookie takes to acknowledge an add, or has not acknowledged one.
        """
        for bookie in [bookie for bookie in self._since if bookie not in took]:
            del self._since[bookie], self.why[bookie]
        for bookie, seconds in took.items():
            others = [other for name, other in took.items() if name != bookie]
            factor = SLOW_FACTOR / 2 if bookie in self._since else SLOW_FACTOR
            if others and seconds >= max(SLOW_FLOOR_S, factor * median(others)):
                self._since.setdefault(bookie, now)
                self.why[bookie] = f"an add takes {seconds:.2g} s there, and {median(others):.2g} s at the others"
            elif bookie in self._since:
                del self._since[bookie], self.why[bookie]

    def longer_than(self, seconds: float, now: float) -> list[BookieId]:
        """Return the bookies that were slow at every look of the last so many seconds."""
        return [bookie for bookie, since in self._since.items() if now - since >= seconds]


__all__ = ["SLOW_FACTOR", "SLOW_FLOOR_S", "Slowness"]
