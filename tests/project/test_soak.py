"""What `make test` leaves to `make soak`: another share with each number, the whole of it in a soak."""

from __future__ import annotations

import math
import subprocess
from itertools import chain
from pathlib import Path

import pytest
from scripts.run_tests import all_folders
from scripts.share import ALL, NUMBERS, VARIABLE, share_of_this_run, told
from scripts.soak import CHECKS, GROUPS, command_of
from tests.support.soak import SOAK, drawn, left_to_soak, some_of

ROOT = Path(__file__).parents[2]


class Item:
    """A collected test, as far as choosing it needs one."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid, self._marks = nodeid, [one.mark for one in marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self._marks if mark.name == name), None)


def kept(items: list[Item], share: int | None, *named: str) -> list[str]:
    left = left_to_soak(items, share, named)  # type: ignore[arg-type]  # an Item has all that is asked for
    return [item.nodeid for item in items if item not in left]


def of_file(path: str, count: int, *marks: pytest.MarkDecorator) -> list[Item]:
    return [Item(f"{path}::test_{n}", *marks) for n in range(count)]


def test_each_test_is_in_one_of_the_shares() -> None:
    items = of_file("tests/a/test_a.py", 7, pytest.mark.share(3))
    shares = [kept(items, number) for number in range(3)]
    assert sorted(len(one) for one in shares) == [2, 2, 3]
    assert sorted(chain.from_iterable(shares)) == [item.nodeid for item in items]
    assert kept(items, 3) == shares[0]
    assert kept(items, None) == [item.nodeid for item in items]


def test_a_group_is_a_file_or_has_a_name() -> None:
    mark = pytest.mark.share(4)
    files = [item for n in range(4) for item in of_file(f"tests/a/test_{n}.py", 1, mark)]
    assert kept(files, 0) == [item.nodeid for item in files], "of each file at least one test runs"
    named = [Item(item.nodeid, pytest.mark.share(4, "kills")) for item in files]
    assert sorted(chain.from_iterable(kept(named, number) for number in range(4))) == [item.nodeid for item in named]
    assert all(len(kept(named, number)) == 1 for number in range(4))


def test_what_is_not_marked_always_runs_and_a_soaks_tests_never() -> None:
    items = [*of_file("tests/a/test_a.py", 2), Item("tests/a/test_a.py::test_long", pytest.mark.soak)]
    assert all(kept(items, number) == [items[0].nodeid, items[1].nodeid] for number in range(5))


def test_a_test_that_is_named_runs_whatever_its_share() -> None:
    items = of_file("tests/a/test_a.py", 3, pytest.mark.share(3))
    items.append(Item("tests/a/test_a.py::test_long[x]", pytest.mark.soak))
    for number in range(3):
        assert {"tests/a/test_a.py::test_1", "tests/a/test_a.py::test_long[x]"} <= {
            *kept(items, number, "tests/a/test_a.py::test_1", "tests/a/test_a.py::test_long")
        }


def test_a_mark_that_means_nothing_is_refused() -> None:
    for mark in (pytest.mark.share("3"), pytest.mark.share(0), pytest.mark.share(3, group="x")):
        with pytest.raises(pytest.UsageError, match="is none"):
            kept(of_file("tests/a/test_a.py", 1, mark), 0)


def test_the_share_is_given_or_the_commits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    assert share_of_this_run() == int(head.strip() or "0", 16) % NUMBERS
    monkeypatch.setenv("GIT_DIR", str(tmp_path))  # no repository
    assert share_of_this_run(tmp_path) == 0
    monkeypatch.setenv(VARIABLE, "17")
    assert share_of_this_run() == 17
    assert f"{VARIABLE}=17 " in told(17)
    monkeypatch.setenv(VARIABLE, ALL)
    assert share_of_this_run() is None
    monkeypatch.setenv(VARIABLE, "some")
    with pytest.raises(ValueError, match=r"BUCKRAM_SHARE is 'some': give a number from 0 on, or 'all'"):
        share_of_this_run()


def test_some_of_many_are_others_with_each_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.soak.SOAK", False)
    found = []
    for number in range(10):
        monkeypatch.setenv(VARIABLE, str(number))
        found += some_of(range(30), 3)
    assert len(found) == 30
    assert len(set(found)) > 25
    monkeypatch.setattr("tests.support.soak.SOAK", True)
    assert some_of(range(30), 3) == range(30)
    assert some_of(range(30), 3, soak=5) == range(5)
    monkeypatch.setattr("tests.support.soak.SOAK", False)
    monkeypatch.setenv(VARIABLE, "all")
    assert some_of(range(30), 3, soak=5) == range(5)


def test_what_is_drawn_is_the_same_with_the_same_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.soak.SOAK", False)
    found = set()
    for share in ("3", "3", "4"):
        monkeypatch.setenv(VARIABLE, share)
        found |= {(share, what, drawn(what).randrange(10**9)) for what in ("one", "other")}
    assert len(found) == len({number for _, _, number in found}) == 4
    monkeypatch.setenv(VARIABLE, ALL)
    assert drawn("one").randrange(10**9) != drawn("one").randrange(10**9), (
        "where nothing is left out, each run has its own"
    )


def test_hypothesis_draws_by_the_share(pytestconfig: pytest.Config) -> None:
    share = share_of_this_run()
    assert pytestconfig.option.hypothesis_seed == (None if SOAK or share is None else str(share))


def test_a_soak_runs_every_folder() -> None:
    """Otherwise what is left to it would never run."""
    run = {word.removeprefix("tests/") for command in CHECKS.values() for word in command if word.startswith("tests/")}
    assert set(all_folders(ROOT / "tests")) - run == set()


def test_simulated_lives_of_each_subject_stop_with_the_time_of_a_soak() -> None:
    lives = [name for name, command in CHECKS.items() if "buckram.sim" in command and "--seeds" in command]
    assert len(lives) >= 5
    assert GROUPS["lives"] == lives, "each of them goes on where it ended: [*SIM, option, *LIVES]"
    for name in lives:
        assert "0:2000" in CHECKS[name]
        assert command_of(name, 90.0) == [*CHECKS[name], "--minutes", "1.50"]
        assert command_of(name, math.inf) == CHECKS[name]
    assert command_of("mutants", 90.0) == CHECKS["mutants"], "it cannot go on where it ended"
