"""Commands by which bookies leave, come back, and give away what they hold; each calls what the command line calls."""

from __future__ import annotations

import asyncio

from buckram.cluster import Client
from buckram.errors import NoSuchBookie
from buckram.healing.operations.decommission import Departure, decommission, drain, replace_bookie
from buckram.healing.operations.operator_calls import allow_rejoin, ask_readonly
from buckram.health.removal_gate import check_removable, forget_bookie
from simulator.administration.commands import STUCK_S, Administrator, quietly
from simulator.engine.metadata import HOST as METADATA_HOST
from simulator.engine.world import Machine

SESSION_S = 5.0
"""Time after which the registration of a dead process is gone, seconds."""


def _is_out(admin: Administrator, departure: Departure, what: str) -> bool:
    if departure.done:
        admin.rules.is_out(departure.bookie, what)
    return departure.done


async def _chosen(admin: Administrator) -> Machine | None:
    """Return a bookie that may leave for good: there are enough others, or one more joins."""
    if not admin.stage.may_lose_one() and await admin.stage.add_bookie() is None:
        return None
    return admin.choose()


async def stop_somehow(admin: Administrator, machine: Machine) -> None:
    """Stop a bookie, cut it off from the metadata store, or have it hang until its session has ended.

    One that is cut off answers; one that hangs wakes up minutes later.
    """
    world, way = admin.world, admin.rng.random()
    if way < 0.6:
        admin.stage.stop(machine, power=admin.rng.random() < 0.3)
    elif way < 0.8:
        machine.away = True
        world.faults += 1
        world.fabric.block(machine.name, METADATA_HOST)
        world.fabric.block(METADATA_HOST, machine.name)
        world.report.situation("a bookie lost the metadata store and answers")
        world.sessions[machine.name].expire()
        world.loop.call_later(40.0 + admin.rng.random() * 60.0, _join, admin, machine, context=world.loop.world.context)
    else:
        machine.away = True
        world.faults += 1
        world.pause(machine.name)
        admin.report.situation("a bookie hung for minutes")
        session = world.sessions.get(machine.name)
        world.loop.call_later(3.0, session.expire if session else _nothing, context=world.loop.world.context)
        wakes_in = 60.0 + admin.rng.random() * 90.0
        world.loop.call_later(wakes_in, world.resume, machine.name, context=world.loop.world.context)
    await asyncio.sleep(SESSION_S)


def _nothing() -> None: ...


def _join(admin: Administrator, machine: Machine) -> None:
    admin.world.fabric.unblock(machine.name, METADATA_HOST)
    admin.world.fabric.unblock(METADATA_HOST, machine.name)


def retire(admin: Administrator, machine: Machine) -> None:
    """Note that a bookie has left the cluster for good. Its process, if it still runs, is let be: it ends by itself."""
    machine.away = True
    admin.rules.retired[machine.name] = admin.world.loop.time()


async def _old_directory(admin: Administrator, machine: Machine) -> None:
    """Start the directory of a bookie that left, or whose id has another one: it must not serve."""
    if machine.running or admin.rng.random() < 0.5 or machine.name in admin.rules.cookies:
        return
    facts = admin.world.judge.facts.bookie(machine.name)
    waits = admin.rules.unaccepted_at is not None
    started = await admin.world.boot(machine)
    # While a restore waits to be accepted, a bookie that the backup does not know may come back.
    waits = waits or admin.rules.unaccepted_at is not None or machine.name in admin.rules.cookies
    text = "{} was removed from the cluster, and its directory serves again"
    admin.report.check("directory", waits or not started, text, machine.name)
    if not started:
        admin.report.situation("an old directory was refused")
        facts.running = False
    else:
        admin.world.crash(machine, power=False)


async def decommission_one(admin: Administrator) -> None:
    """Stop a bookie for good and take it out."""
    machine = await _chosen(admin)
    if machine is None:
        return
    await stop_somehow(admin, machine)

    async def work(client: Client) -> bool:
        await check_removable(client, machine.name)
        try:
            departure = await decommission(client, machine.name, quietly, stuck_s=STUCK_S)
        except NoSuchBookie:
            return True  # an earlier attempt, whose answer was lost, has removed it
        return _is_out(admin, departure, "decommission")

    if await admin.ask("decommission", work):
        admin.did("decommission")
        retire(admin, machine)
        await _old_directory(admin, machine)
    else:
        await _back(admin, machine)


async def _back(admin: Administrator, machine: Machine) -> None:
    """Let a bookie that could not be taken out serve again, if the cluster still knows it."""
    if machine.name in admin.rules.cookies and machine.name not in admin.rules.retired:
        admin.world.resume(machine.name)
        _join(admin, machine)
        await admin.stage.let_serve(machine)
        admin.free(machine)
    else:
        retire(admin, machine)


