"""Faults of streams, besides those of `simulator/engine/faults`: leases that expire, lost replies to changes of
heads.
"""

from __future__ import annotations

import asyncio

from simulator.engine.faults import FaultRunner, register_common
from simulator.engine.faults.registry import STREAMS


def _live_hosts(f: FaultRunner, first: str) -> list[str]:
    return [host for host in f.client_hosts() if host[0] in first and not f.world.processes[host].dead]


async def expire_writer(f: FaultRunner) -> None:
    """Expire a writer's session while it goes on writing; another one may take the lease at once."""
    for _ in range(f.rng.choice((1, 1, 2))):
        hosts = _live_hosts(f, "w")
        if hosts:
            host = f.rng.choice(hosts)
            f.world.report.situation("lease expired under a writer")
            f.world.sessions[host].expire()
            f.world.disturb(host, 0)
        await asyncio.sleep(f.rng.random())


async def crash_writer(f: FaultRunner) -> None:
    hosts = _live_hosts(f, "w")
    if hosts:
        host = f.rng.choice(hosts)
        f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 150))
        f.world.disturb(host, 1)


async def crash_maintenance(f: FaultRunner) -> None:
    hosts = _live_hosts(f, "jtdp")
    if hosts:
        host = f.rng.choice(hosts)
        f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 100))
        f.world.disturb(host, 1)


async def lose_head_messages(f: FaultRunner) -> None:
    for _ in range(3):
        hosts = _live_hosts(f, "wjtdp")
        if hosts:
            what = f.rng.choice(("/streams/heads/", "/streams/heads/", "/intents/", "/lease"))
            when = f.rng.choice(("before", "after", "after"))
            f.world.metadata.lose_next(when, f.rng.choice(hosts), what)
        await asyncio.sleep(f.rng.random() * 0.5)


async def pause_writer(f: FaultRunner) -> None:
    """Pause a writer long enough for others to take over; it goes on with an old epoch."""
    hosts = _live_hosts(f, "w")
    if hosts:
        host = f.rng.choice(hosts)
        f.world.pause(host)
        await asyncio.sleep(f.rng.random() * 5)
        f.world.resume(host)


OWN_FAULTS = {"expire a writer": 5, "crash a writer": 4, "crash a tender": 3, "lose a head": 5, "pause a writer": 4}
"""Relative weights. A life gets none to two of these besides the common faults."""

for _name, _run in (
    ("expire a writer", expire_writer),
    ("crash a writer", crash_writer),
    ("crash a tender", crash_maintenance),
    ("lose a head", lose_head_messages),
    ("pause a writer", pause_writer),
):
    register_common(_name, OWN_FAULTS[_name], _run, lives=(STREAMS,))
