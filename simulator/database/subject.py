"""Replicated SQL databases as a subject of the simulator: `python -m buckram.sim --database`."""

from __future__ import annotations

from simulator.database.life import run_database_life
from simulator.database.mutants import hunt
from simulator.database.names import INVARIANTS, SITUATIONS
from simulator.database.plan import DatabasePlan, make_database_plan
from simulator.engine.lives import LifeResult
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.machine.faults import all_fault_names


class Databases(PlannedSubject[DatabasePlan]):
    """Lives of databases."""

    option, invariants, situations = "--database", INVARIANTS, SITUATIONS

    def plan(self, seed: int) -> DatabasePlan:
        return make_database_plan(seed)

    def run(self, seed: int, plan: DatabasePlan, echo: Echo | None) -> LifeResult:
        return run_database_life(seed, plan=plan, echo=echo)

    def fault_names(self) -> list[str]:
        return all_fault_names()

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return hunt(budget, jobs, only)
