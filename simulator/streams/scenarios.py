"""Directed schedules of streams. Each docstring says what a naive implementation
would do wrong."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import replace

from buckram.errors import CursorMoved, OffsetMismatch, OffsetTruncated, StreamEnded, WriterExists
from simulator.engine.metadata import HOST
from simulator.engine.schedules import ScheduleResult
from simulator.engine.trace import Echo
from simulator.streams.bench import Bench, Scenario, bench_plan, play
from simulator.streams.broken_ledgers import BREAKS
from simulator.streams.bulk_publishing import Publisher
from simulator.streams.facts import ReaderSession
from simulator.streams.fork_schedules import FORKS
from simulator.streams.maintenance import JanitorActor
from simulator.streams.plan import StreamPlan
from simulator.streams.reading import ReaderActor
from simulator.streams.slow_bookies import SLOW
from simulator.streams.wrong_clocks import WRONG_CLOCKS


async def reading_live(b: Bench) -> None:
    """Acknowledged records in the open segment of an idle writer are readable without following."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    await asyncio.sleep(0.05)
    found: list[int] = []

    async def read(actor: ReaderActor) -> None:
        async for record in actor.ns.read(b.stream):
            found.append(record.offset)

    actor = await b.up("r1")
    assert isinstance(actor, ReaderActor)
    await actor.inside(read(actor), "read")
    b.report.check("visible", found == [0, 1, 2], "of three acknowledged records {} are readable", found)


async def frozen_writer(b: Bench) -> None:
    """An old writer is paused with records under way, resumed after two take-overs, and goes on to append."""
    first = await b.writer("w1")
    await b.append(first, 3)
    b.appending(first, 2)
    await asyncio.sleep(0.0003)
    b.world.pause("w1")
    second = await b.writer("w2", takeover=True)
    await b.append(second, 3)
    third = await b.writer("w3", takeover=True)
    await b.append(third, 2)
    b.world.resume("w1")
    b.appending(first, 2)
    b.appending(second, 1)
    await asyncio.sleep(3.0)
    b.expect(first.writer.lost.is_set() and second.writer.lost.is_set(), "an old writer does not know that it is out")


