"""Shared state of the actors of a life of objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from buckram.state.objects.objects import Objects
from simulator.engine.plan import Plan
from simulator.engine.world import World
from simulator.objects.plan import ObjectsPlan
from simulator.objects.rules import Rules


class Begun(NamedTuple):
    """An upload that somebody has begun: its number, the name of its object, and the host."""

    number: int
    name: str
    host: str


@dataclass(slots=True)
class Stage:
    """The shared state; implements engine.faults.runner.SimulatedLife."""

    world: World
    objects: ObjectsPlan
    rules: Rules
    open: dict[str, Objects] = field(default_factory=dict)
    """The open handles of living processes, by host."""
    uploads: list[Begun] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)
    """The version of each name that somebody was told last."""
    beside: str = ""
    """The uid of the store beside that was deleted, or is to be; empty while there is none."""
    over: bool = False
    """Set when faults are to stop, and no further acts begin."""
    finished: bool = False
    """Set when putters are to close their handles, too."""

    @property
    def plan(self) -> Plan:
        return self.objects.cluster

    def living(self) -> list[str]:
        """Return the hosts with an open handle in a living process."""
        return [host for host in self.open if not self.world.processes[host].dead]


__all__ = ["Begun", "Stage"]
