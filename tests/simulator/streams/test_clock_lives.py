"""Lives of clocks: nothing is ended before its true age, and what is old is ended soon after clocks are right."""

from __future__ import annotations

import pytest
from tests.support.soak import soak

from simulator.streams.scenarios import run_stream_scenario


@pytest.mark.parametrize("seed", range(soak(60, 4)))
def test_a_life_of_clocks_ends_nothing_too_early_and_all_in_the_end(seed: int) -> None:
    outcome = run_stream_scenario("clock-life", seed=seed)
    assert outcome.violations == [], f'replay: run_stream_scenario("clock-life", seed={seed})'
    assert not outcome.failed
