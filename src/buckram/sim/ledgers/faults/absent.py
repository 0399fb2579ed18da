"""A bookie that is away while a ledger is made, and no other in its place (M11)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.errors import MetadataError
from buckram.sim.ledgers.faults.registry import LEDGERS, register, stories

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults
    from buckram.sim.ledgers.plan import Plan

SHAPES = ((3, 3, 2), (3, 3, 1), (4, 3, 2), (4, 4, 3), (5, 3, 2), (5, 5, 3), (3, 2, 1))


async def away_at_birth(f: Faults) -> None:
    """It comes back while the ledger is written, or after that; sometimes another one dies meanwhile."""
    from buckram.sim.ledgers.workload.writing import WriterActor

    world, machine = f.world, f.machine()
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
            world.crash(f.machine(), power=False)
        await f.last()
    machine.away = False
    await f.restart(machine)
    await asyncio.sleep(1.0)
    if writing is not None:
        writing.cancel()


def _no_spare(plan: Plan) -> None:
    plan.shape = SHAPES[plan.seed % len(SHAPES)]
    plan.bookies = plan.shape[0]


def _crashes_only(plan: Plan) -> bool:
    damaged = any(stories()[fault].damages for fault in plan.faults)
    return not (plan.liar or plan.racks or plan.deferred or plan.explicit or plan.hung_for_good or damaged)


register("away at birth", 8, away_at_birth, fits=_crashes_only, suit=_no_spare, lives=(LEDGERS,))
