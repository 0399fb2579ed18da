"""The runner of the tests: what folders may take, which tests are slow, and that every folder has its row."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from scripts.lanes import CORES, LINT, LOAD, MEMORY_GB, Costs, Part, next_part, parts_of, planned_seconds, split
from scripts.machine_speed import LEAST, MachineSpeed, Piece, Sample, factor_of, mean_factor
from scripts.run_tests import LANES, all_folders, files_of
from scripts.timings import (
    HEADING,
    Budget,
    Spent,
    Timing,
    Verdict,
    file_seconds,
    read_budgets,
    read_times,
    slowest,
    verdicts_of,
)
from tests.support.polling import wait_until

ROOT = Path(__file__).parents[2]
LIMIT_S = 17 * 60


def test_every_folder_of_tests_has_a_budget_and_every_budget_a_folder() -> None:
    assert sorted(read_budgets(ROOT / "tests" / "budget.toml")) == sorted([*all_folders(ROOT / "tests"), LINT])


def test_all_folders_fit_into_their_minutes() -> None:
    budgets = read_budgets(ROOT / "tests" / "budget.toml")
    needed = planned_seconds(parts_of(budgets, budgets), LANES, Costs(budgets))
    assert needed <= LIMIT_S, f"planned: {needed:.0f} s; take out as much as you add, or say why not"


def judged(*parts: Spent, factor: float = 1.0, **usual: float) -> dict[str, Verdict]:
    """Verdicts on the parts of a run on a machine that is always as dear, by folder."""
    budgets = {folder: Budget(one, 50) for folder, one in usual.items()}
    samples = [Sample(float(at), factor) for at in range(0, 1000, 3)]
    return {one.folder: one for one in verdicts_of(parts, budgets, samples)}


def test_a_folder_over_its_budget_is_reported_with_all_that_is_needed_to_judge_it() -> None:
    spent = Spent("core", 150.0, 0, 100), Spent("unit", 10.0, 0, 9)
    assert not any(one.over for one in judged(*spent, core=100, unit=10).values())
    found = judged(*spent, core=99.9, unit=10)
    assert found["core"].over == (
        "tests/core took 150 s of CPU. Usual is 99.9 s, work was 1.00 times as dear as on the quiet reference machine,"
        " so the limit was 150 s. Make its tests cheaper, leave a share of them to make soak, or write usual = 150 in"
        " tests/budget.toml and say why in the commit"
    )
    assert not found["unit"].over
    assert str(found["core"]).split() == ["core", "150.0", "1.00", "150.0", "99.9", "1.50"]
    assert len(str(found["core"])) == len(HEADING)


def test_a_folder_without_a_budget_is_told_its_row() -> None:
    (found,) = judged(Spent("new", 30.0, 0, 100), factor=2.0).values()
    assert found.over.startswith("tests/new has no row in tests/budget.toml: it took 30 s of CPU at factor 2.00")
    assert "`new = { usual = 15, seconds = ... }`" in found.over
    assert str(found).split() == ["new", "30.0", "2.00", "15.0", "-", "-"]


def test_a_dear_machine_is_no_folder_that_became_dear() -> None:
    assert not judged(Spent("core", 360.0, 0, 100), factor=2.4, core=100)["core"].over
    assert judged(Spent("core", 361.0, 0, 100), factor=2.4, core=100)["core"].over
    assert judged(Spent("core", 121.0, 0, 100), factor=0.8, core=100)["core"].over, "growth shows on a quick one, too"


def test_each_part_is_judged_by_the_time_in_which_it_ran() -> None:
    samples = [Sample(float(at), 3.0 if at >= 100 else 1.0) for at in range(0, 200, 3)]
    parts = [Spent("core", 50.0, 0, 90), Spent("core", 150.0, 101, 199), Spent("unit", 10.0, 0, 60)]
    found = {one.folder: one for one in verdicts_of(parts, {"core": Budget(100, 50), "unit": Budget(10, 9)}, samples)}
    assert (found["core"].cpu, found["core"].even, found["core"].factor) == (200.0, 100.0, 2.0)
    assert found["unit"].factor == 1.0


def test_factors_are_means_of_enough_samples() -> None:
    samples = [Sample(at, factor) for at, factor in ((0, 9.0), (10, 1.0), (20, 2.0), (30, 3.0), (40, 1.0), (50, 3.0))]
    assert LEAST == 5
    assert mean_factor(samples, 10, 50) == 2.0
    assert mean_factor(samples, 0, 50) == pytest.approx(19 / 6)
    assert mean_factor(samples, 31, 32) == 2.0, "the nearest ones"
    assert mean_factor(samples[:2], 500, 501) == 5.0, "all that there are"
    assert mean_factor([], 0, 1) == 1.0


def test_the_factor_is_the_mean_of_what_the_pieces_of_work_took() -> None:
    now = 0.0

    def work(seconds: float) -> Callable[[], None]:
        def done() -> None:
            nonlocal now
            now += seconds

        return done

    assert factor_of([Piece(work(0.3), 0.1), Piece(work(0.2), 0.2)], lambda: now) == pytest.approx(2.0)
    assert gc.isenabled()


def test_the_speed_of_this_machine_is_measured_until_the_end() -> None:
    with MachineSpeed(every_s=0.001) as speed:
        wait_until(lambda: len(speed.samples) >= 3, "there are no samples")
    count = len(speed.samples)
    assert [one.at for one in speed.samples] == sorted(one.at for one in speed.samples)
    assert all(0.05 < one.factor < 50 for one in speed.samples), speed.samples
    assert not [one for one in threading.enumerate() if one.name == "machine speed"]
    assert len(speed.samples) == count


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
        waits=Budget(usual=30, seconds=100), computes=Budget(usual=190, seconds=95),
        also=Budget(usual=180, seconds=90),
        small=Budget(usual=1, seconds=5), large=Budget(usual=3, seconds=99, memory=MEMORY_GB),
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
    waiting = {name: Budget(usual=1, seconds=100) for name in "abcd"}
    assert planned_seconds([Part(name) for name in waiting], 4, Costs(waiting)) == pytest.approx(100)
    assert planned_seconds([Part(name) for name in waiting], 2, Costs(waiting)) == pytest.approx(200)
    busy = {name: Budget(usual=150, seconds=100) for name in "abcd"}
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
    (tests / "budget.toml").write_text("[folders]\ngood = {usual = 60, seconds = 1}\nbad = {usual = 60, seconds = 1}\n")
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
    (tree / "tests" / "budget.toml").write_text("[folders]\ngood = {usual = 60, seconds = 1, parts = 2}\n")
    done = runner(tree, "good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tests/good (1 of 2): " in done.stdout
    assert "tests/good (2 of 2): " in done.stdout
    assert " 3 passed in " in done.stdout.splitlines()[-1]
    (tree / "tests" / "budget.toml").write_text("[folders]\ngood = {usual = 0.001, seconds = 1, parts = 2}\n")
    assert runner(tree, "good").stdout.count("OVER BUDGET: tests/good took") == 1


def test_a_run_with_a_failure_or_over_budget_fails(tree: Path) -> None:
    done = runner(tree)
    assert done.returncode == 1
    assert "assert 1 == 2" in done.stdout
    assert "failed: tests/bad" in done.stdout
    assert " 2 passed, 1 failed in " in done.stdout.splitlines()[-1]
    (tree / "tests" / "budget.toml").write_text("[folders]\ngood = {usual = 0.001, seconds = 1}\n")
    done = runner(tree, "good")
    assert done.returncode == 1
    assert "OVER BUDGET: tests/good took" in done.stdout
