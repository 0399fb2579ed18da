"""One life of ledgers: the bookies, clients and faults of a plan in one simulated world, from start to final checks."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AbstractContextManager, ExitStack

from simulator.engine.faults import FaultRunner
from simulator.engine.faults.runner import RecordedRequest
from simulator.engine.lives import LifeResult, report_broken_invariants
from simulator.engine.loop import Stuck
from simulator.engine.plan import Plan
from simulator.engine.spies import watch_stores
from simulator.engine.trace import Echo
from simulator.engine.transport import Connection
from simulator.engine.watched_hosts import watch_hosts
from simulator.engine.world import World
from simulator.ledgers.ending import Ending
from simulator.ledgers.liar import Liar
from simulator.ledgers.plan import make_plan
from simulator.ledgers.tenants import STRANGER, StrangerActor, Tenants
from simulator.ledgers.workload.reading import ReaderActor
from simulator.ledgers.workload.recovering import RecovererActor
from simulator.ledgers.workload.stage import Stage
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


class Life:
    """One life. Run it once, then ask for its result."""

    def __init__(self, plan: Plan, echo: Echo | None = None) -> None:
        self.plan = plan
        self.world = World(plan.seed, echo=echo, configs=plan.configs, metadata=plan.metadata, pace=plan.pace)
        self.stage = Stage(self.world, plan)
        self.tenants = Tenants(self.stage)
        self.faults = FaultRunner(self.stage)
        if "replay" in plan.faults:
            self.world.fabric.observers.append(_Recorder(self.faults))

    async def run(self) -> None:
        world, plan = self.world, self.plan
        world.broken = asyncio.Event()
        world.trace.note("plan", str(plan))
        await self._bring_up()
        work = asyncio.create_task(self._live(), name="life")
        broken = asyncio.create_task(world.broken.wait(), name="broken")
        await asyncio.wait([work, broken], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()

    async def _bring_up(self) -> None:
        """Start a cluster without faults; they begin afterwards."""
        world = self.world
        store = world.store(world.loop.world, world.rng)
        await store.initialise()
        await self.tenants.prepare(store)
        for n in range(1, self.plan.bookies + 1):
            rack = self.plan.location(n)
            machine = world.add_machine(f"b{n}", rack, site=self.plan.site(n))
            if n == 1 and self.plan.liar:
                world.judge.facts.bookie(machine.name).liar = True
                world.fabric.tamperers[machine.name] = Liar(world.rng)
        started = await asyncio.gather(*[world.boot(machine) for machine in world.machines.values()])
        if not all(started):
            world.report.violate("L1", f"a new cluster does not start: {[m.refused for m in world.machines.values()]}")

    async def _live(self) -> None:
        plan, stage = self.plan, self.stage
        actors: list[asyncio.Task[None]] = []
        for n in range(plan.writers):
            actors.append(asyncio.create_task(WriterActor(stage, f"w{n + 1}").run(), name=f"w{n + 1}"))
        for n in range(plan.readers):
            actors.append(asyncio.create_task(ReaderActor(stage, f"r{n + 1}").run(), name=f"r{n + 1}"))
        for n in range(plan.recoverers):
            actors.append(asyncio.create_task(RecovererActor(stage, f"c{n + 1}").run(), name=f"c{n + 1}"))
        if plan.tenants:
            actors.append(asyncio.create_task(StrangerActor(stage, STRANGER).run(), name=STRANGER))
        watchers = [
            asyncio.create_task(self.faults.supervise(machine), name=f"supervise {machine.name}")
            for machine in self.world.machines.values()
        ]
        chaos = asyncio.create_task(self.faults.run(), name="faults")
        await asyncio.sleep(plan.busy_s * 3 + 1.0)
        await chaos
        await Ending(stage, self.faults, self.tenants, actors).run()
        for task in (*actors, *watchers):
            task.cancel()

    def result(self, keep_lines: bool) -> LifeResult:
        world, report = self.world, self.world.report
        violations = report.violations
        if self.plan.liar:
            violations = [v for v in violations if v.invariant in CHECKED_UNDER_A_LIAR]
        acked = sum(handle.acked for handle in world.judge.facts.handles)
        return LifeResult(
            self.plan.seed,
            str(self.plan),
            violations,
            report.evaluated,
            report.reached,
            acked,
            world.crashes,
            world.faults,
            world.loop.steps,
            world.loop.time(),
            world.trace.digest,
            list(world.trace.lines) if keep_lines else [],
        )


def run_life(
    seed: int,
    *,
    plan: Plan | None = None,
    echo: Echo | None = None,
    mutant: AbstractContextManager[None] | None = None,
) -> LifeResult:
    """Run one life. Python's garbage collection is off meanwhile: the time of finalisers must not depend on history."""
    enabled = gc.isenabled()
    gc.disable()
    with ExitStack() as stack:
        if mutant is not None:
            stack.enter_context(mutant)
        life = Life(plan or make_plan(seed), echo)
        stack.enter_context(watch_stores(life.world))
        stack.enter_context(watch_hosts(life.world, life.plan.sites))
        stack.enter_context(report_broken_invariants(life.world))
        try:
            life.world.loop.run_until_complete(life.run())
        except Stuck as stuck:
            life.world.report.violate("stuck", str(stuck))
        result = life.result(keep_lines=True)
        life.world.close()
    if enabled:
        gc.enable()
    return result
