"""One life of ledgers: the bookies, clients and faults of a plan in one simulated world, from start to final checks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from simulator.engine.faults import FaultRunner
from simulator.engine.faults.runner import RecordedRequest
from simulator.engine.lives import LifeResult
from simulator.engine.plan import Plan
from simulator.engine.planned import PlannedLife
from simulator.engine.spies import watch_stores
from simulator.engine.trace import Echo
from simulator.engine.transport import Connection
from simulator.engine.watched_hosts import watch_hosts
from simulator.engine.world import Machine
from simulator.ledgers.ending import Ending
from simulator.ledgers.liar import Liar
from simulator.ledgers.tenants import STRANGER, StrangerActor, Tenants
from simulator.ledgers.workload.reading import ReaderActor
from simulator.ledgers.workload.recovering import RecovererActor
from simulator.ledgers.workload.stage import Actor, Stage
from simulator.ledgers.workload.writing import WriterActor

CHECKED_UNDER_A_LIAR = ("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S15", "S16", "S17", "F18", "F19", "F21", "uncaught")
"""Invariants that hold although a bookie lies (MAC digest, Qa >= 2). The others assume that bookies only crash."""


class _Recorder:
    """A network.WireObserver that keeps requests for the fault "replay"."""

    def __init__(self, faults: FaultRunner) -> None:
        self._faults = faults

    def frame_sent(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        if to_server and not conn.ghost:
            self._faults.record_request(RecordedRequest(conn.client, conn.server, conn.port, frame))

    def frame_delivered(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        """Nothing to do: requests are kept when they are sent."""


class Life(PlannedLife[Plan]):
    """One life of ledgers."""

    startless = "L1"

    def __init__(self, plan: Plan, echo: Echo | None = None) -> None:
        super().__init__(plan, plan.seed, echo, records_only=False)
        self.stage = Stage(self.world, plan)
        self.tenants = Tenants(self.stage)
        self.faults = FaultRunner(self.stage)
        if "replay" in plan.faults:
            self.world.fabric.observers.append(_Recorder(self.faults))

    def watched(self) -> Iterable[AbstractContextManager[Any]]:
        return watch_stores(self.world), watch_hosts(self.world, self.plan.sites)

    async def prepare_store(self) -> None:
        store = self.world.store(self.world.loop.world, self.world.rng)
        await store.initialise()
        await self.tenants.prepare(store)

    def add_bookie(self, number: int) -> Machine:
        machine, world = super().add_bookie(number), self.world
        if number == 1 and self.plan.liar:
            world.judge.facts.bookie(machine.name).liar = True
            world.fabric.tamperers[machine.name] = Liar(world.rng)
        return machine

    async def begin(self) -> None:
        plan, stage = self.plan, self.stage
        actors: list[Actor] = [WriterActor(stage, f"w{n + 1}") for n in range(plan.writers)]
        actors += [ReaderActor(stage, f"r{n + 1}") for n in range(plan.readers)]
        actors += [RecovererActor(stage, f"c{n + 1}") for n in range(plan.recoverers)]
        if plan.tenants:
            actors.append(StrangerActor(stage, STRANGER))
        self.awaited = [self.start(actor.run(), actor.host) for actor in actors]

    async def be_busy(self) -> None:
        await asyncio.sleep(self.plan.busy_s * 3 + 1.0)

    async def end(self) -> None:
        await Ending(self.stage, self.faults, self.tenants, self.awaited).run()

    @property
    def acked(self) -> int:
        return sum(handle.acked for handle in self.world.judge.facts.handles)

    def result(self) -> LifeResult:
        result = super().result()
        if self.plan.liar:
            result.violations = [one for one in result.violations if one.invariant in CHECKED_UNDER_A_LIAR]
        return result
