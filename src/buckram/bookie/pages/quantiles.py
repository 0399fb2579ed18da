"""Quantiles of the last minute or two, from a histogram that only grows. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

WINDOW_S = 60.0


class Window:
    """Keeps two earlier states of a histogram; what came since the older one is the window, of one to two minutes."""

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds`: the upper bounds of the buckets, ascending, the last one infinite."""
        self._bounds = tuple(bounds)
        nothing = (0.0,) * len(self._bounds)
        self._older, self._newer = nothing, nothing
        self._newer_at: float | None = None
        self._counts: tuple[float, ...] = nothing

    def feed(self, now: float, cumulative: Sequence[float]) -> None:
        """Take the number of observations in each bucket and those below it; `now` in seconds of any clock."""
        if self._newer_at is None or now - self._newer_at >= WINDOW_S:
            self._older = self._newer if self._newer_at is not None else (0.0,) * len(self._bounds)
            self._newer, self._newer_at = tuple(cumulative), now
        self._counts = tuple(have - had for have, had in zip(cumulative, self._older, strict=True))

    def quantile(self, part: float) -> float:
        """Return the value below which this part of the window's observations lies; NaN if there were none."""
        total = self._counts[-1]
        if total <= 0:
            return math.nan
        rank, below, before = part * total, 0.0, 0.0
        for bound, count in zip(self._bounds, self._counts, strict=True):
            if count >= rank and count > before:
                if math.isinf(bound):
                    return below
                return below + (bound - below) * (rank - before) / (count - before)
            below, before = (below if math.isinf(bound) else bound), count
        return below
