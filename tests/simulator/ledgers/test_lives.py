"""Lives of ledgers: some with new seeds in each run, which are printed; more in a soak."""

from __future__ import annotations

import gc

from tests.support.soak import drawn, soak

from simulator.engine.faults import all_faults
from simulator.engine.plan import is_rare, make_cluster
from simulator.ledgers.plan import make_plan
from simulator.ledgers.subject import run_life

LIVES = soak(60, 9)
FIRST = drawn("lives of ledgers").randrange(1_000_000)


def _seeds() -> list[int]:
    """Seeds from FIRST on, of which two thirds are lives of rare kinds."""
    seeds = range(FIRST, FIRST + 20 * LIVES)
    rare = [seed for seed in seeds if is_rare(make_plan(seed))][: LIVES * 2 // 3]
    common = [seed for seed in seeds if not is_rare(make_plan(seed))][: LIVES - len(rare)]
    return sorted(rare + common)


def test_a_copy_that_comes_after_the_time_for_it_does_not_convict() -> None:
    """In this life a copy of an entry that nobody acknowledged comes 1.02 s after a recovery began, when that had
    waited for its second already, and before it could store all that it had found."""
    result = run_life(904379)
    assert not result.violations
    assert result.evaluated["F18"] > 0


def test_lives_with_new_seeds() -> None:
    print(f"python -m buckram.sim, seeds from {FIRST}")
    for seed in _seeds():
        result = run_life(seed)
        assert not result.violations, f"{result.violations[0]}; replay: python -m buckram.sim --seed {seed} --trace"
        if seed % 20 == 0:
            gc.collect()


def test_plans_cover_all_modes() -> None:
    plans = [make_plan(seed) for seed in range(400)]
    for mode in ("explicit", "deferred", "liar", "attacker", "deleting", "repairing", "hung_for_good", "calm"):
        assert any(getattr(plan, mode) for plan in plans), mode
    assert {plan.tenants for plan in plans} == {"", "none", "read"}
    assert {name for plan in plans for name in plan.quotas} == {"stored_bytes", "in_entries_per_s", "in_bytes_per_s"}
    assert all(3 <= plan.bookies <= 5 and plan.faults for plan in plans)
    assert any(plan.shape[0] > plan.shape[1] for plan in plans)
    assert {plan.sites for plan in plans} == {0, 2, 3, 4}


def test_lives_on_shared_hosts_judge_where_copies_go() -> None:
    plan = next(plan for plan in map(make_plan, range(100)) if plan.sites and plan.bookies > plan.shape[0] > 1)
    result = run_life(plan.seed, plan=plan)
    assert not result.violations, result.plan
    assert result.evaluated["M6"]
    assert result.reached["copies kept apart on shared hosts"]


def test_lives_with_a_stranger_and_with_quotas_are_the_same_again() -> None:
    plans = {seed: make_plan(seed) for seed in range(200)}
    for seed in (
        next(s for s, p in plans.items() if p.tenants == "read"),
        next(s for s, p in plans.items() if p.quotas),
    ):
        first, again = run_life(seed), run_life(seed)
        assert first.violations == []
        assert first.lines == again.lines
        assert not plans[seed].tenants or first.evaluated["A8"] > 0


def test_damage_stays_within_the_guarantee() -> None:
    """At most one bookie loses data, and never where one acknowledgement is enough."""
    for seed in range(2000):
        plan = make_plan(seed)
        damage = [fault for fault in plan.faults if all_faults()[fault].damages]
        assert len(damage) <= 1
        assert not damage or plan.shape[2] >= 2


def test_independent_faults_change_nothing_else_of_a_life() -> None:
    """Adding an independent fault leaves the lives that do not get it as they were."""
    independent = {name for name, fault in all_faults().items() if fault.independent}
    for seed in range(200):
        plan, bare = make_plan(seed), make_cluster(seed)
        assert [fault for fault in plan.faults if fault not in independent] == bare.faults
        if plan.faults == bare.faults and not plan.tenants and not plan.quotas and not plan.sites:
            assert str(plan) == str(bare)


def test_a_third_of_the_lives_runs_on_zookeeper() -> None:
    kinds = [make_plan(seed).metadata for seed in range(600)]
    assert 0.25 < sum(kind != "memory" for kind in kinds) / len(kinds) < 0.42
    seed = next(seed for seed, kind in enumerate(kinds) if kind == "zk+longhierarchical")
    first, again = run_life(seed), run_life(seed)
    assert first.trace_hash == again.trace_hash
    assert first.violations == []
