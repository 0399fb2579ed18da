"""One life of streams: the bookies, clients and faults of a plan in one simulated world, from start to final checks."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from buckram.core.streams import compaction as stream_compaction
from buckram.core.streams.metadata import changes as stream_changes
from buckram.core.streams.metadata import head as stream_head
from buckram.streams.maintain import delete as stream_delete
from buckram.streams.shared import metadata as stream_metadata
from simulator.engine.checkers.safety import Records
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import LifeResult, bring_up, life_result, report_broken_invariants, watch_tasks
from simulator.engine.loop import Stuck
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
from simulator.streams.plan import LIFE_S, StreamPlan, make_stream_plan
from simulator.streams.reading import ReaderActor
from simulator.streams.stage import NAMESPACE, Actor, Producer, Stage
from simulator.streams.writing import WriterActor


class Life:
    """One life. Run it once, then ask for its result."""

    def __init__(self, plan: StreamPlan, echo: Echo | None = None) -> None:
        self.plan = plan
        self.world = stream_world(f"streams {plan.seed}", plan, echo)
        self.stage = Stage(self.world, plan)
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
        stage = self.stage
        setup = Actor(stage, "s1")
        await setup.up()
        await setup.inside(self._create(setup), "create")
        actors = [asyncio.create_task(actor.run(), name=actor.host) for actor in self._actors()]
        watchers = [
            asyncio.create_task(self.faults.supervise(machine), name=f"supervise {machine.name}")
            for machine in self.world.machines.values()
        ]
        chaos = asyncio.create_task(self.faults.run(), name="faults")
        await asyncio.wait(actors, timeout=LIFE_S)
        await chaos
        await Ending(stage, self.faults, actors).run()
        if not self.world.report.violations:
            FinalChecks(stage.facts, self.world.report).run()
        for task in (*actors, *watchers):
            task.cancel()

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

    def result(self) -> LifeResult:
        return life_result(self.world, self.plan.seed, self.plan, self.stage.rules.acked)


def stream_world(seed: str, plan: StreamPlan, echo: Echo | None) -> World:
    """Return a world that checks only the metadata of ledgers: lives of ledgers check the rest, which takes time."""
    world = World(seed, echo=echo, configs=plan.cluster.configs, metadata=plan.cluster.metadata, pace=plan.cluster.pace)
    world.fabric.observers.remove(world.judge.wire)
    world.judge.checkers = [checker for checker in world.judge.checkers if isinstance(checker, Records)]
    world.report.evaluated |= dict.fromkeys(INVARIANTS, 0)
    world.report.reached |= dict.fromkeys(SITUATIONS, 0)
    return world


@contextmanager
def small_pages(on: bool = True) -> Iterator[None]:
    """Use pages of four segments instead of 256, which lives are too short to fill."""
    sizes = {"PAGE_SEGMENTS": 4, "_TAIL_MOST": 8} if on else {}
    with ExitStack() as stack:
        for module in (stream_head, stream_changes, stream_compaction, stream_metadata, stream_delete):
            for name, size in sizes.items():
                if name in vars(module):
                    stack.callback(setattr, module, name, getattr(module, name))
                    setattr(module, name, size)
        yield


def run_stream_life(
    seed: int,
    *,
    plan: StreamPlan | None = None,
    echo: Echo | None = None,
    mutant: AbstractContextManager[None] | None = None,
) -> LifeResult:
    """Run one life. Python's garbage collection is off meanwhile: the time of finalisers must not depend on history."""
    enabled = gc.isenabled()
    gc.disable()
    with ExitStack() as stack:
        if mutant is not None:
            stack.enter_context(mutant)
        life = Life(plan or make_stream_plan(seed), echo)
        stack.enter_context(small_pages(life.plan.small_pages))
        stack.enter_context(report_broken_invariants(life.world, excused=f"{HOSTILE}/"))
        stack.enter_context(watch_tasks(life.world))
        try:
            life.world.loop.run_until_complete(life.run())
        except Stuck as stuck:
            life.world.report.violate("stuck", str(stuck))
        result = life.result()
        life.world.close()
    if enabled:
        gc.enable()
    return result


__all__ = ["NAMESPACE", "Life", "run_stream_life", "stream_world"]
