"""Lives with seeds that change from run to run, and the promise that a seed is all there is to know."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest

SEED = int(os.environ.get("BUCKRAM_SIM_SEED", str(int(time.time()) % 10_000_000)))
LIVES = int(os.environ.get("BUCKRAM_SIM_LIVES", "150"))


def simulate(*arguments: str, hash_seed: str = "random") -> tuple[int, str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "buckram.sim", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr, json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.slow
def test_lives_hold_every_invariant() -> None:
    print(f"replay: python -m buckram.sim --seeds {SEED}:{SEED + LIVES}")
    code, said, line = simulate("--seeds", f"{SEED}:{SEED + LIVES}", "--minutes", "2")
    assert code == 0, said
    assert line["violations"] == 0
    assert isinstance(line["lives"], int)
    assert line["lives"] >= 30, "far too slow to say anything"
    assert isinstance(line["acked"], int)
    assert line["acked"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [SEED, SEED + 1, 7])
def test_a_seed_gives_the_same_trace_whatever_the_hash_seed(seed: int) -> None:
    hashes = {str(simulate("--seed", str(seed), hash_seed=h)[2]["trace_hash"]) for h in ("0", "1", "4242")}
    assert len(hashes) == 1
    assert hashes != {str(simulate("--seed", str(seed + 1))[2]["trace_hash"])}
