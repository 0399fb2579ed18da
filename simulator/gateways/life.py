"""One life of gateways: bookies, gateways, their clients and the faults of a plan in one simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from buckram.cluster import Client
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import watch_tasks
from simulator.engine.planned import PlannedLife
from simulator.engine.trace import Echo
from simulator.gateways.appending import WriterActor
from simulator.gateways.ending import Ending
from simulator.gateways.filing import FilerActor
from simulator.gateways.following import FollowerActor
from simulator.gateways.histories import FILE_GROUPS
from simulator.gateways.names import INVARIANTS, SITUATIONS
from simulator.gateways.paging import PagerActor
from simulator.gateways.plan import LIFE_S, GatewaysPlan
from simulator.gateways.putting import PutterActor
from simulator.gateways.rules import Rules
from simulator.gateways.serving import NAMESPACE, GatewayActor, served_without_sockets
from simulator.gateways.stage import Stage


class Life(PlannedLife[GatewaysPlan]):
    """One life of gateways."""

    invariants, situations = INVARIANTS, SITUATIONS

    def __init__(self, plan: GatewaysPlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"gateways {plan.seed}", echo)
        self.rules = Rules(self.world)
        self.stage = Stage(self.world, plan, self.rules)
        self.faults = FaultRunner(self.stage)

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        return served_without_sockets(self.plan.sizes, self.plan.seed), watch_tasks(self.world)

    async def begin(self) -> None:
        plan, stage, world = self.plan, self.stage, self.world
        client = await world.client("s1")
        await world.join(world.processes["s1"], self._create(client), "create")
        self._lasting = [self.start(GatewayActor(stage, host).run(), host) for host in plan.gateway_hosts]
        self._followers = [FollowerActor(stage, f"t{n + 1}") for n in range(plan.tails)]
        self._lasting += [self.start(one.run(), one.host) for one in self._followers]
        actors: list[WriterActor | PagerActor | FilerActor | PutterActor] = [
            *(WriterActor(stage, f"c{n + 1}") for n in range(plan.writers)),
            *(PagerActor(stage, f"p{n + 1}") for n in range(plan.pagers)),
            *(FilerActor(stage, f"h{n + 1}") for n in range(plan.filers)),
            *(PutterActor(stage, f"o{n + 1}") for n in range(plan.putters)),
        ]
        self.awaited = [self.start(actor.run(), actor.host) for actor in actors]

    async def be_busy(self) -> None:
        await asyncio.wait(self.awaited, timeout=LIFE_S)

    async def end(self) -> None:
        await Ending(self.stage, self.faults).run(self.awaited, self._followers, self._lasting)

    async def _create(self, client: Client) -> None:
        ns = client.namespace(NAMESPACE)
        for stream in self.plan.stream_names:
            await ns.create(stream, **self.plan.policy)
        await client.namespaces.set(NAMESPACE, max_uploads=self.plan.sizes.uploads)
        if self.plan.filers or self.plan.putters:
            async with client.objects(NAMESPACE, process="s1", **self.plan.policy) as objects:
                for group in FILE_GROUPS:
                    await objects.mkdirs(group)
        await client.close()

    @property
    def acked(self) -> int:
        return self.rules.acked


__all__ = ["Life"]
