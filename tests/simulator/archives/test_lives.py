"""Lives of archives: no violation, the same life twice, planted bugs that are caught, seeds that broke something."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

from tests.support.soak import some_of

from simulator.__main__ import main
from simulator.archives.mutants import MUTANTS
from simulator.archives.subject import Archives, run_archives_life
from simulator.engine.edits import stale

LIVES = 2
"""Of the 2000 that `make soak` runs; others with each commit."""


def test_lives_without_violation() -> None:
    for seed in some_of(range(2000), LIVES, soak=10):
        result = run_archives_life(seed)
        assert not result.violations, (seed, result.plan, result.violations[0])


def test_a_seed_decides_everything() -> None:
    assert run_archives_life(6).trace_hash == run_archives_life(6).trace_hash


def test_seeds_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--archives", "--seeds", "9:10", "--jobs", "1"]) == 0
    assert '"lives": 1' in capsys.readouterr().out


@pytest.mark.parametrize("name", MUTANTS)
def test_bugs_can_be_planted(name: str) -> None:
    assert stale(MUTANTS[name].apply) == ""


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["part-unsynced"])
def test_a_planted_bug_is_caught(name: str) -> None:
    assert Archives().kill(name).by
