"""Self-healing as a subject of the simulator: `python -m buckram.sim --healing`."""

from __future__ import annotations

from simulator.engine.lives import LifeResult
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.healing.life import run_healing_life
from simulator.healing.mutants import hunt
from simulator.healing.names import INVARIANTS, SITUATIONS
from simulator.healing.plan import ABSENT, ASKED, FAULTS, HANGS, HealingPlan, make_healing_plan


class Healing(PlannedSubject[HealingPlan]):
    """Lives of self-healing."""

    option, invariants, situations = "--healing", INVARIANTS, SITUATIONS

    def plan(self, seed: int) -> HealingPlan:
        return make_healing_plan(seed)

    def run(self, seed: int, plan: HealingPlan, echo: Echo | None) -> LifeResult:
        return run_healing_life(seed, plan=plan, echo=echo)

    def fault_names(self) -> list[str]:
        return [*FAULTS, *ASKED, "lose rack", HANGS, *ABSENT]

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return hunt(budget, jobs, only)
