"""Stories of the network: cuts in one direction or both, resets, slow links, old requests that arrive again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.sim.engine.metadata import HOST
from buckram.sim.engine.network import SimNetwork
from buckram.sim.ledgers.faults.registry import common

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults


async def block(f: Faults, pairs: list[tuple[str, str]], most_s: float = 5.0) -> None:
    for source, target in pairs:
        f.world.disturb(source, 1)
        f.world.disturb(target, 1)
        f.world.fabric.block(source, target)
    await f.last(most_s)
    for source, target in pairs:
        f.world.fabric.unblock(source, target)
        f.world.disturb(source, -1)
        f.world.disturb(target, -1)


async def cut(f: Faults) -> None:
    clients = f.clients() or ["w1"]
    pairs = []
    for _ in range(f.rng.choice((1, 1, 2, 3))):
        ends = [f.machine().name, f.rng.choice(clients)]
        f.rng.shuffle(ends)
        pairs.append((ends[0], ends[1]))
        if f.rng.random() < 0.3:
            pairs.append((ends[1], ends[0]))
    await block(f, pairs)


async def isolate(f: Faults) -> None:
    victim = f.rng.choice([f.machine().name, *f.clients()])
    others = [host for host in [*f.world.processes, HOST] if host != victim]
    pairs = [(victim, other) for other in others]
    if f.rng.random() < 0.7:
        pairs += [(other, victim) for other in others]
    await block(f, pairs)


async def metadata_cut(f: Faults) -> None:
    victim = f.rng.choice([f.machine().name, *f.clients()])
    pairs = [(victim, HOST), (HOST, victim)]
    await block(f, pairs if f.rng.random() < 0.5 else [f.rng.choice(pairs)], 8.0)


async def reset(f: Faults) -> None:
    for _ in range(f.rng.choice((1, 2, 5))):
        if f.world.fabric.connections:
            f.world.fabric.reset(f.rng.choice(f.world.fabric.connections))
        await asyncio.sleep(f.rng.random() * 0.2)


async def slow(f: Faults) -> None:
    links = [(f.machine().name, host) for host in f.clients()]
    f.rng.shuffle(links)
    chosen = [link if f.rng.random() < 0.5 else (link[1], link[0]) for link in links[:2]]
    for source, target in chosen:
        f.world.disturb(source, 1)
        f.world.disturb(target, 1)
        f.world.fabric.slow(source, target, f.rng.choice((0.02, 0.2, 1.5, 4.0)))
    await f.last(5.0)
    for source, target in chosen:
        f.world.fabric.slow(source, target, 0.0)
        f.world.disturb(source, -1)
        f.world.disturb(target, -1)


async def replay(f: Faults) -> None:
    """Old requests arrive again, on connections of their own; what is answered reaches nobody."""
    await f.last(2.0)
    if not f.recorded:
        return
    client, bookie, port, _ = f.rng.choice(f.recorded)
    frames = [frame for c, b, _, frame in f.recorded if (c, b) == (client, bookie)]
    v2 = frames[0][4] <= 2
    start = f.rng.randrange(len(frames))
    chosen = [frame for frame in frames[start : start + f.rng.choice((1, 3, 20))] if (frame[4] <= 2) == v2]
    network = SimNetwork(f.world.fabric, f.world.loop.world, client, ghost=True)
    try:
        async with asyncio.timeout(3.0):
            transport, _ = await network.connect(bookie, port, asyncio.Protocol)
    except (OSError, TimeoutError):
        return
    transport.write(b"".join(chosen))
    await asyncio.sleep(1.0)
    transport.abort()


common("cut", 6, cut)
common("isolate", 3, isolate)
common("reset", 4, reset)
common("slow", 3, slow)
common("replay", 3, replay)
common("metadata cut", 3, metadata_cut)
