"""Detection of a slow disk, by comparing its syncs with its own past and with those of other bookies. Pure.

A disk is slow when, window after window, a sync takes long, much longer than it used to take here, and much longer than
it takes on other bookies now: a load that all bookies share makes none of them slow, and neither does a kind of disk
that always was slow. It has recovered only after a longer time, which doubles after each relapse.
"""

from __future__ import annotations

from collections.abc import Collection
from statistics import median

FACTOR = 4.0
"""Multiple of the values it is compared with from which a sync counts as slow."""
WELL_FACTOR = 2.0
BAD_WINDOWS = 3
"""Number of bad windows in a row after which a disk is slow."""
GOOD_WINDOWS = 6
MOST_GOOD_WINDOWS = 360
"""Number of good windows in a row after which a disk has recovered: after its first time, and at most."""
KNOWN_WINDOWS = 6
"""Number of windows that are needed before a disk is compared with its own past."""
MEMORY_WINDOWS = 360
"""Number of windows over which the past of a disk is averaged; bad ones, and those while it is slow, are left out."""


class SlowDisk:
    """State of the disk of one bookie. Times are the mean seconds of a sync, with the write before it."""

    def __init__(self, floor_s: float) -> None:
        """`floor_s`: seconds below which a sync is never slow, whatever it is compared with; 0: no disk is slow."""
        self._floor_s = floor_s
        self._bad = self._good = self._known = self._calm = 0
        self._needed = GOOD_WINDOWS
        self._was_slow = False
        self.past_s = 0.0
        """Mean of its past, in seconds; 0.0 while there is none."""
        self.slow = False
        self.why = ""
        """Sentence with its latency and those it was compared with, of the last bad window; empty once recovered."""

    def window(self, mean_s: float, others_s: Collection[float]) -> bool:
        """Judge one window of syncs, given the times of other bookies. Returns whether `slow` changed."""
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
