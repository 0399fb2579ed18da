"""Objects as a subject of the simulator: `python -m buckram.sim --objects`."""

from __future__ import annotations

from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo
from simulator.objects.faults import all_fault_names
from simulator.objects.life import Life
from simulator.objects.mutants import MUTANTS
from simulator.objects.names import INVARIANTS, SITUATIONS
from simulator.objects.plan import ObjectsPlan, make_objects_plan


class ObjectStores(PlannedSubject[ObjectsPlan]):
    """Lives of objects."""

    option, invariants, situations, mutants = "--objects", INVARIANTS, SITUATIONS, MUTANTS
    catching = ("uncaught",)

    def plan(self, seed: int) -> ObjectsPlan:
        return make_objects_plan(seed)

    def life(self, plan: ObjectsPlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return all_fault_names()


run_objects_life = ObjectStores().run
