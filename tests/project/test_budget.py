"""The runner of the tests: what folders may take, which tests are slow, and that every folder has its row."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.lanes import CORES, LINT, LOAD, MEMORY_GB, Costs, Part, next_part, parts_of, planned_seconds, split
from scripts.run_tests import LANES, all_folders, files_of
from scripts.timings import ROOM, TELLING, Budget, Timing, file_seconds, over_budget, read_budgets, read_times, slowest

ROOT = Path(__file__).parents[2]
LIMIT_S = 17 * 60


def test_every_folder_of_tests_has_a_budget_and_every_budget_a_folder() -> None:
    assert sorted(read_budgets(ROOT / "tests" / "budget.toml")) == sorted([*all_folders(ROOT / "tests"), LINT])


def test_all_folders_fit_into_their_minutes() -> None:
    budgets = read_budgets(ROOT / "tests" / "budget.toml")
    needed = planned_seconds(parts_of(budgets, budgets), LANES, Costs(budgets))
    assert needed <= LIMIT_S, f"planned: {needed:.0f} s; take out as much as you add, or say why not"


def test_a_folder_over_its_budget_is_reported() -> None:
    budgets = {"core": Budget(cpu=100, seconds=50), "unit": Budget(cpu=10, seconds=5)}
    assert over_budget({"core": 99.9, "unit": 10.0}, budgets) == []
    (line,) = over_budget({"core": 120.2, "unit": 9.0}, budgets)
    assert line.startswith("tests/core took 120 s of CPU, more than the 100 s")
    (line,) = over_budget({"new": 1.0}, budgets)
    assert "tests/new" in line
    assert "has no row" in line


def test_a_slow_machine_is_no_folder_that_became_dear() -> None:
    budgets = {f"f{n}": Budget(cpu=10 * ROOM, seconds=50) for n in range(TELLING)}
    slow = dict.fromkeys(budgets, 60.0)
    assert over_budget(slow, budgets) == [], "all take six times what they take on a quick machine"
    (line,) = over_budget({**slow, "f3": 10 * ROOM * 6 + 1}, budgets)
    assert line.startswith("tests/f3 took 271 s of CPU, more than the 270 s")
    assert "6.0 times as slow" in line
    assert len(over_budget(dict.fromkeys(list(budgets)[1:], 60.0), budgets)) == TELLING - 1, "too few to tell"
    quick = dict.fromkeys(budgets, 1.0)
    assert len(over_budget({**quick, "f3": 10 * ROOM + 1}, budgets)) == 1, "a quick machine takes nothing away"


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


def costs(**budgets: Budget) -> Costs:
    return Costs(budgets)


def test_the_longest_part_that_fits_beside_the_others_is_next() -> None:
    known = costs(
        waits=Budget(cpu=30 * ROOM, seconds=100), computes=Budget(cpu=190 * ROOM, seconds=95),
        also=Budget(cpu=180 * ROOM, seconds=90),
        small=Budget(cpu=ROOM, seconds=5), large=Budget(cpu=3 * ROOM, seconds=99, memory=MEMORY_GB),
    )  # fmt: skip
    left = [Part(name) for name in ("small", "also", "computes", "waits", "large")]
    running: list[Part] = []
    while (part := next_part(left, running, known)) is not None:
        left.remove(part)
        running.append(part)
    assert [str(part) for part in running] == ["waits", "computes", "small"]
    assert sum(known.load(part) for part in running) <= LOAD * CORES
    assert next_part(left, [], known) == Part("large"), "what fits beside nothing runs alone"
    assert next_part([], [], known) is None


def test_what_waits_overlaps_and_what_computes_shares_the_cores() -> None:
    waiting = {name: Budget(cpu=ROOM, seconds=100) for name in "abcd"}
    assert planned_seconds([Part(name) for name in waiting], 4, Costs(waiting)) == pytest.approx(100)
    assert planned_seconds([Part(name) for name in waiting], 2, Costs(waiting)) == pytest.approx(200)
    busy = {name: Budget(cpu=150 * ROOM, seconds=100) for name in "abcd"}
    assert planned_seconds([Part(name) for name in busy], 4, Costs(busy)) == pytest.approx(300)


def test_a_long_folder_is_split_into_parts_that_need_about_the_same() -> None:
    files = {"a": 9.0, "b": 5.0, "c": 4.0, "d": 1.0, "e": 1.0}
    assert split(files, 2, {}) == [["a", "d"], ["b", "c", "e"]]
    groups = {"b": ["x"], "d": ["y", "x"], "e": ["y"]}
    assert split(files, 2, groups) == [["a"], ["b", "c", "d", "e"]], "files of one group stay together"
    assert split({"a": 1.0}, 2, {}) == [["a"], []]
    assert [str(part) for part in parts_of(["a", "b"], {"a": Budget(1, 1, parts=2)})] == [
        "a (1 of 2)",
        "a (2 of 2)",
        "b",
    ]


def test_the_parts_of_a_folder_have_each_test_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    budgets = read_budgets()
    parts = [part for part in parts_of(all_folders(), budgets) if part.of > 1]
    found = files_of(parts)
    for folder in {part.folder for part in parts}:
        files = sorted(name for part in parts if part.folder == folder for name in found[part])
        assert files == sorted(path.as_posix() for path in Path("tests", folder).rglob("test_*.py"))
    assert all(found.values()), "a part without files would run the whole folder"


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


def test_a_folder_in_parts_runs_each_test_once_and_has_one_sum(tree: Path) -> None:
    (tree / "tests" / "good" / "test_more.py").write_text("def test_d(): pass")
    (tree / "tests" / "budget.toml").write_text("[folders]\ngood = {cpu = 60, seconds = 1, parts = 2}\n")
    done = runner(tree, "good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/good (1 of 2): " in done.stdout
    assert "tests/good (2 of 2): " in done.stdout
    assert " 3 passed in " in done.stdout.splitlines()[-1]
    (tree / "tests" / "budget.toml").write_text("[folders]\ngood = {cpu = 0.001, seconds = 1, parts = 2}\n")
    assert runner(tree, "good").stdout.count("OVER BUDGET: tests/good took") == 1


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
