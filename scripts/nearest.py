"""Search for the tests about a module, in the mirrored place or in its row of tests/modules.toml, and for the quick
ones.

`src/buckram/core/ledgers/quorum.py` is tested in `tests/core/ledgers/test_quorum.py`. A module that is tested through
another one, or through a command, has a row that names the test file to look into.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TABLE = Path("tests/modules.toml")
ENTRANCES = {"__init__.py", "__main__.py"}
"""Modules that only import: they do nothing that a test could find wrong."""
LONG = {"slow", "spark", "soak", "share"}
"""Marks of tests that `make check` leaves out, at least in some runs."""
SOURCE, TESTS = "src/buckram/", "tests/"
BESIDE = ("chaos/", "simulator/")
"""Folders beside src whose modules have tests in the mirrored place as well."""


def row_of(module: str, rows: Collection[str]) -> str | None:
    """Return the row for a module: its own, else that of the nearest folder (`simulator/`) above it; None without
    any."""
    if module in rows:
        return module
    folders = [row for row in rows if row.endswith("/") and module.startswith(row)]
    return max(folders, key=len, default=None)


def mirrored(module: str) -> str:
    """Return the test file in the mirrored place. Both are paths without `.py`, below src/buckram and below tests."""
    folder, _, name = module.rpartition("/")
    return f"{folder}/test_{name}".lstrip("/")


@dataclass(frozen=True)
class Table:
    """tests/modules.toml: modules that have no test file in the mirrored place."""

    covered: Mapping[str, str] = field(default_factory=dict)
    """The test file of each, or of each folder."""
    untested: Mapping[str, str] = field(default_factory=dict)
    """Reason why each has no tests."""


def read_table(path: Path = TABLE) -> Table:
    """Read the table; empty if there is no file."""
    found = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return Table(found.get("covered", {}), found.get("untested", {}))


def nearest(path: str, table: Table, tests: Collection[str]) -> list[str]:
    """Return the test files that are about a changed file: itself, the mirrored one, and the one of its row."""
    if path in tests:
        return [path]
    if not path.startswith((SOURCE, *BESIDE)) or not path.endswith(".py"):
        return []
    module = path.removeprefix(SOURCE).removesuffix(".py")
    row = row_of(module, table.covered)
    names = [mirrored(module), *([table.covered[row]] if row else [])]
    return [name for stem in dict.fromkeys(names) if (name := f"{TESTS}{stem}.py") in tests]


def has_quick_tests(tree: ast.Module) -> bool:
    """Return whether a test file has tests that run each time, without a mark of LONG."""
    marked: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.Assign) and _is_long(node.value, marked):
            names = {target.id for target in node.targets if isinstance(target, ast.Name)}
            if "pytestmark" in names:
                return False
            marked |= names
    return _any_quick(tree.body, marked)


def _any_quick(body: list[ast.stmt], marked: set[str]) -> bool:
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if any(_is_long(decorator, marked) for decorator in node.decorator_list):
            continue
        if isinstance(node, ast.ClassDef):
            if node.name.startswith("Test") and _any_quick(node.body, marked):
                return True
        elif node.name.startswith("test_"):
            return True
    return False


def _is_long(node: ast.expr, marked: set[str]) -> bool:
    """Return whether an expression names `pytest.mark.slow` or another of LONG, or a variable that has one."""
    return any(
        (isinstance(one, ast.Attribute) and one.attr in LONG and ast.unparse(one.value) == "pytest.mark")
        or (isinstance(one, ast.Name) and one.id in marked)
        for one in ast.walk(node)
    )
