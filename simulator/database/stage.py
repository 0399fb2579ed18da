"""What the actors of a life of databases share."""

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
    """An engine.faults.runner.SimulatedLife."""

    world: World
    database: DatabasePlan
    rules: Rules
    directory: Path
    """Where replicas have their files."""
    open: dict[str, Database] = field(default_factory=dict)
    """The open databases of living processes, by host."""
    over: bool = False
    """Faults and restless acts end."""
    finished: bool = False
    """Replicas end, too."""

    @property
    def plan(self) -> Plan:
        return self.database.cluster

    @property
    def machines(self) -> MachinePlan:
        return self.database.machines

    def living(self) -> list[str]:
        """Hosts with an open database in a living process."""
        return [host for host in self.open if not self.world.processes[host].dead]


__all__ = ["Stage"]
