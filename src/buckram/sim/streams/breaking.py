"""Directed schedules in which ledgers of a stream break: most bookies are away at the worst moment and come back.

The ledger's writer gives up; the stream's goes on in a new segment, whatever was under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from buckram.errors import RecoveryFailed
from buckram.sim.engine.metadata import HOST
from buckram.sim.streams.bench import Bench, Scenario
from buckram.sim.streams.writing import Pen
from buckram.streams.write.writer import engine_of

_TWO, _ALL = ("b2", "b3"), ("b1", "b2", "b3")


async def breaks_before_a_roll(b: Bench) -> None:
    """Two of three bookies go with records on their way, then it rolls: neither ledger takes them."""
    pen = await b.writer("w1")
    await b.append(pen, 3)
    _lose(b)
    b.appending(pen, 2)
    rolling = pen.actor.process.spawn(pen.writer.roll(), "roll")
    await asyncio.sleep(0.02)
    b.appending(pen, 2)
    await asyncio.sleep(1.0)
    await _back(b)
    await b.until(rolling.done, "the roll", 60.0)
    await _goes_on(b, pen)


async def breaks_before_a_roll_for_all(b: Bench) -> None:
    """No bookie has the last records of the old segment: they come first in yet another one, the retry of one too."""
    pen = await b.writer("w1")
    producer = b.stage.producers[0]
    await pen.actor.inside(pen.produce(producer, 2, one_by_one=False), "produce")
    _lose(b, _ALL)
    sending = pen.actor.process.spawn(pen.produce(producer, 2, one_by_one=False), "produce")
    b.appending(pen, 2)
    rolling = pen.actor.process.spawn(pen.writer.roll(), "roll")
    await b.until(lambda: engine_of(pen.writer)._roller.busy, "the switch")
    b.appending(pen, 2)
    pen.actor.process.spawn(pen.produce(b.stage.producers[1], 2, one_by_one=False), "produce")
    await asyncio.sleep(1.0)
    await _back(b, _ALL)
    await b.until(lambda: rolling.done() and sending.done(), "the roll", 60.0)
    await _goes_on(b, pen)
    second = await b.writer("w2", takeover=True)
    producer.acked = 1
    await second.actor.inside(second.produce(producer, 4, one_by_one=True), "produce")
    await _goes_on(b, second)


async def breaks_in_a_roll(b: Bench) -> None:
    """They go between the switch and the list: the old segment has all its records, the new one lost its bookies."""
    pen = await b.writer("w1")
    await b.append(pen, 3)
    b.world.fabric.slow("w1", HOST, 0.3)
    rolling = pen.actor.process.spawn(pen.writer.roll(), "roll")
    await b.until(lambda: engine_of(pen.writer)._roller.busy, "the switch")
    b.appending(pen, 2)
    await asyncio.sleep(0.01)
    _lose(b)
    b.appending(pen, 2)
    await asyncio.sleep(1.5)
    b.world.fabric.slow("w1", HOST, 0.0)
    await _back(b)
    await b.until(rolling.done, "the roll", 60.0)
    await _goes_on(b, pen)


async def breaks_while_closing(b: Bench) -> None:
    """Everything is acknowledged; only the last marks do not get through."""
    pen = await b.writer("w1")
    await b.append(pen, 3)
    _lose(b)
    closing = pen.actor.process.spawn(pen.writer.close(), "close")
    await asyncio.sleep(2.0)
    await _back(b)
    await b.until(closing.done, "the close", 60.0)
    b.expect(closing.exception() is None, f"the writer did not close: {closing.exception()}")
    second = await b.writer("w2")
    await _goes_on(b, second)


async def breaks_with_a_close_behind(b: Bench) -> None:
    """A close waits for records whose ledger breaks."""
    pen = await b.writer("w1")
    await b.append(pen, 3)
    producer = b.stage.producers[0]
    await pen.actor.inside(pen.produce(producer, 2, one_by_one=False), "produce")
    _lose(b)
    b.appending(pen, 2)
    sending = pen.actor.process.spawn(pen.produce(producer, 3, one_by_one=False), "produce")
    await asyncio.sleep(0)
    closing = pen.actor.process.spawn(pen.writer.close(), "close")
    await asyncio.sleep(2.0)
    await _back(b)
    await b.until(lambda: closing.done() and sending.done(), "the close", 60.0)
    b.expect(closing.exception() is None, f"the writer did not close: {closing.exception()}")
    second = await b.writer("w2")
    producer.acked = 0
    await second.actor.inside(second.produce(producer, 6, one_by_one=True), "produce")
    await _goes_on(b, second)


async def breaks_again(b: Bench) -> None:
    """The segment in which it goes on breaks, too, before it is listed and right after."""
    pen = await b.writer("w1")
    await b.append(pen, 3)
    for pause in (0.0, 0.02, 0.2, 0.7):
        _lose(b)
        b.appending(pen, 2)
        await asyncio.sleep(1.0)
        await _back(b)
        await asyncio.sleep(pause)
        _lose(b)
        b.appending(pen, 1)
        await asyncio.sleep(0.5)
        await _back(b)
        await b.append(pen, 1)
    await _goes_on(b, pen)


async def deleted_out_of_reach(b: Bench) -> None:
    """Who deletes reaches the metadata only, the writer the bookies only: nothing goes before it is fenced."""
    pen = await b.writer("w1")
    await b.append(pen, 3)
    deleter = await b.up("d1")
    for bookie in _ALL:
        b.fabric_cut("d1", bookie)
    b.fabric_cut("w1", HOST)
    line = b.line
    refused = False
    try:
        await deleter.inside(deleter.ns.delete(b.stream), "delete")
    except RecoveryFailed:
        refused = True
    if not refused:
        line.deleted_at = b.facts.tick()
    records = [pen.fresh(20) for _ in range(3)]
    await pen.actor.inside(pen.append_many(records), "append")
    told = [sent.ident for sent in pen.session.order[-3:] if sent.result == "ok"]
    b.report.check("deleted", refused or not told, "{} was deleted, its writer was told afterwards: {}", b.stream, told)
    b.fabric_mend("w1", HOST)
    for bookie in _ALL:
        b.fabric_mend("d1", bookie)
    await deleter.inside(deleter.ns.delete(b.stream), "delete")
    line.deleted_at = line.deleted_at or b.facts.tick()
    await pen.actor.inside(pen.append_many([pen.fresh(20)]), "append")
    b.expect(pen.session.order[-1].result != "ok", "a fenced writer was told")


def _lose(b: Bench, names: Sequence[str] = _TWO) -> None:
    for name in names:
        b.world.crash(b.world.machines[name], power=False)


async def _back(b: Bench, names: Sequence[str] = _TWO) -> None:
    for name in names:
        await b.faults.restart(b.world.machines[name])


async def _goes_on(b: Bench, pen: Pen) -> None:
    await b.append(pen, 2)
    states = [(sent.ident, sent.result) for sent in pen.session.order if sent.result != "ok"]
    b.expect(not states, f"not acknowledged: {states}")
    b.expect(not pen.writer.closed, "the writer failed")


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
