"""Operations on streams that `crashing.py` interrupts.

Each prepares a stream, then does one thing on the host that may crash, whose messages a Spy counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from buckram.errors import BuckramError, WriterLost
from simulator.engine.loop import Process
from simulator.engine.transport import Connection
from simulator.engine.world import Died
from simulator.streams.bench import Bench
from simulator.streams.bulk_publishing import Publisher
from simulator.streams.maintenance import Compactor, Deleter, JanitorActor, Truncator
from simulator.streams.stage import Actor

HOST = "x1"
"""The host whose process crashes."""


@dataclass(slots=True)
class Spy:
    """Records at which steps of the process it sends messages, and counts its changes of metadata. Plans one fault.

    `crash_at` is a step, `lose` the number of a change whose message is lost `when`: before or after the change.
    """

    crash_at: int | None = None
    lose: int | None = None
    when: str = "after"
    sent_at: dict[int, None] = field(default_factory=dict)
    mutations: int = 0
    process: Process | None = None
    began: int = 0

    def mark(self, bench: Bench) -> None:
        """Begin to count here."""
        process = self.process = bench.world.processes[HOST]
        self.began = process.steps
        bench.world.fabric.observers.append(self)
        server = bench.world.metadata
        original = server.choose_loss

        def choose_loss(who: str, keys: Sequence[str]) -> str:
            known = original(who, keys)
            if who != HOST:
                return known
            self._record_message()
            if keys:
                self.mutations += 1
                if self.lose == self.mutations:
                    return self.when
            return known

        server.choose_loss = choose_loss  # type: ignore[method-assign]  # of this world's server only
        if self.crash_at is not None:
            process.crash_after(self.crash_at)

    def _record_message(self) -> None:
        if self.process is not None and not self.process.dead:
            self.sent_at[self.process.steps - self.began] = None

    def frame_sent(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        if conn.client == HOST and to_server:
            self._record_message()

    def frame_delivered(self, conn: Connection, to_server: bool, frame: bytes) -> None:
        """Do nothing: sent frames are enough."""

    @property
    def crash_steps(self) -> list[int]:
        """Return the steps for crash_after(): just before each message, and after the last one."""
        return [step - 1 for step in self.sent_at] + ([max(self.sent_at)] if self.sent_at else [])


class Operation(Protocol):
    """Prepares a stream and runs one operation on HOST, with the fault of the spy."""

    def __call__(self, bench: Bench, spy: Spy, /) -> Awaitable[None]: ...


async def _run_on_host(bench: Bench, work: Callable[[Actor], Awaitable[None]], spy: Spy) -> None:
    """Run the work on the host that may crash."""
    actor = await bench.up(HOST)
    spy.mark(bench)

    async def guarded() -> None:
        try:
            await work(actor)
        except BuckramError as error:
            actor.note(f"{type(error).__name__}: {error}")
            if isinstance(error, WriterLost):
                bench.stage.rules.writer_lost(next(s for s in reversed(bench.facts.sessions) if s.host == HOST), error)
            bench.report.check("ends", spy.lose is not None, "{} failed without a fault: {!r}", HOST, error)

    try:
        await actor.inside(guarded(), "operation")
    except Died:
        actor.note("died")
    for session in bench.facts.sessions:
        if session.host == HOST:
            session.lost = True
    actor.process.crash_after(1 << 60)


async def _write_segments(bench: Bench, segments: int = 2, records: int = 5) -> None:
    """Write some sealed segments, with records of a producer."""
    recording = await bench.writer("w0")
    for _ in range(segments):
        await bench.append(recording, records)
        await recording.actor.inside(recording.produce(bench.stage.producers[0], 2, one_by_one=False), "produce")
        await bench.roll(recording)
    await bench.append(recording, 2)
    await recording.actor.inside(recording.writer.close(), "close")


async def _append_in_background(bench: Bench) -> asyncio.Event:
    """Start a writer that appends until the event is set."""
    recording, enough = await bench.writer("w1"), asyncio.Event()

    async def keep_on() -> None:
        for _ in range(40):
            if enough.is_set():
                break
            await recording.append_many([recording.fresh(20), recording.fresh(20)])
            await asyncio.sleep(0.004)

    recording.actor.process.spawn(keep_on(), "appends")
    return enough


async def open_first(bench: Bench, spy: Spy) -> None:
    """Open the first writer of a stream, and append its first records."""

    async def work(actor: Actor) -> None:
        recording = await bench.open(actor)
        await recording.append_many([recording.fresh(20) for _ in range(3)])
        await recording.produce(bench.stage.producers[0], 2, one_by_one=True)

    await _run_on_host(bench, work, spy)


async def take_over(bench: Bench, spy: Spy) -> None:
    await _write_segments(bench, 1)
    enough = await _append_in_background(bench)
    reader = await bench.up("r1")
    bench.tail(reader, start="earliest")
    await bench.until(lambda: bench.history.top >= 12, "records")

    async def work(actor: Actor) -> None:
        fresh = await bench.open(actor, takeover=True)
        await fresh.append_many([fresh.fresh(20) for _ in range(3)])

    await _run_on_host(bench, work, spy)
    await asyncio.sleep(0.3)
    enough.set()


async def roll(bench: Bench, spy: Spy) -> None:
    """Roll with records in flight, among them those of a producer."""
    await _write_segments(bench, 1)
    reader = await bench.up("r1")
    bench.tail(reader, start="earliest")
    actor = await bench.up(HOST)
    recording = await actor.inside(bench.open(actor), "open")
    await bench.append(recording, 4)

    async def work(actor: Actor) -> None:
        await recording.produce(bench.stage.producers[1], 2, one_by_one=False)
        rolling = asyncio.ensure_future(recording.writer.roll())
        tasks = []
        while not rolling.done():
            tasks.append(
                asyncio.ensure_future(recording.append_many([recording.fresh(20) for _ in range(6)], atomic=True))
            )
            await asyncio.sleep(0.002)
        await asyncio.gather(rolling, *tasks)
        await recording.produce(bench.stage.producers[1], 2, one_by_one=False)

    await _run_on_host(bench, work, spy)


async def close(bench: Bench, spy: Spy) -> None:
    await _write_segments(bench, 1)
    actor = await bench.up(HOST)
    recording = await actor.inside(bench.open(actor), "open")
    await bench.append(recording, 4)

    async def work(actor: Actor) -> None:
        await asyncio.gather(recording.append_many([recording.fresh(20) for _ in range(3)]), recording.writer.close())

    await _run_on_host(bench, work, spy)


async def end(bench: Bench, spy: Spy) -> None:
    await _write_segments(bench, 1)
    reader = await bench.up("r1")
    bench.tail(reader, start="earliest")
    actor = await bench.up(HOST)
    recording = await actor.inside(bench.open(actor), "open")
    await bench.append(recording, 4)

    async def work(actor: Actor) -> None:
        await recording.writer.end()

    await _run_on_host(bench, work, spy)


async def truncate(bench: Bench, spy: Spy) -> None:
    """Truncate to an offset in a later segment, then in the open one."""
    await _write_segments(bench, 4, 3)
    recording = await bench.writer("w1")
    await bench.append(recording, 6)
    reader = await bench.up("r1")
    bench.tail(reader, start="earliest", on_truncated="skip")
    bench.tail(reader, start="earliest")
    truncator = Truncator(bench.stage, HOST)

    async def work(actor: Actor) -> None:
        truncator.client = actor.client
        for offset in (7, bench.history.head.end + 3 if bench.history.head else 0):
            await truncator.truncate_before(bench.stream, bench.history, offset, True)

    await _run_on_host(bench, work, spy)
    await bench.append(recording, 3)


async def delete(bench: Bench, spy: Spy) -> None:
    await _write_segments(bench, 2)
    enough = await _append_in_background(bench)
    await asyncio.sleep(0.05)
    history, deleter = bench.history, Deleter(bench.stage, HOST)

    async def work(actor: Actor) -> None:
        await actor.ns.delete(bench.stream)
        deleter.check_deleted(history)

    await _run_on_host(bench, work, spy)
    await asyncio.sleep(0.2)
    enough.set()
    await asyncio.sleep(2.0)
    if history.deleted_at is not None:
        deleter.check_nothing_left(history)


async def delete_after_death(bench: Bench, spy: Spy) -> None:
    """Delete a stream with a ledger that a dead writer prepared and did not list."""
    await _write_segments(bench, 1)
    recording = await bench.writer("w1")
    recording.actor.process.crash()
    history, deleter = bench.history, Deleter(bench.stage, HOST)

    async def work(actor: Actor) -> None:
        await actor.ns.delete(bench.stream)
        deleter.check_deleted(history)

    await _run_on_host(bench, work, spy)
    if history.deleted_at is not None:
        await asyncio.sleep(bench.world.metadata.session_timeout_s + 3.0)
        deleter.check_nothing_left(history)


async def bulk(bench: Bench, spy: Spy) -> None:
    """Run a bulk step that fences a writer."""
    await _write_segments(bench, 1)
    enough = await _append_in_background(bench)
    reader = await bench.up("r1")
    bench.tail(reader, start="earliest")
    await asyncio.sleep(0.03)
    publisher = Publisher(bench.stage, HOST)

    async def work(actor: Actor) -> None:
        publisher.client = actor.client
        await publisher.step(bench.stream, seal_live=True)

    await _run_on_host(bench, work, spy)
    enough.set()
    # The application restarts and repeats its step.
    again = Publisher(bench.stage, HOST)
    again.attempt = 1
    for _ in range(5):
        if not await again.up(20):
            break
        if await again.inside(again.step(bench.stream, seal_live=True), "again"):
            break
        again.attempt += 1
    head = bench.history.head
    bench.report.check("bulk", head is not None and HOST in head.transactions, "the step was never published: {}", head)


async def insert(bench: Bench, spy: Spy) -> None:
    """Run a bulk step beside a writer, which goes on."""
    await _write_segments(bench, 1)
    enough = await _append_in_background(bench)
    reader = await bench.up("r1")
    bench.tail(reader, start="earliest")
    await asyncio.sleep(0.03)
    publisher = Publisher(bench.stage, HOST)

    async def work(actor: Actor) -> None:
        publisher.client = actor.client
        await publisher.step(bench.stream, seal_live=False, beside=True)

    await _run_on_host(bench, work, spy)
    enough.set()
    again = Publisher(bench.stage, HOST)
    again.attempt = 1
    for _ in range(5):
        if not await again.up(20):
            break
        if await again.inside(again.step(bench.stream, seal_live=False, beside=True), "again"):
            break
        again.attempt += 1
    head = bench.history.head
    bench.report.check("bulk", head is not None and HOST in head.transactions, "the step was never published: {}", head)


async def let_in(bench: Bench, spy: Spy) -> None:
    """Append as a writer all the time while a bulk step runs beside it."""
    await _write_segments(bench, 1)
    reader = await bench.up("r1")
    bench.tail(reader, start="earliest")
    actor = await bench.up(HOST)
    recording = await actor.inside(bench.open(actor), "open")
    publisher = Publisher(bench.stage, "p1")
    await publisher.up(20)
    await bench.append(recording, 4)

    async def work(actor: Actor) -> None:
        steps = publisher.process.spawn(_steps_beside(publisher, bench.stream), "steps")
        await recording.produce(bench.stage.producers[1], 2, one_by_one=False)
        tasks = []
        for number in range(400):
            recording.append_nowait(*recording.fresh(20))
            more = [recording.fresh(20) for _ in range(3)]
            tasks.append(asyncio.ensure_future(recording.append_many(more, atomic=number % 2 == 0)))
            await asyncio.sleep(0.002)
            if steps.done():
                break
        await asyncio.gather(*tasks)
        await recording.produce(bench.stage.producers[1], 2, one_by_one=False)

    await _run_on_host(bench, work, spy)
    publisher.process.crash()


async def _steps_beside(publisher: Publisher, stream: str) -> None:
    for _ in range(3):
        publisher.version += await publisher.step(stream, seal_live=False, beside=True)
        publisher.attempt += 1


async def janitor(bench: Bench, spy: Spy) -> None:
    """Run a janitor with all kinds of work: truncated segments, prepared ledgers, and an unfinished bulk step's."""
    await _write_segments(bench, 3, 3)
    truncator, publisher = Truncator(bench.stage, "t1"), Publisher(bench.stage, "p1")
    await truncator.up(20)
    await truncator.inside(truncator.truncate_before(bench.stream, bench.history, 12, False), "truncate")
    await publisher.up(20)
    left = await publisher.inside(publisher.ns.bulk(bench.stream, application="p1", version=0), "bulk")
    await publisher.inside(left.create_ledger(), "create")
    recording = await bench.writer("w1")
    recording.actor.process.crash()
    second = await bench.writer("w2", takeover=True)
    await bench.append(second, 2)
    second.actor.process.crash()
    await asyncio.sleep(bench.world.metadata.session_timeout_s + 3.0)
    keeper = JanitorActor(bench.stage, HOST)

    async def work(actor: Actor) -> None:
        bench.stage.clients[HOST] = keeper.client = actor.client  # type: ignore[assignment]  # it is up
        await keeper.clean()

    await _run_on_host(bench, work, spy)


