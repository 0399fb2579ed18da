"""Lives of replicated machines: no violation, the same life twice, planted bugs that are caught, the reference."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.soak import some_of

from buckram.core.machine import records
from buckram.core.machine.records import CommandRecord
from buckram.core.machine.value_encoding import encode_value
from simulator.__main__ import main
from simulator.engine.edits import stale
from simulator.machine.mutants import MUTANTS
from simulator.machine.plan import make_machine_plan
from simulator.machine.reference import REFUSED, Reference
from simulator.machine.subject import Machines, run_machine_life

LIVES = 2
"""Of the 2000 that `make soak` runs; others with each commit."""


def test_lives_without_violation() -> None:
    for seed in some_of(range(2000), LIVES, soak=6):
        result = run_machine_life(seed)
        assert not result.violations, (seed, result.plan, result.violations[0])


def _reaches(situation: str, *, replicas: list[str], faults: list[str] | None = None) -> None:
    """One of a few lives like this reaches the situation, and none breaks a rule."""
    for seed in range(6):
        plan = make_machine_plan(seed)
        plan.replicas, plan.clients, plan.commands = replicas, 4, 25
        plan.settings = replace(plan.settings, snapshot_commands=4, digest_commands=5)
        if faults is not None:
            plan.cluster.faults = faults
        result = run_machine_life(seed, plan=plan)
        assert not result.violations, (seed, result.plan, result.violations[0])
        if result.reached[situation]:
            return
    pytest.fail(f"no life has reached: {situation}")


def test_a_damaged_snapshot_is_passed_over() -> None:
    faults = ["damage a snapshot", "damage a snapshot", "crash a replica"]
    _reaches("a damaged snapshot was passed over", replicas=["good", "good"], faults=faults)


def test_a_replica_that_does_not_know_a_command_stops() -> None:
    _reaches("a replica stopped at a command that it does not know", replicas=["good", "good", "old"])


def test_a_replica_that_miscounts_stops() -> None:
    _reaches("a replica that miscounts stopped", replicas=["good", "good", "wrong"])


def test_a_seed_decides_everything() -> None:
    assert run_machine_life(3).trace_hash == run_machine_life(3).trace_hash


def test_seeds_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--machine", "--seeds", "0:2", "--jobs", "1"]) == 0
    assert '"lives": 2' in capsys.readouterr().out


@pytest.mark.parametrize("name", MUTANTS)
def test_bugs_can_be_planted(name: str) -> None:
    assert stale(MUTANTS[name].apply) == ""


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["applied-before-acknowledged", "two-leaders", "leads-too-early"])
def test_a_planted_bug_is_caught(name: str) -> None:
    assert Machines().kill(name).by


def test_the_reference_executes_a_command_once() -> None:
    reference = Reference()

    def command(session: int, sequence: int, lowest: int, *command: object) -> None:
        reference.append(
            records.encode_command(CommandRecord(0, session, sequence, lowest, encode_value(list(command))))
        )

    reference.append(records.encode_plain(records.SESSION, 0))
    command(0, 0, 0, "a", "append", "l0", 1)
    command(0, 0, 0, "a", "append", "l0", 1)
    command(0, 1, 0, "b", "refuse")
    command(0, 3, 3, "c", "append2", "l0", 2)
    command(0, 2, 0, "given up", "append", "l0", 3)
    command(7, 0, 0, "no session", "append", "l0", 4)
    assert reference.book.lists == {"l0": [1, 2]}
    assert reference.repeated == {2: reference.executed["a"]}
    assert reference.executed["b"].result == REFUSED
    assert reference.unknown_at == [4]
    assert list(reference.executed) == ["a", "b", "c"]
    command(0, 9, 0, "a", "append", "l0", 1)
    assert reference.twice == ["a"]
