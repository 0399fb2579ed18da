"""Mutant: a planted bug of databases, and the lives in which it can show. Not here: the bugs (`mutants.py`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.database.plan import DatabasePlan
from simulator.engine import hunting
from simulator.engine.pace import HOUR_US


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[DatabasePlan]):
    """A planted bug of databases."""

    faults: tuple[str, ...] = ()
    """Faults of the mutant's lives, for bugs that show only under some faults; empty: those of each plan."""
    restless: bool = False
    """True if its lives take snapshots often, and replicas often begin anew from them and lead."""
    spills: bool = False
    """True if its lives have a cache that is too small for their transactions."""
    extras: tuple[str, ...] = ()
    """The wider actors of its lives (`EXTRAS` in `plan.py`)."""
    clocks: bool = False
    """True if the clocks of its lives are days apart."""

    def suits(self, plan: DatabasePlan) -> bool:
        machines = plan.machines
        if self.faults:
            plan.cluster.faults = list(self.faults)
            machines.clients, machines.commands = 4, 25
        if self.restless:
            machines.restless, machines.clients, machines.commands = 0.9, 3, 25
            machines.settings = replace(machines.settings, snapshot_commands=4)
        if self.spills:
            plan.cache_kib = 40
        plan.extras = self.extras
        if self.clocks:
            plan.cluster.pace = replace(plan.cluster.pace, clocks_us=72 * HOUR_US, jumps=True)
        return True


__all__ = ["Mutant"]
