"""Faults of clients: a process that is paused for a while, and one that crashes at a random later point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.engine.faults.registry import register_common

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner


async def pause_client(f: FaultRunner) -> None:
    clients = f.client_hosts()
    if not clients:
        return
    host = f.rng.choice(clients)
    f.world.pause(host)
    if f.plan.late_wake and host.startswith("w"):
        return  # simulator/ledgers/ending resumes it after its ledger was closed
    await f.wait_a_while(8.0)
    f.world.resume(host)


async def crash_client(f: FaultRunner) -> None:
    clients = f.client_hosts()
    if clients:
        host = f.rng.choice(clients)
        f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 200))
        f.world.disturb(host, 1)


register_common("pause client", 4, pause_client)
register_common("crash client", 4, crash_client)
