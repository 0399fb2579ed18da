"""Lives of streams: some with new seeds in each run, which are printed; more in a soak."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys

import pytest
from tests.support.soak import drawn, soak

from simulator.__main__ import main
from simulator.engine.swarm import shrink
from simulator.streams.gated import MOVES
from simulator.streams.mutants import MUTANTS, isolating
from simulator.streams.names import INVARIANTS, SITUATIONS
from simulator.streams.plan import OWN_FAULTS, make_stream_plan
from simulator.streams.subject import Streams, run_stream_life

LIVES = soak(20, 3)
FIRST = drawn("lives of streams").randrange(1_000_000)


def test_lives_with_new_seeds() -> None:
    print(f"python -m buckram.sim --streams --seeds {FIRST}:{FIRST + LIVES}")
    for seed in range(FIRST, FIRST + LIVES):
        result = run_stream_life(seed)
        assert not result.violations, f"{result.violations[0]}; python -m buckram.sim --streams --seed {seed} --trace"
        if seed % 10 == 0:
            gc.collect()


def test_a_writer_whose_prepared_ledger_a_janitor_discarded_says_so() -> None:
    """Seed 899402: the janitor fences the ledger while the writer, which was paused, rolls into it."""
    result = run_stream_life(899402)
    assert not result.violations, result.violations[0]


def test_plans_cover_all_modes() -> None:
    plans = [make_stream_plan(seed) for seed in range(400)]
    for mode in (
        "publisher",
        "truncator",
        "janitor",
        "compactor",
        "deleter",
        "forker",
        "hostile",
        "ending",
        "small_pages",
    ):
        assert any(getattr(plan, mode) for plan in plans), mode
        assert not all(getattr(plan, mode) for plan in plans), mode
    assert all(3 <= plan.cluster.bookies <= 5 for plan in plans)
    assert any(plan.cluster.metadata != "memory" for plan in plans)
    drawn = {fault for plan in plans for fault in plan.faults}
    assert [fault for fault in OWN_FAULTS if fault not in drawn] == []
    for setting in ("retention_s", "retention_bytes", "retention_cursors", "retention_consumed"):
        assert any(setting in plan.policy for plan in plans), setting


def test_a_hostile_tenant_asks_and_is_refused() -> None:
    """Each move is a situation of its own, which a soak has to reach; here one life with several of them."""
    seed = next(seed for seed in range(FIRST, FIRST + 1000) if make_stream_plan(seed).hostile)
    result = run_stream_life(seed)
    assert not result.violations, f"{result.violations[0]}; python -m buckram.sim --streams --seed {seed} --trace"
    tried = [name for name, count in result.reached.items() if count and name.startswith("a hostile tenant tried")]
    assert (result.evaluated["isolated"] > 0) is any("numbers" not in name for name in tried)
    assert {f"a hostile tenant tried: {move}" for move in MOVES} <= set(SITUATIONS)


@pytest.mark.parametrize("name", [one.name for one in isolating.MUTANTS])
@pytest.mark.share(4)
def test_a_gate_that_lets_a_tenant_pass_is_noticed(name: str) -> None:
    assert Streams().kill(name).by


def test_plans_leave_enough_bookies_after_a_wipe() -> None:
    """Otherwise no segment could be created any more, and the end of a life requires one."""
    for seed in range(1000):
        plan = make_stream_plan(seed)
        assert "wipe" not in plan.faults or plan.cluster.bookies > plan.cluster.shape[0]


def trace_hash_in_a_process(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "buckram.sim", "--streams", "--seed", str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return str(json.loads(done.stdout.splitlines()[-1])["trace_hash"])


@pytest.mark.share(4)
@pytest.mark.parametrize("seed", [3, 14])
def test_same_seed_gives_the_same_trace(seed: int) -> None:
    here = run_stream_life(seed)
    run_stream_life(seed + 1)
    again = run_stream_life(seed)
    assert again.lines == here.lines
    assert {
        here.trace_hash,
        again.trace_hash,
        trace_hash_in_a_process(seed, "0"),
        trace_hash_in_a_process(seed, "12345"),
    } == {here.trace_hash}


def test_different_seeds_give_different_lives() -> None:
    assert len({run_stream_life(seed).trace_hash for seed in range(2)}) == 2


KEYS = ["lives", "violations", "invariants", "reached", "acked", "crashes", "faults", "trace_hash"]


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert isinstance(line, dict)
    return line


def test_seeds_print_the_sums(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--streams", "--seeds", "0:3", "--jobs", "1"]) == 0
    line = last_line(capsys)
    assert list(line) == KEYS
    assert (line["lives"], line["violations"]) == (3, 0)
    invariants, reached = line["invariants"], line["reached"]
    assert isinstance(invariants, dict)
    assert isinstance(reached, dict)
    assert list(invariants) == list(INVARIANTS)
    assert list(reached) == list(SITUATIONS)
    assert min(invariants[name] for name in ("durable", "exactly-once", "M9", "authentic", "takeover")) > 0


def test_trace_and_chosen_faults_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--streams", "--seed", "5", "--faults", "kill,expire a writer", "--trace"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1])["faults"] == 2
    assert "expire a writer" in captured.err
    assert main(["--streams", "--seed", "5", "--faults", "earthquake"]) == 2


def test_violation_fails_the_command_and_prints_its_replay(capsys: pytest.CaptureFixture[str]) -> None:
    with MUTANTS["flush-at-once"].apply():
        assert main(["--streams", "--seed", "1"]) == 1
    captured = capsys.readouterr()
    assert "VIOLATION ends" in captured.err
    assert "replay: python -m buckram.sim --streams --seed 1" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["violations"] == 1


def test_violation_is_shrunk_to_fewer_faults() -> None:
    seed = next(seed for seed in range(100) if len(make_stream_plan(seed).faults) > 1)
    with MUTANTS["whole-batch"].apply():
        command = shrink(Streams(), seed, "exactly-once")
    assert command.startswith(f"python -m buckram.sim --streams --seed {seed}")
