"""One life of streams: the bookies, clients and faults of a plan in one simulated world, from start to final checks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from simulator.engine.faults import FaultRunner
from simulator.engine.lives import life_world, watch_tasks
from simulator.engine.planned import PlannedLife
from simulator.engine.small_pages import small_pages
from simulator.engine.trace import Echo
from simulator.engine.world import World
from simulator.streams.bulk_publishing import Publisher
from simulator.streams.ending import Ending
from simulator.streams.facts import HOSTILE
from simulator.streams.final_checks import FinalChecks
from simulator.streams.forking import Forker
from simulator.streams.hostile import Hostile
from simulator.streams.maintenance import Compactor, Deleter, JanitorActor, Truncator
from simulator.streams.names import INVARIANTS, SITUATIONS
from simulator.streams.plan import LIFE_S, StreamPlan
from simulator.streams.reading import ReaderActor
from simulator.streams.stage import NAMESPACE, Actor, Producer, Stage
from simulator.streams.writing import WriterActor


class Life(PlannedLife[StreamPlan]):
    """One life of streams."""

    invariants, situations = INVARIANTS, SITUATIONS
    excused = f"{HOSTILE}/"

    def __init__(self, plan: StreamPlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"streams {plan.seed}", echo)
        self.stage = Stage(self.world, plan)
        self.faults = FaultRunner(self.stage)

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        return small_pages(self.plan.small_pages), watch_tasks(self.world)

    async def begin(self) -> None:
        setup = Actor(self.stage, "s1")
        await setup.up()
        await setup.inside(self._create(setup), "create")
        self.awaited = [self.start(actor.run(), actor.host) for actor in self._actors()]

    async def be_busy(self) -> None:
        await asyncio.wait(self.awaited, timeout=LIFE_S)

    async def end(self) -> None:
        await Ending(self.stage, self.faults, self.awaited).run()
        if not self.world.report.violations:
            FinalChecks(self.stage.facts, self.world.report).run()

    async def _create(self, setup: Actor) -> None:
        for stream in self.plan.streams:
            await setup.ns.create(stream, **self.plan.policy)
            for n in range(2):
                self.stage.producers.append(Producer(f"P{stream}{n}", stream))
        assert setup.client is not None
        await setup.client.close()

    def _actors(self) -> list[Actor]:
        plan, stage = self.plan, self.stage
        actors: list[Actor] = [WriterActor(stage, f"w{n + 1}") for n in range(plan.writers)]
        actors += [ReaderActor(stage, f"r{n + 1}") for n in range(plan.readers)]
        if plan.publisher:
            actors.append(Publisher(stage, "p1"))
        if plan.truncator:
            actors.append(Truncator(stage, "t1"))
        if plan.janitor:
            actors.append(JanitorActor(stage, "j1"))
        if plan.compactor:
            actors.append(Compactor(stage, "c1"))
        if plan.deleter:
            actors.append(Deleter(stage, "d1"))
        if plan.forker:
            actors.append(Forker(stage, "k1"))
        if plan.hostile:
            actors.append(Hostile(stage, "h1"))
        return actors

    @property
    def acked(self) -> int:
        return self.stage.rules.acked


def stream_world(seed: str, plan: StreamPlan, echo: Echo | None) -> World:
    """Return the world of a life or of a directed schedule of streams."""
    return life_world(seed, plan.cluster, echo, (INVARIANTS, SITUATIONS))


__all__ = ["NAMESPACE", "Life", "stream_world"]
