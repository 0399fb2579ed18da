"""Shared state of the actors of a life of replicas: of machines, or of what is built on one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from buckram.state.machine.machine import Machine
from simulator.engine.plan import Plan
from simulator.engine.world import World
from simulator.machine.plan import MachinePlan
from simulator.machine.rules import Rules
from simulator.machine.state import Book


class Handle(Protocol):
    """An open replica."""

    @property
    def role(self) -> str: ...
    @property
    def applied(self) -> int: ...


H = TypeVar("H", bound=Handle)


@dataclass(slots=True)
class ReplicaStage(Generic[H]):
    """The shared state; implements engine.faults.runner.SimulatedLife. `machines` are the replicas."""

    world: World
    machines: MachinePlan
    open: dict[str, H] = field(default_factory=dict, kw_only=True)
    """The open replicas of living processes, by host."""
    over: bool = field(default=False, kw_only=True)
    """Set when faults and restless acts are to stop."""
    finished: bool = field(default=False, kw_only=True)
    """Set when replicas are to stop, too."""

    @property
    def plan(self) -> Plan:
        return self.machines.cluster

    def living(self) -> list[str]:
        """Return the hosts with an open replica in a living process."""
        return [host for host in self.open if not self.world.processes[host].dead]


@dataclass(slots=True)
class Stage(ReplicaStage[Machine[Book]]):
    """The shared state of a life of machines."""

    rules: Rules


__all__ = ["Handle", "ReplicaStage", "Stage"]
