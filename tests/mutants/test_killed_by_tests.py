"""Every planted bug that names tests is killed by them: one of 14 quick ones in each run, all in a soak."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType

import pytest
from tests.mutants.killing import Kill, Killer
from tests.mutants.testmutant import all_of_them

from simulator.engine.edits import StaleEdit, edited, find, replaced, stale
from simulator.engine.planting import plant

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


_SOURCE = """def kept(self, limit):
    total = self.count(first, [1, 2])
    if total > limit or limit < 0:
        return (total,)
    return total"""
_WRAPPED = """def kept(self, limit):
    # The sum comes first.
    total = self.count(
        first,  # the oldest
        [
            1,
            2,
        ],
    )

    if (
        total > limit  # (too many
        or limit < 0
    ):
        return (total,)
    return (
        total
    )"""


@pytest.mark.parametrize("source", [_SOURCE, _WRAPPED], ids=["as it was", "with comments, and wrapped"])
@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("self.count(first, [1, 2])", "0"),
        ("if total > limit or limit < 0:", "if False:"),
        ("limit or limit < 0", "limit"),
        ("return total", "return 0"),
        ("    total = self.count(first, [1, 2])\n", "    total = 0\n"),
        ("limit < 0:\n        return (total,)\n", "limit < 0:\n        return 0\n"),
    ],
)
def test_comments_and_line_breaks_make_no_edit_stale(source: str, words: str, others: str) -> None:
    found, count = replaced(source, words, others)
    assert count == 1
    assert ast.unparse(ast.parse(found)) == ast.unparse(ast.parse(_SOURCE.replace(words, others)))


def test_an_edit_keeps_what_it_does_not_replace() -> None:
    source = "def kept(a, b):\n    c = (a,), (a + b) * 2, x[1,], (b for b in a)\n    return c if (yield) else (a, b)"
    found, count = replaced(source, "def kept(", "def other(")
    assert count == 1
    assert ast.dump(ast.parse(found)) == ast.dump(ast.parse(source.replace("kept", "other")))


@pytest.mark.parametrize("words", ["total > limits", "elf.count", "limit", "# the oldest", "  \n"])
def test_words_are_whole_tokens_that_are_there_once(words: str) -> None:
    assert replaced(_WRAPPED, words, "0")[1] != 1


class _Owner:
    def told(self, first: int, second: int = 0) -> int:
        return first + second


def test_a_function_that_takes_other_arguments_is_not_planted() -> None:
    fits, stale_one = plant((_Owner, "told", lambda self, *both: 7)), plant((_Owner, "told", lambda self, first: 7))
    with fits():
        assert _Owner().told(1, 2) == 7
    assert _Owner().told(1, 2) == 3
    assert "does not fit" in stale(stale_one)
