"""Quantiles of a window of a growing histogram."""

from __future__ import annotations

import math

from buckram.bookie.pages.status_pages import WINDOW_S, Window

BOUNDS = (0.001, 0.01, 0.1, math.inf)


def test_no_observations_have_no_quantile() -> None:
    window = Window(BOUNDS)
    assert math.isnan(window.quantile(0.5))
    window.feed(0.0, (0, 0, 0, 0))
    assert math.isnan(window.quantile(0.99))


def test_quantiles_lie_within_their_buckets() -> None:
    window = Window(BOUNDS)
    window.feed(0.0, (50, 90, 100, 100))
    assert window.quantile(0.25) == 0.0005
    assert window.quantile(0.5) == 0.001
    assert 0.001 < window.quantile(0.75) < 0.01
    assert 0.01 < window.quantile(0.95) < window.quantile(0.99) < window.quantile(1.0) == 0.1


def test_what_lies_above_the_last_bound_counts_as_that_bound() -> None:
    window = Window(BOUNDS)
    window.feed(0.0, (0, 0, 1, 10))
    assert window.quantile(0.99) == 0.1


def test_old_observations_leave_the_window() -> None:
    window = Window(BOUNDS)
    window.feed(0.0, (100, 100, 100, 100))
    window.feed(WINDOW_S, (100, 100, 200, 200))
    assert window.quantile(0.5) > 0.01  # the first hundred were there when the window began
    window.feed(2 * WINDOW_S, (100, 100, 200, 200))
    window.feed(3 * WINDOW_S, (100, 100, 200, 200))
    assert math.isnan(window.quantile(0.5))
