"""Every public module and name, and the extra that it needs. `python public_imports.py EXTRA...` imports all of them.

The arguments are the extras that are installed. Nothing else of the checkout is imported, so that it runs in any
environment. tests/project/test_install_matrix.py holds the table to the packages' own `__all__`.
"""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import distribution
from importlib.util import find_spec

CORE = ""
MODULES: dict[str, str] = {
    "buckram": CORE,
    "buckram.db": CORE,
    "buckram.errors": CORE,
    "buckram.launch.etcd_server": CORE,
    "buckram.files.filesystem": "fsspec",
    "buckram.jobs": "spark",
    "buckram.runtime.net.pace": CORE,
    "buckram.replication.run": CORE,
    "buckram.replication.sides": CORE,
    "buckram.spark": "spark",
    "buckram.sql": CORE,
    "buckram.sql.aio": CORE,
    "buckram.sql.dialect": "sqlalchemy",
    "buckram.streams.maintain.offload": CORE,
    "buckram.sync": CORE,
    "buckram.testing": CORE,
    "buckram.launch.zookeeper_server": CORE,
    "pyspark_buckram": "spark",
    "pyspark_buckram_db": "spark",
}
"""The extra that a module's names need. A module without `__all__` is imported alone."""

NAMES: dict[str, str] = {
    "buckram.spark.Java": CORE,
    "buckram.spark.find_java": CORE,
}
"""Names that need another extra than their module."""

BROUGHT_BY: dict[str, frozenset[str]] = {
    "fsspec": frozenset({"fsspec", "history"}),
    "spark": frozenset({"spark", "connect"}),
    "sqlalchemy": frozenset({"sqlalchemy"}),
}
"""The extras that bring the packages of an extra."""


def needed_by(module: str, name: str) -> str:
    return NAMES.get(f"{module}.{name}", MODULES[module])


def faults(installed: set[str]) -> list[str]:
    """Return modules and names that failed to import though their extra is installed, or that failed without naming the
    missing extra."""
    found = []
    for module, extra in MODULES.items():
        names: list[str] = [""]
        try:
            names += getattr(importlib.import_module(module), "__all__", [])
        except Exception as error:
            found += judged(module, extra, error, installed)
            continue
        for name in filter(None, names):
            try:
                getattr(importlib.import_module(module), name)
            except Exception as error:
                found += judged(f"{module}.{name}", needed_by(module, name), error, installed)
    return found + entry_point_faults(installed)


def entry_point_faults(installed: set[str]) -> list[str]:
    """Return faults of entry points, which other programs load by name: file systems, dialects, the command. That of
    pytest is checked only if pytest is installed."""
    found = []
    for point in distribution("buckram").entry_points:
        if point.group == "pytest11" and find_spec("pytest") is None:
            continue
        try:
            point.load()
        except Exception as error:
            found += judged(f"entry point {point.name}", MODULES.get(point.module, CORE), error, installed)
    return found


def judged(what: str, extra: str, error: Exception, installed: set[str]) -> list[str]:
    if extra == CORE or BROUGHT_BY[extra] & installed:
        return [f"{what}: {type(error).__name__}: {error}"]
    if isinstance(error, ModuleNotFoundError) and f"pip install 'buckram[{extra}]'" in str(error):
        return []
    return [f"{what} fails without {extra} and does not say so: {type(error).__name__}: {error}"]


if __name__ == "__main__":
    wrong = faults(set(sys.argv[1:]))
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)
