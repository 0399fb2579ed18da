"""Stories of the metadata store: requests and replies that are lost, a store that is away, sessions that end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.sim.engine.metadata import HOST
from buckram.sim.ledgers.faults.registry import common

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults


async def metadata_loss(f: Faults) -> None:
    server = f.world.metadata
    if f.rng.random() < 0.6:
        for host in f.clients():
            server.lose_next(f.rng.choice(("before", "after", "after")), host, f.world.stores.ledger_keys)
    server.lose_before, server.lose_after = f.rng.choice(((0.3, 0.0), (0.0, 0.3), (0.2, 0.3), (0.0, 0.6)))
    f.world.disturb(HOST, 1)
    await asyncio.sleep(f.rng.random() * 3.0 + 0.2)
    server.lose_before = server.lose_after = 0.0
    f.world.disturb(HOST, -1)


async def metadata_down(f: Faults) -> None:
    f.world.metadata.down = True
    f.world.disturb(HOST, 1)
    await f.last(6.0)
    f.world.metadata.down = False
    f.world.disturb(HOST, -1)


async def expire(f: Faults) -> None:
    hosts = [host for host, process in f.world.processes.items() if not process.dead]
    host = f.rng.choice(hosts or ["b1"])
    keys = f.world.sessions.get(host)
    if keys is not None and not f.world.processes[host].dead:
        f.world.report.situation("session expired")
        keys.expire()
        f.world.disturb(host, 0)


common("metadata loss", 5, metadata_loss)
common("metadata down", 2, metadata_down)
common("expire", 3, expire)
