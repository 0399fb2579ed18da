"""Faults of the network: links cut in one direction or both, resets, slow links, old requests that arrive again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulator.engine.faults.registry import register_common
from simulator.engine.network import SimNetwork

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner


async def _block_links(f: FaultRunner, pairs: list[tuple[str, str]], most_s: float = 5.0) -> None:
    """Block the links from each source to its target for at most `most_s` seconds."""
    for source, target in pairs:
        f.world.disturb(source, 1)
        f.world.disturb(target, 1)
        f.world.fabric.block(source, target)
    await f.wait_a_while(most_s)
    for source, target in pairs:
        f.world.fabric.unblock(source, target)
        f.world.disturb(source, -1)
        f.world.disturb(target, -1)


async def cut_links(f: FaultRunner) -> None:
    clients = f.client_hosts() or ["w1"]
    pairs = []
    for _ in range(f.rng.choice((1, 1, 2, 3))):
        ends = [f.choose_machine().name, f.rng.choice(clients)]
        f.rng.shuffle(ends)
        pairs.append((ends[0], ends[1]))
        if f.rng.random() < 0.3:
            pairs.append((ends[1], ends[0]))
    await _block_links(f, pairs)


async def isolate_host(f: FaultRunner) -> None:
    victim = f.rng.choice([f.choose_machine().name, *f.client_hosts()])
    others = [host for host in [*f.world.processes, f.world.metadata.host] if host != victim]
    pairs = [(victim, other) for other in others]
    if f.rng.random() < 0.7:
        pairs += [(other, victim) for other in others]
    await _block_links(f, pairs)


async def cut_from_metadata(f: FaultRunner) -> None:
    victim = f.rng.choice([f.choose_machine().name, *f.client_hosts()])
    pairs = [(victim, f.world.metadata.host), (f.world.metadata.host, victim)]
    await _block_links(f, pairs if f.rng.random() < 0.5 else [f.rng.choice(pairs)], 8.0)


async def reset_connections(f: FaultRunner) -> None:
    for _ in range(f.rng.choice((1, 2, 5))):
        if f.world.fabric.connections:
            f.world.fabric.reset(f.rng.choice(f.world.fabric.connections))
        await asyncio.sleep(f.rng.random() * 0.2)


async def slow_links(f: FaultRunner) -> None:
    links = [(f.choose_machine().name, host) for host in f.client_hosts()]
    f.rng.shuffle(links)
    chosen = [link if f.rng.random() < 0.5 else (link[1], link[0]) for link in links[:2]]
    for source, target in chosen:
        f.world.disturb(source, 1)
        f.world.disturb(target, 1)
        f.world.fabric.slow(source, target, f.rng.choice((0.02, 0.2, 1.5, 4.0)))
    await f.wait_a_while(5.0)
    for source, target in chosen:
        f.world.fabric.slow(source, target, 0.0)
        f.world.disturb(source, -1)
        f.world.disturb(target, -1)


async def replay_requests(f: FaultRunner) -> None:
    """Send old requests again, on a connection of their own; the responses reach no client."""
    await f.wait_a_while(2.0)
    if not f.recorded:
        return
    client, server, port, _ = f.rng.choice(f.recorded)
    frames = [request.frame for request in f.recorded if (request.client, request.server) == (client, server)]
    v2 = frames[0][4] <= 2
    start = f.rng.randrange(len(frames))
    chosen = [frame for frame in frames[start : start + f.rng.choice((1, 3, 20))] if (frame[4] <= 2) == v2]
    network = SimNetwork(f.world.fabric, f.world.loop.world, client, ghost=True)
    try:
        async with asyncio.timeout(3.0):
            transport, _ = await network.connect(server, port, asyncio.Protocol)
    except (OSError, TimeoutError):
        return
    transport.write(b"".join(chosen))
    await asyncio.sleep(1.0)
    transport.abort()


register_common("cut", 6, cut_links)
register_common("isolate", 3, isolate_host)
register_common("reset", 4, reset_connections)
register_common("slow", 3, slow_links)
register_common("replay", 3, replay_requests)
register_common("metadata cut", 3, cut_from_metadata)
