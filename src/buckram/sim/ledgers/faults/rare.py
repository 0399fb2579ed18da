"""Stories that bring about what random faults reach once in a thousand lives."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from buckram.errors import MetadataError
from buckram.sim.engine import damage
from buckram.sim.engine.metadata import HOST
from buckram.sim.engine.world import Died
from buckram.sim.ledgers.faults.registry import LEDGERS, crashes_only, register
from buckram.sim.ledgers.faults.stores import use_small_files

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults
    from buckram.sim.ledgers.plan import Plan


async def flip_table(f: Faults) -> None:
    """What an old ledger is, fenced or not, stands in a damaged page: the bookie cannot deny anything any more."""
    for _ in range(60):
        machine = f.machine()
        if f.stage.over or (machine.running and damage.flip_table(machine.device, f.rng)):
            break
        await asyncio.sleep(0.1)
    else:
        return
    f.world.judge.facts.bookie(machine.name).damaged = True
    f.world.crash(machine, power=False)


async def flip_superblock(f: Faults) -> None:
    """Nothing says any more which files are the store's: the bookie must refuse to start."""
    machine = f.machine()
    if not machine.running:
        return
    f.world.crash(machine, power=False)
    if not damage.flip_superblock(machine.device, f.rng):
        return
    f.world.judge.facts.bookie(machine.name).wiped = True
    f.world.disturb(machine.name, 1)
    await f.last()
    if not await f.world.boot(machine):
        f.world.report.situation("damaged superblock refused")


async def doubt(f: Faults) -> None:
    """A member dies; the store carries out the change of its writer, whose reply is lost, and goes away for a while."""
    for ledger in f.world.judge.facts.ledgers.values():
        if ledger.metadata is not None and not ledger.metadata.closed:
            server, keys = f.world.metadata, f.world.stores.ledger_keys
            server.lose_next(f.rng.choice(("before", "after", "after")), ledger.writer, keys)
            f.world.disturb(HOST, 1)
            f.world.crash(f.world.machines[f.rng.choice(ledger.metadata.last_fragment.ensemble)], power=False)
            for _ in range(100):
                await asyncio.sleep(0.02)
                if not server.scripted:
                    break
            server.down = True
            await asyncio.sleep(1.5 + f.rng.random() * 2)
            server.down = False
            f.world.disturb(HOST, -1)
            return


async def look_late(f: Faults) -> None:
    """A ledger is recovered or deleted before one of its members, which has adds of it, has looked at metadata."""
    from buckram.sim.ledgers.workload.recovering import RecovererActor
    from buckram.sim.ledgers.workload.writing import WriterActor

    world, machine = f.world, f.machine()
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
        if made := [
            ledger
            for ledger in world.judge.facts.ledgers.values()
            if ledger.ledger not in before and ledger.writer == "w8"
        ]:
            await asyncio.sleep(f.rng.random() * 0.3)
            with contextlib.suppress(Died):
                await (actor.delete if f.rng.random() < 0.4 else actor.recover)(client, made[0].ledger)
            break
    await asyncio.sleep(2.0)
    world.fabric.slow(machine.name, HOST, 0.0)
    world.disturb(machine.name, -1)
    writing.cancel()


async def new_disk(f: Faults) -> None:
    """An operator replaces a disk and says so: the bookie comes back empty, under its old name."""
    world, machine = f.world, f.machine()
    facts = world.judge.facts.bookie(machine.name)
    machine.away = facts.wiped = True
    world.crash(machine, power=False)
    machine.device.wipe()
    store = world.store(world.loop.world, world.rng)
    for _ in range(20):
        try:
            cookie = await store.read_cookie(machine.name)
            await store.delete_cookie(machine.name, cookie.version)
            break
        except MetadataError:
            await asyncio.sleep(0.5)
    else:
        return
    world.cookie_deleted[machine.name] = True
    facts.reborn = True
    machine.away = False
    await f.restart(machine)


def _for_table(plan: Plan) -> None:
    """Ledgers that nobody writes any more are what the table is asked for."""
    use_small_files(plan)
    plan.writers = 3


def _for_doubt(plan: Plan) -> None:
    plan.shape, plan.bookies, plan.entries, plan.busy_s = (3, 3, 2), 5, max(plan.entries, 30), max(plan.busy_s, 4.0)


def _can_do_without_one(plan: Plan) -> bool:
    return plan.bookies > plan.shape[0] and not plan.racks


register("flip table", 6, flip_table, damages=True, suit=_for_table, fits=crashes_only, lives=(LEDGERS,))
register("flip superblock", 2, flip_superblock, damages=True, fits=_can_do_without_one, lives=(LEDGERS,))
register("look late", 12, look_late, fits=crashes_only, lives=(LEDGERS,))
register("new disk", 14, new_disk, damages=True, fits=_can_do_without_one, lives=(LEDGERS,))
register("doubt", 10, doubt, suit=_for_doubt, fits=crashes_only, lives=(LEDGERS,))
