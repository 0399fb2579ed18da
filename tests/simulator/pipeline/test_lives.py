"""Lives of Spark's pipelines: no violation, the same life twice, planted bugs that are caught, scenarios of seeds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest
from tests.support.soak import some_of

from simulator.__main__ import main
from simulator.engine.checkers.report import Report
from simulator.engine.edits import stale
from simulator.pipeline.model import Input, Model
from simulator.pipeline.mutants import MUTANTS
from simulator.pipeline.names import INVARIANTS
from simulator.pipeline.plan import make_pipeline_plan, suit
from simulator.pipeline.queries import NAMESPACE, Query, written
from simulator.pipeline.rules import judge_output
from simulator.pipeline.subject import Pipelines, run_pipeline_life

LIVES = 1
"""Of the 1000 that `make soak` runs; others with each commit."""


def test_lives_without_violation() -> None:
    for seed in some_of(range(1000), LIVES, soak=4):
        result = run_pipeline_life(seed)
        assert not result.violations, (seed, result.plan, result.violations[0])


def test_a_seed_decides_everything() -> None:
    results = []
    for _ in range(2):
        plan = make_pipeline_plan(4)
        suit(plan, records=10, runs=3, kind="byStream")
        results.append(run_pipeline_life(4, plan=plan))
    assert results[0].trace_hash == results[1].trace_hash
    assert not results[0].violations, results[0].violations[0]


SCENARIOS: dict[str, tuple[int, dict[str, Any]]] = {
    "a stream is added before an empty first batch is repeated": (
        0,
        {"kind": "pattern", "vandalism": ["add", "add", "add"], "starting": "earliest"},
    ),
    "metadata lag behind the batch before and the ledgers of tasks": (
        2,
        {"lag_s": 2.0, "calm": True, "kind": "stream", "source": {"maxOffsetsPerTrigger": "3"}},
    ),
}
"""Seeds, with what is changed in their plans, whose lives broke a rule once."""


@pytest.mark.share(2)
@pytest.mark.parametrize("name", SCENARIOS)
def test_what_broke_a_rule_once(name: str) -> None:
    seed, life = SCENARIOS[name]
    plan = make_pipeline_plan(seed)
    suit(plan, **life)
    result = run_pipeline_life(seed, plan=plan)
    assert not result.violations, result.violations[0]


def test_other_subjects_do_not_load_pyspark() -> None:
    code = "import sys, simulator.__main__; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("name", MUTANTS)
def test_bugs_can_be_planted(name: str) -> None:
    assert stale(MUTANTS[name].apply) == ""


@pytest.mark.share(3)
@pytest.mark.parametrize("name", ["batch-number-not-compared", "gap-between-partitions", "end-planned-anew"])
def test_a_planted_bug_is_caught(name: str) -> None:
    assert Pipelines().kill(name).by


# -- the rules ------------------------------------------------------------------------------------------------


def _offset(place: int) -> str:
    return json.dumps({f"{NAMESPACE}/in1": place, "uids": {f"{NAMESPACE}/in1": "u"}})


def _broken(*rows: bytes) -> list[str]:
    """Return the invariants that an output with these rows breaks, after a batch of three records."""
    model, stream, report = Model(), f"{NAMESPACE}/in1", Report(lambda: 0.0, lambda violation: None)
    report.evaluated |= dict.fromkeys(INVARIANTS, 0)
    values = [b"%s.%d" % (stream.encode(), number) for number in range(4)]
    model.inputs["u"] = Input(stream, "u", dict(enumerate(values)))
    query = Query("q", "q", "stream", "/q", f"{NAMESPACE}/out", {"subscribe": stream})
    model.plans(query, _offset(0), _offset(3))
    model.green(query, 0, _offset(0), _offset(3))
    (found,) = model.outputs.values()
    judge_output(report, model, found, {query.sink: [written("q", values[int(row)]) for row in rows]})
    return [violation.invariant for violation in report.violations]


def test_rules_know_what_is_missing_twice_strange_and_out_of_order() -> None:
    assert not _broken(b"0", b"1", b"2")
    assert _broken(b"0", b"2") == ["kept"]
    assert Counter(_broken(b"0", b"1", b"1", b"2")) == Counter(["once", "ordered"])
    assert _broken(b"0", b"1", b"2", b"3") == ["only"]
    assert _broken(b"1", b"0", b"2") == ["ordered"]


def test_seeds_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--pipeline", "--seed", "2"]) == 0
    assert '"lives": 1' in capsys.readouterr().out
