"""Plans of runs on real processes: the same seed is the same plan, and faults keep their bounds."""

from __future__ import annotations

from chaos.faults import _BEGIN
from chaos.plan import AT_ONCE, FAULTS, LONG, LONG_S, LONGEST_S, ONE_RACK, OWN_SERVER, make_plan


def test_a_seed_gives_one_plan_within_its_bounds() -> None:
    plan = make_plan(7, "etcd", 30)
    assert plan == make_plan(7, "etcd", 30)
    assert plan != make_plan(8, "etcd", 30)
    assert len(plan.rounds) == len(plan.lost) >= 10
    for happenings in plan.rounds:
        for one in happenings:
            assert one.seconds <= (LONG_S[1] if one.fault in LONG else LONGEST_S)
            assert sum(o.at_s <= one.at_s < o.at_s + o.seconds for o in happenings) <= AT_ONCE
        assert happenings[-1].fault == ONE_RACK
        assert all(one.at_s + one.seconds < happenings[-1].at_s for one in happenings[:-1])


def test_every_fault_is_drawn_and_can_begin() -> None:
    drawn = {one.fault for seed in range(20) for row in make_plan(seed, "etcd", 30).rounds for one in row}
    assert drawn == {*FAULTS, ONE_RACK} == set(_BEGIN)


def test_faults_of_servers_need_servers() -> None:
    drawn = {one.fault for seed in range(20) for row in make_plan(seed, "sqlite", 30).rounds for one in row}
    assert drawn == {*FAULTS, ONE_RACK} - OWN_SERVER
    assert make_plan(1, "sqlite", 0.1).rounds
