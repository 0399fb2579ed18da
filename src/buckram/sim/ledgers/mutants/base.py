"""What a mutant is: a planted bug with the traps that it stands for. How it is planted: `sim/engine/planting.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from buckram.sim.engine.plan import Plan
from buckram.sim.engine.planting import Patches


def anything(plan: Plan) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rows`: the traps and invariants of docs/reference/protocol.md that it stands for. `scenarios` are played first,
    then lives whose plan passes `lives`, at most `seeds` of them."""

    name: str
    rows: str
    bug: str
    apply: Patches
    scenarios: tuple[str, ...] = ()
    lives: Callable[[Plan], bool] = anything
    seeds: int = 200
