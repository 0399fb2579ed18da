"""The definition of a mutant of streams: a planted bug, and where it must be caught."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from simulator.engine.planting import Patches, nothing, patched, plant
from simulator.streams.plan import StreamPlan


class SuitsPlan(Protocol):
    """Returns whether the bug may be caught in a life with this plan."""

    def __call__(self, plan: StreamPlan, /) -> bool: ...


def any_plan(plan: StreamPlan) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Mutant:
    """A planted bug of streams. `trap` is what it represents.

    The directed schedules in `scenarios` run first, then the operations in `drills` with each of their crash points,
    then lives whose plan passes `lives`, at most `seeds` of them.
    """

    name: str
    trap: str
    bug: str
    apply: Patches
    scenarios: tuple[str, ...] = ()
    drills: tuple[str, ...] = ()
    lives: SuitsPlan = any_plan
    seeds: int = 60


__all__ = ["Mutant", "Patches", "any_plan", "nothing", "patched", "plant"]
