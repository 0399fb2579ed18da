"""No range of the wheel, no lock and no installed library has a version with a vulnerability that is known here.

The list is `scripts/vulnerabilities.toml`; docs/project/dependencies.md says how it is kept.
"""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
KNOWN = [
    (row["package"], Version(row["fixed"]), row["id"])
    for row in tomllib.loads((ROOT / "scripts" / "vulnerabilities.toml").read_text())["known"]
]
CASES = pytest.mark.parametrize(("package", "fixed", "name"), KNOWN, ids=[f"{one[0]}-{one[2]}" for one in KNOWN])


def ranges() -> dict[str, list[Requirement]]:
    """What the wheel and its extras ask for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, list[Requirement]] = {}
    of_extras = chain.from_iterable(project["optional-dependencies"].values())
    for text in chain(project["dependencies"], of_extras):
        wanted = Requirement(text)
        found.setdefault(wanted.name.lower(), []).append(wanted)
    return found


@CASES
def test_the_lower_end_of_each_range_is_above_it(package: str, fixed: Version, name: str) -> None:
    wanted = ranges()[package]
    for one in wanted:
        lowest = [Version(part.version) for part in one.specifier if part.operator in (">=", "==")]
        assert lowest, f"{one}: has no lower end"
        assert lowest[0] >= fixed, f"{one}: {name} is fixed in {fixed}"


@CASES
def test_locks_are_above_it(package: str, fixed: Version, name: str) -> None:
    for lock in sorted((ROOT / "locks").glob("*.txt")):
        for found in re.findall(rf"^{package}==(\S+)", lock.read_text(), re.MULTILINE | re.IGNORECASE):
            assert Version(found) >= fixed, f"{lock.name}: {package} {found} has {name}, fixed in {fixed}"


@CASES
def test_what_is_installed_is_above_it(package: str, fixed: Version, name: str) -> None:
    try:
        found = Version(version(package))
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    assert found >= fixed, f"{package} {found} has {name}, fixed in {fixed}"
