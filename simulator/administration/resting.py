"""Commands that let bookies rest, take entries or not, collect and even out space; and upgrades, one bookie by one."""

from __future__ import annotations

import asyncio

from buckram.cluster import Client
from buckram.errors import NoSuchBookie
from buckram.healing.operations.operator_calls import ask_readonly, begin_maintenance, collect_now, end_maintenance
from buckram.healing.operations.rebalance import rebalance
from simulator.administration.commands import Administrator, quietly
from simulator.engine.world import Machine


async def _rest(admin: Administrator, machine: Machine, for_s: float) -> bool:
    async def work(client: Client) -> bool:
        try:
            await begin_maintenance(client, machine.name, for_s)
        except NoSuchBookie:
            return False
        return True

    return await admin.ask("maintenance", work)


async def _end(admin: Administrator, machine: Machine) -> None:
    async def work(client: Client) -> bool:
        await end_maintenance(client, machine.name)
        return True

    await admin.ask("end", work)


async def maintain_one(admin: Administrator) -> None:
    """Put a bookie into maintenance, stop it for longer than the delay, and start it again."""
    machine = admin.choose()
    if machine is None:
        return
    for_s = admin.rng.choice((8.0, 20.0, 40.0))
    if await _rest(admin, machine, for_s):
        admin.did("maintenance")
        admin.stage.stop(machine)
        await admin.stage.nap(admin.rng, for_s * 1.5)
        await admin.stage.let_serve(machine)
        if admin.rng.random() < 0.3:
            await _end(admin, machine)
    admin.free(machine)


async def upgrade_all(admin: Administrator) -> None:
    """Restart the bookies one after the other, each in a maintenance, as an upgrade does."""
    done = 0
    for machine in list(admin.world.machines.values()):
        if admin.stage.over or machine.away or not machine.running or machine.name in admin.stage.busy:
            continue
        admin.stage.busy.add(machine.name)
        if await _rest(admin, machine, 40.0):
            admin.stage.stop(machine)
            await asyncio.sleep(0.5 + admin.rng.random() * 4.0)
            await admin.stage.let_serve(machine)
            await _end(admin, machine)
            done += 1
        admin.free(machine)
    if done:
        admin.did("upgrade")


async def readonly_one(admin: Administrator) -> None:
    """Have a bookie take no new entries for a while, one that has none yet or another one; space is evened out."""
    fresh = await admin.stage.add_bookie() if admin.rng.random() < 0.5 else None
    if fresh is not None:
        admin.stage.busy.add(fresh.name)
    machine = fresh if fresh is not None else admin.choose()
    if machine is None:
        return

    async def work(client: Client) -> bool:
        await ask_readonly(client, machine.name, True)
        return True

    async def take_back(client: Client) -> bool:
        await ask_readonly(client, machine.name, False)
        return True

    if await admin.ask("readonly", work):
        admin.did("readonly")
        await asyncio.sleep(admin.rng.choice((5.0, 30.0, 45.0)))
        if admin.rng.random() < 0.8:
            await _even_out(admin)
    await admin.ask("writable", take_back)
    admin.free(machine)


async def rebalance_all(admin: Administrator) -> None:
    """Add an empty bookie, if one more may join, and even out space."""
    await admin.stage.add_bookie()
    await _even_out(admin)


async def _even_out(admin: Administrator) -> None:
    async def work(client: Client) -> bool:
        done = await rebalance(client, quietly, within=0.05, rate=admin.rng.choice((0, 20_000)))
        return not done.failed

    if await admin.ask("rebalance", work):
        admin.did("rebalance")


async def collect_one(admin: Administrator) -> None:
    """Have a bookie delete what it need not keep."""
    machine = admin.choose()
    if machine is None:
        return

    async def work(client: Client) -> bool:
        await collect_now(client, machine.name)
        return True

    if await admin.ask("collect", work):
        admin.did("collect")
    admin.free(machine)
