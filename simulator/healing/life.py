"""One life of self-healing: bookies, workers, writers and faults of a plan in one simulated world."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AbstractContextManager, ExitStack

from buckram.bookie import registration
from buckram.client.shared import lagging_replicas as behind
from buckram.core.healing.records import TreePaths
from buckram.healing.auditing import absence_checks as first_checks
from buckram.healing.auditing import auditor
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.incomplete_copies import IncompleteCopy
from buckram.metadata.records.underreplication import Underreplication
from simulator.engine.checkers.safety import Records
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import LifeResult, life_result, report_broken_invariants
from simulator.engine.loop import Stuck
from simulator.engine.planting import plant
from simulator.engine.spies import watch_stores
from simulator.engine.trace import Echo
from simulator.engine.watched_hosts import watch_hosts
from simulator.engine.world import World
from simulator.healing.absences import ABSENCES
from simulator.healing.actors import Deleter, Reader, Recoverer
from simulator.healing.ending import Ending
from simulator.healing.faults import Operator
from simulator.healing.marks import AUDITOR, REPLICATOR
from simulator.healing.names import INVARIANTS, SITUATIONS
from simulator.healing.operations import OPERATIONS
from simulator.healing.plan import HealingPlan, make_healing_plan
from simulator.healing.rules import Rules
from simulator.healing.watching import watch_healing
from simulator.healing.workers import Stage, Worker, Writer


class Life:
    """One life. Run it once, then ask for its result."""

    def __init__(self, plan: HealingPlan, echo: Echo | None = None) -> None:
        self.plan, cluster = plan, plan.cluster
        world = self.world = World(
            f"healing {plan.seed}", echo=echo, configs=cluster.configs, metadata=cluster.metadata, pace=cluster.pace
        )
        if plan.tampered:
            world.fabric.observers.remove(world.judge.wire)
            world.judge.checkers = [checker for checker in world.judge.checkers if isinstance(checker, Records)]
        world.report.evaluated |= dict.fromkeys(INVARIANTS, 0)
        world.report.reached |= dict.fromkeys(SITUATIONS, 0)
        self.rules = Rules(world, plan)
        world.metadata.observers.append(self.rules)
        self.stage = Stage(world, plan, self.rules)
        self.faults = FaultRunner(self.stage)

    async def run(self) -> None:
        world = self.world
        world.broken = asyncio.Event()
        world.trace.note("plan", str(self.plan))
        self.stage.store = self.store = world.store(world.loop.world, world.rng)
        self.rules.paths = TreePaths(self.store.root)
        await self.store.initialise()
        for n in range(1, self.plan.cluster.bookies + 1):
            world.add_machine(f"b{n}", self.plan.location(n), site=self.plan.cluster.site(n))
        started = await asyncio.gather(*[world.boot(machine) for machine in world.machines.values()])
        if not all(started):
            world.report.violate("L12", f"a new cluster does not start: {[m.refused for m in world.machines.values()]}")
        work = asyncio.create_task(self._live(), name="life")
        broken = asyncio.create_task(world.broken.wait(), name="broken")
        await asyncio.wait([work, broken], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()

    async def _live(self) -> None:
        plan, stage = self.plan, self.stage
        tree = Underreplication(self.store.keys, self.store.root, "operator")
        board = HealingStatusStore(self.store)
        hosts = [f"{AUDITOR}{n + 1}" for n in range(plan.auditors)]
        hosts += [f"{REPLICATOR}{n + 1}" for n in range(plan.replicators)]
        if plan.auditors > 1:
            self.world.report.situation("two candidates at once")
        tasks = [asyncio.create_task(Worker(stage, host).run(), name=host) for host in hosts]
        tasks += [
            asyncio.create_task(self.faults.supervise(machine), name=f"supervise {machine.name}")
            for machine in self.world.machines.values()
        ]
        writers = [asyncio.create_task(Writer(stage, f"w{n + 1}").run(), name=f"w{n + 1}") for n in range(plan.ledgers)]
        tasks += [
            asyncio.create_task(kind(stage, f"{letter}{n + 1}").run(), name=f"{letter}{n + 1}")
            for kind, letter, count in (
                (Reader, "r", plan.readers),
                (Recoverer, "c", plan.recoverers),
                (Deleter, "d", plan.deleters),
            )
            for n in range(count)
        ]
        chaos = asyncio.create_task(Operator(stage, self.store.keys, tree, OPERATIONS | ABSENCES).run(), name="faults")
        await asyncio.wait(writers, timeout=120.0)
        await chaos
        await Ending(stage, self.faults, tree, board).run()
        for task in (*tasks, *writers):
            task.cancel()

    def result(self) -> LifeResult:
        acked = sum(len(written.acked) for written in self.stage.rules.written.values())
        return life_result(self.world, self.plan.seed, self.plan, acked)


async def _note_nothing(*arguments: object) -> list[IncompleteCopy]:
    return []


def run_healing_life(
    seed: int,
    *,
    plan: HealingPlan | None = None,
    echo: Echo | None = None,
    mutant: AbstractContextManager[None] | None = None,
) -> LifeResult:
    """Run one life. Python's garbage collection is off meanwhile: the time of finalisers must not depend on history."""
    enabled = gc.isenabled()
    gc.disable()
    with ExitStack() as stack:
        # Lives have few ledgers: small pages let their listings have several pages all the same.
        pages = plant((auditor, "_PAGE", 2), (auditor, "_AT_ONCE", 1), (first_checks, "_PAGE", 2))
        stack.enter_context(pages())
        stack.enter_context(plant((first_checks, "WALK_S", 10.0), (first_checks, "_BETWEEN", 2))())
        stack.enter_context(plant((registration, "HUNG_S", 0.5))())
        if mutant is not None:
            stack.enter_context(mutant)
        life = Life(plan or make_healing_plan(seed), echo)
        if life.plan.mute:
            stack.enter_context(plant((behind, "note_behind", _note_nothing))())
        stack.enter_context(watch_stores(life.world))
        stack.enter_context(watch_hosts(life.world, life.plan.cluster.sites))
        stack.enter_context(watch_healing(life.world, life.rules))
        stack.enter_context(report_broken_invariants(life.world))
        try:
            life.world.loop.run_until_complete(life.run())
        except Stuck as stuck:
            life.world.report.violate("stuck", str(stuck))
        result = life.result()
        life.world.close()
    if enabled:
        gc.enable()
    return result
