"""Administration as a subject of the simulator: `python -m buckram.sim --administration`."""

from __future__ import annotations

from simulator.administration.life import Life
from simulator.administration.mutants import MUTANTS
from simulator.administration.names import INVARIANTS, SITUATIONS
from simulator.administration.plan import FAULTS, AdminPlan, make_admin_plan
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo


class Administration(PlannedSubject[AdminPlan]):
    """Lives of administration."""

    option, invariants, situations, mutants = "--administration", INVARIANTS, SITUATIONS, MUTANTS

    def plan(self, seed: int) -> AdminPlan:
        return make_admin_plan(seed)

    def life(self, plan: AdminPlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return list(FAULTS)


run_admin_life = Administration().run
