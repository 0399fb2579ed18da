"""Directed schedules of forks. Each docstring says what a naive implementation would do wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from buckram.core.streams.metadata.mirrors import SUPERSEDED
from buckram.core.streams.replication_links import Link
from buckram.errors import BuckramError
from buckram.replication.fencing import supersede
from buckram.replication.sides import side_of
from buckram.streams.write.writer import engine_of
from simulator.streams.bench import Bench, Scenario
from simulator.streams.bulk_publishing import Publisher
from simulator.streams.maintenance import Truncator
from simulator.streams.recording import RecordingWriter
from simulator.streams.stage import NAMESPACE, Actor, full


async def _open(b: Bench, actor: Actor, stream: str) -> RecordingWriter:
    """Open a writer of another stream than the bench's. This must run as code of the actor's process."""
    session = b.stage.rules.new_session(actor.host)
    writer = await actor.ns.writer(stream, name=actor.host, create=False)
    b.stage.rules.writer_opened(session, engine_of(writer)._claim.uid, writer.epoch, writer.next_offset)
    return RecordingWriter(actor, stream, writer, session)


async def inherited_table(b: Bench) -> None:
    """The segment with the producers' table is truncated, trimmed, and needed by two forks that never listed it. One's
    writer dies with a record under way, the other is deleted, and so is the source."""
    producer = b.stage.producers[0]
    recording = await b.writer("w1")
    await recording.actor.inside(recording.produce(producer, 3, one_by_one=False), "produce")
    await recording.actor.inside(recording.writer.close(), "close")
    publisher = Publisher(b.stage, "p1")
    await publisher.up(20)
    for publisher.version in range(2):
        await publisher.inside(publisher.step(b.stream, seal_live=False), "step")
    head = b.history.head
    assert head is not None
    truncator = Truncator(b.stage, "t1")
    await truncator.up(20)
    await truncator.inside(truncator.truncate_before(b.stream, b.history, head.tail[1].end, True), "truncate")
    b.expect(b.history.head is not None and b.history.head.table is not None, "the table's segment is listed still")
    first, second = await b.up("k1"), await b.up("k2")
    for actor, name in ((first, "branch"), (second, "twig")):
        made = await actor.inside(actor.ns.fork_stream(b.stream, name), "fork")
        b.expect(made.producers, "the fork does not know the producers")
    await second.inside(second.ns.delete("twig"), "delete")
    fork = await first.inside(_open(b, first, "branch"), "open")
    ident, content = producer.content(2)
    await first.inside(fork.append(ident, content), "append")
    b.report.check("idempotent", b.facts.sent[ident][-1].result == "ok", "{} is not known in the fork", ident)
    b.appending(fork, 2)
    await asyncio.sleep(0.0003)
    fork.actor.process.crash()
    fork.session.lost = True
    await second.inside(second.ns.delete(b.stream), "delete")


async def superseded_meanwhile(b: Bench) -> None:
    """The other one of two clusters is promoted while a fork is being made, which has no records that could be fenced.
    A fork that is left alone would be complete a moment later, and be written by anybody."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    await recording.actor.inside(recording.writer.close(), "close")
    forker, operator = await b.up("k1"), await b.up("k2")
    bookies = [f"b{number}" for number in range(1, b.plan.cluster.bookies + 1)]
    for bookie in bookies:
        b.block_both_ways("k1", bookie)
    forking = forker.process.spawn(_outcome(forker.ns.fork_stream(b.stream, "branch", offset=2)), "fork")
    fork = full("branch")
    await b.until(lambda: fork in b.facts.current and b.facts.current[fork].head is not None, "the fork has a head")
    head = b.facts.current[fork].head
    b.expect(head is not None and head.incomplete, "the fork is being made")
    await operator.inside(_supersede(operator, "branch"), "supersede")
    for bookie in bookies:
        b.unblock_both_ways("k1", bookie)
    outcome = await forking
    b.expect("fork again" in outcome or "does not exist" in outcome, f"the fork was made: {outcome}")
    b.expect(not await operator.inside(operator.ns.exists("branch"), "look"), "the fork is there and has no mark")


async def _outcome(work: Awaitable[object]) -> str:
    try:
        return repr(await work)
    except BuckramError as error:
        return str(error)


async def _supersede(actor: Actor, stream: str) -> None:
    """Fence one stream, as if another cluster had been promoted in the place of this one."""
    assert actor.client is not None
    side = await side_of(actor.client)
    await supersede(side, NAMESPACE, Link(SUPERSEDED, "other", "", 1, 0, (stream,)))


FORKS: dict[str, Scenario] = {
    "inherited-table": Scenario(inherited_table),
    "superseded-meanwhile": Scenario(superseded_meanwhile),
}

__all__ = ["FORKS"]
