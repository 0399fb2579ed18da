"""Lives of objects: no violation, the same life twice, planted bugs that are caught, seeds that broke something, the
model of names and histories."""

from __future__ import annotations

import pytest
from tests.support.soak import some_of

from simulator.__main__ import main
from simulator.engine.edits import stale
from simulator.objects.contents import Contents
from simulator.objects.histories import OK, REFUSED, Histories
from simulator.objects.model import ABSENT, BLOCKED, CHANGED, EXISTS, FILLED, Names, Refused
from simulator.objects.mutants import MUTANTS
from simulator.objects.plan import make_objects_plan
from simulator.objects.reference import Reference
from simulator.objects.subject import ObjectStores, run_objects_life

LIVES = 2
"""Of the 2000 that `make soak` runs; others with each commit."""


def test_lives_without_violation() -> None:
    for seed in some_of(range(2000), LIVES, soak=6):
        result = run_objects_life(seed)
        assert not result.violations, (seed, result.plan, result.violations[0])


def test_a_ledger_that_cannot_be_made_fails_no_task() -> None:
    """The caller is told, and it was logged as a task that failed, too."""
    plan = make_objects_plan(25)
    plan.cluster.faults = ["lose an intent"] * 4
    result = run_objects_life(25, plan=plan)
    assert not result.violations, (result.plan, result.violations[0])


def test_a_ledger_that_is_made_as_its_store_goes_is_found_among_the_orphans() -> None:
    """The store's intents were gone when the ledger came, and its process ended before it could take it back."""
    result = run_objects_life(5055)
    assert not result.violations, result.plan
    assert result.evaluated["deleted"] == 2, "an orphan was found, and then nothing"


def test_a_seed_decides_everything() -> None:
    assert run_objects_life(5).trace_hash == run_objects_life(5).trace_hash


def test_seeds_from_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--objects", "--seeds", "9:10", "--jobs", "1"]) == 0
    assert '"lives": 1' in capsys.readouterr().out


@pytest.mark.parametrize("name", MUTANTS)
def test_bugs_can_be_planted(name: str) -> None:
    assert stale(MUTANTS[name].apply) == ""


@pytest.mark.share(2)
@pytest.mark.parametrize("name", ["gone-before-deleted", "copy-shares-nothing"])
def test_a_planted_bug_is_caught(name: str) -> None:
    assert ObjectStores().kill(name).by


# -- the model ------------------------------------------------------------------------------------------------


def names(*rows: str, kept: str = "") -> Names[int]:
    """Names whose rows have the versions 1, 2, ..."""
    return Names(dict(zip(rows, range(1, 100), strict=False)), set(kept.split()), lambda row, version: row == version)


def test_a_directory_is_renamed_with_all_that_is_in_it() -> None:
    found = names("a/b/x", "a/b/c/y", "a/bx", kept="a a/b a/b/d")
    found.move_directory("a/b", "z")
    assert found.rows == {"z/x": 1, "z/c/y": 2, "a/bx": 3}
    assert found.kept == {"a", "z", "z/d"}


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda found: found.put("a", 9, None), BLOCKED),
        (lambda found: found.put("a/x/y", 9, None), BLOCKED),
        (lambda found: found.put("a/x", 9, ABSENT), EXISTS),
        (lambda found: found.put("a/x", 9, 2), CHANGED),
        (lambda found: found.put("a/z", 9, 1), CHANGED),
        (lambda found: found.delete("a", None), ABSENT),
        (lambda found: found.remove("a", False), FILLED),
        (lambda found: found.remove("b", True), ABSENT),
        (lambda found: found.move_directory("a", "a/b"), BLOCKED),
        (lambda found: found.move_directory("a", "c"), EXISTS),
        (lambda found: found.make_directories("a/x"), BLOCKED),
    ],
)
def test_the_model_refuses(call: object, why: str) -> None:
    found = names("a/x", "c")
    with pytest.raises(Refused, match=why):
        call(found)  # type: ignore[operator]
    assert found.rows == {"a/x": 1, "c": 2}


# -- histories ------------------------------------------------------------------------------------------------


class Told:
    """A history that is written down by hand."""

    def __init__(self) -> None:
        self.histories, self.reference = Histories(Contents()), Reference()
        for label in ("one", "two"):
            self.histories.contents.make(label, 40)

    def call(self, began: float, ended: float | None, outcome: tuple[str, object] | None, *call: object) -> None:
        from simulator.objects.histories import Asked

        self.histories.calls.append(Asked("c", "g/a", call, began, outcome, ended))

    def why(self) -> str:
        return self.histories.judge(self.reference)[0][0]


def listed(*rows: tuple[str, str, int]) -> tuple[str, object]:
    return OK, rows


def test_a_read_of_what_was_replaced_before_it_began_is_found() -> None:
    told = Told()
    told.call(0, 1, (OK, 1), "put", "g/a", "one", None)
    told.call(2, 3, (OK, 2), "put", "g/a", "two", None)
    told.call(2.5, 4, listed(("g/a", "one", 1)), "list", "g/")
    assert told.why() == ""
    told.call(5, 6, listed(("g/a", "one", 1)), "list", "g/")
    assert "none of these fits" in told.why()


def test_a_condition_that_was_not_kept_is_found() -> None:
    told = Told()
    told.call(0, 1, (OK, 1), "put", "g/a", "one", ABSENT)
    told.call(2, 3, (REFUSED, EXISTS), "put", "g/a", "two", ABSENT)
    assert told.why() == ""
    told.call(4, 5, (OK, 2), "put", "g/a", "two", ABSENT)
    assert "none of these fits" in told.why()


def test_a_call_without_an_answer_may_have_happened() -> None:
    told = Told()
    told.call(0, 1, (OK, 1), "put", "g/d/a", "one", None)
    told.call(2, None, None, "rename", "g/d", "g/e", None)
    told.call(3, 4, listed(("g/d/a", "one", 1)), "list", "g/")
    told.call(5, 6, listed(("g/e/a", "one", 1)), "list", "g/")
    assert told.why() == ""
    told.call(7, 8, listed(("g/d/a", "one", 1)), "list", "g/")
    assert "none of these fits" in told.why()


def test_half_a_rename_is_found() -> None:
    told = Told()
    told.call(0, 1, (OK, 1), "put", "g/d/a", "one", None)
    told.call(0, 1, (OK, 2), "put", "g/d/b", "two", None)
    told.call(2, 4, (OK, None), "rename", "g/d", "g/e", None)
    told.call(2, 4, listed(("g/d/b", "two", 2), ("g/e/a", "one", 1)), "list", "g/")
    assert "none of these fits" in told.why()
