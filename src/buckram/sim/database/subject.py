"""Replicated SQL databases as a subject of the simulator: `python -m buckram.sim --database`."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

from buckram.sim.database.life import run_database_life
from buckram.sim.database.mutants import hunt
from buckram.sim.database.names import INVARIANTS, SITUATIONS
from buckram.sim.database.plan import make_database_plan
from buckram.sim.engine.faults.registry import MACHINES, STREAMS, fault_names
from buckram.sim.engine.lives import LifeResult
from buckram.sim.engine.swarm import Totals
from buckram.sim.engine.trace import Echo


@dataclass(slots=True)
class DatabaseTotals(Totals):
    evaluated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    reached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITUATIONS, 0))

    def add(self, result: LifeResult) -> None:
        """Counts of databases only; violations of anything."""
        result.evaluated = {name: count for name, count in result.evaluated.items() if name in INVARIANTS}
        result.reached = {name: count for name, count in result.reached.items() if name in SITUATIONS}
        Totals.add(self, result)


class Databases:
    """An engine.subject.Subject."""

    option = "--database"

    def totals(self) -> Totals:
        return DatabaseTotals()

    def fault_names(self) -> list[str]:
        return list(dict.fromkeys([*fault_names(STREAMS), *fault_names(MACHINES)]))

    def planned_faults(self, seed: int) -> list[str]:
        return make_database_plan(seed).cluster.faults

    def live(self, seed: int, *, faults: list[str] | None = None, echo: Echo | None = None) -> LifeResult:
        plan = make_database_plan(seed)
        if faults is not None:
            plan.cluster.faults = faults
        result = run_database_life(seed, plan=plan, echo=echo)
        gc.collect()
        return result

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return hunt(budget, jobs, only)
