"""One life of replication: two clusters, writers, copiers and an operator of a plan in one simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from contextlib import AbstractContextManager
from typing import Any

from simulator.engine.lives import boot_all, life_world, watch_tasks
from simulator.engine.planned import PlannedLife
from simulator.engine.trace import Echo
from simulator.replication.copiers import CopierActor
from simulator.replication.ending import Ending
from simulator.replication.heads import HeadWatch
from simulator.replication.names import INVARIANTS, SITUATIONS
from simulator.replication.operators import OperatorActor
from simulator.replication.plan import LIFE_S, ReplicationPlan
from simulator.replication.reading import ReaderActor
from simulator.replication.stage import NAMESPACE, Actor, Place, Stage
from simulator.replication.writers import WriterActor


class Life(PlannedLife[ReplicationPlan]):
    """One life of replication."""

    invariants, situations = INVARIANTS, SITUATIONS

    def __init__(self, plan: ReplicationPlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"replication {plan.seed}", echo)
        self.other = life_world(f"replication {plan.seed} b", plan.other, None, beside=self.world)
        self.stage = stage = Stage(self.world, self.other, plan)
        self.faults = stage.places[0].faults
        watches = {place.name: HeadWatch(stage, place) for place in stage.places}
        for place in stage.places:
            place.world.metadata.observers.append(watches[place.name])
        self._operator = OperatorActor(stage, "o1", watches)
        self._writers = [WriterActor(stage, f"w{n + 1}") for n in range(plan.writers)]

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        return (watch_tasks(self.world),)

    async def prepare_store(self) -> None:
        await super().prepare_store()
        await self.other.store(self.other.loop.world, self.other.rng).initialise()

    def add_bookie(self, number: int) -> Any:
        cluster = self.plan.cluster
        return self.world.add_machine(f"a{number}", cluster.location(number), site=cluster.site(number))

    async def begin(self) -> None:
        plan, stage = self.plan, self.stage
        for number in range(1, plan.other.bookies + 1):
            self.other.add_machine(f"b{number}", plan.other.location(number), site=plan.other.site(number))
        await boot_all(self.other, self.startless)
        maker = Actor(stage, "s1")
        for place, policy in zip(stage.places, plan.policies, strict=True):
            maker.start(place)
            await maker.inside(self._create(maker, place, policy), "create")
        maker.stop()
        others: list[CopierActor | ReaderActor] = [CopierActor(stage, f"x{n + 1}") for n in range(plan.copiers)]
        others.append(ReaderActor(stage, "r1"))
        self.awaited = [self.start(writer.run(), writer.host) for writer in self._writers]
        self._acting = self.start(self._operator.run(), "o1")
        self._others = [self.start(one.run(), one.host) for one in others]

    async def _create(self, maker: Actor, place: Place, policy: dict[str, Any]) -> None:
        client = await maker.client(place)
        await client.namespaces.create(NAMESPACE, **policy)
        if place is self.stage.primary:
            for stream in self.plan.streams:
                await client.namespace(NAMESPACE).create(stream)
        await client.close()

    def supervise(self) -> None:
        if not self._supervised:
            for machine in self.other.machines.values():
                self.start(self.stage.places[1].faults.supervise(machine), f"supervise {machine.name}")
        super().supervise()

    async def _trouble(self) -> None:
        await asyncio.gather(*[place.faults.run() for place in self.stage.places])

    def trouble(self) -> Coroutine[Any, Any, None]:
        return self._trouble()

    async def be_busy(self) -> None:
        await asyncio.wait([self._acting, *self.awaited], timeout=2 * LIFE_S)

    async def end(self) -> None:
        await Ending(self.stage, self._operator, self._writers).run([*self.awaited, self._acting, *self._others])

    @property
    def acked(self) -> int:
        return self.stage.rules.acked


__all__ = ["Life"]
