"""Tests do not wait for a fixed time: that is slow on a quiet machine and too short on a busy one.

A test polls with a deadline for the fact that it awaits (`tests/support/polling.py`), or lets time pass by the clock of
its own event loop (`tests/support/clock.py`). A `sleep` inside a `while` of a function with a deadline is such a poll.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
ALLOWED = {
    "chaos/churn.py": (1, "how often a process tells what it did"),
    "chaos/http_bank.py": (1, "how long the whole of it lasts"),
    "chaos/http_customers.py": (4, "the pace of customers, drawn by lot, and the pause before one asks again"),
    "chaos/kills.py": (1, "the moment at which a process is killed is drawn by lot"),
    "e2e/test_zookeeper_faults.py": (1, "the pace of a writer that goes on while servers fail"),
    "formats/make_0_1.py": (3, "ran once, with release 0.1.0, to make the files that are read today"),
    "metadata/test_sqlite_lock.py": (2, "a process is stopped at a moment drawn by lot; the pace of what it does"),
    "spark/faults/chaos.py": (2, "a Spark worker stands still until the kill that it ordered reaches it"),
}
"""By file: how many timed waits stay, and why."""
SIMULATED = ("simulator/",)
"""Folders whose tests run on the simulator's loop, where a sleep takes no time."""
DEADLINES = {"timeout", "wait_for", "monotonic", "time"}
"""Names of calls that give a function its deadline."""
IN_A_PROGRAM = re.compile(r"\bsleep\((?!0\))")
Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def is_timed(node: ast.AST) -> bool:
    """A sleep of more than zero, `asyncio.wait` for less than a second, or the text of a program that sleeps."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return IN_A_PROGRAM.search(node.value) is not None
    if not isinstance(node, ast.Call):
        return False
    if name_of(node) == "sleep":
        return bool(node.args) and not (isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
    limits = [one.value.value for one in node.keywords if one.arg == "timeout" and isinstance(one.value, ast.Constant)]
    return name_of(node) == "wait" and any(isinstance(limit, float) and limit < 1 for limit in limits)


def has_deadline(function: Function) -> bool:
    return any(isinstance(node, ast.Call) and name_of(node) in DEADLINES for node in ast.walk(function))


def timed_waits(tree: ast.AST, *, polls: bool = False, deadline: bool = False) -> Iterator[int]:
    """Lines of timed waits that are no polls. `polls`: inside a `while`; `deadline`: of a function that has one."""
    for node in ast.iter_child_nodes(tree):
        inside, limited = polls, deadline
        if isinstance(node, ast.While):
            inside = True
        elif isinstance(node, Function):
            inside, limited = False, has_deadline(node)
        if is_timed(node) and not (inside and limited):
            yield node.lineno  # type: ignore[attr-defined]  # of a call or a constant
        yield from timed_waits(node, polls=inside, deadline=limited)


def test_no_test_waits_for_a_fixed_time() -> None:
    found: Counter[str] = Counter()
    lines: list[str] = []
    for path in sorted(TESTS.rglob("*.py")):
        file = path.relative_to(TESTS).as_posix()
        if file.startswith(SIMULATED) or path == Path(__file__):
            continue
        for line in timed_waits(ast.parse(path.read_text(encoding="utf-8"))):
            found[file] += 1
            lines.append(f"tests/{file}:{line}")
    allowed = {file: count for file, (count, _) in ALLOWED.items()}
    what_to_do = "poll (tests/support/polling.py), let time pass (tests/support/clock.py), or give a reason in ALLOWED"
    assert dict(found) == allowed, f"timed waits: {what_to_do}: {lines}"


def test_a_timed_wait_is_told_from_a_poll_with_a_deadline() -> None:
    def waits(text: str) -> list[int]:
        return list(timed_waits(ast.parse(text)))

    assert waits("import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n") == [3]
    assert waits("def f(n):\n    time.sleep(n)\n") == [2]
    assert waits("async def f():\n    await asyncio.sleep(0)\n") == []
    assert waits("async def f():\n    await asyncio.wait([g()], timeout=0.1)\n") == [2]
    assert waits("async def f():\n    await asyncio.wait([g()], timeout=10)\n") == []
    assert waits("PROGRAM = '''\nimport time\ntime.sleep(9)\n'''\n") == [1]
    assert waits("def f():\n    while not g():\n        time.sleep(0.1)\n") == [3], "it has no deadline"
    poll = "def f():\n    end = time.monotonic() + 9\n    while not g():\n        assert time.monotonic() < end\n"
    assert waits(poll + "        time.sleep(0.1)\n") == []
    assert waits(poll + "    time.sleep(0.1)\n") == [5], "behind the loop"
    within = "async def f():\n    async with asyncio.timeout(9):\n        while not g():\n"
    assert waits(within + "            await asyncio.sleep(0.1)\n") == []


POLLS = re.compile(r"^(?:async )?def (?:eventually|until|wait_until|poll|answered)\(", re.MULTILINE)


def test_polls_with_a_deadline_are_in_one_file() -> None:
    """Another name for one is another default of its deadline, and another message."""
    found = [path.relative_to(TESTS).as_posix() for path in TESTS.rglob("*.py") if POLLS.search(path.read_text())]
    assert sorted(found) == ["bookie/service/connections/test_long_poll.py", "support/polling.py"], "import them"
