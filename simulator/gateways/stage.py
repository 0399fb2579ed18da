"""Shared state of the actors of a life of gateways."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from buckram.serve.gateway.server import Gateway
from simulator.engine.plan import Plan
from simulator.engine.world import World
from simulator.gateways.plan import GatewaysPlan
from simulator.gateways.rules import Rules


@dataclass(slots=True)
class Stage:
    """The shared state; implements engine.faults.runner.SimulatedLife."""

    world: World
    gateways: GatewaysPlan
    rules: Rules
    serving: dict[str, Gateway] = field(default_factory=dict)
    """The gateways that serve, by host."""
    waiting: Counter[str] = field(default_factory=Counter)
    """Number of requests that wait for an answer, by host of the gateway."""
    appending: Counter[str] = field(default_factory=Counter)
    """Number of appends and other changes among them."""
    following: Counter[str] = field(default_factory=Counter)
    """Number of tails that are open at each gateway, as their clients know."""
    uploads: dict[int, None] = field(default_factory=dict)
    """Uploads that were begun, and that nobody has begun to give up."""
    lengths: dict[str, int] = field(default_factory=dict)
    """The number of records of each stream, once it grows no more."""
    over: bool = False
    """Set when faults are to stop, and no further acts begin."""
    healed: bool = False
    """Set when nothing is wrong any more, so that calls are repeated until they end."""
    finished: bool = False
    """Set when gateways are to stop, too."""

    def follows(self, gateway: str, count: int) -> None:
        """Check how many tails a gateway has, which clients close before it knows."""
        present = self.serving.get(gateway)
        if present is not None:
            most = self.gateways.sizes.tails
            self.world.report.check("limit", present.tails.count <= most, "{} has {} tails", gateway, count)

    @property
    def plan(self) -> Plan:
        return self.gateways.cluster


__all__ = ["Stage"]
