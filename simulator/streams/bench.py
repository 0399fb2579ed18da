"""The tools of directed schedules of streams: a small cluster, hosts by name, writers, faults, waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from buckram.errors import BuckramError
from buckram.streams.read.reader import StreamReader
from buckram.streams.write.writer import engine_of
from simulator.engine.faults import FaultRunner
from simulator.engine.lives import bring_up, watch_tasks
from simulator.engine.schedules import ScheduleFailed, ScheduleResult, quiet_plan, run_schedule, until_violated
from simulator.engine.trace import Echo
from simulator.engine.world import Died, World
from simulator.streams.ending import Ending
from simulator.streams.facts import ReaderSession, StreamHistory
from simulator.streams.final_checks import FinalChecks
from simulator.streams.life import stream_world
from simulator.streams.plan import StreamPlan
from simulator.streams.reading import ReaderActor, uid_of
from simulator.streams.recording import RecordingWriter
from simulator.streams.stage import Actor, Producer, Stage, full


class Bench:
    """A cluster with a stream named "one", which rolls only by call unless the schedule sets another policy."""

    stream = "one"

    def __init__(self, world: World, plan: StreamPlan) -> None:
        self.world, self.plan = world, plan
        self.stage = Stage(world, plan)
        self.facts, self.report = self.stage.facts, world.report
        self.faults = FaultRunner(self.stage)
        self.hosts: dict[str, Actor] = {}
        self.tasks: list[asyncio.Task[Any]] = []

    async def up(self, host: str) -> Actor:
        """Return the actor of the host, with a client in a living process. Raises ScheduleFailed."""
        actor = self.hosts.get(host)
        if actor is None:
            actor = self.hosts[host] = ReaderActor(self.stage, host)
        if not await actor.up(20):
            raise ScheduleFailed(f"no client on {host}")
        return actor

    async def create(self) -> StreamHistory:
        """Create the stream, and two producers for it."""
        actor = await self.up("s1")
        await actor.inside(actor.ns.create(self.stream, **self.plan.policy), "create")
        self.stage.producers += [Producer(f"P{self.stream}{n}", self.stream) for n in range(2)]
        return self.history

    @property
    def history(self) -> StreamHistory:
        return self.facts.current[full(self.stream)]

    async def writer(self, host: str, **options: Any) -> RecordingWriter:
        """Open a writer on the host."""
        actor = await self.up(host)
        return await actor.inside(self.open(actor, **options), "open")

    async def open(self, actor: Actor, **options: Any) -> RecordingWriter:
        """Open a writer. This must run as code of the actor's process."""
        session = self.stage.rules.new_session(actor.host)
        try:
            writer = await actor.ns.writer(self.stream, name=actor.host, **options)
        except BuckramError:
            session.lost = True
            raise
        self.stage.rules.writer_opened(session, engine_of(writer)._claim.uid, writer.epoch, writer.next_offset)
        return RecordingWriter(actor, self.stream, writer, session)

    async def append(self, recording: RecordingWriter, count: int = 1, size: int = 20, *, atomic: bool = False) -> None:
        """Append `count` records by one append_many, and wait for its end."""
        records = [recording.fresh(size) for _ in range(count)]
        await recording.actor.inside(recording.append_many(records, atomic=atomic), "append")

    def appending(self, recording: RecordingWriter, count: int = 1, size: int = 20) -> asyncio.Task[None]:
        """Start one append_many, and return its task."""
        records = [recording.fresh(size) for _ in range(count)]
        return recording.actor.process.spawn(recording.append_many(records), "append")

    async def roll(self, recording: RecordingWriter) -> bool:
        return await recording.actor.inside(recording.writer.roll(), "roll")

    def tail(self, actor: Actor, **options: Any) -> ReaderSession:
        """Start a reader that follows until the end of the schedule."""
        reading = self.stage.rules.new_reader(
            actor.host, "tail", follow=True, skip=options.get("on_truncated") == "skip"
        )
        reader = actor.ns.read(self.stream, follow=True, **options)
        self.stage.tails.append((actor.process, reading))
        self.tasks.append(actor.process.spawn(self._follow(reader, reading), "tail"))
        return reading

    async def _follow(self, reader: StreamReader, reading: ReaderSession) -> None:
        position = await reader.open()
        self.stage.rules.reader_opened(reading, uid_of(reader), position)
        while True:
            try:
                batch = await reader.next_batch()
            except BuckramError as error:
                self.world.trace.note(reading.host, f"tail: {error!r}")
                if not error.retryable:
                    reading.done = True
                    return
                await asyncio.sleep(0.1)
                continue
            if batch is None:
                break
            self.stage.rules.records_read(reading, batch.records())
        reading.done = True

    def block_both_ways(self, one: str, other: str) -> None:
        """Block the link between two hosts in both directions."""
        for source, target in ((one, other), (other, one)):
            self.world.disturb(one, 1)
            self.world.fabric.block(source, target)

    def unblock_both_ways(self, one: str, other: str) -> None:
        for source, target in ((one, other), (other, one)):
            self.world.fabric.unblock(source, target)
            self.world.disturb(one, -1)

    async def until(self, condition: Condition, what: str, deadline_s: float = 30.0) -> None:
        """Wait until the condition is true, checking it every 0.5 ms. Raises ScheduleFailed after the deadline."""
        end = self.world.loop.time() + deadline_s
        while not condition():
            if self.world.loop.time() > end:
                raise ScheduleFailed(f"{what}: not within {deadline_s} s")
            await asyncio.sleep(0.0005)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            raise ScheduleFailed(what)

    async def finish(self) -> None:
        """End the life: heal, write, clean, read in full, run the final checks."""
        await Ending(self.stage, self.faults, []).run()
        if not self.report.violations:
            FinalChecks(self.facts, self.report).run()


