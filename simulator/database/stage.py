"""Shared state of the actors of a life of databases."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from buckram.state.db.database import Database
from simulator.database.plan import DatabasePlan
from simulator.database.rules import Rules
from simulator.engine.plan import Plan
from simulator.engine.world import World
from simulator.machine.plan import MachinePlan


@dataclass(slots=True)
class Stage:
    """The shared state; implements engine.faults.runner.SimulatedLife."""

    world: World
    database: DatabasePlan
    rules: Rules
    directory: Path
    """The directory of the replicas' files."""
    open: dict[str, Database] = field(default_factory=dict)
    """The open databases of living processes, by host."""
    over: bool = False
    """Set when faults and restless acts are to stop."""
    finished: bool = False
    """Set when replicas are to stop, too."""

    @property
    def plan(self) -> Plan:
        return self.database.cluster

    @property
    def machines(self) -> MachinePlan:
        return self.database.machines

    def living(self) -> list[str]:
        """Return the hosts with an open database in a living process."""
        return [host for host in self.open if not self.world.processes[host].dead]


__all__ = ["Stage"]
