"""Every module of the sources has its tests: in the mirrored place below tests, or where `tests/modules.toml` says.

`src/buckram/core/ledgers/quorum.py` is tested in `tests/core/ledgers/test_quorum.py`. A module that is tested
through another one, or through a command, has a row in the table that names the test file to look into.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from scripts.nearest import BESIDE, ENTRANCES, mirrored, row_of

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "tests" / "modules.toml"


def faults(modules: Collection[str], tests: Collection[str], table: Mapping[str, Mapping[str, str]]) -> list[str]:
    """What is wrong with the table. `modules` and `tests` are paths below src/buckram and tests, without `.py`."""
    covered, untested = table["covered"], table["untested"]
    found, used = [], set[str]()
    for module in modules:
        own = mirrored(module)
        row = row_of(module, {*covered, *untested})
        if own in tests:
            continue
        if row is None:
            found.append(f"{module} has no test: write tests/{own}.py, or name in modules.toml what covers it")
        else:
            used.add(row)
    found += [
        f"the row {row} must go: its modules have test files or are gone"
        for row in sorted({*covered, *untested} - used)
    ]
    found += [f"{row}: there is no tests/{test}.py" for row, test in covered.items() if test not in tests]
    return found


def paths(folder: Path) -> set[str]:
    return {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py")}


def test_every_module_has_its_tests_or_a_row_that_names_them() -> None:
    found = paths(ROOT / "src" / "buckram")
    found |= {f"{folder}{module}" for folder in BESIDE for module in paths(ROOT / folder)}
    modules = {module for module in found if f"{module.rpartition('/')[2]}.py" not in ENTRANCES}
    assert faults(sorted(modules), paths(ROOT / "tests"), tomllib.loads(TABLE.read_text(encoding="utf-8"))) == []


def test_a_module_without_tests_and_a_stale_row_are_reported() -> None:
    table = {"covered": {"net/pace": "net/test_pool", "sim/": "sim/test_lives"}, "untested": {"types": "records only"}}
    tests = {"net/test_pool", "sim/test_lives", "core/test_backoff"}
    good = ["core/backoff", "net/pool", "net/pace", "sim/engine/loop", "types"]
    assert faults(good, tests, table) == []
    (line,) = faults([*good, "net/tcp"], tests, table)
    assert line.startswith("net/tcp has no test: write tests/net/test_tcp.py")
    assert faults(good[:-1], tests, table) == ["the row types must go: its modules have test files or are gone"]
    assert faults(good, tests - {"sim/test_lives"}, table) == ["sim/: there is no tests/sim/test_lives.py"]
    assert faults(good, tests | {"net/test_pace"}, table) == [
        "the row net/pace must go: its modules have test files or are gone"
    ]
