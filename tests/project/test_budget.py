"""The runner of the tests: what folders may take, which tests are slow, and that every folder has its row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.run_tests import Suite, all_folders
from scripts.timings import Budget, Timing, file_seconds, over_budget, read_budgets, read_times, slowest

ROOT = Path(__file__).parents[2]
LIMIT_S = 24 * 60


def test_every_folder_of_tests_has_a_budget_and_every_budget_a_folder() -> None:
    assert sorted(read_budgets(ROOT / "tests" / "budget.toml")) == all_folders(ROOT / "tests")


def test_two_lanes_of_all_folders_fit_into_their_minutes() -> None:
    budgets = read_budgets(ROOT / "tests" / "budget.toml")
    suite, lanes = Suite(list(budgets), budgets), [0.0, 0.0]
    while suite.folders:
        lane = lanes.index(min(lanes))
        folder = suite.take(lane == 0)
        assert folder is not None
        lanes[lane] += suite.seconds(folder)
    assert max(lanes) <= LIMIT_S


def test_a_folder_over_its_budget_is_reported() -> None:
    budgets = {"core": Budget(cpu=100, seconds=50), "unit": Budget(cpu=10, seconds=5)}
    assert over_budget({"core": 99.9, "unit": 10.0}, budgets) == []
    (line,) = over_budget({"core": 120.2, "unit": 9.0}, budgets)
    assert line.startswith("tests/core took 120 s of CPU, more than the 100 s")
    (line,) = over_budget({"new": 1.0}, budgets)
    assert "tests/new" in line
    assert "has no row" in line


def test_times_of_an_interrupted_run_are_read(tmp_path: Path) -> None:
    path = tmp_path / "unit.jsonl"
    path.write_text('["tests/a.py::one", 1.5, 0.5]\n["tests/a.py::two", 2, 1]\n["tests/b.py::x", 0.1')
    assert read_times(path) == [Timing("tests/a.py::one", 1.5, 0.5), Timing("tests/a.py::two", 2, 1)]
    (tmp_path / "check.jsonl").write_text('["tests/a.py::two", 9, 1]\n')
    assert file_seconds(tmp_path) == {"tests/a.py": 3.5}
    assert read_times(tmp_path / "none.jsonl") == []


def test_the_slowest_come_first() -> None:
    times = [Timing(str(n), float(n % 7), 0.0) for n in range(20)]
    assert [row.seconds for row in slowest(times, 4)] == [6.0, 6.0, 5.0, 5.0]


def test_lanes_take_the_longest_of_their_kind_first() -> None:
    budgets = {"spark": Budget(9, 90), "jobs": Budget(9, 10), "unit": Budget(9, 20), "core": Budget(9, 30)}
    suite = Suite(["core", "jobs", "spark", "unit"], budgets)
    taken = [suite.take(waiting) for waiting in (True, False, False, False, True)]
    assert taken == ["spark", "core", "unit", "jobs", None]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project of three small tests with the runner."""
    tests = tmp_path / "tests"
    for folder, body in (("good", "def test_a(): pass\ndef test_b(): pass"), ("bad", "def test_c(): assert 1 == 2")):
        (tests / folder).mkdir(parents=True)
        (tests / folder / f"test_{folder}.py").write_text(body)
    (tests / "budget.toml").write_text("[folders]\ngood = {cpu = 60, seconds = 1}\nbad = {cpu = 60, seconds = 1}\n")
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    return tmp_path


def runner(tree: Path, *folders: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "run_tests.py"), *folders]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


def test_a_run_shows_progress_the_slowest_tests_and_the_sums(tree: Path) -> None:
    done = runner(tree, "good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "100%  tests/good: 2 passed" in done.stdout
    assert "tests/good/test_good.py::test_a" in done.stdout.partition("slowest tests:")[2]
    assert " 2 passed in " in done.stdout.splitlines()[-1]
    rows = [json.loads(line) for line in (tree / ".test-times" / "good.jsonl").read_text().splitlines()]
    assert [row[0] for row in rows] == ["tests/good/test_good.py::test_a", "tests/good/test_good.py::test_b"]


def test_a_run_with_a_failure_or_over_budget_fails(tree: Path) -> None:
    done = runner(tree)
    assert done.returncode == 1
    assert "assert 1 == 2" in done.stdout
    assert "failed: tests/bad" in done.stdout
    assert " 2 passed, 1 failed in " in done.stdout.splitlines()[-1]
    (tree / "tests" / "budget.toml").write_text("[folders]\ngood = {cpu = 0.001, seconds = 1}\n")
    done = runner(tree, "good")
    assert done.returncode == 1
    assert "OVER BUDGET: tests/good took" in done.stdout
