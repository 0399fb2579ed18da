"""Streams as a subject of the simulator: `python -m buckram.sim --streams`."""

from __future__ import annotations

from simulator.engine.faults.registry import STREAMS, fault_names
from simulator.engine.lives import LifeResult
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.streams.life import run_stream_life
from simulator.streams.mutants import hunt
from simulator.streams.names import INVARIANTS, SITUATIONS
from simulator.streams.plan import StreamPlan, make_stream_plan


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
