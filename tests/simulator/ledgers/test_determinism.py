"""The same seed gives the same life: in any process, with any hash seed, and whatever ran before."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from simulator.ledgers.scenarios import run_scenario
from simulator.ledgers.subject import run_life

SEEDS = (3, 14, 15)


def trace_hash_in_a_process(seed: int, hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "buckram.sim", "--seed", str(seed)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
    )
    return str(json.loads(done.stdout.splitlines()[-1])["trace_hash"])


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_same_seed_gives_the_same_trace(seed: int) -> None:
    here = run_life(seed)
    run_life(seed + 1)
    again = run_life(seed)
    assert again.lines == here.lines
    hashes = {
        here.trace_hash,
        again.trace_hash,
        trace_hash_in_a_process(seed, "0"),
        trace_hash_in_a_process(seed, "12345"),
    }
    assert len(hashes) == 1


def test_different_seeds_give_different_lives() -> None:
    assert len({run_life(seed).trace_hash for seed in range(4)}) == 4


def test_scenarios_are_deterministic() -> None:
    assert run_scenario("D6").trace_hash == run_scenario("D6").trace_hash
