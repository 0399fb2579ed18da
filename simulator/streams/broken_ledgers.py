"""Directed schedules in which ledgers of a stream break: most bookies crash at the worst moment and come back.

The writer of the ledger fails. The writer of the stream must go on in a new segment, whatever was under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from buckram.errors import RecoveryFailed
from buckram.streams.write.writer import engine_of
from simulator.engine.metadata import HOST
from simulator.streams.bench import Bench, Scenario
from simulator.streams.recording import RecordingWriter

_TWO, _ALL = ("b2", "b3"), ("b1", "b2", "b3")


async def breaks_before_a_roll(b: Bench) -> None:
    """Two of three bookies crash with records under way, then the stream rolls: neither ledger can store them."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    _crash_bookies(b)
    b.appending(recording, 2)
    rolling = recording.actor.process.spawn(recording.writer.roll(), "roll")
    await asyncio.sleep(0.02)
    b.appending(recording, 2)
    await asyncio.sleep(1.0)
    await _restart_bookies(b)
    await b.until(rolling.done, "the roll", 60.0)
    await _check_writer_goes_on(b, recording)


async def breaks_before_a_roll_for_all(b: Bench) -> None:
    """No bookie has the last records of the old segment: they must come first in yet another one, and a retry once."""
    recording = await b.writer("w1")
    producer = b.stage.producers[0]
    await recording.actor.inside(recording.produce(producer, 2, one_by_one=False), "produce")
    _crash_bookies(b, _ALL)
    sending = recording.actor.process.spawn(recording.produce(producer, 2, one_by_one=False), "produce")
    b.appending(recording, 2)
    rolling = recording.actor.process.spawn(recording.writer.roll(), "roll")
    await b.until(lambda: engine_of(recording.writer)._roller.busy, "the switch")
    b.appending(recording, 2)
    recording.actor.process.spawn(recording.produce(b.stage.producers[1], 2, one_by_one=False), "produce")
    await asyncio.sleep(1.0)
    await _restart_bookies(b, _ALL)
    await b.until(lambda: rolling.done() and sending.done(), "the roll", 60.0)
    await _check_writer_goes_on(b, recording)
    second = await b.writer("w2", takeover=True)
    producer.acked = 1
    await second.actor.inside(second.produce(producer, 4, one_by_one=True), "produce")
    await _check_writer_goes_on(b, second)


async def breaks_in_a_roll(b: Bench) -> None:
    """Bookies crash after the switch to a new segment, before it is listed: only the old segment has its records."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    b.world.fabric.slow("w1", HOST, 0.3)
    rolling = recording.actor.process.spawn(recording.writer.roll(), "roll")
    await b.until(lambda: engine_of(recording.writer)._roller.busy, "the switch")
    b.appending(recording, 2)
    await asyncio.sleep(0.01)
    _crash_bookies(b)
    b.appending(recording, 2)
    await asyncio.sleep(1.5)
    b.world.fabric.slow("w1", HOST, 0.0)
    await _restart_bookies(b)
    await b.until(rolling.done, "the roll", 60.0)
    await _check_writer_goes_on(b, recording)


async def breaks_while_closing(b: Bench) -> None:
    """All records are acknowledged; only the marks at the end of the segment are not stored."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    _crash_bookies(b)
    closing = recording.actor.process.spawn(recording.writer.close(), "close")
    await asyncio.sleep(2.0)
    await _restart_bookies(b)
    await b.until(closing.done, "the close", 60.0)
    b.expect(closing.exception() is None, f"the writer did not close: {closing.exception()}")
    second = await b.writer("w2")
    await _check_writer_goes_on(b, second)


