"""Faults that bring about directly what the common ones reach in one of a thousand lives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.errors import MetadataError
from simulator.engine import damage
from simulator.engine.faults.registry import LEDGERS, crashes_only, register_independent
from simulator.engine.faults.stores import use_small_files

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner
    from simulator.engine.plan import Plan
    from simulator.engine.world import Machine


async def flip_table(f: FaultRunner) -> None:
    """Damage a page of the ledger table, which holds the fences of old ledgers: the bookie may deny nothing."""
    for _ in range(60):
        machine = f.choose_machine()
        if f.stage.over or (machine.running and damage.flip_table(machine.device, f.rng)):
            break
        await asyncio.sleep(0.1)
    else:
        return
    f.world.judge.facts.bookie(machine.name).damaged = True
    f.world.crash(machine, power=False)


async def flip_superblock(f: FaultRunner) -> None:
    """Damage the superblock, the list of the store's files: the bookie must refuse to start."""
    machine = f.choose_machine()
    if not machine.running:
        return
    f.world.crash(machine, power=False)
    if not damage.flip_superblock(machine.device, f.rng):
        return
    f.world.judge.facts.bookie(machine.name).wiped = True
    f.world.disturb(machine.name, 1)
    await f.wait_a_while()
    if not await f.world.boot(machine):
        f.world.report.situation("damaged superblock refused")


async def lose_reply_then_metadata(f: FaultRunner) -> None:
    """Kill a bookie, lose the reply to its writer's change of metadata, then make the metadata store unavailable."""
    for ledger in f.world.judge.facts.ledgers.values():
        if ledger.metadata is not None and not ledger.metadata.closed:
            server, keys = f.world.metadata, f.world.stores.ledger_keys
            server.lose_next(f.rng.choice(("before", "after", "after")), ledger.writer, keys)
            f.world.disturb(f.world.metadata.host, 1)
            f.world.crash(f.world.machines[f.rng.choice(ledger.metadata.last_fragment.ensemble)], power=False)
            for _ in range(100):
                await asyncio.sleep(0.02)
                if not server.scripted:
                    break
            server.down = True
            await asyncio.sleep(1.5 + f.rng.random() * 2)
            server.down = False
            f.world.disturb(f.world.metadata.host, -1)
            return


async def replace_disk(f: FaultRunner) -> None:
    """Replace a disk and delete the cookie, as an operator does: the bookie comes back empty, under its old id."""
    await _replace_disk(f, f.choose_machine())


async def put_old_disk_back(f: FaultRunner) -> None:
    """Replace a disk, and later put the old one back: the bookie must refuse to start from it."""
    world, machine = f.world, f.choose_machine()
    if not machine.ready:
        return
    world.crash(machine, power=False)
    old = machine.device.snapshot()
    if not await _replace_disk(f, machine):
        return
    await f.wait_a_while()
    machine.away = True
    world.crash(machine, power=False)
    newest = machine.device.snapshot()
    machine.device.restore(old)
    started = await world.boot(machine)
    world.report.check("I28", not started, "{} serves from the disk that was replaced", machine.name)
    if "was replaced" in machine.refused:
        world.report.situation("an old disk was refused")
    machine.device.restore(newest)
    machine.away = False
    for _ in range(5):
        if await world.boot(machine):
            return
        world.record_death(machine)
        await asyncio.sleep(0.5)


async def _replace_disk(f: FaultRunner, machine: Machine) -> bool:
    """Replace a bookie's disk by an empty one and delete its cookie. Return whether the bookie serves again."""
    world = f.world
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
        return False
    world.cookie_deleted[machine.name] = True
    facts.reborn = True
    machine.away = False
    await f.restart(machine)
    return machine.ready


def _suit_flip_table(plan: Plan) -> None:
    """Give the life several ledgers: only those that are no longer written use the table."""
    use_small_files(plan)
    plan.writers = 3


def _suit_lost_reply(plan: Plan) -> None:
    plan.shape, plan.bookies, plan.entries, plan.busy_s = (3, 3, 2), 5, max(plan.entries, 30), max(plan.busy_s, 4.0)


def _has_spare_bookie(plan: Plan) -> bool:
    return plan.bookies > plan.shape[0] and not plan.racks


register_independent(
    "flip table", 6, flip_table, damages=True, suit=_suit_flip_table, fits=crashes_only, lives=(LEDGERS,)
)
register_independent("flip superblock", 2, flip_superblock, damages=True, fits=_has_spare_bookie, lives=(LEDGERS,))
register_independent("new disk", 14, replace_disk, damages=True, fits=_has_spare_bookie, lives=(LEDGERS,))
register_independent("old disk back", 6, put_old_disk_back, damages=True, fits=_has_spare_bookie, lives=(LEDGERS,))
register_independent("doubt", 10, lose_reply_then_metadata, suit=_suit_lost_reply, fits=crashes_only, lives=(LEDGERS,))
