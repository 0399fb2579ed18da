"""Streams as a subject of the simulator: `python -m buckram.sim --streams`."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

from buckram.sim.engine.faults.registry import STREAMS, fault_names
from buckram.sim.engine.lives import LifeResult
from buckram.sim.engine.swarm import Totals
from buckram.sim.engine.trace import Echo
from buckram.sim.streams.life import run_stream_life
from buckram.sim.streams.mutants import hunt
from buckram.sim.streams.names import INVARIANTS, SITUATIONS
from buckram.sim.streams.plan import make_stream_plan


@dataclass(slots=True)
class StreamTotals(Totals):
    evaluated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(INVARIANTS, 0))
    reached: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SITUATIONS, 0))

    def add(self, result: LifeResult) -> None:
        """Counts of streams only; violations of anything."""
        result.evaluated = {name: count for name, count in result.evaluated.items() if name in INVARIANTS}
        result.reached = {name: count for name, count in result.reached.items() if name in SITUATIONS}
        Totals.add(self, result)


class Streams:
    """An engine.subject.Subject."""

    option = "--streams"

    def totals(self) -> Totals:
        return StreamTotals()

    def fault_names(self) -> list[str]:
        return fault_names(STREAMS)

    def planned_faults(self, seed: int) -> list[str]:
        return make_stream_plan(seed).faults

    def live(self, seed: int, *, faults: list[str] | None = None, echo: Echo | None = None) -> LifeResult:
        plan = make_stream_plan(seed)
        if faults is not None:
            plan.cluster.faults = faults
        result = run_stream_life(seed, plan=plan, echo=echo)
        gc.collect()  # lives of streams are large
        return result

    def hunt(self, budget: int | None, jobs: int, only: str | None) -> int:
        return hunt.hunt(budget, jobs, only)
