"""Directed schedules of quotas: a full namespace, one over its rate, and the entries that were acknowledged there."""

from __future__ import annotations

import asyncio

from buckram.metadata.records.tenants import TenantStore
from simulator.ledgers.scenarios.script import Script, ScriptedWriter


async def _limit(s: Script, **quotas: int | None) -> None:
    """Set quotas of the namespace of all ledgers here; they are in force when this returns."""
    await TenantStore(s.setup).set_quotas("default", quotas)

    def known() -> bool:
        counting = [machine.bookie.accounting for machine in s.world.machines.values() if machine.bookie is not None]
        return all(
            one is not None and one.on and all(getattr(one.quotas.get("default"), name, None) == value
            for name, value in quotas.items()) for one in counting
        )  # fmt: skip

    await s.until(known, "the quota is known")


async def _append_until_it_ends(s: Script, w: ScriptedWriter) -> None:
    for _ in range(200):
        if any(result not in ("pending", "acked") for result in w.handle.results):
            break
        w.append(2)
        await asyncio.sleep(0.05)
    await s.await_appends(w)


async def used_up(s: Script) -> None:
    """Q1 (3/3/2): bookies refuse at different entries, as each counts the others late: what was acknowledged stays."""
    await s.bookies(3)
    await _limit(s, stored_bytes=6000)
    w = await s.writer()
    await _append_until_it_ends(s, w)
    s.expect(0 < w.acked < 60, f"{w.acked} acknowledged")
    s.power_loss("b1")
    await s.boot("b1")
    ledger = await s.recover_and_read(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] >= w.acked - 1, f"closed at {ledger.closed}")
    await _limit(s, stored_bytes=None)
    again = await s.writer("w2")
    again.append(3)
    await s.await_appends(again)
    s.expect(again.acked == 3, f"{again.acked} of 3 acknowledged after the quota was taken back")


async def over_its_rate(s: Script) -> None:
    """Q3 (3/3/2): adds wait for their rate when the writer dies; the recovery passes them, and they stay refused."""
    await s.bookies(3)
    await _limit(s, in_entries_per_s=20)
    w = await s.writer()
    w.append(300)
    await s.until(lambda: w.acked >= 30, "some are acknowledged", deadline_s=60.0)
    s.expect(not w.idle, "nothing waits")
    c = await s.recoverer()
    began = s.world.loop.time()
    await s.start_recovery(c, w.ledger)
    s.expect(s.world.loop.time() - began < 5.0, "the recovery waited for the rate")
    await s.await_appends(w)
    await s.read_in_full(c, w.ledger)
    ledger = s.ledger(w.ledger)
    s.expect(ledger.closed is not None and ledger.closed[0] >= w.acked - 1, f"closed at {ledger.closed}")
