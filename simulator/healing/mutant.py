"""The definition of a planted bug of self-healing; the bugs are in `mutants.py` and `completeness_mutants.py`."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.engine import hunting
from simulator.healing.plan import HealingPlan, with_absence, with_racks, with_shared_hosts


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[HealingPlan]):
    """A planted bug of self-healing."""

    faults: tuple[str, ...] = ()
    """Faults of the mutant's lives, for bugs that show only under some faults; empty: those of each plan."""
    slow: bool = False
    """True if copying takes long in its lives."""
    racks: bool = False
    """True if its lives have a rule of racks."""
    shared: bool = False
    """True if bookies share hosts in its lives."""
    streams: bool = False
    """True if half of the ledgers of its lives are streams'."""
    mute: bool = False
    """True if clients note nothing in its lives."""
    absence: str = ""
    """Fault of `absences.py` in its lives, which lose no bookie for good; empty: none."""

    def suits(self, plan: HealingPlan) -> bool:
        if self.slow:
            plan.config, plan.cluster.entries = replace(plan.config, copy_bytes_per_s=3_000), 30
        if self.racks and not plan.cluster.racks:
            with_racks(plan)
        if self.shared:
            with_shared_hosts(plan)
        plan.streams = plan.streams or self.streams
        plan.mute = self.mute
        if self.faults:
            plan.cluster.faults, plan.lost = list(self.faults), 2 if "second loss" in self.faults else 1
        if self.absence:
            plan.cluster.faults, plan.lost = [], 0
            with_absence(plan, self.absence)
        return True
