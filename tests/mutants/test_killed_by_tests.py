"""Every planted bug that names tests is killed by them: one of 14 quick ones in each run, all in a soak."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType

import pytest
from tests.mutants.killing import Kill, Killer
from tests.mutants.testmutant import all_of_them

from simulator.engine.edits import StaleEdit, edited, find, stale

MUTANTS = all_of_them()


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with Killer() as killer:
        yield killer


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak if one.slow else pytest.mark.share(14))
        for name, one in MUTANTS.items()
    ],
)
def test_mutant_is_killed(killer: Killer, name: str) -> None:
    found = killer.kill(name)
    assert found.killed, f"{MUTANTS[name].bug}: {found}"


def test_mutants_are_described_and_can_be_planted() -> None:
    assert len(MUTANTS) >= 40
    assert all(mutant.bug and mutant.tests for mutant in MUTANTS.values())
    assert {name: why for name, mutant in MUTANTS.items() if (why := stale(mutant.apply))} == {}


def test_surviving_test_is_named() -> None:
    found = Kill("harmless", [], ["tests/a.py::test_b"], 0.1)
    assert not found.killed
    assert str(found) == "MISSED harmless: passed with the bug: tests/a.py::test_b"


def _plain(text: str) -> str:
    return text + "."


def test_edit_changes_an_imported_function_and_is_undone() -> None:
    function: FunctionType = find(f"{__name__}:_plain")
    with edited((f"{__name__}:_plain", 'text + "."', 'text + "!"'))():
        assert function("a") == "a!"
    assert function("a") == "a."


def test_edit_of_missing_words_is_refused() -> None:
    missing = edited((f"{__name__}:_plain", "no such words", ""))
    with pytest.raises(StaleEdit, match="0 times"), missing():
        pass
    assert "0 times" in stale(missing)


def _twice(text: str) -> str:
    return "(" + text + ")"


def test_two_edits_of_one_function_are_both_applied() -> None:
    where = f"{__name__}:_twice"
    with edited((where, '"("', '"["'), (where, '")"', '"]"'))():
        assert _twice("a") == "[a]"
    assert _twice("a") == "(a)"
