"""Some rounds of kills, the same ones in each run; `make soak` runs a hundred."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.chaos.processes import ProcessFailed
from tests.chaos.rounds import KINDS, Round, play

ROUNDS = int(os.environ.get("BUCKRAM_ROUNDS", "3"))
SEED = int(os.environ.get("BUCKRAM_ROUNDS_SEED", str(int(time.time()) % 1_000_000)))


@pytest.mark.share(5, "real processes")
@pytest.mark.slow
@pytest.mark.parametrize("number", range(ROUNDS))
def test_acknowledged_entries_survive_the_kill(number: int, tmp_path: Path) -> None:
    spec = Round.choose(SEED + number, KINDS[number % len(KINDS)])
    print(f"replay: python -m tests.chaos.rounds --rounds 1 --seed {spec.seed} --kind {spec.kind}")
    outcome = play(spec, tmp_path)
    assert outcome["acked"] > spec.before


@pytest.mark.slow
def test_bookie_without_sync_fails_the_power_round(tmp_path: Path) -> None:
    """The check itself can fail: disks that do not sync lose acknowledged entries."""
    for attempt in range(3):
        root = tmp_path / str(attempt)
        root.mkdir()
        try:
            play(Round.choose(attempt, "power", "withhold-nosync"), root)
        except (AssertionError, ProcessFailed):
            return
    pytest.fail("three power failures without any sync lost nothing: the round does not test what it says")
