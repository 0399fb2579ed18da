"""Choice of the tests that `make check` runs for the changed files, and of the changes without any quick test."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from scripts.nearest import ENTRANCES, SOURCE, Table, has_quick_tests, nearest

SPARK = find_spec("pyspark") is not None
"""`make setup` brings none: then what needs it is left to `make lint` and `make test`."""
LONG_FOLDERS = ("tests/interop/", "tests/mutants/", *(() if SPARK else ("tests/spark/", "tests/spark/jobs/")))
"""Folders without quick tests: they start Apache's servers, plant bugs in whole lives of the simulator, or cannot be
loaded without Spark."""
UNKNOWN_S = 3.0
"""Assumed seconds of a test file that has not run here yet."""
WORKERS = 2


@dataclass(frozen=True)
class TestFile:
    """A test file: modules of ours that it imports, and whether it has quick tests."""

    __test__: ClassVar[bool] = False
    text: str
    imports: frozenset[str]
    quick: bool


@dataclass
class Choice:
    """`must` are the test files that are about a changed file; they run whatever they take. `may` import one, too."""

    must: list[str] = field(default_factory=list)
    may: list[str] = field(default_factory=list)
    left: int = 0
    """Number of further test files that import a changed module, for which there is no time."""
    about: dict[str, list[str]] = field(default_factory=dict)
    """For each test file that must run, the changed files that it is about."""
    untested: list[str] = field(default_factory=list)
    """A line for each changed file that no quick test is about, with the command that tests it."""


def read_tests(folder: Path = Path("tests")) -> dict[str, TestFile]:
    """Return every test file below a folder, by its path."""
    found: dict[str, TestFile] = {}
    for path in sorted(folder.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        ours = {one for one in imported(tree) if one.startswith(("buckram", "tests", "scripts", "bench"))}
        name = path.as_posix()
        found[name] = TestFile(text, frozenset(ours), not name.startswith(LONG_FOLDERS) and has_quick_tests(tree))
    return found


def module_of(path: str) -> str:
    """Return the dotted name under which tests import this file."""
    name = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__")
    return name.replace("/", ".")


def imported(tree: ast.AST) -> set[str]:
    """Return modules that a file names in its imports; `from a import b` is both a and a.b."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def chosen(
    changes: Collection[str], tests: Mapping[str, TestFile], table: Table, seconds: Mapping[str, float], most_s: float
) -> Choice:
    """Choose the tests about each change, then those most related to the changes, as far as the time goes."""
    choice = nearest_chosen(changes, tests, table)
    scores = _scores(changes, tests)
    left = most_s * WORKERS * 0.8 - sum(seconds.get(name, UNKNOWN_S) for name in choice.must)
    for name in sorted(scores.keys() - choice.about.keys(), key=lambda name: (-scores[name], name)):
        needed = seconds.get(name, UNKNOWN_S)
        if needed <= left:
            left -= needed
            choice.may.append(name)
        else:
            choice.left += 1
    return choice


def nearest_chosen(changes: Collection[str], tests: Mapping[str, TestFile], table: Table) -> Choice:
    """Choose the tests about each change, and no others."""
    choice = Choice()
    for change in changes:
        _add_nearest(choice, change, tests, table)
    choice.must = sorted(choice.about, key=lambda name: (name not in changes, name))
    return choice


def _add_nearest(choice: Choice, change: str, tests: Mapping[str, TestFile], table: Table) -> None:
    """Add the tests that are about one changed file, or the line with the command that tests it."""
    near = nearest(change, table, tests)
    if not near and change.startswith(SOURCE) and Path(change).name in ENTRANCES:
        # What only imports is tested by whatever imports it: the quickest to read does.
        module = module_of(change)
        near = sorted((name for name, test in tests.items() if test.quick and module in test.imports), key=len)[:1]
    for name in near:
        if tests[name].quick:
            choice.about.setdefault(name, []).append(change)
    if any(tests[name].quick for name in near) or not (near or change.startswith(SOURCE)):
        return
    if not change.endswith(".py") or (not near and not Path(change).exists()):
        return  # what was deleted has no test, and files of other kinds are looked for in the texts of tests
    module = change.removeprefix(SOURCE).removesuffix(".py")
    if near:
        choice.untested.append(f"{change}: no quick test is about it; run: {command(near)}")
    elif module in table.untested:
        choice.untested.append(f"{change}: it has no test of its own ({table.untested[module]}); run: make lint test")
    else:
        choice.untested.append(f"{change}: no quick test is about it; run: {command([_folder_of(module)])}")


def command(names: Iterable[str]) -> str:
    return f".venv/bin/python -m pytest {' '.join(names)}"


def _folder_of(module: str) -> str:
    """Return the nearest folder of tests that mirrors the one that a module is in."""
    folder = Path("tests", module).parent
    while not folder.is_dir() and folder != Path("tests"):
        folder = folder.parent
    return folder.as_posix()


def _scores(changes: Collection[str], tests: Mapping[str, TestFile]) -> dict[str, float]:
    """Return a score for each quick test file that imports a changed module, or names another changed file: the share
    of its imports that changed."""
    modules = {module_of(path) for path in changes if path.endswith(".py")}
    others = [Path(path).name for path in changes if not path.endswith(".py") and not path.startswith("tests/")]
    scores: dict[str, float] = {}
    for name, test in tests.items():
        known = test.imports & modules
        if test.quick and (known or any(other in test.text for other in others)):
            # A test that imports little else is about the change; one that imports everything is about everything.
            scores[name] = len(known) / max(1, len(test.imports))
    return scores
