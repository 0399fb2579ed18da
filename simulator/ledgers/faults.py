"""Faults that need clients of their own, which write, recover or delete ledgers while something is wrong.

Not here: faults of any life (`simulator/engine/faults`).
"""

from __future__ import annotations

import asyncio
import contextlib

from buckram.errors import MetadataError
from simulator.engine.faults.registry import LEDGERS, all_faults, crashes_only, register_independent
from simulator.engine.faults.runner import FaultRunner
from simulator.engine.metadata import HOST
from simulator.engine.plan import Plan
from simulator.engine.world import Died
from simulator.ledgers.workload.recovering import RecovererActor
from simulator.ledgers.workload.writing import WriterActor

SHAPES = ((3, 3, 2), (3, 3, 1), (4, 3, 2), (4, 4, 3), (5, 3, 2), (5, 5, 3), (3, 2, 1))


async def away_at_birth(f: FaultRunner) -> None:
    """Create a ledger while a bookie is away without a replacement (M11).

    The bookie comes back while the ledger is written, or after that; sometimes another bookie dies meanwhile.
    """
    world, machine = f.world, f.choose_machine()
    machine.away = True
    world.crash(machine, power=f.rng.random() < 0.3)
    store = world.store(world.loop.world, world.rng)
    for _ in range(100):
        try:
            if machine.name not in (await store.bookies()).writable:
                break
        except MetadataError:
            pass
        await asyncio.sleep(0.2)
    writing: asyncio.Task[None] | None = None
    if not f.stage.over:
        writing = asyncio.create_task(WriterActor(f.stage, "w7").run(), name="w7")  # type: ignore[arg-type]  # of ledgers
        await asyncio.sleep(0.2)
        if f.rng.random() < 0.4:
            world.crash(f.choose_machine(), power=False)
        await f.wait_a_while()
    machine.away = False
    await f.restart(machine)
    await asyncio.sleep(1.0)
    if writing is not None:
        writing.cancel()


async def look_late(f: FaultRunner) -> None:
    """Recover or delete a ledger while one of its bookies, which has adds of it, still waits for its metadata."""
    world, machine = f.world, f.choose_machine()
    writer, actor = WriterActor(f.stage, "w8"), RecovererActor(f.stage, "c8")  # type: ignore[arg-type]  # of ledgers
    client = await actor.connect(3)
    if client is None or f.stage.over:
        return
    before = list(world.judge.facts.ledgers)
    world.fabric.slow(machine.name, HOST, 1.0)
    world.disturb(machine.name, 1)
    writing = asyncio.create_task(writer.run(), name="w8")
    for _ in range(200):
        await asyncio.sleep(0.02)
        if created := [
            ledger
            for ledger in world.judge.facts.ledgers.values()
            if ledger.ledger not in before and ledger.writer == "w8"
        ]:
            await asyncio.sleep(f.rng.random() * 0.3)
            with contextlib.suppress(Died):
                await (actor.delete if f.rng.random() < 0.4 else actor.recover)(client, created[0].ledger)
            break
    await asyncio.sleep(2.0)
    world.fabric.slow(machine.name, HOST, 0.0)
    world.disturb(machine.name, -1)
    writing.cancel()


def _allow_no_replacement(plan: Plan) -> None:
    plan.shape = SHAPES[plan.seed % len(SHAPES)]
    plan.bookies = plan.shape[0]


def _fits_away_at_birth(plan: Plan) -> bool:
    damaged = any(all_faults()[fault].damages for fault in plan.faults)
    return not (plan.liar or plan.racks or plan.deferred or plan.explicit or plan.hung_for_good or damaged)


register_independent(
    "away at birth",
    8,
    away_at_birth,
    fits=_fits_away_at_birth,
    suit=_allow_no_replacement,
    lives=(LEDGERS,),
    before="older directory",
)
register_independent("look late", 12, look_late, fits=crashes_only, lives=(LEDGERS,), before="new disk")
