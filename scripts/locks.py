"""Files of `locks/`, which record the tested packages: the purpose of each file, and reading them.

A file names every package that a target needs, the dependencies of dependencies among them, with its version and the
SHA-256 of each of its archives, for every system and each Python of `PYTHONS`. It has no addresses, so any mirror of
the index serves. `make lock` (lock.py) writes the files, make_venv.py installs what they say. `jars.txt` is the same
for what Maven fetches; javakit checks it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "locks"
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
"""Python versions for which the files were resolved; another one gets the packages that the ranges of pyproject.toml
allow, and a warning."""


@dataclass(frozen=True)
class Lock:
    """The tables of pyproject.toml that a file is made of."""

    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    package: bool = True
    """With what the package itself needs, and the package is installed with it."""
    apart: bool = False
    """True for a file that is installed into its own environment: its versions may differ from those of the other
    files."""


_SETUP = ("avro", "compression", "db", "fsspec", "history", "otel", "security", "serve", "sqlalchemy")
_RUN = ("db", "serve", "spark")
LOCKS: Mapping[str, Lock] = {
    "all": Lock((*_SETUP, "arrow", "connect", "jre", "spark"),
                ("build", "dev", "examples", "main-job", "site", "sql-clients", "tools")),
    "build": Lock(groups=("build",), package=False),
    "setup": Lock(_SETUP, ("dev",)),
    "run": Lock(_RUN, ("main-job",)),
    "secure": Lock((*_RUN, "security"), ("main-job",)),
    "jre": Lock(("jre",), package=False),
    "lock": Lock(groups=("lock",), package=False, apart=True),
    "proto": Lock(groups=("proto",), package=False, apart=True),
    "release": Lock(groups=("release",), package=False, apart=True),
}  # fmt: skip
"""By target: `all` has everything of one environment, and the files after it that are not apart have parts of it."""


def path_of(name: str) -> Path:
    if name not in LOCKS:
        raise SystemExit(f"there is no lock file {name!r}; known: {', '.join(LOCKS)}")
    return FOLDER / f"{name}.txt"


def pyproject() -> dict[str, Any]:
    import tomllib  # Python 3.10, which make_venv.py refuses in words, has none

    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(lock: Lock, tables: Mapping[str, Any] | None = None) -> list[str]:
    """Return the ranges that a file must hold to, as pyproject.toml has them."""
    tables = pyproject() if tables is None else tables
    project = tables["project"]
    found: list[str] = list(project["dependencies"]) if lock.package else []
    for extra in lock.extras:
        found += _table(project["optional-dependencies"], extra, "extra")
    for group in lock.groups:
        found += grouped(tables["dependency-groups"], group)
    return list(dict.fromkeys(found))


def grouped(groups: Mapping[str, Any], name: str) -> list[str]:
    """Return the requirements of a group, those of groups that it includes among them."""
    found: list[str] = []
    for one in _table(groups, name, "dependency group"):
        found += grouped(groups, one["include-group"]) if isinstance(one, dict) else [one]
    return found


def _table(tables: Mapping[str, Any], name: str, kind: str) -> list[Any]:
    if name not in tables:
        raise SystemExit(f"pyproject.toml has no {kind} {name!r}; known: {', '.join(tables)}")
    found = tables[name]
    assert isinstance(found, list)
    return found


def entries(text: str) -> dict[str, list[str]]:
    """By `name==version` with its marker, if any: the SHA-256 of the archives."""
    found: dict[str, list[str]] = {}
    hashes: list[str] = []
    for line in text.splitlines():
        if line.startswith("    --hash=sha256:"):
            hashes.append(line.strip(" \\").partition(":")[2])
        elif line and not line.startswith("#"):
            hashes = found[line.removesuffix("\\").rstrip()] = []
    return found


def name_of(requirement: str) -> str:
    """Return the package that a requirement or an entry names, as indexes compare names."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def merged(names: Iterable[str]) -> str:
    """Several files as one: pip takes no package twice."""
    found: dict[str, list[str]] = {}
    for name in names:
        found |= entries(path_of(name).read_text())
    return "".join(_written(found))


def _written(packages: Mapping[str, list[str]]) -> Iterator[str]:
    for entry, hashes in packages.items():
        yield " \\\n".join([entry, *(f"    --hash=sha256:{one}" for one in hashes)]) + "\n"


def pinned(name: str, package: str) -> tuple[str, list[str]]:
    """Return the version of a package that a file has, and the SHA-256 of its archives."""
    for entry, hashes in entries(path_of(name).read_text()).items():
        if name_of(entry) == package:
            return entry.partition(";")[0].partition("==")[2].strip(), hashes
    raise SystemExit(f"{path_of(name)} has no {package}; `make lock` writes it")
