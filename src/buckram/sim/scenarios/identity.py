"""Directed schedules about identity: which ledger it is that an id names, and who still believes that it is there."""

from __future__ import annotations

import asyncio

from buckram.sim.scenarios.script import Pen, Script


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