async def frozen_in_a_roll(b: Bench) -> None:
    """The writer is paused after the end of its old segment and lists the new one too late."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    b.faults.world.fabric.slow("w1", HOST, 0.3)
    rolling = recording.actor.process.spawn(_quiet_roll(recording), "roll")
    await asyncio.sleep(0.2)
    b.appending(recording, 2)
    await asyncio.sleep(0.25)
    b.world.pause("w1")
    b.world.fabric.slow("w1", HOST, 0.0)
    second = await b.writer("w2", takeover=True)
    await b.append(second, 2)
    b.world.resume("w1")
    b.appending(recording, 1)
    await asyncio.sleep(5.0)
    rolling.cancel()


async def _quiet_roll(recording: object) -> None:
    from buckram.errors import BuckramError

    try:
        await recording.writer.roll()  # type: ignore[attr-defined]  # a RecordingWriter
    except BuckramError:
        return


async def lost_lease(b: Bench) -> None:
    """A writer whose session expired goes on if no other has taken over, and fails otherwise."""
    recording = await b.writer("w1")
    await b.append(recording, 2)
    b.world.sessions["w1"].expire()
    await asyncio.sleep(1.0)
    await b.append(recording, 2)
    b.expect(not recording.writer.lost.is_set() and recording.session.order[-1].result == "ok", "lost without a reason")
    b.block_both_ways("w1", HOST)
    b.world.sessions["w1"].expire()
    second = await b.writer("w2", wait=True)
    b.unblock_both_ways("w1", HOST)
    await b.append(second, 2)
    await asyncio.sleep(3.0)
    b.expect(recording.writer.lost.is_set(), "does not know that it is out")


async def polite(b: Bench) -> None:
    """A second writer is refused with the name of the first; one that waits opens when the first closes."""
    recording = await b.writer("w1")
    await b.append(recording, 2)
    try:
        await b.writer("w2")
    except WriterExists as error:
        b.expect(error.holder == "w1", f"held by {error.holder}")
    else:
        b.expect(False, "two writers")
    waiting = asyncio.ensure_future(b.writer("w3", wait=True))
    await asyncio.sleep(1.0)
    b.expect(not waiting.done(), "did not wait")
    await recording.actor.inside(recording.writer.close(), "close")
    third = await waiting
    await b.append(third, 2)


async def no_ensemble(b: Bench) -> None:
    """A roll succeeds while a bookie with a cookie is unavailable. Without its cookie there are too few bookies: the
    roll is postponed, and records go into the old segment."""
    recording = await b.writer("w1")
    await b.append(recording, 2)
    b.world.crash(b.world.machines["b3"], power=False)
    await asyncio.sleep(4.0)
    b.expect(await b.roll(recording), "no roll while a bookie is unavailable")
    await b.append(recording, 2)
    assert recording.actor.client is not None
    store = recording.actor.client.services.store
    cookie = await store.read_cookie("b3")
    await store.delete_cookie("b3", cookie.version)
    rolling = recording.actor.process.spawn(_quiet_roll(recording), "roll")
    for _ in range(5):
        await b.append(recording, 2)
        await asyncio.sleep(0.3)
    b.expect(bool(recording.writer.roll_trouble) and not rolling.done(), "rolled with two bookies")
    b.expect(all(sent.result == "ok" for sent in recording.session.order), "an append failed")
    await store.write_cookie("b3", cookie.value, None)
    await b.faults.restart(b.world.machines["b3"])
    await b.until(rolling.done, "the roll", 30.0)


async def metadata_away(b: Bench) -> None:
    """The metadata store is unavailable for a while: appends go on, a roll waits, nothing is lost."""
    recording = await b.writer("w1")
    await b.append(recording, 2)
    b.world.metadata.down = True
    await b.append(recording, 2)
    rolling = recording.actor.process.spawn(_quiet_roll(recording), "roll")
    for _ in range(4):
        await b.append(recording, 1)
        await asyncio.sleep(0.8)
    b.expect(not recording.writer.lost.is_set(), "lost without a reason")
    b.world.metadata.down = False
    await b.until(rolling.done, "the roll", 60.0)
    await b.append(recording, 1)


async def truncated_under_readers(b: Bench) -> None:
    """Two slow readers are below the new earliest offset: one fails, one skips; both get all other records once."""
    recording = await b.writer("w1")
    for _ in range(3):
        await b.append(recording, 4)
        await b.roll(recording)
    errors: list[OffsetTruncated] = []

    async def slowly(actor: ReaderActor, skip: bool) -> None:
        reading: ReaderSession = b.stage.rules.new_reader(actor.host, "slow", follow=False, skip=skip)
        reader = actor.ns.read(b.stream, on_truncated="skip" if skip else "error")
        b.stage.rules.reader_opened(reading, b.history.uid, await reader.open())
        b.stage.rules.records_read(reading, [await anext(reader)])
        await asyncio.sleep(2.0)
        while True:
            try:
                batch = await reader.next_batch()
            except OffsetTruncated as error:
                errors.append(error)
                break
            if batch is None:
                break
            b.stage.rules.records_read(reading, batch.records())
        reading.done = True

    readers = []
    for host, skip in (("r1", False), ("r2", True)):
        actor = await b.up(host)
        assert isinstance(actor, ReaderActor)
        readers.append(asyncio.ensure_future(actor.inside(slowly(actor, skip), "read")))
    await asyncio.sleep(0.5)
    keeper = await b.up("t1")
    b.history.requested_truncations[9] = None
    await keeper.inside(keeper.ns.truncate(b.stream, before=9), "truncate")
    await asyncio.gather(*readers)
    b.report.check(
        "truncation", len(errors) <= 1 and all(error.earliest == 9 for error in errors), "errors: {}", errors
    )


async def ended(b: Bench) -> None:
    """An ended stream takes no appends, ends its following reader, and can be truncated and deleted."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    actor = await b.up("r1")
    reading = b.tail(actor, start="earliest")
    await recording.actor.inside(recording.writer.end(), "end")
    await asyncio.sleep(2.0)
    b.report.check(
        "follow",
        reading.done and reading.expected == 3,
        "the stream ended at 3, its reader is at {}, {}",
        reading.expected,
        "done" if reading.done else "waiting",
    )
    try:
        await b.writer("w2", takeover=True)
    except StreamEnded as error:
        b.expect(error.end == 3, f"ended at {error.end}")
    else:
        b.report.check("head", False, "an ended stream has a writer")
    b.history.requested_truncations[2] = None
    await actor.inside(actor.ns.truncate(b.stream, before=2), "truncate")