async def drain_one(admin: Administrator) -> None:
    """Drain a bookie that lives; then it is stopped and forgotten, or becomes writable again."""
    machine = await _chosen(admin)
    if machine is None:
        return
    target = admin.rng.choice(["", *(one.name for one in admin.stage.serving() if one is not machine)])

    async def work(client: Client) -> bool:
        rate = admin.rng.choice((0, 50_000))
        return _is_out(admin, await drain(client, machine.name, quietly, target, rate=rate, stuck_s=STUCK_S), "drain")

    async def take_back(client: Client) -> bool:
        await ask_readonly(client, machine.name, False)
        return True

    if await admin.ask("drain", work):
        admin.did("drain")
        if admin.rng.random() < 0.6 and await _forget(admin, machine):
            return
    await admin.ask("writable", take_back)
    await _back(admin, machine)


async def forget_one(admin: Administrator) -> None:
    """Forget a bookie that was stopped, or hangs; ledgers may name it, and it may answer: then it must be refused."""
    machine = await _chosen(admin)
    if machine is None:
        return
    if not await _forget(admin, machine, waits_s=admin.rng.choice((0.0, 20.0, 60.0))):
        await _back(admin, machine)


async def _forget(admin: Administrator, machine: Machine, waits_s: float = 0.0) -> bool:
    await stop_somehow(admin, machine)
    await asyncio.sleep(waits_s)

    async def work(client: Client) -> bool:
        try:
            await forget_bookie(client, machine.name)
        except NoSuchBookie:
            return True
        return True

    if not await admin.ask("forget", work):
        return False
    admin.did("forget")
    retire(admin, machine)
    await _old_directory(admin, machine)
    return True


async def rejoin_one(admin: Administrator) -> None:
    """Replace the disk of a bookie by an empty one: it comes back under its id when no ledger names it any more."""
    machine = await _chosen(admin) if admin.stage.may_damage() else None
    if machine is None:
        return
    world, facts = admin.world, admin.world.judge.facts.bookie(machine.name)
    admin.stage.stop(machine, power=True)
    old = machine.device.snapshot()
    machine.device.wipe()
    facts.wiped = True
    if admin.rng.random() < 0.5:
        started = await world.boot(machine)
        admin.report.check("M8", not started, "{} serves from an empty disk", machine.name)
        admin.report.situation("an empty disk was refused")
    await asyncio.sleep(SESSION_S + admin.rng.choice((0.0, 20.0, 40.0)))

    async def work(client: Client) -> bool:
        try:
            await check_removable(client, machine.name)
            await allow_rejoin(client, machine.name)
        except NoSuchBookie:
            return True
        return True

    allowed = False
    for _ in range(3):
        allowed = allowed or await admin.ask("rejoin", work)
    if not allowed or (machine.name in admin.rules.cookies and not machine.running):
        retire(admin, machine)
        return
    admin.did("rejoin")
    world.cookie_deleted[machine.name] = facts.reborn = True
    if await admin.stage.let_serve(machine, supervise=True):
        admin.report.situation("an id came back with an empty directory")
        if admin.rng.random() < 0.4:
            await _put_back(admin, machine, old)
    admin.free(machine)


async def _put_back(admin: Administrator, machine: Machine, old: object) -> None:
    """Start the directory that was replaced under the id that another one has now."""
    world = admin.world
    admin.stage.stop(machine)
    newest = machine.device.snapshot()
    went_back = machine.device.went_back
    machine.device.restore(old)  # type: ignore[arg-type]  # a snapshot of the same device
    started = await world.boot(machine)
    admin.report.check("I28", not started, "{} serves from the disk that was replaced", machine.name)
    if not started:
        admin.report.situation("an old directory was refused")
    machine.device.restore(newest)
    machine.device.went_back = went_back
    await admin.stage.let_serve(machine)


async def replace_one(admin: Administrator) -> None:
    """Replace a bookie that lives, or was stopped, by another one."""
    machine = await _chosen(admin)
    if machine is None:
        return
    fresh = await admin.stage.add_bookie()
    others = [one.name for one in admin.stage.serving() if one is not machine]
    target = fresh.name if fresh is not None else admin.rng.choice(["", *others])
    if admin.rng.random() < 0.5:
        await stop_somehow(admin, machine)

    async def work(client: Client) -> bool:
        await check_removable(client, machine.name)
        try:
            departure = await replace_bookie(client, machine.name, target, quietly, stuck_s=STUCK_S)
        except NoSuchBookie:
            return True
        return _is_out(admin, departure, "replace")

    async def take_back(client: Client) -> bool:
        await ask_readonly(client, machine.name, False)
        return True

    if await admin.ask("replace", work):
        admin.did("replace")
        retire(admin, machine)
        await asyncio.sleep(SESSION_S)
        gone = machine.name not in admin.rules.cookies
        admin.report.check("departure", gone, "{} is replaced, and its cookie is still there", machine.name)
        await _old_directory(admin, machine)
        return
    await admin.ask("writable", take_back)
    await _back(admin, machine)
