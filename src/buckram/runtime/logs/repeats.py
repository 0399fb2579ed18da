"""Limit on repeated log lines: endless repetition neither fills the disk nor hides other lines."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
WINDOW_S = 60.0
MOST_KINDS = 1000


class LeftOut(NamedTuple, Generic[K]):
    """`lines` of the kind were left out in a window that is over."""

    kind: K
    lines: int


class _Window:
    __slots__ = ("begin", "left_out", "passed")

    def __init__(self, begin: float) -> None:
        self.begin, self.passed, self.left_out = begin, 0, 0


class Repeats(Generic[K]):
    """The first `limit` lines of a kind pass in each minute; the others are counted. A limit of 0 lets all pass.

    At most MOST_KINDS kinds are known at a time; the one whose window began first is forgotten for a new one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._windows: OrderedDict[K, _Window] = OrderedDict()

    def passes(self, kind: K, now: float) -> bool:
        """Count a line. `now` is of a monotonic clock, in seconds."""
        if not self._limit:
            return True
        window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(now)
        window.passed += 1
        if window.passed <= self._limit:
            return True
        window.left_out += 1
        return False

    def ended(self, now: float) -> list[LeftOut[K]]:
        """Remove windows that are over, and return the lines that they suppressed. Call it before `passes`."""
        found = []
        while self._windows:
            kind, window = next(iter(self._windows.items()))
            if now - window.begin < WINDOW_S and len(self._windows) < MOST_KINDS:
                break
            del self._windows[kind]
            if window.left_out:
                found.append(LeftOut(kind, window.left_out))
        return found

    def rest(self) -> list[LeftOut[K]]:
        """Return the suppressed lines that were not reported yet, and forget all windows."""
        found = [LeftOut(kind, window.left_out) for kind, window in self._windows.items() if window.left_out]
        self._windows.clear()
        return found
