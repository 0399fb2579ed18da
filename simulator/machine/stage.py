"""What the actors of a life of machines share."""

from __future__ import annotations

from dataclasses import dataclass, field

from buckram.state.machine.machine import Machine
from simulator.engine.plan import Plan
from simulator.engine.world import World
from simulator.machine.plan import MachinePlan
from simulator.machine.rules import Rules
from simulator.machine.state import Book


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
