"""Lives of gateways: no violation, the same life twice, planted bugs that are caught, and the models themselves."""

from __future__ import annotations

import pytest
from tests.support.soak import some_of

from simulator.__main__ import main
from simulator.engine.edits import stale
from simulator.gateways.file_model import ABSENT, EXISTS, OK, REFUSED, empty, file_step
from simulator.gateways.mutants import MUTANTS, TAKEN
from simulator.gateways.plan import make_gateways_plan
from simulator.gateways.subject import Gateways, run_gateways_life

LIVES = 3
"""Of the 2000 that `make soak` runs; others with each commit."""


def test_lives_without_violation() -> None:
    for seed in some_of(range(2000), LIVES, soak=20):
        result = run_gateways_life(seed)
        assert not result.violations, (seed, result.plan, result.violations[0])


@pytest.mark.share(2, "broken once")
def test_a_put_whose_body_was_cut_is_no_other_request() -> None:
    """Its repetition came while the gateway was being stopped."""
    assert not run_gateways_life(1940).violations


@pytest.mark.parametrize("seed", [4, 5])
def test_a_gateway_that_was_overtaken_refuses_nothing_by_what_it_knew(seed: int) -> None:
    """4: it refused a sequence whose predecessors another gateway had acknowledged."""
    plan = make_gateways_plan(seed)
    plan.cluster.faults = list(TAKEN)
    plan.only("sequences")
    result = run_gateways_life(seed, plan=plan)
    assert not result.violations, (result.plan, result.violations[0])


@pytest.mark.share(2, "broken once")
def test_no_lease_is_left_by_a_writer_that_closes_as_it_renews_it() -> None:
    """A gateway whose session had ended created its lease anew as its writer closed, and nobody got the stream."""
    plan = make_gateways_plan(43)
    assert MUTANTS["doubt-told-as-refusal"].suits(plan)
    result = run_gateways_life(43, plan=plan)
    assert not result.violations, (result.plan, result.violations[0])


def test_a_seed_decides_everything() -> None:
    assert run_gateways_life(3).trace_hash == run_gateways_life(3).trace_hash


def test_seeds_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--gateways", "--seeds", "0:2", "--jobs", "1"]) == 0
    assert '"lives": 2, "violations": 0' in capsys.readouterr().out


@pytest.mark.parametrize("name", MUTANTS)
def test_bugs_can_be_planted(name: str) -> None:
    assert stale(MUTANTS[name].apply) == ""


@pytest.mark.share(3, "planted bugs")
@pytest.mark.parametrize("name", ["page-skips", "tail-resumes-late", "delete-takes-all", "key-done-twice"])
def test_a_planted_bug_is_caught(name: str) -> None:
    assert Gateways().kill(name).by


def test_the_model_knows_hadoops_rules() -> None:
    state = empty("g")

    def told(*operation: object) -> object:
        nonlocal state
        state, answer = file_step(state, operation)
        return answer

    assert told("create", "g/a/x", "1", False, "") == (OK, None)
    assert told("create", "g/a/x", "2", False, "") == (REFUSED, EXISTS)
    assert told("create", "g/a", "2", True, "") == (REFUSED, EXISTS)
    assert told("move", "g/none", "g/b", False) == (OK, False)
    assert told("rename", "g/none", "g/b", False, False) == (REFUSED, ABSENT)
    assert told("mkdirs", "g/b") == (OK, True)
    assert told("move", "g/a/x", "g/b", False) == (OK, True)
    assert told("status", "g/b/x") == (OK, "1")
    assert told("page", "g", "", 10) == (OK, (("a", "/"), ("b", "/")))
    assert told("move", "g/a/x", "g/b/x", False) == (OK, True)  # as its client may have lost the answer
    assert told("delete", "g/b", False, False) == (REFUSED, "PathIsNotEmptyDirectoryException")
    assert told("delete", "g/b", True, False) == (OK, True)
    assert told("delete", "g/b", True, False) == (OK, False)
    assert told("page", "g", "", 10) == (OK, (("a", "/"),))
