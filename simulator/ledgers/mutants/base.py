"""The definition of a mutant of ledgers: a planted bug, and where it must be caught.

Not here: how bugs are planted (`simulator/engine/planting.py`, `simulator/engine/edits.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simulator.engine import hunting
from simulator.engine.plan import Plan


class SuitsPlan(Protocol):
    """Returns whether the bug may be caught in a life with this plan."""

    def __call__(self, plan: Plan, /) -> bool: ...


def any_plan(plan: Plan) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[Plan]):
    """A planted bug of ledgers.

    `rows` are the traps and invariants of docs/reference/protocol.md that it represents. The directed schedules in
    `scenarios` run first, with `scenario_seeds` seeds, then lives whose plan passes `lives`, at most `seeds` of them.
    """

    seeds: int = 200
    scenarios: tuple[str, ...] = ()
    lives: SuitsPlan = any_plan
    scenario_seeds: int = 1
    """Number of seeds with which each directed schedule is run, beginning with seed 0."""

    def suits(self, plan: Plan) -> bool:
        return self.lives(plan)
