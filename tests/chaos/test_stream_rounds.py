"""Some rounds of kills around a stream, the same ones in each run; `make soak` runs a hundred."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.chaos.stream_rounds import VICTIMS, Round, play

ROUNDS = int(os.environ.get("BUCKRAM_STREAM_ROUNDS", "1"))
SEED = int(os.environ.get("BUCKRAM_ROUNDS_SEED", str(int(time.time()) % 1_000_000)))


@pytest.mark.share(5, "real processes")
@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
def test_stream_survives_the_kills(number: int, tmp_path: Path) -> None:
    spec = Round.choose(SEED + number)
    print(f"replay: python -m tests.chaos.stream_rounds --rounds 1 --seed {spec.seed}")
    outcome = play(spec, tmp_path)
    assert outcome["records"] > sum(count for _, count in spec.kills)


def test_kills_are_drawn_from_the_seed() -> None:
    assert Round.choose(5) == Round.choose(5)
    assert {Round.choose(seed).kills[0][0] for seed in range(5)} == set(VICTIMS)
