"""Replicated SQL databases as a subject of the simulator: `python -m buckram.sim --database`."""

from __future__ import annotations

from simulator.database.life import Life
from simulator.database.mutants import MUTANTS
from simulator.database.names import INVARIANTS, SITUATIONS
from simulator.database.plan import DatabasePlan, make_database_plan
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.machine.faults import all_fault_names


class Databases(PlannedSubject[DatabasePlan]):
    """Lives of databases."""

    option, invariants, situations, mutants = "--database", INVARIANTS, SITUATIONS, MUTANTS

    def plan(self, seed: int) -> DatabasePlan:
        return make_database_plan(seed)

    def life(self, plan: DatabasePlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return all_fault_names()


run_database_life = Databases().run