async def expectations(b: Bench) -> None:
    """expect_offset is a compare-and-set: only one of two appends at an offset succeeds."""
    first = await b.writer("w1")
    await b.append(first, 2)
    ident, content = first.fresh(10)
    await first.actor.inside(first.append(ident, content, expect=2), "append")
    try:
        await first.actor.inside(first.writer.append(b"x", expect_offset=2), "append")
    except OffsetMismatch as error:
        b.report.check("txid", error.next_offset == 3, "next is {}", error.next_offset)
    else:
        b.report.check("txid", False, "two records at one expected offset")


async def retries(b: Bench) -> None:
    """A producer gets no acknowledgement and repeats over a roll, take-overs and a truncation: all is stored once."""
    first = await b.writer("w1")
    producer = b.stage.producers[0]
    await first.actor.inside(first.produce(producer, 4, one_by_one=False), "produce")
    await first.actor.inside(first.skip_one(producer), "produce")
    await b.roll(first)
    await first.actor.inside(first.produce(b.stage.producers[1], 2, one_by_one=False), "produce")
    middle = await b.writer("w4", takeover=True)
    producer.acked = 1
    await middle.actor.inside(middle.produce(producer, 4, one_by_one=True), "produce")
    await b.append(middle, 2)
    second = await b.writer("w2", takeover=True)
    producer.acked = -1
    await second.actor.inside(second.produce(producer, 8, one_by_one=False), "produce")
    await b.roll(second)
    await b.append(second, 1)
    keeper = await b.up("t1")
    offset = b.history.top
    b.history.requested_truncations[offset] = None
    await asyncio.sleep(0.1)
    await keeper.inside(keeper.ns.truncate(b.stream, before=offset), "truncate")
    third = await b.writer("w3", takeover=True)
    producer.acked = 3
    await third.actor.inside(third.produce(producer, 6, one_by_one=True), "produce")


async def table_outlives(b: Bench) -> None:
    """A producer's records are followed by bulk steps only: after trimming, its last sequence must still be known."""
    first = await b.writer("w1")
    producer = b.stage.producers[0]
    await first.actor.inside(first.produce(producer, 4, one_by_one=False), "produce")
    await first.actor.inside(first.writer.close(), "close")
    publisher, keeper = Publisher(b.stage, "p1"), JanitorActor(b.stage, "j1")
    assert await publisher.up(20)
    assert await keeper.up(20)
    while b.history.head is None or len(b.history.head.tail) < 4:
        await publisher.inside(publisher.step(b.stream), "bulk step")
        publisher.version += 1
    for offset in (2, 4, b.history.head.tail[2].end, b.history.head.end):
        b.history.requested_truncations[offset] = None
        await keeper.inside(keeper.ns.truncate(b.stream, before=offset), "truncate")
        await keeper.inside(keeper.clean(), "clean")
        table, rows = b.history.head.table, [row.number for row in b.history.head.tail]
        held = "list" if 0 in rows else "table" if table is not None and table.number == 0 else "nothing"
        b.report.check("idempotent", held != "nothing", "truncated to {}, no producers: {}", offset, rows)
        b.report.check("orphans", held == "table" or offset <= 4, "truncated to {}, the list is {}", offset, rows)
    second = await b.writer("w2")
    producer.acked = -1
    await second.actor.inside(second.produce(producer, 6, one_by_one=True), "produce")
    await second.actor.inside(second.writer.close(), "close")
    await keeper.inside(keeper.clean(), "clean")
    b.report.check(
        "orphans",
        b.history.head.table is None and 0 not in b.facts.owned,
        "the old table is kept, too: {}",
        b.history.head,
    )


