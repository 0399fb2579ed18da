"""Replicated machines as a subject of the simulator: `python -m buckram.sim --machine`."""

from __future__ import annotations

from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.machine.faults import all_fault_names
from simulator.machine.life import Life
from simulator.machine.mutants import MUTANTS
from simulator.machine.names import INVARIANTS, SITUATIONS
from simulator.machine.plan import MachinePlan, make_machine_plan


class Machines(PlannedSubject[MachinePlan]):
    """Lives of machines."""

    option, invariants, situations, mutants = "--machine", INVARIANTS, SITUATIONS, MUTANTS
    catching = ("R5",)

    def plan(self, seed: int) -> MachinePlan:
        return make_machine_plan(seed)

    def life(self, plan: MachinePlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return all_fault_names()


run_machine_life = Machines().run
