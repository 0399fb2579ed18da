"""Directed schedules of streams, and a crash or a lost reply at every step of each operation."""

from __future__ import annotations

import gc

import pytest
from tests.support.soak import SOAK, drawn

from simulator.streams.crashing import DRILLS, crash_points, run_crash_point
from simulator.streams.scenarios import SCENARIOS, run_stream_scenario

SHARE = 3
"""How many crash points of each operation are tested, others in each run; all of them in a soak."""


@pytest.mark.share(4)
@pytest.mark.parametrize("metadata", ["memory", "zk+hierarchical"])
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_schedule_violates_nothing(name: str, metadata: str) -> None:
    outcome = run_stream_scenario(name, metadata=metadata)
    assert outcome.violations == []
    assert not outcome.failed


def test_schedules_are_deterministic() -> None:
    first, again = run_stream_scenario("retries"), run_stream_scenario("retries")
    assert first.trace_hash == again.trace_hash
    assert first.trace_hash != run_stream_scenario("retries", seed=1).trace_hash


@pytest.mark.share(4)
@pytest.mark.parametrize("name", list(DRILLS))
def test_crash_or_lost_reply_at_every_step(name: str) -> None:
    points, outcome = crash_points(name)
    assert outcome.ok, (outcome.violations[:1], outcome.failed)
    assert len(points) >= 12, "the operation has become much shorter, or nothing is counted"
    assert {place.when for place in points} == {"", "after", "before"}
    chosen = points if SOAK else drawn(name).sample(points, SHARE)
    for place in chosen:
        _, problems, _ = run_crash_point(place)
        assert problems == [], str(place)
    gc.collect()
