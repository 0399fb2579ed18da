"""Shared state of the actors of a life of machines."""

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
    """The shared state; implements engine.faults.runner.SimulatedLife."""

    world: World
    machines: MachinePlan
    rules: Rules
    open: dict[str, Machine[Book]] = field(default_factory=dict)
    """The open machines of living processes, by host."""
    over: bool = False
    """Set when faults and restless acts are to stop."""
    finished: bool = False
    """Set when replicas are to stop, too."""

    @property
    def plan(self) -> Plan:
        return self.machines.cluster

    def living(self) -> list[str]:
        """Return the hosts with an open machine in a living process."""
        return [host for host in self.open if not self.world.processes[host].dead]


__all__ = ["Stage"]
