"""Ledgers as a subject of the simulator."""

from __future__ import annotations

from buckram.sim.engine.faults.registry import LEDGERS, fault_names
from buckram.sim.engine.lives import LifeResult
from buckram.sim.engine.swarm import Totals
from buckram.sim.engine.trace import Echo
from buckram.sim.ledgers.life import run_life
from buckram.sim.ledgers.mutants import hunt
from buckram.sim.ledgers.plan import make_plan


class Ledgers:
    """An engine.subject.Subject."""

    option = ""

    def totals(self) -> Totals:
        return Totals()

    def fault_names(self) -> list[str]:
        return fault_names(LEDGERS)

    def planned_faults(self, seed: int) -> list[str]:
        return make_plan(seed).faults

    def live(self, seed: int, *, faults: list[str] | None = None, echo: Echo | None = None) -> LifeResult:
        plan = make_plan(seed)
        if faults is not None:
            plan.faults = faults
        return run_life(seed, plan=plan, echo=echo)

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return hunt.hunt(budget, jobs, only)
