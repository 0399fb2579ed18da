"""D1 to D10: the schedules of docs/reference/protocol.md 6.9. Each docstring says what a naive implementation
would do wrong."""

from __future__ import annotations

import asyncio

from buckram.types import LedgerState
from simulator.engine.metadata import HOST
from simulator.ledgers.scenarios.script import Script


async def amnesia(s: Script) -> None:
    """D1 (3/3/2): b3 never had the entries and b1 lost power, so both deny them: the ledger is truncated."""
    await s.bookies(3)
    w = await s.writer()
    s.world.pause("b3")
    w.append(4)
    await s.until(lambda: w.acked == 4, "acks by b1 and b2")
    s.power_loss("b1")
    s.world.pause("b2")
    await s.boot("b1")
    s.world.resume("b3")
    s.process("w1").crash()
    c = await s.recoverer()
    await s.start_recovery(c, w.ledger)
    s.world.resume("b2")
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] == 3, f"closed at {ledger.closed}")


async def lost_fence(s: Script) -> None:
    """D2 (3/3/2): recovery reads do not fence and b3 missed the first fence: it accepts entry 0 after the close."""
    await s.bookies(3)
    w = await s.writer()
    s.block(("w1", "b1"), ("w1", "b3"))
    w.append()
    await s.until(lambda: s.claimed(w.ledger, 0, "b2"), "entry 0 on b2")
    c = await s.recoverer()
    s.block(("c1", "b3"))
    recovery = s.start_recovery(c, w.ledger)
    await s.until(lambda: "b1" in s.ledger(w.ledger).fenced and "b2" in s.ledger(w.ledger).fenced, "b1, b2 fenced")
    s.block(("b2", "c1"), ("c1", "b2"))
    s.unblock(("c1", "b3"))
    await asyncio.sleep(1.0)
    s.unblock(("w1", "b3"), ("w1", "b1"))
    await asyncio.sleep(1.0)
    s.unblock(("b2", "c1"), ("c1", "b2"))
    await recovery
    await s.until(lambda: w.idle, "the writer's append ends")
    await s.recover_and_read(w.ledger)
    s.expect(w.acked == 0 or s.ledger(w.ledger).closed == (0, len(w.handle.payloads[0])), "acked and not in the ledger")


async def volatile_fence(s: Script) -> None:
    """D3 (2/2/2): b1 answers the fencing read with a denial and loses power before its sync: it accepts entry 0."""
    await s.bookies(3)
    w = await s.writer()
    s.block(("w1", "b1"), ("w1", "b2"))
    w.append()
    c = await s.recoverer()
    s.block(("c1", "b2"))
    recovery = s.start_recovery(c, w.ledger)
    await s.until(lambda: "b1" in s.ledger(w.ledger).fenced, "b1's answer leaves")
    s.power_loss("b1")
    await s.boot("b1")
    await recovery
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None, "not closed")
    s.unblock(("w1", "b1"), ("w1", "b2"))
    await s.until(lambda: w.idle, "the writer's append ends", 60.0)
    s.expect(w.acked == 0, "acknowledged after the close")


async def striping_change(s: Script) -> None:
    """D4 (3/2/2): after an ensemble change, adds are acknowledged that still count the dead bookie's acks."""
    await s.bookies(4)
    w = await s.writer()
    w.append(3)
    await s.until(lambda: w.acked == 3, "acks")
    for bookie in ("b1", "b3"):
        s.fabric.slow("w1", bookie, 1.0)
    w.append(6)
    await s.until(lambda: s.claimed(w.ledger, 4, "b2"), "b2 has its entries")
    await asyncio.sleep(0.01)
    for bookie in ("b1", "b3"):
        s.fabric.slow("w1", bookie, 0.0)
    await s.die_with_adds_under_way(w, "b2")
    await s.await_appends(w, 60.0)
    s.expect(w.acked == 12, f"{w.acked} of 12 acknowledged")
    await s.recover_and_read(w.ledger)


async def striping_change_late(s: Script) -> None:
    """D4 again, with acknowledgements of the other bookies under way while metadata is being changed."""
    await s.bookies(4)
    w = await s.writer()
    w.append(3)  # all bookies are connected and introduced: from now on only acknowledgements are late
    await s.until(lambda: w.acked == 3, "acks")
    for bookie in ("b1", "b3"):
        s.fabric.slow(bookie, "w1", 0.05)
    w.append(6)
    await s.until(lambda: s.claimed(w.ledger, 4, "b2") and s.claimed(w.ledger, 7, "b2"), "b2 has its entries")
    await asyncio.sleep(0.003)
    s.fabric.slow("w1", HOST, 0.1)
    await s.die_with_adds_under_way(w, "b2")
    await s.await_appends(w, 60.0)
    s.fabric.slow("w1", HOST, 0.0)
    s.expect(w.acked == 12, f"{w.acked} of 12 acknowledged")
    await s.recover_and_read(w.ledger)


async def identity_reuse(s: Script) -> None:
    """D5 (2/2/2): empty bookies under old ids accept a stale writer's add to a ledger that is closed."""
    await s.bookies(2)
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks")
    s.world.pause("w1")
    await s.recover_and_read(w.ledger)
    await s.replace_disk("b1")
    await s.replace_disk("b2")
    await asyncio.sleep(5.0)
    s.world.resume("w1")
    w.append(2)
    await s.until(lambda: w.idle, "the stale writer's appends end", 60.0)
    s.expect(w.acked == 2, "acknowledged by bookies that never saw the ledger")


