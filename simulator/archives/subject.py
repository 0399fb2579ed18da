"""Archives as a subject of the simulator: `python -m buckram.sim --archives`."""

from __future__ import annotations

from simulator.archives.faults import all_fault_names
from simulator.archives.life import Life
from simulator.archives.mutants import MUTANTS
from simulator.archives.names import INVARIANTS, SITUATIONS
from simulator.archives.plan import ArchivesPlan, make_archives_plan
from simulator.engine.planned import PlannedSubject
from simulator.engine.trace import Echo


class Archives(PlannedSubject[ArchivesPlan]):
    """Lives of archives."""

    option, invariants, situations, mutants = "--archives", INVARIANTS, SITUATIONS, MUTANTS
    catching = ("uncaught",)

    def plan(self, seed: int) -> ArchivesPlan:
        return make_archives_plan(seed)

    def life(self, plan: ArchivesPlan, echo: Echo | None) -> Life:
        return Life(plan, echo)

    def fault_names(self) -> list[str]:
        return all_fault_names()


run_archives_life = Archives().run
