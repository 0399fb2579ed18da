"""Ledgers as a subject of the simulator."""

from __future__ import annotations

from simulator.engine.faults.registry import LEDGERS, fault_names
from simulator.engine.lives import LifeResult
from simulator.engine.swarm import Totals
from simulator.engine.trace import Echo
from simulator.ledgers.life import run_life
from simulator.ledgers.mutants import hunt
from simulator.ledgers.plan import make_plan


class Ledgers:
    """Lives of ledgers; implements engine.subject.Subject."""

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
