"""One life of machines: bookies, replicas, clients and faults of a plan in one simulated world."""

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
from simulator.machine.clients import ClientActor
from simulator.machine.ending import Ending
from simulator.machine.faults import MACHINE, NAMESPACE
from simulator.machine.heads import HeadWatch
from simulator.machine.names import INVARIANTS, SITUATIONS
from simulator.machine.plan import LIFE_S, MachinePlan
from simulator.machine.replicas import ReplicaActor
from simulator.machine.rules import Rules
from simulator.machine.stage import Stage
from simulator.machine.watching import watch_machines


class Life(PlannedLife[MachinePlan]):
    """One life of machines."""

    invariants, situations = INVARIANTS, SITUATIONS

    def __init__(self, plan: MachinePlan, echo: Echo | None = None) -> None:
        super().__init__(plan, f"machines {plan.seed}", echo)
        world = self.world
        self.rules = Rules(world)
        world.metadata.observers.append(
            HeadWatch(world.judge.facts, world.report, world.stores.layout, plan.settings.keep_snapshots)
        )
        self.stage = Stage(world, plan, rules=self.rules)
        self.faults = FaultRunner(self.stage)

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        return watch_machines(self.world, self.rules), watch_tasks(self.world)

    async def begin(self) -> None:
        plan, stage, world = self.plan, self.stage, self.world
        client = await world.client("s1")
        await world.join(world.processes["s1"], self._create(client), "create")
        self._replicas = [
            self.start(ReplicaActor(stage, f"m{n + 1}", kind).run(), f"m{n + 1}")
            for n, kind in enumerate(plan.replicas)
        ]
        self.awaited = [self.start(ClientActor(stage, f"c{n + 1}").run(), f"c{n + 1}") for n in range(plan.clients)]

    async def be_busy(self) -> None:
        await asyncio.wait(self.awaited, timeout=LIFE_S)

    async def end(self) -> None:
        await Ending(self.stage, self.faults).run(self.awaited, self._replicas)

    async def _create(self, client: Client) -> None:
        await client.namespace(NAMESPACE).create_machine_log(MACHINE, **self.plan.policy)
        await client.close()

    @property
    def acked(self) -> int:
        return self.rules.acked


__all__ = ["Life"]
