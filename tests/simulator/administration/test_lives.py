"""Lives of administration: no violation, the same life twice, and a planted bug that is caught."""

from __future__ import annotations

import pytest
from tests.support.soak import some_of

from simulator.__main__ import main
from simulator.administration.mutants import MUTANTS
from simulator.administration.plan import make_admin_plan
from simulator.administration.subject import Administration, run_admin_life
from simulator.engine.edits import stale

LIVES = 3
"""Of the 1000 that `make soak` runs; others with each commit."""


def test_lives_without_violation() -> None:
    for seed in some_of(range(1000), LIVES, soak=20):
        result = run_admin_life(seed)
        assert not result.violations, (seed, result.plan)


@pytest.mark.share(2, "broken once")
@pytest.mark.parametrize("seed", [16, 17, 29, 69, 112, 136, 234, 5002, 5014])
def test_lives_that_broke_a_rule_once(seed: int) -> None:
    """17 and 29: status said of a bookie whose address it did not know that it does not answer. 16: a bookie is in
    limbo for a while after everything else is well. 69: a copy of a directory ran while its bookie was stopped, which
    is the older one of the two from then on. 136: a copy answered in the place of its bookie. 112: status asked the
    store that the metadata had just left. 234: two disks were replaced at once, which is beyond the guarantee.
    5002: a replacement was interrupted when the bookie had left, and refused from then on as the bookie still answered.
    5014: an acceptance that hung gave a store that another one had accepted a history of its own."""
    result = run_admin_life(seed)
    assert not result.violations, result.plan


def test_the_metadata_move_and_the_life_goes_on() -> None:
    plan = make_admin_plan(3)
    plan.cluster.metadata, plan.cluster.faults, plan.commands = "memory", [], ["move-metadata"]
    result = run_admin_life(3, plan=plan)
    assert not result.violations, result.plan
    assert result.reached["a client of the former store was refused"]


def test_a_seed_decides_everything() -> None:
    assert run_admin_life(15).trace_hash == run_admin_life(15).trace_hash


def test_seeds_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--administration", "--seeds", "24:25", "--jobs", "1"])
    assert '"lives": 1, "violations": 0' in capsys.readouterr().out


@pytest.mark.parametrize("name", MUTANTS)
def test_bugs_can_be_planted(name: str) -> None:
    assert stale(MUTANTS[name].apply) == ""


@pytest.mark.share(3, "planted bugs")
@pytest.mark.parametrize("name", ["forgotten-while-named", "restore-accepts-itself", "replaced-cookie-stays"])
def test_a_planted_bug_is_caught(name: str) -> None:
    assert Administration().kill(name).by
