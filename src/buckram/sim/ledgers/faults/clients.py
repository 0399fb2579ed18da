"""Stories of clients that stop for a while or for good."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buckram.sim.ledgers.faults.registry import common

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults


async def pause_client(f: Faults) -> None:
    clients = f.clients()
    if not clients:
        return
    host = f.rng.choice(clients)
    f.world.pause(host)
    if f.plan.late_wake and host.startswith("w"):
        return  # sim/ledgers/ending wakes it when its ledger is closed
    await f.last(8.0)
    f.world.resume(host)


async def crash_client(f: Faults) -> None:
    clients = f.clients()
    if clients:
        host = f.rng.choice(clients)
        f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 200))
        f.world.disturb(host, 1)


common("pause client", 4, pause_client)
common("crash client", 4, crash_client)
