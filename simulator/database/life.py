"""One life of databases: bookies, replicas, clients, forks and faults of a plan in one simulated world."""

from __future__ import annotations

import asyncio
import gc
import shutil
import tempfile
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from buckram.cluster import Client
from buckram.state.db.commits.database_log import PROPERTIES
from simulator.database.clients import ClientActor
from simulator.database.ending import Ending
from simulator.database.forking import ForkActor
from simulator.database.names import INVARIANTS, SITUATIONS
from simulator.database.plan import DatabasePlan, make_database_plan
from simulator.database.replicas import ReplicaActor
from simulator.database.rules import Rules
from simulator.database.stage import Stage
from simulator.database.trouble import Troubled
from simulator.database.watching import small_limits, watch_databases
from simulator.engine.checkers.safety import Records
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import LifeResult, bring_up, life_result, report_broken_invariants, watch_tasks
from simulator.engine.loop import Stuck
from simulator.engine.trace import Echo
from simulator.engine.world import World
from simulator.machine.faults import MACHINE, NAMESPACE
from simulator.machine.heads import HeadWatch
from simulator.machine.plan import LIFE_S

_MEMORY = Path("/dev/shm")


class Life:
    """One life. Run it once, then ask for its result."""

    def __init__(self, plan: DatabasePlan, directory: Path, echo: Echo | None = None) -> None:
        self.plan, cluster = plan, plan.cluster
        world = self.world = World(
            f"database {plan.seed}", echo=echo, configs=cluster.configs, metadata=cluster.metadata, pace=cluster.pace
        )
        # Lives of ledgers run the other checkers, which take time.
        world.fabric.observers.remove(world.judge.wire)
        world.judge.checkers = [checker for checker in world.judge.checkers if isinstance(checker, Records)]
        world.report.evaluated |= dict.fromkeys(INVARIANTS, 0)
        world.report.reached |= dict.fromkeys(SITUATIONS, 0)
        self.rules = Rules(world)
        keep = plan.machines.settings.keep_snapshots
        world.metadata.observers.append(HeadWatch(world.judge.facts, world.report, world.stores.layout, keep))
        self.stage = Stage(world, plan, self.rules, directory)
        self.faults = FaultRunner(self.stage)

    async def run(self) -> None:
        world = self.world
        world.broken = asyncio.Event()
        world.trace.note("plan", str(self.plan))
        await bring_up(world, self.plan.cluster.bookies)
        work = asyncio.create_task(self._live(), name="life")
        broken = asyncio.create_task(world.broken.wait(), name="broken")
        await asyncio.wait([work, broken], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()

    async def _live(self) -> None:
        plan, stage, world = self.plan.machines, self.stage, self.world
        client = await world.client("s1")
        await world.join(world.processes["s1"], self._create(client), "create")
        replicas = [
            asyncio.create_task(ReplicaActor(stage, f"m{n + 1}").run(), name=f"m{n + 1}")
            for n in range(len(plan.replicas))
        ]
        await ClientActor(stage, "first").prepare()
        clients = [
            asyncio.create_task(ClientActor(stage, f"c{n + 1}").run(), name=f"c{n + 1}") for n in range(plan.clients)
        ]
        clients += [asyncio.create_task(ForkActor(stage, n).run(), name=f"fork {n}") for n in range(self.plan.forks)]
        between = asyncio.create_task(Troubled(stage).run(), name="leaders in trouble")
        watchers = [
            asyncio.create_task(self.faults.supervise(machine), name=f"supervise {machine.name}")
            for machine in world.machines.values()
        ]
        chaos = asyncio.create_task(self.faults.run(), name="faults")
        await asyncio.wait(clients, timeout=LIFE_S)
        await chaos
        await Ending(stage, self.faults).run([*clients, between], replicas)
        for task in (*clients, between, *replicas, *watchers):
            task.cancel()

    async def _create(self, client: Client) -> None:
        await client.namespace(NAMESPACE).create_machine_log(MACHINE, PROPERTIES, **self.plan.machines.policy)
        await client.close()

    def result(self) -> LifeResult:
        return life_result(self.world, self.plan.seed, self.plan, self.rules.acked)


def run_database_life(
    seed: int,
    *,
    plan: DatabasePlan | None = None,
    echo: Echo | None = None,
    mutant: AbstractContextManager[None] | None = None,
) -> LifeResult:
    """Run one life. Python's garbage collection is off meanwhile: the time of finalisers must not depend on history."""
    enabled = gc.isenabled()
    gc.disable()
    plan = plan or make_database_plan(seed)
    directory = Path(tempfile.mkdtemp(prefix="buckram-sim-", dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        with ExitStack() as stack:
            if mutant is not None:
                stack.enter_context(mutant)
            life = Life(plan, directory, echo)
            stack.enter_context(small_limits(plan))
            stack.enter_context(watch_databases(life.world, life.rules))
            stack.enter_context(report_broken_invariants(life.world))
            stack.enter_context(watch_tasks(life.world))
            try:
                life.world.loop.run_until_complete(life.run())
            except Stuck as stuck:
                life.world.report.violate("stuck", str(stuck))
            result = life.result()
            life.world.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        if enabled:
            gc.enable()
    return result


__all__ = ["Life", "run_database_life"]
