"""Streams as a subject of the simulator: `python -m buckram.sim --streams`."""

from __future__ import annotations

from buckram.sim.engine.faults.registry import STREAMS, fault_names
from buckram.sim.engine.lives import LifeResult
from buckram.sim.engine.planned import PlannedSubject
from buckram.sim.engine.trace import Echo
from buckram.sim.streams.life import run_stream_life
from buckram.sim.streams.mutants import hunt
from buckram.sim.streams.names import INVARIANTS, SITUATIONS
from buckram.sim.streams.plan import StreamPlan, make_stream_plan


class Streams(PlannedSubject[StreamPlan]):
    """Lives of streams."""

    option, invariants, situations = "--streams", INVARIANTS, SITUATIONS

    def plan(self, seed: int) -> StreamPlan:
        return make_stream_plan(seed)

    def run(self, seed: int, plan: StreamPlan, echo: Echo | None) -> LifeResult:
        return run_stream_life(seed, plan=plan, echo=echo)

    def fault_names(self) -> list[str]:
        return fault_names(STREAMS)

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return hunt.hunt(budget, jobs, only)
