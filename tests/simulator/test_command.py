"""`python -m buckram.sim`: the keys of the last line, exit codes, and how a violation is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.__main__ import UNFINISHED, main
from simulator.engine import swarm
from simulator.engine.checkers.report import INVARIANTS, SITUATIONS
from simulator.engine.resuming import Code, Resumed
from simulator.engine.swarm import Totals, shrink
from simulator.ledgers.mutants import MUTANTS
from simulator.ledgers.plan import make_plan
from simulator.ledgers.subject import Ledgers

KEYS = ["lives", "violations", "invariants", "reached", "acked", "crashes", "faults", "trace_hash"]


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(line, dict)
    return line


def test_seeds_print_the_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:4", "--jobs", "1"]) == 0
    line = last_line(capsys)
    assert list(line) == KEYS
    assert line["lives"] == 4
    assert line["violations"] == 0
    assert list(line["invariants"]) == list(INVARIANTS)  # type: ignore[call-overload]  # a dict
    assert list(line["reached"]) == list(SITUATIONS)  # type: ignore[call-overload]  # a dict


def test_trace_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--trace"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["lives"] == 1
    assert "created ledger" in captured.err


def test_faults_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "5", "--faults", "kill,cut"]) == 0
    assert last_line(capsys)["faults"] == 2
    assert main(["--seed", "5", "--faults", "earthquake"]) == 2


def test_violation_is_shrunk_to_one_command() -> None:
    plan = make_plan(1)
    assert len(plan.faults) > 1
    with MUTANTS["ack-early"].apply():
        command = shrink(Ledgers(), 1, "S4")
    assert command.startswith("python -m buckram.sim --seed 1 --faults")
    assert command.endswith("--trace")


def test_minutes_end_a_run_early(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "CHUNK", 1)
    assert main(["--seeds", "0:1000000", "--jobs", "1", "--minutes", "0.0001"]) == 0
    assert 1 <= int(str(last_line(capsys)["lives"])) < 100


def test_a_run_that_was_ended_goes_on_and_counts_all_its_lives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(swarm, "CHUNK", 1)
    seeds, resume = ["--seeds", "0:3", "--jobs", "1"], ["--resume", str(tmp_path / "lives.jsonl")]
    assert main([*seeds, *resume, "--minutes", "0.0001"]) == UNFINISHED
    assert last_line(capsys)["lives"] == 1
    assert main([*seeds, *resume]) == 0
    captured = capsys.readouterr()
    assert "3/3 lives, 0 violations" in captured.err
    assert " s of CPU each" in captured.err
    assert main([*seeds, *resume]) == 0
    again = capsys.readouterr()
    assert "of CPU each" not in again.err, "no life is run again"
    assert main(seeds) == 0
    assert captured.out == again.out == capsys.readouterr().out, "as if it had not been ended"


def test_lives_of_other_code_do_not_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("simulator.__main__.code_of", lambda: Code("older"))
    command = ["--seeds", "0:2", "--jobs", "1", "--resume", str(tmp_path / "lives.jsonl")]
    assert main(command) == 0
    monkeypatch.setattr("simulator.__main__.code_of", lambda: Code("newer"))
    capsys.readouterr()
    assert main([*command, "--minutes", "0.00001", "--any-code"]) == 0
    assert "of CPU each" not in capsys.readouterr().err
    assert main(command) == 0
    said = capsys.readouterr().err
    assert "2 lives in " in said
    assert "of CPU each" in said, "they are run again"
    with Resumed(tmp_path / "lives.jsonl", "", Code("newer")):
        assert main(command) == 2, "no two runs have one file"


@pytest.mark.parametrize("arguments", [[], ["--seeds", "nonsense"]])
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2


def test_missing_evaluations_are_named() -> None:
    totals = Totals(lives=2000)
    assert "S1 (0)" in totals.missing()
    assert "writer degraded (0)" in totals.missing()
    totals.reached["compaction output written"] = 2 * totals.floor("compaction output written") - 1
    assert any(name.startswith("compaction output written") for name in totals.missing())
    totals.reached["compaction output written"] += 1
    assert not any(name.startswith("compaction output written") for name in totals.missing())
    assert Totals(lives=999).missing() == [], "a short run says nothing about how often something is reached"


def test_mutant_is_hunted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--mutants", "--only", "close-over", "--jobs", "1"]) == 0
    line = last_line(capsys)
    assert (line["mutants"], line["caught"], line["missed"]) == (1, 1, [])
    assert main(["--mutants", "--only", "no-such-bug"]) == 2
