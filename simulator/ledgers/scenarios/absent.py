"""Directed schedules of ledgers that are created while a bookie of their ensemble is unavailable (M11)."""

from __future__ import annotations

import asyncio

from buckram.client.write.writer import engine_of
from buckram.errors import BuckramError, NotEnoughBookies
from simulator.ledgers.scenarios.script import Script


async def _kill_and_await_expiry(s: Script, *names: str) -> None:
    """Kill the bookies and wait until they are no longer registered."""
    s.kill(*names)
    for _ in range(600):
        if not set(names) & set((await s.setup.bookies()).writable):
            return
        await asyncio.sleep(0.1)
    s.expect(False, f"{names} stay registered")


async def away_at_birth(s: Script) -> None:
    """M11 (3/3/2): b3 is unavailable when the ledger is created and returns with an empty disk under its old id: its
    denials must not make recovery end below an acknowledged entry."""
    await s.bookies(3)
    await _kill_and_await_expiry(s, "b3")
    w = await s.writer(order=False)
    absent = engine_of(w.writer)._window.absent
    s.expect(set(absent.values()) == {"b3"}, f"absent: {absent}")
    w.append(3)
    await s.until(lambda: w.acked == 3, "acks by b1 and b2")
    s.block(("w1", "b2"))
    w.append()
    await asyncio.sleep(0.5)
    s.expect(w.acked == 3, "acknowledged by b1 alone")
    s.process("w1").crash()
    s.unblock(("w1", "b2"))
    await s.replace_disk("b3")
    s.kill("b2")
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] >= 2, f"closed at {ledger.closed}")


async def two_away_at_birth(s: Script) -> None:
    """M11 (3/3/2): with two of three bookies unavailable no write set has an ack quorum, so create fails."""
    await s.bookies(3)
    await _kill_and_await_expiry(s, "b2", "b3")
    try:
        await s.writer(order=False)
    except NotEnoughBookies:
        s.world.report.check("M11", True)
    except BuckramError as error:
        s.expect(False, f"another error: {error!r}")
    else:
        s.world.report.check("M11", False, "a ledger with two of three members away")
