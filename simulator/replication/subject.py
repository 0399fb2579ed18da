"""Replication between clusters as a subject of the simulator: `python -m buckram.sim --replication`."""

from __future__ import annotations

from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.replication.faults import all_fault_names
from simulator.replication.life import Life
from simulator.replication.mutants import MUTANTS
from simulator.replication.names import INVARIANTS, SITUATIONS
from simulator.replication.plan import ReplicationPlan, make_replication_plan


class Replications(PlannedSubject[ReplicationPlan]):
    """Lives of replication."""

    option, invariants, situations, mutants = "--replication", INVARIANTS, SITUATIONS, MUTANTS
    catching = ("S9", "stream")

    def plan(self, seed: int) -> ReplicationPlan:
        return make_replication_plan(seed)

    def life(self, plan: ReplicationPlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return all_fault_names()


run_replication_life = Replications().run
