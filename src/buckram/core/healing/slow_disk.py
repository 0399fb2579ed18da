"""Whether a disk has become slow: its syncs against its own past and against those of other bookies. Pure.

A disk is slow when, window after window, a sync takes long, much longer than it used to take here, and much longer than
it takes elsewhere now: a load that all bookies share makes none of them slow, and neither does a kind of disk that
always was. It is well again only after a longer time, and after each relapse that time doubles.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

FACTOR = 4.0
"""So many times slower than what it is compared with."""
WELL_FACTOR = 2.0
BAD_WINDOWS = 3
"""So many windows one after the other make a disk slow."""
GOOD_WINDOWS = 6
MOST_GOOD_WINDOWS = 360
"""So many at first, and at most, make it well again."""
KNOWN_WINDOWS = 6
"""So many windows are needed before its own past says anything."""
MEMORY_WINDOWS = 360
"""About so many windows are its past; those in which it is slow do not count."""


class SlowDisk:
    """What one bookie knows of its disk. Times are the mean seconds of a sync, with the write before it."""

    def __init__(self, floor_s: float) -> None:
        """`floor_s`: whatever it is compared with, a sync that takes less is not slow; 0: no disk ever is."""
        self._floor_s = floor_s
        self._bad = self._good = self._known = self._calm = 0
        self._needed = GOOD_WINDOWS
        self._was_slow = False
        self.past_s = 0.0
        """The mean of its past; 0.0 while there is none."""
        self.slow = False
        self.why = ""
        """While it is slow: against what."""

    def window(self, mean_s: float, others_s: Collection[float]) -> bool:
        """One window with syncs, and what is known of other bookies at that time. Returns whether `slow` changed."""
        compared = self._compared(others_s)
        over = self._floor_s > 0 and mean_s >= self._floor_s and bool(compared)
        bad = over and all(mean_s >= FACTOR * value for value in compared.values())
        good = mean_s < self._floor_s / 2 or any(mean_s < WELL_FACTOR * value for value in compared.values())
        if not self.slow and not bad:
            self._remember(mean_s)
        self._bad = self._bad + 1 if bad else 0
        self._good = self._good + 1 if good else 0
        if bad:
            told = ", ".join(f"{value * 1000:.1f} ms {what}" for what, value in compared.items())
            self.why = f"a sync of its disk takes {mean_s * 1000:.0f} ms, against {told}"
        return self._judge()

    def _judge(self) -> bool:
        if self.slow:
            if self._good < self._needed:
                return False
            self.slow, self.why, self._calm = False, "", 0
            return True
        self._calm += 1
        if self._bad < BAD_WINDOWS:
            return False
        relapsed = self._was_slow and self._calm <= MOST_GOOD_WINDOWS
        self._needed = min(2 * self._needed, MOST_GOOD_WINDOWS) if relapsed else GOOD_WINDOWS
        self.slow = self._was_slow = True
        return True

    def _compared(self, others_s: Collection[float]) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._known >= KNOWN_WINDOWS:
            found["before"] = self.past_s
        if others_s:
            found["on other bookies"] = median(others_s)
        return found

    def _remember(self, mean_s: float) -> None:
        self._known += 1
        self.past_s += (mean_s - self.past_s) / min(self._known, MEMORY_WINDOWS)
