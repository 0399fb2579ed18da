"""One life of pipelines: bookies, producers, queries, and those who spoil them, in one simulated world."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from buckram.cluster import Client
from buckram.spark.sink import replay_check
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import watch_tasks
from simulator.engine.planned import PlannedLife
from simulator.engine.planting import patched
from simulator.engine.trace import Echo
from simulator.pipeline.bridge import simulated_tasks
from simulator.pipeline.ending import Ending
from simulator.pipeline.model import Model
from simulator.pipeline.names import INVARIANTS, SITUATIONS
from simulator.pipeline.operating import Operator
from simulator.pipeline.plan import PipelinePlan
from simulator.pipeline.producing import Producer, Vandal
from simulator.pipeline.queries import DATABASE, NAMESPACE, TABLE, Query
from simulator.pipeline.scans import simulated_scans
from simulator.pipeline.stage import Stage

LIFE_S = 120.0
"""Most time of the actors, virtual seconds; nearly all lives are much shorter."""


class Life(PlannedLife[PipelinePlan]):
    """One life of pipelines."""

    invariants, situations = INVARIANTS, SITUATIONS

    def __init__(self, plan: PipelinePlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"pipelines {plan.seed}", echo)
        self.stage = Stage(self.world, plan, Model())
        self.faults = FaultRunner(self.stage)
        self.operator = Operator(self.stage, _query(plan))

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        files = patched((replay_check, "offsets_file", self.stage.files.read_local))
        return simulated_tasks(), simulated_scans(self.world), files, watch_tasks(self.world)

    async def begin(self) -> None:
        plan, stage, world = self.plan, self.stage, self.world
        inputs = [f"{NAMESPACE}/in{n + 1}" for n in range(plan.inputs)]
        client = await world.client("s1")
        await world.join(world.processes["s1"], self._create(client, inputs), "create")
        self.awaited = [self.start(Producer(stage, name).run(), name) for name in inputs]
        vandal = Vandal(stage, lambda: self.operator.query.targets)
        self.awaited += [self.start(vandal.run(), "vandal"), self.start(self.operator.run(), "operator")]

    async def _create(self, client: Client, inputs: list[str]) -> None:
        ns = client.namespace(NAMESPACE)
        for name in inputs:
            await ns.create(name, **self.plan.policy)
            await self.stage.model.witness(client, name)
        if self.plan.kind == "database":
            name = DATABASE.partition("/")[2]
            await ns.create_database(name, **self.plan.policy)
            async with ns.database(name, create=False) as database:
                await database.leads_within(30.0)
                await database.execute(f"CREATE TABLE {TABLE} (label TEXT, value TEXT)")
        else:
            for target in self.operator.query.targets:
                await ns.create(target, **self.plan.policy)
        await client.close()

    async def be_busy(self) -> None:
        await asyncio.wait(self.awaited, timeout=LIFE_S)

    async def end(self) -> None:
        await Ending(self.stage, self.faults, self.operator).run(self.awaited)

    @property
    def acked(self) -> int:
        return sum(len(found.greens) for found in self.stage.model.outputs.values())


def _query(plan: PipelinePlan) -> Query:
    names = ",".join(f"{NAMESPACE}/in{n + 1}" for n in range(plan.inputs))
    selector = {"subscribePattern": f"{NAMESPACE}/in.*"} if plan.kind == "pattern" else {"subscribe": names}
    kind = "stream" if plan.kind == "pattern" else plan.kind
    return Query(
        "q1",
        "q1",
        kind,
        "/checkpoints/q1",
        f"{NAMESPACE}/out",
        selector,
        plan.starting,
        dict(plan.source),
        {} if kind == "database" else dict(plan.sink),
        "app" if plan.named else "",
        plan.local,
        plan.shuffled,
    )


__all__ = ["Life"]
