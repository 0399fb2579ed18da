"""Replicated machines as a subject of the simulator: `python -m buckram.sim --machine`."""

from __future__ import annotations

from simulator.engine.lives import LifeResult
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.machine.faults import all_fault_names
from simulator.machine.life import run_machine_life
from simulator.machine.mutants import hunt
from simulator.machine.names import INVARIANTS, SITUATIONS
from simulator.machine.plan import MachinePlan, make_machine_plan


class Machines(PlannedSubject[MachinePlan]):
    """Lives of machines."""

    option, invariants, situations = "--machine", INVARIANTS, SITUATIONS

    def plan(self, seed: int) -> MachinePlan:
        return make_machine_plan(seed)

    def run(self, seed: int, plan: MachinePlan, echo: Echo | None) -> LifeResult:
        return run_machine_life(seed, plan=plan, echo=echo)

    def fault_names(self) -> list[str]:
        return all_fault_names()

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return hunt(budget, jobs, only)
