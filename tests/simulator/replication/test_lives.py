"""Lives of two clusters: no violation, the same life twice, planted bugs that are caught, seeds that broke a rule."""

from __future__ import annotations

import pytest
from tests.support.soak import some_of

from simulator.engine.edits import stale
from simulator.replication.mutants import MUTANTS
from simulator.replication.plan import OTHER, make_replication_plan
from simulator.replication.subject import Replications, run_replication_life

LIVES = 1
"""Of the 1000 that `make soak` runs; others with each commit."""


def test_lives_without_violation() -> None:
    for seed in some_of(range(1000), LIVES, soak=4):
        result = run_replication_life(seed)
        assert not result.violations, (seed, result.plan, result.violations[0])


@pytest.mark.share(3, "broken once")
@pytest.mark.parametrize("seed", [5010, 5017, 5019, 5020, 5022, 5035, 20032, 20072, 20089, 20104, 20111, 20314])
def test_lives_that_broke_a_rule_once(seed: int) -> None:
    """5010, 5019 and 5022: a first run in the wrong direction made a mirror of the side that is written. 5017: a mirror
    whose ledger broke had other times than its source. 5020: what a restored source read again with its next writer was
    kept aside. Of the others the rules were wrong: 5035, 20089 and 20111 accepted a restore without what the command
    does after it, in 20032 and 20104 a stream was written while its promotion was under way, in 20072 a restore had
    undone a truncation, and in 20314 the repetition of a truncated record was recognised."""
    result = run_replication_life(seed)
    assert not result.violations, (result.plan, result.violations[0])


def test_a_seed_decides_everything() -> None:
    plan = make_replication_plan(9)
    assert plan.faults_of(True) or plan.faults_of(False)
    assert run_replication_life(9).trace_hash == run_replication_life(9).trace_hash


def test_each_cluster_has_its_own_faults() -> None:
    plans = [make_replication_plan(seed) for seed in range(40)]
    assert any(plan.faults_of(True) for plan in plans)
    assert any(plan.faults_of(False) for plan in plans)
    known = Replications().fault_names()
    for plan in plans:
        assert set(plan.cluster.faults) <= set(known)
        assert not any(name.startswith(OTHER) for name in plan.faults_of(True))


@pytest.mark.parametrize("name", MUTANTS)
def test_bugs_can_be_planted(name: str) -> None:
    assert stale(MUTANTS[name].apply) == ""


@pytest.mark.share(4)
@pytest.mark.parametrize(
    ("seed", "name"),
    [
        (0, "overtaken-unnoticed"),
        (0, "producers-forgotten"),
        (1, "begun-anew-without-keeping"),
        (1, "written-side-is-mirrored"),
        (2, "told-without-comparison"),
        (3, "sent-again-with-later-times"),
        (4, "dropped-by-reconcile"),
        (8, "mirror-takes-writers"),
        (8, "unforced"),
    ],
)
def test_a_planted_bug_is_caught(seed: int, name: str) -> None:
    """The first one is a bug that this life found, and so are those of a mirror of the written side and of times."""
    plan, mutant = make_replication_plan(seed), MUTANTS[name]
    assert mutant.suits(plan)
    result = run_replication_life(seed, plan=plan, mutant=mutant.apply())
    assert result.violations, name
    assert result.violations[0].invariant in mutant.rows.split(", ")
