"""Plans of runs on real processes: the same seed is the same plan, and faults keep their bounds."""

from __future__ import annotations

import pytest

from buckram.chaos.faults import _BEGIN
from buckram.chaos.plan import AT_ONCE, BETWEEN_MACHINES, EVERYWHERE, LONGEST_S, OWN_SERVER, make_plan


def test_a_seed_gives_one_plan_within_its_bounds() -> None:
    plan = make_plan(7, "etcd", 30, apart=True)
    assert plan == make_plan(7, "etcd", 30, apart=True)
    assert plan != make_plan(8, "etcd", 30, apart=True)
    assert len(plan.rounds) == len(plan.lost) >= 10
    for happenings in plan.rounds:
        for one in happenings:
            assert one.seconds <= LONGEST_S
            assert sum(o.at_s <= one.at_s < o.at_s + o.seconds for o in happenings) <= AT_ONCE


def test_every_fault_is_drawn_and_can_begin() -> None:
    drawn = {one.fault for seed in range(20) for row in make_plan(seed, "etcd", 30, apart=True).rounds for one in row}
    assert drawn == {*EVERYWHERE, *BETWEEN_MACHINES} == set(_BEGIN)


@pytest.mark.parametrize(("metadata", "apart"), [("sqlite", True), ("zookeeper", False)])
def test_faults_that_cannot_be_made_are_not_drawn(metadata: str, apart: bool) -> None:
    drawn = {one.fault for s in range(20) for row in make_plan(s, metadata, 30, apart=apart).rounds for one in row}
    assert not drawn & (OWN_SERVER if metadata == "sqlite" else set(BETWEEN_MACHINES))
    assert make_plan(1, metadata, 0.1, apart=apart).rounds