async def overtaking(b: Bench) -> None:
    """One append waits for room: a smaller one that fits must not come before it."""
    recording = await b.writer("w1")
    for bookie in ("b1", "b2", "b3"):
        b.world.fabric.slow(bookie, "w1", 0.05)
    waiting = [recording.spawn_append(*recording.fresh(1500)) for _ in range(2)]
    await asyncio.sleep(0.001)

    async def hasten() -> None:
        recording.append_nowait(*recording.fresh(20))

    await recording.actor.inside(hasten(), "append")
    await b.until(lambda: all(task.done() for task in waiting), "both appends")
    b.expect(sum(sent.result == "ok" for sent in recording.session.order) >= 2, "an append that could wait failed")


def _small_buffer() -> StreamPlan:
    plan = bench_plan()
    plan.cluster.configs.client = replace(plan.cluster.configs.client, max_pending_bytes=2000)
    return plan


async def shared_cursor(b: Bench) -> None:
    """Two readers share a cursor: the commit of the slower one is refused."""
    recording = await b.writer("w1")
    await b.append(recording, 6)
    await recording.actor.inside(recording.writer.close(), "close")
    refused: list[CursorMoved] = []

    async def read(actor: ReaderActor, count: int, go: asyncio.Event, done: asyncio.Event) -> None:
        reader = actor.ns.read(b.stream, cursor="shared")
        for _ in range(count):
            await anext(reader)
        read_it.append(actor.host)
        await go.wait()
        try:
            await reader.commit()
        except CursorMoved as error:
            refused.append(error)
        await reader.close()
        done.set()

    steps = [asyncio.Event() for _ in range(3)]
    read_it: list[str] = []
    readers = []
    for n, (host, count) in enumerate((("r1", 5), ("r2", 2))):
        actor = await b.up(host)
        assert isinstance(actor, ReaderActor)
        readers.append(asyncio.ensure_future(actor.inside(read(actor, count, steps[n], steps[n + 1]), "read")))
    await b.until(lambda: len(read_it) == 2, "both have read")
    steps[0].set()
    await asyncio.gather(*readers)
    b.report.check("cursor", [error.offset for error in refused] == [5], "refused: {}", refused)


SCENARIOS: dict[str, Scenario] = {
    "reading-live": Scenario(reading_live),
    "frozen-writer": Scenario(frozen_writer),
    "frozen-in-a-roll": Scenario(frozen_in_a_roll),
    "lost-lease": Scenario(lost_lease),
    "polite": Scenario(polite),
    "no-ensemble": Scenario(no_ensemble),
    "metadata-away": Scenario(metadata_away),
    "truncated-under-readers": Scenario(truncated_under_readers),
    "ended": Scenario(ended),
    "expectations": Scenario(expectations),
    "retries": Scenario(retries),
    "table-outlives": Scenario(table_outlives),
    "overtaking": Scenario(overtaking, _small_buffer),
    "shared-cursor": Scenario(shared_cursor),
    **BREAKS,
    **FORKS,
    **WRONG_CLOCKS,
    **SLOW,
}


def run_stream_scenario(
    name: str,
    *,
    metadata: str = "memory",
    seed: int = 0,
    echo: Echo | None = None,
    mutant: AbstractContextManager[None] | None = None,
) -> ScheduleResult:
    scenario = SCENARIOS[name]
    plan = scenario.plan()
    plan.cluster.metadata = metadata
    return play(name, scenario.play, plan, seed=seed, echo=echo, mutant=mutant)


__all__ = ["SCENARIOS", "bench_plan", "run_stream_scenario"]
