"""Stories that aim at streams, beside those of sim/ledgers/faults: leases that expire, heads whose replies are lost."""

from __future__ import annotations

import asyncio

from buckram.sim.ledgers.faults import Faults, common
from buckram.sim.ledgers.faults.registry import STREAMS


def _hosts(f: Faults, first: str) -> list[str]:
    return [host for host in f.clients() if host[0] in first and not f.world.processes[host].dead]


async def expire_writer(f: Faults) -> None:
    """Its session ends while it goes on; another one may take the lease at once."""
    for _ in range(f.rng.choice((1, 1, 2))):
        hosts = _hosts(f, "w")
        if hosts:
            host = f.rng.choice(hosts)
            f.world.report.situation("lease expired under a writer")
            f.world.sessions[host].expire()
            f.world.disturb(host, 0)
        await asyncio.sleep(f.rng.random())


async def crash_writer(f: Faults) -> None:
    hosts = _hosts(f, "w")
    if hosts:
        host = f.rng.choice(hosts)
        f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 150))
        f.world.disturb(host, 1)


async def crash_tender(f: Faults) -> None:
    hosts = _hosts(f, "jtdp")
    if hosts:
        host = f.rng.choice(hosts)
        f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 100))
        f.world.disturb(host, 1)


async def lose_head(f: Faults) -> None:
    for _ in range(3):
        hosts = _hosts(f, "wjtdp")
        if hosts:
            what = f.rng.choice(("/streams/heads/", "/streams/heads/", "/intents/", "/lease"))
            when = f.rng.choice(("before", "after", "after"))
            f.world.metadata.lose_next(when, f.rng.choice(hosts), what)
        await asyncio.sleep(f.rng.random() * 0.5)


async def pause_writer(f: Faults) -> None:
    """Long enough for others to take over; it wakes as an old writer."""
    hosts = _hosts(f, "w")
    if hosts:
        host = f.rng.choice(hosts)
        f.world.pause(host)
        await asyncio.sleep(f.rng.random() * 5)
        f.world.resume(host)


OWN_FAULTS = {"expire a writer": 5, "crash a writer": 4, "crash a tender": 3, "lose a head": 5, "pause a writer": 4}
"""Weights among themselves: a life gets none to two of these beside the common ones."""

for _name, _tell in (
    ("expire a writer", expire_writer),
    ("crash a writer", crash_writer),
    ("crash a tender", crash_tender),
    ("lose a head", lose_head),
    ("pause a writer", pause_writer),
):
    common(_name, OWN_FAULTS[_name], _tell, lives=(STREAMS,))
