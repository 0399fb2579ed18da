"""A directed schedule with bookies whose disks become slower than a stream's writer waits."""

from __future__ import annotations

import asyncio

from simulator.streams.bench import Bench, Scenario

SLOW_S = 3.0
"""Duration of a slow disk sync, seconds: longer than a request may take (quiet_plan)."""
LASTS_S = 20.0
MOST_LEDGERS = 15


async def slow_bookies(b: Bench) -> None:
    """While no entry can be acknowledged, a naive writer creates ledger after ledger. Afterwards it must go on within
    seconds, with each record stored once."""
    recording = await b.writer("w1")
    await b.append(recording, 3)
    before = await _next_id(b)
    normal = {name: machine.device.sync_s for name, machine in b.world.machines.items()}
    for machine in b.world.machines.values():
        b.world.disturb("w1", 1)
        machine.device.sync_s = (SLOW_S, SLOW_S)
    appending = b.appending(recording, 5)
    await asyncio.sleep(LASTS_S)
    created = await _next_id(b) - before - 1
    b.expect(created <= MOST_LEDGERS, f"{created} ledgers were created in {LASTS_S} s in vain")
    for name, machine in b.world.machines.items():
        machine.device.sync_s = normal[name]
        b.world.disturb("w1", -1)
    await b.until(appending.done, "the records are acknowledged", 10.0)
    b.expect(recording.session.order[-1].result == "ok", "the writer gave up")
    await b.append(recording, 2)


async def _next_id(b: Bench) -> int:
    actor = await b.up("r1")
    assert actor.client is not None
    return await actor.inside(actor.client.services.store.allocate_ledger_id(), "id")


SLOW = {"slow-bookies": Scenario(slow_bookies)}
