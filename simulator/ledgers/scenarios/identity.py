"""Directed schedules about identity: ledger ids that are used again, and stale writers of deleted ledgers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from buckram.metadata.tree.layout import Layout
from simulator.ledgers.scenarios.script import Script, ScriptedWriter


async def _delete(s: Script, w: ScriptedWriter) -> None:
    """Close and delete the ledger, as a client's `delete` does."""
    await s.recover_and_read(w.ledger, "d1")
    await s.setup.delete_ledger(w.ledger, (await s.setup.read_ledger(w.ledger)).version)


async def reuse_after_deletion(s: Script) -> None:
    """D5-delete (2/2/2): empty bookies under old ids accept a stale writer's add to a deleted ledger, because
    neither they nor metadata know the ledger."""
    await s.bookies(2)
    w = await s.writer()
    w.append(2)
    await s.until(lambda: w.acked == 2, "acks")
    s.world.pause("w1")
    await _delete(s, w)
    await s.replace_disk("b1")
    await s.replace_disk("b2")
    await asyncio.sleep(5.0)
    s.world.resume("w1")
    w.append(2)
    await s.until(lambda: w.idle, "the stale writer's appends end", 60.0)
    s.expect(w.acked == 2, "acknowledged although metadata does not know the ledger")


async def _create_with_used_id(
    s: Script, old: ScriptedWriter, host: str = "w2", *, accepted: bool = True
) -> ScriptedWriter:
    """Create a ledger with the id of a deleted one, as after the id counter was restored from an old backup.

    `accepted`: an operator accepted the restore, so bookies know that ids may be used twice.
    """
    assert isinstance(s.setup.layout, Layout)
    counter = s.setup.layout.next_ledger_id
    await s.setup.keys.delete(counter, (await s.setup.keys.get(counter)).version)
    if accepted:
        for machine in s.world.machines.values():
            assert machine.bookie is not None
            assert machine.bookie.witness is not None
            witness = machine.bookie.witness
            witness._memory.value = replace(witness.memory, settled=old.ledger)
    w = await s.writer(host)
    s.expect(w.ledger == old.ledger, f"ledger {w.ledger} instead of {old.ledger}")
    return w


async def _ledger_without_metadata(s: Script) -> ScriptedWriter:
    """Create a ledger with ten entries, then crash its writer and delete its metadata. Bookies keep the entries."""
    await s.bookies(3)
    w = await s.writer()
    w.append(10)
    await s.until(lambda: w.acked == 10 and s.claimed(w.ledger, 9, "b3"), "acks")
    s.process("w1").crash()
    key = await s.setup.ledger_key(w.ledger)
    await s.setup.keys.delete(key, (await s.setup.keys.get(key)).version)  # no deletion is recorded
    return w


async def an_id_used_again(s: Script) -> None:
    """Create, ten entries, delete, create the same id, two entries: readers and recovery see two."""
    old = await _ledger_without_metadata(s)
    w = await _create_with_used_id(s, old)
    w.append(2)
    await s.until(lambda: w.idle, "appends end", 60.0)
    s.world.report.check("I7", w.acked == 2, "{} of 2 entries of a new ledger were acknowledged", w.acked)
    s.process("w2").crash()
    closed = (await s.recover_and_read(w.ledger)).closed
    s.world.report.check("I7", closed is not None and closed[0] == 1, "it ends at {}, not at entry 1", closed)


async def an_id_used_again_for_nothing(s: Script) -> None:
    """The new ledger has no entry, but recovery reads from bookies that hold ten entries of the old one."""
    old = await _ledger_without_metadata(s)
    w = await _create_with_used_id(s, old)
    s.process("w2").crash()
    closed = (await s.recover_and_read(w.ledger)).closed
    s.world.report.check("I8", closed is not None and closed[0] == -1, "it ends at {}, and has no entries", closed)


async def an_id_given_twice(s: Script) -> None:
    """The id counter went back, and no operator accepted this: bookies keep the ledger that has the id."""
    old = await _ledger_without_metadata(s)
    w = await _create_with_used_id(s, old, accepted=False)
    w.append(2)
    await s.until(lambda: w.idle, "appends end", 60.0)
    s.world.report.check("I27", w.acked == 0, "{} entries of a second ledger of one id were acknowledged", w.acked)
    for name in ("b1", "b2", "b3"):
        bookie = s.world.machines[name].bookie
        assert bookie is not None
        assert bookie.store is not None
        s.world.report.check("I27", bookie.store.entries(old.ledger) == [(0, 10)], "{} dropped acknowledged data", name)


async def an_id_used_after_its_deletion(s: Script) -> None:
    """Bookies have deleted the old ledger, and keep a tombstone, which must not fence the new ledger."""
    old = await _ledger_without_metadata(s)
    for name in ("b1", "b2", "b3"):
        bookie = s.world.machines[name].bookie
        assert bookie is not None
        assert bookie.store is not None
        bookie.store.delete_ledger(old.ledger)
    w = await _create_with_used_id(s, old)
    w.append(2)
    await s.until(lambda: w.idle, "appends end", 60.0)
    s.world.report.check("I9", w.acked == 2, "{} of 2 entries were acknowledged behind an old tombstone", w.acked)
    await s.recover_and_read(w.ledger)
