"""Faults of objects, besides those of `simulator/engine/faults`: putters that hang, die, lose their sessions or are cut
off, lost requests about intents, time that passes, clocks that are set."""

from __future__ import annotations

import asyncio

from simulator.engine.faults import FaultRunner
from simulator.engine.faults.registry import OBJECTS, STREAMS, fault_names, register_own

_MINUTE, _DAY = 60 * 1_000_000, 86_400 * 1_000_000


def _putters(f: FaultRunner) -> list[str]:
    return [host for host in f.client_hosts() if host.startswith("o") and not f.world.processes[host].dead]


async def hang_putter(f: FaultRunner) -> None:
    """Stop a putter for so long that sweepers give its ledgers up; it wakes and goes on where it was."""
    for _ in range(20):
        hosts = _putters(f)
        if hosts:
            break
        await asyncio.sleep(0.2)
    else:
        return
    host, world = f.rng.choice(hosts), f.world
    world.pause(host)
    await asyncio.sleep(f.rng.random())
    if not world.processes[host].dead:
        world.sessions[host].expire()
    await asyncio.sleep(4.0 + f.rng.random() * 12.0)
    world.resume(host)
    world.report.situation("a process hung and woke")


async def crash_putter(f: FaultRunner) -> None:
    for _ in range(f.rng.choice((1, 2, 4))):
        hosts = _putters(f)
        if hosts:
            host = f.rng.choice(hosts)
            f.world.processes[host].crash_after(int(f.rng.random() ** 2 * 300))
            f.world.disturb(host, 0)
        await asyncio.sleep(f.rng.random() * 3)


async def expire_putter(f: FaultRunner) -> None:
    """Expire the session of a putter, which does not know that it passes for gone until it shows itself again."""
    for _ in range(f.rng.choice((1, 2))):
        hosts = _putters(f)
        if hosts:
            host = f.rng.choice(hosts)
            f.world.sessions[host].expire()
            f.world.disturb(host, 0)
        await asyncio.sleep(f.rng.random() * 2)


async def lose_intent(f: FaultRunner) -> None:
    """Lose requests about ledgers, their intents and writers, or the replies."""
    for _ in range(4):
        hosts = _putters(f)
        if hosts:
            what = f.rng.choice(("/intents/", "/intents/", "/writers/", f.world.stores.ledger_keys, "/streams/heads/"))
            f.world.metadata.lose_next(f.rng.choice(("before", "after", "after")), f.rng.choice(hosts), what)
        await asyncio.sleep(f.rng.random())


async def cut_off_putter(f: FaultRunner) -> None:
    """Cut a putter off from all hosts, or from the metadata store alone."""
    hosts = _putters(f)
    if not hosts:
        return
    host, world = f.rng.choice(hosts), f.world
    others = ["meta"] if f.rng.random() < 0.5 else [name for name in [*world.processes, "meta"] if name != host]
    world.disturb(host, 1)
    for other in others:
        world.fabric.block(host, other)
        world.fabric.block(other, host)
    await asyncio.sleep(f.rng.random() * 8)
    for other in others:
        world.fabric.unblock(host, other)
        world.fabric.unblock(other, host)
    world.disturb(host, -1)


async def let_time_pass(f: FaultRunner) -> None:
    """Let some minutes pass for all clocks, as when nothing happens for long."""
    for _ in range(3):
        f.world.passed.us += f.rng.choice((2, 7, 12)) * _MINUTE
        await asyncio.sleep(f.rng.random() * 2)


async def set_clocks(f: FaultRunner) -> None:
    """Set the clock of one host wrong by days, or those of all hosts, and right again after some seconds."""
    hosts = list(f.world.processes)
    wrong = hosts if f.rng.random() < 0.5 else [f.rng.choice(hosts)]

    def put(skew_us: int) -> None:
        for host in wrong:
            f.world.clock(host).put(skew_us)

    f.world.report.situation("clocks jumped")
    f.on_heal(lambda: put(0))
    put(f.rng.choice((-40, -2, 2, 40)) * _DAY)
    await asyncio.sleep(1.0 + f.rng.random() * 6)
    put(0)


OWN_FAULTS = register_own(
    OBJECTS,
    {
        "hang a putter": (6, hang_putter),
        "crash a putter": (4, crash_putter),
        "expire a putter": (3, expire_putter),
        "lose an intent": (4, lose_intent),
        "cut off a putter": (3, cut_off_putter),
        "let time pass": (3, let_time_pass),
        "set clocks": (3, set_clocks),
    },
)
"""Relative weights. A life gets up to three of these besides the common faults."""


def all_fault_names() -> list[str]:
    """Return the names of all faults of lives of objects."""
    return fault_names(STREAMS, OBJECTS)


__all__ = ["OWN_FAULTS", "all_fault_names"]
