"""Faults of gateways, besides those of `simulator/engine/faults`: gateways that die, hang, stop, lose their sessions or
are cut off, and answers that are lost.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from simulator.engine.faults import FaultRunner
from simulator.engine.faults.registry import GATEWAYS, STREAMS, fault_names, register_own

if TYPE_CHECKING:
    from simulator.gateways.stage import Stage

STOP = "stop"
"""Begins the note of a plan that the gateway of a host is to stop in order (`serving.py`)."""


def _gateways(f: FaultRunner) -> list[str]:
    return [host for host in f.client_hosts() if host.startswith("g") and not f.world.processes[host].dead]


async def _busy(f: FaultRunner) -> str:
    """Return a gateway at which somebody waits for an answer, as soon as there is one; empty if none lives."""
    stage = cast("Stage", f.stage)
    for _ in range(60):
        if hosts := [host for host in _gateways(f) if stage.appending[host]]:
            return f.rng.choice(hosts)
        await asyncio.sleep(f.rng.random() * 0.05)
    hosts = _gateways(f)
    return f.rng.choice(hosts) if hosts else ""


async def kill_gateway(f: FaultRunner) -> None:
    """Kill gateways somewhere in their steps."""
    for _ in range(f.rng.choice((1, 2, 3))):
        hosts = _gateways(f)
        if hosts:
            host = f.rng.choice(hosts)
            f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 600))
            f.world.disturb(host, 0)
        await asyncio.sleep(f.rng.random() * 2)


async def hang_gateway(f: FaultRunner) -> None:
    """Stop a gateway's process for so long that its leases may go to others; it wakes and goes on where it was."""
    host, world = await _busy(f), f.world
    if not host:
        return
    world.pause(host)
    if f.rng.random() < 0.7 and host in world.sessions:
        world.sessions[host].expire()
    await asyncio.sleep(f.rng.random() * 8)
    if world.processes[host].paused:
        world.report.situation("a gateway hung and woke")
    world.resume(host)


async def expire_gateway(f: FaultRunner) -> None:
    """Expire the session of a gateway, which goes on with its writers until it finds out."""
    for _ in range(f.rng.choice((1, 2))):
        hosts = _gateways(f)
        if hosts:
            host = f.rng.choice(hosts)
            f.world.sessions[host].expire()
            f.world.disturb(host, 0)
        await asyncio.sleep(f.rng.random() * 2)


async def cut_off_gateway(f: FaultRunner) -> None:
    """Cut a gateway off from the metadata store or from all bookies, or have it hear no answers, while its lease ends
    or not."""
    host, world = await _busy(f), f.world
    if not host:
        return
    bookies = [machine.host for machine in world.machines.values()]
    others = f.rng.choice(([world.metadata.host], bookies, bookies, [*bookies, world.metadata.host]))
    links = [(other, host) for other in others]
    if f.rng.random() < 0.4:
        links += [(host, other) for other in others]
    world.disturb(host, 1)
    for link in links:
        world.fabric.block(*link)
    if f.rng.random() < 0.5:
        await asyncio.sleep(f.rng.random())
        if host in world.sessions and not world.processes[host].dead:
            world.sessions[host].expire()
    await asyncio.sleep(f.rng.random() * 8)
    for link in links:
        world.fabric.unblock(*link)
    world.disturb(host, -1)


async def reset_clients(f: FaultRunner) -> None:
    """Reset connections of clients to gateways: answers are lost, bodies are cut."""
    for _ in range(f.rng.choice((4, 10, 20))):
        found = [conn for conn in f.world.fabric.connections if conn.server.startswith("g")]
        if found:
            f.world.fabric.reset(f.rng.choice(found))
        await asyncio.sleep(f.rng.random() * 0.3)


async def stop_gateway(f: FaultRunner) -> None:
    """Stop gateways in order, as SIGTERM does; each is started again."""
    for _ in range(f.rng.choice((1, 2, 3))):
        hosts = _gateways(f)
        if hosts:
            f.plan.notes[f"{STOP} {f.rng.choice(hosts)}"] = 1
        await asyncio.sleep(f.rng.random() * 2)


OWN_FAULTS = register_own(
    GATEWAYS,
    {
        "kill a gateway": (5, kill_gateway),
        "hang a gateway": (5, hang_gateway),
        "stop a gateway": (3, stop_gateway),
        "expire a gateway": (3, expire_gateway),
        "cut off a gateway": (4, cut_off_gateway),
        "reset clients": (6, reset_clients),
    },
)
"""Relative weights. A life gets up to three of these besides the common faults."""


def all_fault_names() -> list[str]:
    """Return the names of all faults of lives of gateways."""
    return fault_names(STREAMS, GATEWAYS)


__all__ = ["OWN_FAULTS", "STOP", "all_fault_names"]
