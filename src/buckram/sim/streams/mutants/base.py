"""What a planted bug of streams is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from buckram.sim.engine.planting import Patches, nothing, patched, plant
from buckram.sim.streams.plan import StreamPlan


def anything(plan: StreamPlan) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Mutant:
    """`trap`: what it stands for. Scenarios are played first, then operations with a crash or a loss at each of their
    places, then lives whose plan passes `lives`, at most `seeds` of them."""

    name: str
    trap: str
    bug: str
    apply: Patches
    scenarios: tuple[str, ...] = ()
    drills: tuple[str, ...] = ()
    lives: Callable[[StreamPlan], bool] = anything
    seeds: int = 60


__all__ = ["Mutant", "Patches", "anything", "nothing", "patched", "plant"]
