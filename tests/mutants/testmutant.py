"""Bugs that named tests must kill: for code that simulated lives do not reach, or reach too seldom.

They are in tests/mutants/planted, a file for each part of the project; every file there is read.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from buckram.sim.engine.edits import edited
from buckram.sim.engine.planting import Patches, plant

PLANTED = Path(__file__).parent / "planted"


@dataclass(frozen=True, slots=True)
class TestMutant:
    """`tests`: pytest's names of tests, a whole test of several cases or one of them; each must fail with the bug.

    `slow`: more than a few seconds, so a soak's. `hangs`: with the bug the tests do not end, and that is the failure.
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
