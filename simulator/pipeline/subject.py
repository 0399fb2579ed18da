"""Spark's pipelines as a subject of the simulator: `python -m buckram.sim --pipeline`."""

from __future__ import annotations

from simulator.engine.faults import all_faults
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.pipeline.life import Life
from simulator.pipeline.mutants import MUTANTS
from simulator.pipeline.names import INVARIANTS, SITUATIONS
from simulator.pipeline.plan import PipelinePlan, make_pipeline_plan


class Pipelines(PlannedSubject[PipelinePlan]):
    """Lives of pipelines."""

    option, invariants, situations, mutants = "--pipeline", INVARIANTS, SITUATIONS, MUTANTS

    def plan(self, seed: int) -> PipelinePlan:
        return make_pipeline_plan(seed)

    def life(self, plan: PipelinePlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return list(all_faults())


run_pipeline_life = Pipelines().run
