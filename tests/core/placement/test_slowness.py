"""Which bookies take far longer than the others, for how long."""

from __future__ import annotations

from buckram.core.placement.latency import Slowness

EVEN = {"b1": 0.002, "b2": 0.003, "b3": 0.002}


def test_one_that_is_slow_for_long_is_found_and_well_again_later() -> None:
    slowness = Slowness()
    slowness.look(EVEN, 0.0)
    for second in range(1, 40):
        slowness.look(EVEN | {"b3": 0.4}, float(second))
        assert slowness.longer_than(30.0, float(second)) == (["b3"] if second >= 31 else [])
    assert slowness.why["b3"] == "an add takes 0.4 s there, and 0.0025 s at the others"
    slowness.look(EVEN, 40.0)
    assert not slowness.longer_than(0.0, 40.0)


def test_a_pause_of_slowness_begins_the_time_anew() -> None:
    slowness = Slowness()
    slowness.look(EVEN | {"b3": 0.4}, 0.0)
    slowness.look(EVEN, 20.0)
    slowness.look(EVEN | {"b3": 0.4}, 21.0)
    assert not slowness.longer_than(30.0, 40.0)


def test_what_all_share_makes_nobody_slow() -> None:
    slowness = Slowness()
    slowness.look({"b1": 0.5, "b2": 0.6, "b3": 0.7}, 0.0)
    slowness.look({"b1": 0.001, "b2": 0.001, "b3": 0.05}, 1.0)  # fifty times slower, and quick
    slowness.look({"b3": 3.0}, 2.0)  # nobody to compare with
    assert not slowness.longer_than(0.0, 2.0)


def test_one_that_nobody_writes_to_is_forgotten() -> None:
    slowness = Slowness()
    slowness.look(EVEN | {"b3": 0.4}, 0.0)
    slowness.look({"b1": 0.002, "b2": 0.002}, 1.0)
    assert not slowness.longer_than(0.0, 1.0)
