"""What the actors of a life of machines share."""

from __future__ import annotations

from dataclasses import dataclass, field

from buckram.sim.engine.plan import Plan
from buckram.sim.engine.world import World
from buckram.sim.machine.plan import MachinePlan
from buckram.sim.machine.rules import Rules
from buckram.sim.machine.state import Book
from buckram.state.machine.machine import Machine


@dataclass(slots=True)
class Stage:
    """An engine.faults.runner.SimulatedLife."""

    world: World
    machines: MachinePlan
    rules: Rules
    open: dict[str, Machine[Book]] = field(default_factory=dict)
    """The open machines of living processes, by host."""
    over: bool = False
    """Faults and restless acts end."""
    finished: bool = False
    """Replicas end, too."""

    @property
    def plan(self) -> Plan:
        return self.machines.cluster

    def living(self) -> list[str]:
        """Hosts with an open machine in a living process."""
        return [host for host in self.open if not self.world.processes[host].dead]


__all__ = ["Stage"]
