"""Some seconds of ledgers that are deleted as fast as they are made, and a namespace that is dropped.

`make soak` runs an hour of `python -m tests.chaos.churn`, and `tests.chaos.drop` with 100,000 ledgers, and judges space
and time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.churn import MIB, Space, Used, percentile

ROOT = Path(__file__).parents[2]


def run(program: str, *options: str) -> dict[str, Any]:
    """What it says at its end, whatever the machine made of the space and the time."""
    command = [sys.executable, "-m", f"tests.chaos.{program}", *options, "--segment-bytes", str(MIB)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.share(8, "real processes")
@pytest.mark.slow
def test_ledgers_are_deleted_beside_a_steady_writer() -> None:
    found = run("churn", "--seconds", "3", "--before", "1", "--rate", "20", "--life", "0.5", "1.5")
    assert found["deleted"] > 0
    assert found["adds"][0] > 0
    assert found["looks"] > 0


@pytest.mark.share(8, "real processes")
@pytest.mark.slow
def test_a_namespace_is_dropped_and_gives_its_space_back() -> None:
    assert run("drop", "--ledgers", "60", "--fillers", "1")["ledgers"] == 60


def test_space_is_judged_by_the_bookie_that_uses_most() -> None:
    space = Space(file_bytes=10)
    held = []
    for used in ([Used(100, 100), Used(140, 120)], [Used(141, 100), Used(0, 0)]):
        space.look(50, used)
        held.append((space.held, space.worst))
    assert held == [(True, Used(0, 0)), (False, Used(1, 0))]
    assert space.highest == Used(141, 120)


def test_percentiles() -> None:
    assert percentile([], 0.99) == 0.0
    assert percentile([float(one) for one in range(100)], 0.99) == 99.0
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
