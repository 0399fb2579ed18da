"""Bugs that named tests must kill, in code that simulated lives do not reach, or reach too seldom.

They are in tests/mutants/planted, a file for each part of the project; every file there is read.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from simulator.engine.edits import edited
from simulator.engine.planting import Patches, plant

PLANTED = Path(__file__).parent / "planted"


@dataclass(frozen=True, slots=True)
class TestMutant:
    """A planted bug, and the tests that must fail with it, by their names for pytest (with all cases or one of them).

    `slow`: they take more than a few seconds, so only a soak runs them. `hangs`: with the bug they do not end.
    """

    __test__: ClassVar[bool] = False
    name: str
    bug: str
    apply: Patches
    tests: tuple[str, ...]
    slow: bool = False
    hangs: bool = False


def all_of_them() -> dict[str, TestMutant]:
    found: dict[str, TestMutant] = {}
    for path in sorted(PLANTED.glob("[a-z]*.py")):
        for mutant in importlib.import_module(f"tests.mutants.planted.{path.stem}").MUTANTS:
            if mutant.name in found:
                raise ValueError(f"two planted bugs are called {mutant.name!r}; one is in {path}")
            found[mutant.name] = mutant
    return found


__all__ = ["TestMutant", "all_of_them", "edited", "plant"]
