"""Faults of the metadata store: lost requests and replies, an unavailable store, sessions that expire."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulator.engine.faults.registry import register_common

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner


async def lose_metadata_messages(f: FaultRunner) -> None:
    server = f.world.metadata
    if f.rng.random() < 0.6:
        for host in f.client_hosts():
            server.lose_next(f.rng.choice(("before", "after", "after")), host, f.world.stores.ledger_keys)
    server.lose_before, server.lose_after = f.rng.choice(((0.3, 0.0), (0.0, 0.3), (0.2, 0.3), (0.0, 0.6)))
    f.world.disturb(f.world.metadata.host, 1)
    await asyncio.sleep(f.rng.random() * 3.0 + 0.2)
    server.lose_before = server.lose_after = 0.0
    f.world.disturb(f.world.metadata.host, -1)


async def metadata_down(f: FaultRunner) -> None:
    f.world.metadata.down = True
    f.world.disturb(f.world.metadata.host, 1)
    await f.wait_a_while(6.0)
    f.world.metadata.down = False
    f.world.disturb(f.world.metadata.host, -1)


async def expire_session(f: FaultRunner) -> None:
    hosts = [host for host, process in f.world.processes.items() if not process.dead]
    host = f.rng.choice(hosts or ["b1"])
    session = f.world.sessions.get(host)
    if session is not None and not f.world.processes[host].dead:
        f.world.report.situation("session expired")
        session.expire()
        f.world.disturb(host, 0)


register_common("metadata loss", 5, lose_metadata_messages)
register_common("metadata down", 2, metadata_down)
register_common("expire", 3, expire_session)