async def compact(bench: Bench, spy: Spy) -> None:
    """Compact segments of writers and of bulk steps, with a reader and a writer at work."""
    await _write_segments(bench, 2, 3)
    publisher = Publisher(bench.stage, "p1")
    await publisher.up(20)
    await publisher.inside(publisher.step(bench.stream, seal_live=False), "step")
    await _write_segments(bench, 3, 3)
    enough = await _append_in_background(bench)
    reader = await bench.up("r1")
    bench.tail(reader, start="earliest")
    compactor = Compactor(bench.stage, HOST)
    compactor.targets = (1 << 20,)  # all small segments are one run

    async def work(actor: Actor) -> None:
        compactor.client = actor.client
        await compactor.work(bench.stream)

    await _run_on_host(bench, work, spy)
    enough.set()
    bench.tail(reader, start="earliest")
    await asyncio.sleep(0.2)


async def fork(bench: Bench, spy: Spy) -> None:
    """Fork a stream with a writer at work; the source is truncated, and a fork of the fork is deleted."""
    await _write_segments(bench, 2, 3)
    enough = await _append_in_background(bench)

    async def work(actor: Actor) -> None:
        await actor.ns.fork_stream(bench.stream, "branch", offset=12)
        bench.history.requested_truncations[8] = None
        await actor.ns.truncate(bench.stream, before=8)
        await actor.ns.fork_stream("branch", "twig", offset=9)
        await actor.ns.delete("branch")

    await _run_on_host(bench, work, spy)
    enough.set()


DRILLS: dict[str, Operation] = {
    "open": open_first,
    "take-over": take_over,
    "roll": roll,
    "close": close,
    "end": end,
    "truncate": truncate,
    "delete": delete,
    "delete-after-death": delete_after_death,
    "bulk": bulk,
    "insert": insert,
    "let-in": let_in,
    "janitor": janitor,
    "compact": compact,
    "fork": fork,
}

__all__ = ["DRILLS", "Operation", "Spy"]
