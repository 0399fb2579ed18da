"""Two clusters and what the actors of a life of replication share, and a host with a process that may be killed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from buckram.cluster import Client
from simulator.engine.faults import FaultRunner
from simulator.engine.loop import Process
from simulator.engine.metadata import Snapshot
from simulator.engine.plan import Plan
from simulator.engine.world import World
from simulator.replication.plan import ReplicationPlan
from simulator.replication.rules import Rules
from simulator.replication.truth import Truth

T = TypeVar("T")
NAMESPACE = "shop"
SIDES = ("a", "b")


@dataclass(slots=True)
class Backup:
    """A copy of a cluster's metadata. `at_s`: when it was made."""

    snapshot: Snapshot
    at_s: float


class Place:
    """One cluster; implements engine.faults.runner.SimulatedLife."""

    def __init__(self, stage: Stage, name: str, world: World, plan: Plan) -> None:
        self.stage, self.name, self.world = stage, name, world
        self.plan = replace(plan, faults=stage.plan.faults_of(name == SIDES[1]))
        self.faults = FaultRunner(self)
        self.generation = 0
        """Number of times that its metadata were restored."""
        self.backup: Backup | None = None

    @property
    def over(self) -> bool:
        return self.stage.over

    @property
    def other(self) -> Place:
        return next(place for place in self.stage.places if place is not self)

    @property
    def hosts(self) -> list[str]:
        """Return the hosts of the cluster itself."""
        return [*(machine.host for machine in self.world.machines.values()), self.world.metadata.host]


class Stage:
    """The shared state of a life."""

    def __init__(self, world: World, other: World, plan: ReplicationPlan) -> None:
        self.world, self.plan = world, plan
        self.truth = Truth()
        self.rules = Rules(world, self.truth)
        self.over = False
        """True when faults and acts are to stop."""
        self.places = [
            Place(self, SIDES[0], world, plan.cluster),
            Place(self, SIDES[1], other, plan.other),
        ]
        self.primary = self.places[0]
        """The side that writes, as far as operators know."""
        self.unreconciled = False
        """True if the other side was superseded, and is no mirror yet."""
        self.copying: list[str] = []
        """Hosts that run a copy now."""
        self.mortal: dict[str, int] = {}
        """The number of changes of metadata, by host, that its process lives for."""

    def changed(self, who: str) -> None:
        """Kill the process that made a change of metadata, if it was to die of that one."""
        left = self.mortal.get(who)
        if left is None:
            return
        self.mortal[who] = left - 1
        if left <= 1:
            del self.mortal[who]
            for place in self.places:
                process = place.world.processes.get(who)
                if process is not None:
                    process.crash()


class Actor:
    """A host with randomness of its own, whose process is killed from time to time."""

    def __init__(self, stage: Stage, host: str) -> None:
        self.stage, self.world, self.plan, self.host = stage, stage.world, stage.plan, host
        self.truth, self.rules, self.report = stage.truth, stage.rules, stage.world.report
        self.rng = random.Random(f"{stage.plan.seed} replication {host}")
        self.process: Process | None = None

    def note(self, text: str) -> None:
        self.world.trace.note(self.host, text)

    def start(self, *places: Place) -> Process:
        """Start a process of the host, which may use these clusters. The one before is gone."""
        self.stop()
        process = self.process = places[0].world.process(self.host)
        for place in places:
            place.world.processes[self.host] = process
        return process

    def stop(self) -> None:
        """End the process, as one that is killed."""
        self.stage.mortal.pop(self.host, None)
        if self.process is not None:
            for place in self.stage.places:
                if place.world.processes.get(self.host) is self.process:
                    place.world.resume(self.host)
            self.process.crash()

    def maybe_kill(self, steps: int, changes: int) -> bool:
        """Plan the death of the process, after some steps or some changes of metadata. Return whether it did."""
        if self.stage.over or self.rng.random() >= self.plan.crashing or self.process is None:
            return False
        if self.rng.random() < 0.5:
            self.stage.mortal[self.host] = 1 + int(self.rng.random() ** 2 * changes)
        else:
            self.process.crash_after(int(self.rng.random() ** 2 * steps))
        return True

    async def inside(self, work: Coroutine[Any, Any, T], name: str) -> T:
        """Run code in the process and return its result. Raises Died if it dies first."""
        assert self.process is not None
        return await self.world.join(self.process, work, name)

    async def client(self, place: Place) -> Client:
        """Connect the process to a cluster. Raises Died and the errors of connecting."""
        assert self.process is not None
        return await place.world.client_in(self.process)

    async def nap(self, most_s: float) -> None:
        await asyncio.sleep(self.rng.random() * most_s)


__all__ = ["NAMESPACE", "SIDES", "Actor", "Backup", "Place", "Stage"]
