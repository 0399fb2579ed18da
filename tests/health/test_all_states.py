"""No state is left out: each row of the table is brought about by a test here that sees it at every door.

The tests are read, not run. Not here: the rows themselves (`tests/core/health/test_findings.py`).
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from buckram.core.health.state_table import TABLE

NOT_MADE: dict[str, str] = {}
"""States that no test can bring about, and why."""
AT_SOME_DOORS = {"repeated-births", "orphans", "leftovers"}
"""What only those commands show that look for long, as the page of states says."""


def test_each_state_is_seen_at_every_door_by_exactly_one_test() -> None:
    by_state = defaultdict[str, set[str]](set)
    for path in Path(__file__).parent.glob("test_*.py"):
        for test in ast.walk(ast.parse(path.read_text())):
            if isinstance(test, ast.AsyncFunctionDef) and test.name.startswith("test_"):
                for state, _ in _expected(test):
                    by_state[state].add(f"{path.name}::{test.name}")
    assert by_state.keys() | NOT_MADE.keys() == TABLE.keys(), "some state has no test, or a test has no state"
    assert not by_state.keys() & NOT_MADE.keys(), "it can be made: take it off the list"
    assert {state: tests for state, tests in by_state.items() if len(tests) > 1} == {}, "one test is enough"


def test_only_what_needs_a_long_look_is_missing_at_some_doors() -> None:
    some = set[str]()
    for path in Path(__file__).parent.glob("test_*.py"):
        for test in ast.walk(ast.parse(path.read_text())):
            if isinstance(test, ast.AsyncFunctionDef):
                some |= {state for state, everywhere in _expected(test) if not everywhere}
    assert some == AT_SOME_DOORS


def _expected(test: ast.AsyncFunctionDef) -> Iterator[tuple[str, bool]]:
    """The states that a test expects, and whether at every door. A name stands for the parameters of the test."""
    for call in ast.walk(test):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "expect":
            first, everywhere = call.args[0], all(word.arg != "at" for word in call.keywords)
            found = [first] if isinstance(first, ast.Constant) else _constants(test.decorator_list)
            states = [one.value for one in found if one.value in TABLE]
            assert states, f"{test.name}, line {call.lineno}: which state is that?"
            yield from ((str(state), everywhere) for state in states)


def _constants(trees: list[ast.expr]) -> list[ast.Constant]:
    return [one for tree in trees for one in ast.walk(tree) if isinstance(one, ast.Constant)]
