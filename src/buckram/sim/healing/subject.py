"""Self-healing as a subject of the simulator: `python -m buckram.sim --healing`."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

from buckram.sim.engine.lives import LifeResult
from buckram.sim.engine.swarm import Totals
from buckram.sim.engine.trace import Echo
from buckram.sim.healing.life import run_healing_life
from buckram.sim.healing.mutants import hunt
from buckram.sim.healing.names import INVARIANTS, SITUATIONS
from buckram.sim.healing.plan import ASKED, FAULTS, make_healing_plan


@dataclass(slots=True)
class HealingTotals(Totals):
    evaluated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    reached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITUATIONS, 0))

    def add(self, result: LifeResult) -> None:
        """Counts of healing only; violations of anything."""
        result.evaluated = {name: count for name, count in result.evaluated.items() if name in INVARIANTS}
        result.reached = {name: count for name, count in result.reached.items() if name in SITUATIONS}
        Totals.add(self, result)


class Healing:
    """An engine.subject.Subject."""

    option = "--healing"

    def totals(self) -> Totals:
        return HealingTotals()

    def fault_names(self) -> list[str]:
        return [*FAULTS, *ASKED, "lose rack"]

    def planned_faults(self, seed: int) -> list[str]:
        return make_healing_plan(seed).cluster.faults

    def live(self, seed: int, *, faults: list[str] | None = None, echo: Echo | None = None) -> LifeResult:
        plan = make_healing_plan(seed)
        if faults is not None:
            plan.cluster.faults = faults
        result = run_healing_life(seed, plan=plan, echo=echo)
        gc.collect()
        return result

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return hunt(budget, jobs, only)
