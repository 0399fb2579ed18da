"""Streams as a subject of the simulator: `python -m buckram.sim --streams`."""

from __future__ import annotations

from simulator.engine.faults.registry import STREAMS, fault_names
from simulator.engine.hunting import Kill, first_caught
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.streams.crashing import crash_points, drill
from simulator.streams.life import Life
from simulator.streams.mutants import MUTANTS, Mutant
from simulator.streams.names import INVARIANTS, SITUATIONS
from simulator.streams.plan import StreamPlan, make_stream_plan
from simulator.streams.scenarios import run_stream_scenario


class Streams(PlannedSubject[StreamPlan]):
    """Lives of streams."""

    option, invariants, situations, mutants = "--streams", INVARIANTS, SITUATIONS, MUTANTS

    def plan(self, seed: int) -> StreamPlan:
        return make_stream_plan(seed)

    def life(self, plan: StreamPlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return fault_names(STREAMS)

    def directed(self, mutant: Mutant) -> Kill | None:
        for scenario in mutant.scenarios:
            caught = first_caught(run_stream_scenario(scenario, mutant=mutant.apply()).violations, INVARIANTS)
            if caught is not None:
                return Kill(mutant.name, caught.invariant, scenario, 0, str(caught))
        for operation in mutant.drills:
            with mutant.apply():
                points, outcome = crash_points(operation)
            caught = first_caught(outcome.violations, INVARIANTS)
            if caught is not None:
                return Kill(mutant.name, caught.invariant, operation, 0, str(caught))
            for point in points:
                outcome = drill(point.name, point.spy(), mutant=mutant.apply())
                caught = first_caught(outcome.violations, INVARIANTS)
                if caught is not None:
                    return Kill(mutant.name, caught.invariant, str(point), 0, str(caught))
        return None


run_stream_life = Streams().run
