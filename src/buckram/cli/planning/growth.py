"""Growth of a rack's use: the median of the slopes between its samples, which one jump or one deletion does not
move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from buckram.cli.planning.history import Point

DAY_S = 86_400.0
MOST_POINTS = 150
"""Maximum samples of which all pairs give slopes; more samples are thinned out evenly."""
LEAST_S = 3600.0
"""Minimum length of a history in seconds: a shorter one says nothing about days."""


class Trend(NamedTuple):
    """Bytes a day: the median, and what nine of ten slopes are above and below."""

    per_day: float
    low: float
    high: float


def trend(points: Sequence[Point]) -> Trend | None:
    """Return the trend of `points`, which are in the order of time; None if the history is too short."""
    if len(points) < 2 or points[-1].wall_s - points[0].wall_s < LEAST_S:
        return None
    chosen = thinned(points)
    gap = (chosen[-1].wall_s - chosen[0].wall_s) / 10  # neighbours tell of the moment, not of the trend
    slopes = sorted(
        (later.used_bytes - earlier.used_bytes) / (later.wall_s - earlier.wall_s) * DAY_S
        for place, earlier in enumerate(chosen)
        for later in chosen[place + 1 :]
        if later.wall_s - earlier.wall_s >= gap
    )
    middle = len(slopes) // 2
    median = slopes[middle] if len(slopes) % 2 else (slopes[middle - 1] + slopes[middle]) / 2
    tenth = len(slopes) // 10
    return Trend(median, slopes[tenth], slopes[-1 - tenth])


def thinned(points: Sequence[Point], most: int = MOST_POINTS) -> Sequence[Point]:
    """Return at most `most` points, evenly chosen, including the first and the last."""
    if len(points) <= most:
        return points
    step = (len(points) - 1) / (most - 1)
    return [points[round(place * step)] for place in range(most)]
