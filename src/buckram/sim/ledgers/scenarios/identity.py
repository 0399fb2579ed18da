"""Directed schedules about identity: which ledger it is that an id names, and who still believes that it is there."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from buckram.metadata.layout import Layout
from buckram.sim.ledgers.scenarios.script import Pen, Script


async def deleted(s: Script, w: Pen) -> None:
    """The ledger is closed and deleted, as a client's `delete` does it."""
    await s.recovered(w.ledger, "d1")
    await s.setup.delete_ledger(w.ledger, (await s.setup.read_ledger(w.ledger)).version)


async def reuse_after_deletion(s: Script) -> None:
    """D5-delete (2/2/2): empty bookies under old ids take a stale writer's add of a ledger that was deleted, after
    they denied its entries: metadata does not know it, and nobody else does."""
    await s.bookies(2)
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks")
    s.world.pause("w1")
    await deleted(s, w)
    await s.replace_disk("b1")
    await s.replace_disk("b2")
    await asyncio.sleep(5.0)
    s.world.resume("w1")
    w.append(2)
    await s.until(lambda: w.over, "the stale writer's appends end", 60.0)
    s.expect(w.acked == 2, "acknowledged although metadata does not know the ledger")


async def another(s: Script, old: Pen, host: str = "w2", *, accepted: bool = True) -> Pen:
    """A new ledger under the id of one that is gone: the counter was restored from an old backup. `accepted`: bookies
    know that ids may have been given twice."""
    assert isinstance(s.setup.layout, Layout)
    counter = s.setup.layout.next_ledger_id
    await s.setup.keys.delete(counter, (await s.setup.keys.get(counter)).version)
    if accepted:
        for machine in s.world.machines.values():
            assert machine.bookie is not None
            assert machine.bookie.witness is not None
            witness = machine.bookie.witness
            witness.memory = replace(witness.memory, settled=old.ledger)
    w = await s.writer(host)
    s.expect(w.ledger == old.ledger, f"ledger {w.ledger} instead of {old.ledger}")
    return w


async def _forgotten(s: Script) -> Pen:
    """Ten entries of a ledger whose writer is dead and whose record is gone; its bookies hold all of them."""
    await s.bookies(3)
    w = await s.writer()
    w.append(10)
    await s.until(lambda: w.acked == 10 and s.claimed(w.ledger, 9, "b3"), "acks")
    s.process("w1").crash()
    await s.setup.delete_ledger(w.ledger, (await s.setup.read_ledger(w.ledger)).version)
    return w


async def an_id_used_again(s: Script) -> None:
    """Create, ten entries, delete, create the same id, two entries: readers and recovery see two."""
    old = await _forgotten(s)
    w = await another(s, old)
    w.append(2)
    await s.until(lambda: w.over, "appends end", 60.0)
    s.world.report.check("I7", w.acked == 2, "{} of 2 entries of a new ledger were acknowledged", w.acked)
    s.process("w2").crash()
    closed = (await s.recovered(w.ledger)).closed
    s.world.report.check("I7", closed is not None and closed[0] == 1, "it ends at {}, not at entry 1", closed)


async def an_id_used_again_for_nothing(s: Script) -> None:
    """As before, but the new ledger has no entry: recovery asks bookies that hold ten of the old one."""
    old = await _forgotten(s)
    w = await another(s, old)
    s.process("w2").crash()
    closed = (await s.recovered(w.ledger)).closed
    s.world.report.check("I8", closed is not None and closed[0] == -1, "it ends at {}, and has no entries", closed)


async def an_id_given_twice(s: Script) -> None:
    """A store that went back by less than its witnesses tell gives an id again: the ledger that has it stays."""
    old = await _forgotten(s)
    w = await another(s, old, accepted=False)
    w.append(2)
    await s.until(lambda: w.over, "appends end", 60.0)
    s.world.report.check("I27", w.acked == 0, "{} entries of a second ledger of one id were acknowledged", w.acked)
    for name in ("b1", "b2", "b3"):
        bookie = s.world.machines[name].bookie
        assert bookie is not None
        assert bookie.store is not None
        s.world.report.check("I27", bookie.store.entries(old.ledger) == [(0, 10)], "{} dropped acknowledged data", name)


async def an_id_used_after_its_burial(s: Script) -> None:
    """Bookies have collected the old ledger: what is left of it is a fence, which is not the new ledger's."""
    old = await _forgotten(s)
    for name in ("b1", "b2", "b3"):
        bookie = s.world.machines[name].bookie
        assert bookie is not None
        assert bookie.store is not None
        bookie.store.delete_ledger(old.ledger)
    w = await another(s, old)
    w.append(2)
    await s.until(lambda: w.over, "appends end", 60.0)
    s.world.report.check("I9", w.acked == 2, "{} of 2 entries were acknowledged behind an old tombstone", w.acked)
    await s.recovered(w.ledger)
