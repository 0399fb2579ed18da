"""Self-healing as a subject of the simulator: `python -m buckram.sim --healing`."""

from __future__ import annotations

from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.healing.life import Life
from simulator.healing.mutants import MUTANTS
from simulator.healing.names import INVARIANTS, SITUATIONS
from simulator.healing.plan import ABSENT, ASKED, FAULTS, HANGS, HealingPlan, make_healing_plan


class Healing(PlannedSubject[HealingPlan]):
    """Lives of self-healing."""

    option, invariants, situations, mutants = "--healing", INVARIANTS, SITUATIONS, MUTANTS

    def plan(self, seed: int) -> HealingPlan:
        return make_healing_plan(seed)

    def life(self, plan: HealingPlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return [*FAULTS, *ASKED, "lose rack", HANGS, *ABSENT]


run_healing_life = Healing().run