async def breaks_with_a_close_behind(b: Bench) -> None:
    """The ledger breaks while a close waits for its records."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    producer = b.stage.producers[0]
    await recording.actor.inside(recording.produce(producer, 2, one_by_one=False), "produce")
    _crash_bookies(b)
    b.appending(recording, 2)
    sending = recording.actor.process.spawn(recording.produce(producer, 3, one_by_one=False), "produce")
    await asyncio.sleep(0)
    closing = recording.actor.process.spawn(recording.writer.close(), "close")
    await asyncio.sleep(2.0)
    await _restart_bookies(b)
    await b.until(lambda: closing.done() and sending.done(), "the close", 60.0)
    b.expect(closing.exception() is None, f"the writer did not close: {closing.exception()}")
    second = await b.writer("w2")
    producer.acked = 0
    await second.actor.inside(second.produce(producer, 6, one_by_one=True), "produce")
    await _check_writer_goes_on(b, second)


async def breaks_again(b: Bench) -> None:
    """The segment in which the writer goes on breaks, too, before it is listed and right after."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    for pause in (0.0, 0.02, 0.2, 0.7):
        _crash_bookies(b)
        b.appending(recording, 2)
        await asyncio.sleep(1.0)
        await _restart_bookies(b)
        await asyncio.sleep(pause)
        _crash_bookies(b)
        b.appending(recording, 1)
        await asyncio.sleep(0.5)
        await _restart_bookies(b)
        await b.append(recording, 1)
    await _check_writer_goes_on(b, recording)


async def deleted_out_of_reach(b: Bench) -> None:
    """The deleting client reaches only the metadata, the writer only the bookies: the ledger must be fenced first."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    deleter = await b.up("d1")
    for bookie in _ALL:
        b.block_both_ways("d1", bookie)
    b.block_both_ways("w1", HOST)
    history = b.history
    refused = False
    try:
        await deleter.inside(deleter.ns.delete(b.stream), "delete")
    except RecoveryFailed:
        refused = True
    if not refused:
        history.deleted_at = b.facts.tick()
    records = [recording.fresh(20) for _ in range(3)]
    await recording.actor.inside(recording.append_many(records), "append")
    acked = [sent.ident for sent in recording.session.order[-3:] if sent.result == "ok"]
    b.report.check(
        "deleted", refused or not acked, "{} was deleted, but later appends were acknowledged: {}", b.stream, acked
    )
    b.unblock_both_ways("w1", HOST)
    for bookie in _ALL:
        b.unblock_both_ways("d1", bookie)
    await deleter.inside(deleter.ns.delete(b.stream), "delete")
    history.deleted_at = history.deleted_at or b.facts.tick()
    await recording.actor.inside(recording.append_many([recording.fresh(20)]), "append")
    b.expect(recording.session.order[-1].result != "ok", "an append of a fenced writer was acknowledged")


def _crash_bookies(b: Bench, names: Sequence[str] = _TWO) -> None:
    for name in names:
        b.world.crash(b.world.machines[name], power=False)


async def _restart_bookies(b: Bench, names: Sequence[str] = _TWO) -> None:
    for name in names:
        await b.faults.restart(b.world.machines[name])


async def _check_writer_goes_on(b: Bench, recording: RecordingWriter) -> None:
    await b.append(recording, 2)
    states = [(sent.ident, sent.result) for sent in recording.session.order if sent.result != "ok"]
    b.expect(not states, f"not acknowledged: {states}")
    b.expect(not recording.writer.closed, "the writer failed")


BREAKS: dict[str, Scenario] = {
    "breaks-before-a-roll": Scenario(breaks_before_a_roll),
    "breaks-before-a-roll-for-all": Scenario(breaks_before_a_roll_for_all),
    "breaks-in-a-roll": Scenario(breaks_in_a_roll),
    "breaks-while-closing": Scenario(breaks_while_closing),
    "deleted-out-of-reach": Scenario(deleted_out_of_reach),
    "breaks-with-a-close-behind": Scenario(breaks_with_a_close_behind),
    "breaks-again": Scenario(breaks_again),
}

__all__ = ["BREAKS"]