class Condition(Protocol):
    """Something that a schedule waits for."""

    def __call__(self) -> bool: ...


class PlaySchedule(Protocol):
    """Plays a directed schedule on a bench. Raises ScheduleFailed if its situation does not come about."""

    def __call__(self, bench: Bench, /) -> Awaitable[None]: ...


def bench_plan(
    *,
    bookies: int = 3,
    shape: tuple[int, int, int] = (3, 3, 2),
    metadata: str = "memory",
    streams: Sequence[str] = ("one",),
    **policy: Any,
) -> StreamPlan:
    """Return a plan without faults; `policy` are settings of the stream's policy."""
    cluster = quiet_plan(shape)
    cluster.bookies, cluster.metadata = bookies, metadata
    defaults = {"ensemble": "/".join(map(str, shape)), "roll_bytes": 1 << 20, "roll_s": 3600.0}
    return StreamPlan(cluster, list(streams), defaults | policy)


def play(
    name: str,
    play_on: PlaySchedule,
    plan: StreamPlan,
    *,
    seed: int = 0,
    echo: Echo | None = None,
    mutant: AbstractContextManager[None] | None = None,
) -> ScheduleResult:
    """Run one schedule in a world of its own, then the ending of a life."""

    async def schedule(world: World) -> str:
        await bring_up(world, plan.cluster.bookies)
        bench = Bench(world, plan)

        async def all_of_it() -> None:
            await bench.create()
            await play_on(bench)
            await bench.finish()

        return await until_violated(world, all_of_it(), (ScheduleFailed, Died, BuckramError))

    return run_schedule(lambda: stream_world(f"{name} {seed}", plan, echo), schedule, watch_tasks, mutant)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A schedule, and the plan of its life."""

    play: PlaySchedule
    plan: Callable[[], StreamPlan] = bench_plan


__all__ = ["Bench", "PlaySchedule", "Scenario", "bench_plan", "play"]
