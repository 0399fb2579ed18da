"""Rates from histories with jumps and noise."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from buckram.cli.planning.history import Point
from buckram.cli.planning.outlook import DAY_S, MOST_POINTS, thinned, trend

GB = 10**9


def hourly(days: int, per_day: float) -> list[Point]:
    return [Point(hour * 3600.0, round(50 * GB + per_day * hour / 24)) for hour in range(days * 24 + 1)]


def test_a_steady_rate_is_found() -> None:
    found = trend(hourly(30, 5 * GB))
    assert found is not None
    assert found.per_day == pytest.approx(5 * GB, rel=1e-6)
    assert found.low == pytest.approx(found.high, rel=1e-6)


def test_noise_and_one_deletion_do_not_move_it_far() -> None:
    rng = random.Random(4)
    points = [one._replace(used_bytes=one.used_bytes + rng.randrange(-GB, GB)) for one in hourly(30, 5 * GB)]
    points[100] = points[100]._replace(used_bytes=0)
    found = trend(points)
    assert found is not None
    assert found.per_day == pytest.approx(5 * GB, rel=0.05)
    assert found.low < 5 * GB < found.high


def test_a_shrinking_rack_has_a_rate_below_zero() -> None:
    found = trend(hourly(10, -GB))
    assert found is not None
    assert found.per_day == pytest.approx(-GB, rel=1e-6)


def test_a_short_history_says_nothing() -> None:
    assert trend([]) is None
    assert trend([Point(0.0, 1)]) is None
    assert trend([Point(0.0, 1), Point(3599.0, 2)]) is None
    assert trend([Point(0.0, 0), Point(3600.0, GB)]) == pytest.approx((24 * GB, 24 * GB, 24 * GB))


def test_many_samples_are_thinned_evenly() -> None:
    points = hourly(400, GB)
    chosen = thinned(points)
    assert len(chosen) == MOST_POINTS
    assert (chosen[0], chosen[-1]) == (points[0], points[-1])
    gaps = [later.wall_s - earlier.wall_s for earlier, later in pairwise(chosen)]
    assert max(gaps) - min(gaps) <= 3600.0
    assert max(gaps) < 3 * DAY_S
