"""Each directed schedule of ledgers is possible, ends as expected, and violates nothing."""

from __future__ import annotations

import pytest

from simulator.ledgers.scenarios import SCENARIOS, run_scenario
from simulator.ledgers.scenarios.deletions import INVARIANTS as DELETIONS


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("name", "metadata"), [(name, kind) for name, one in SCENARIOS.items() for kind in one.metadata]
)
def test_schedule_violates_nothing(name: str, metadata: str) -> None:
    outcome = run_scenario(name, metadata=metadata)
    assert outcome.violations == []
    assert not outcome.failed


def test_all_schedules_of_the_protocol_exist() -> None:
    assert [f"D{n}" for n in range(1, 11) if f"D{n}" not in SCENARIOS] == []


@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("name", ["D2", "D3", "D6", "D9"])
def test_schedule_violates_nothing_with_other_latencies(name: str, seed: int) -> None:
    outcome = run_scenario(name, seed)
    assert outcome.violations == []


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", range(1, 4))
def test_deletions_in_any_order_violate_nothing(seed: int) -> None:
    outcome = run_scenario("deletions", seed)
    assert outcome.violations == [], f"replay: run_scenario('deletions', {seed})"
    assert not outcome.failed
    assert all(outcome.evaluated[rule] for rule in DELETIONS)
