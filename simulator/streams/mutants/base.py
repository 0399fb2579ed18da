"""The definition of a mutant of streams: a planted bug, and where it must be caught."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simulator.engine import hunting
from simulator.engine.planting import nothing, plant
from simulator.streams.plan import StreamPlan


class SuitsPlan(Protocol):
    """Returns whether the bug may be caught in a life with this plan."""

    def __call__(self, plan: StreamPlan, /) -> bool: ...


def any_plan(plan: StreamPlan) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[StreamPlan]):
    """A planted bug of streams.

    The directed schedules in `scenarios` run first, then the operations in `drills` with each of their crash points,
    then lives whose plan passes `lives`, at most `seeds` of them.
    """

    seeds: int = 60
    scenarios: tuple[str, ...] = ()
    drills: tuple[str, ...] = ()
    lives: SuitsPlan = any_plan

    def suits(self, plan: StreamPlan) -> bool:
        return self.lives(plan)


__all__ = ["Mutant", "any_plan", "nothing", "plant"]