async def asymmetric_recoverers(s: Script) -> None:
    """D6 (2/2/2): one recovery writes back what the other takes for absent, and a reader sees it by the LAC."""
    await s.bookies(3)
    w = await s.writer()
    s.block(("w1", "b2"))
    w.append(2)
    await s.until(lambda: s.claimed(w.ledger, 1, "b1"), "both entries on b1")
    s.process("w1").crash()
    y, x = await s.recoverer("y1"), await s.recoverer("x1")
    s.block(("b1", "y1"))
    denied = s.start_recovery(y, w.ledger)
    await s.until(lambda: ("b2", 0) in s.ledger(w.ledger).negatives, "b2's denial leaves for y1")
    s.world.pause("y1")
    s.block(("b2", "x1"))
    other = s.start_recovery(x, w.ledger)
    await asyncio.sleep(0.1)
    # x1 can write everything back, but it cannot close the ledger yet.
    s.block(("x1", HOST))
    s.unblock(("b2", "x1"))
    await asyncio.sleep(1.0)
    r = await s.reader()
    assert r.client is not None
    reading = asyncio.create_task(s.world.join(s.process("r1"), r.read_ledger(r.client, w.ledger), "visit"))
    await asyncio.sleep(1.0)
    s.world.resume("y1")
    s.unblock(("b1", "y1"))
    await denied
    s.unblock(("x1", HOST))
    await asyncio.gather(other, reading)
    await s.recover_and_read(w.ledger)


async def empty_tail_fragment(s: Script) -> None:
    """D7 (3/3/2): the last fragment is empty and has a dead bookie: recovery starts below it and never ends."""
    await s.bookies(4)
    w = await s.writer()
    w.append(3)
    await s.until(lambda: w.acked == 3, "acks")
    s.block(("w1", "b1"), ("w1", "b2"), ("w1", "b4"), ("b4", "w1"))
    s.kill("b3")
    w.append()
    await s.until(lambda: len(s.ledger(w.ledger).metadata.fragments) == 2, "the change is recorded", 60.0)  # type: ignore[union-attr]
    s.process("w1").crash()
    s.kill("b4")
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] >= 2, f"closed at {ledger.closed}")


async def lost_replies(s: Script) -> None:
    """D8: the store applies a write and the reply is lost: for create, change, close, and both writes of recovery."""
    await s.bookies(4)
    s.world.metadata.lose_next("after", "w1", s.world.stores.ledger_keys)
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks")
    s.world.metadata.lose_next("after", "w1", s.world.stores.ledger_keys)
    s.kill("b1")
    w.append(2)
    await s.until(lambda: w.acked == 4, "acks after the change", 60.0)
    s.world.metadata.lose_next("after", "w1", s.world.stores.ledger_keys)
    await s.world.join(s.process("w1"), w.writer.close(), "close")
    s.expect(s.ledger(w.ledger).state is LedgerState.CLOSED, "not closed")
    v = await s.writer("w2", order=False)
    v.append(2)
    await s.until(lambda: v.acked == 2, "acks of the second ledger")
    c = await s.recoverer()
    s.world.metadata.lose_next("after", "c1", s.world.stores.ledger_keys)
    s.world.metadata.lose_next("after", "c1", s.world.stores.ledger_keys)
    s.expect(await s.start_recovery(c, v.ledger), "a recovery failed although both its writes succeeded")
    await s.recover_and_read(v.ledger)
    created = [ledger for ledger in s.facts.ledgers.values() if ledger.writer in ("w1", "w2")]
    s.expect(len(created) == 2, f"{len(created)} ledgers were made for two calls of create")


async def late_acks(s: Script) -> None:
    """D9 (3/3/2): acknowledgements of pending adds arrive before, during and after the close."""
    await s.bookies(3)
    for delay in (0.0005, 0.002, 0.02):
        w = await s.writer(f"w{int(delay * 10000)}")
        w.append()
        await s.until(lambda w=w: w.acked == 1, "ack")
        for bookie in ("b1", "b2", "b3"):
            s.fabric.slow(bookie, w.host, delay)
        w.append(5)
        await asyncio.sleep(0.002)
        await s.world.join(s.process(w.host), w.writer.close(wait=False), "close")
        await asyncio.sleep(1.0)
        s.expect(w.idle, "an append is still pending after close")
        await s.recover_and_read(w.ledger, f"f{w.host}")


async def change_back(s: Script) -> None:
    """D10 (3/3/3, 4 bookies): a position fails to b4 and back within one change: what it missed is never resent."""
    await s.bookies(4)
    w = await s.writer()
    w.append()
    await s.until(lambda: w.acked == 1, "ack")
    s.fabric.slow("w1", HOST, 0.3)
    s.fabric.slow("b1", "w1", 0.9)
    s.kill("b3")
    w.append(3)
    await asyncio.sleep(0.2)
    s.kill("b4")
    await asyncio.sleep(0.1)
    await s.boot("b3")
    s.fabric.slow("w1", HOST, 0.0)
    s.fabric.slow("b1", "w1", 0.0)
    await s.await_appends(w, 90.0)
    await s.recover_and_read(w.ledger)
