"""Operators that take bookies out, let one rest, or even out space, each with the command's own code.

Not here: what is judged of that (`asked.py`, `changes.py`), and what happens to disks and records (`operations.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from buckram.cluster import Client
from buckram.errors import BuckramError, NoSuchBookie
from buckram.healing.operations.decommission import Departure, decommission, drain, replace_bookie
from buckram.healing.operations.dependency_check import OperationRefused
from buckram.healing.operations.operator_calls import ask_readonly, begin_maintenance
from buckram.healing.operations.rebalance import rebalance
from simulator.engine.world import Died, Machine
from simulator.healing.faults import Operation, Operator
from simulator.healing.marks import OPERATOR
from simulator.healing.plan import most_bookies

WORK_S = 60.0
TRIES = 12
STUCK_S = 10.0


async def _ask(op: Operator, what: str, work: Callable[[Client], Awaitable[bool]]) -> bool:
    """Try the command up to TRIES times, each in a new process, while the life lasts. Return whether it succeeded."""
    host = f"{OPERATOR}{what[:3]}{len(op.world.processes)}"

    async def in_time(client: Client) -> bool:
        async with asyncio.timeout(WORK_S):
            return await work(client)

    for _ in range(TRIES):
        if op.stage.over:
            return False
        try:
            client = await op.world.client(host)
            if await op.world.join(op.world.processes[host], in_time(client), what):
                return True
        except (BuckramError, OperationRefused, Died, TimeoutError) as error:
            op.world.trace.note(host, f"{what}: {error!r}")
        finally:
            if host in op.world.processes and not op.world.processes[host].dead:
                op.world.processes[host].crash()
            op.stage.rules.process_ended(host)
        await asyncio.sleep(4.0)
    return False


def _quietly(progress: object) -> None:
    """Ignore the progress of a command."""


def _is_out(op: Operator, departure: Departure, situation: str) -> bool:
    """Return whether the command ended; if so, check at the moment of its answer that nothing depends on the bookie."""
    if departure.done:
        op.stage.rules.asked.is_out(departure.bookie, situation)
    return departure.done


async def decommission_one(op: Operator) -> None:
    """Stop a bookie for good and take it out with the operator's command, tried again while it does not end well."""
    await op.nap(op.stage.plan.busy_s * 1.5)
    if not op.running():
        return
    machine = op.rng.choice(op.members())
    op.lose(machine, "is stopped for good", power=False)
    await asyncio.sleep(4.0)  # until its session ends

    async def work(client: Client) -> bool:
        departure = await decommission(client, machine.name, _quietly, stuck_s=STUCK_S)
        return _is_out(op, departure, "a bookie was decommissioned")

    await _ask(op, "decommission", work)


async def drain_one(op: Operator) -> None:
    """Drain a living bookie; then it is stopped, or becomes writable again."""
    await op.nap(op.stage.plan.busy_s * 1.5)
    if not op.running():
        return
    machine = op.rng.choice(op.members())
    others = [one.name for one in op.running() if one is not machine]
    target = op.rng.choice(("", *others))

    async def work(client: Client) -> bool:
        departure = await drain(
            client, machine.name, _quietly, target, rate=op.rng.choice((0, 50_000)), stuck_s=STUCK_S
        )
        return _is_out(op, departure, "a bookie was drained")

    async def take_back(client: Client) -> bool:
        await ask_readonly(client, machine.name, False)
        return True

    drained = await _ask(op, "drain", work)
    if drained and machine.running and op.rng.random() < 0.5:
        op.lose(machine, "is stopped, nothing depends on it", power=False)
    else:
        await _ask(op, "writable", take_back)


async def replace_one(op: Operator) -> None:
    """Replace a bookie that lives or was lost by another one, a new one if one more may join."""
    await op.nap(op.stage.plan.busy_s * 1.5)
    if not op.running():
        return
    machine = op.rng.choice(op.members())
    fresh = await new_bookie(op)
    others = [one.name for one in op.running() if one is not machine]
    target = fresh.name if fresh is not None else op.rng.choice(others or [machine.name])
    if op.rng.random() < 0.5:
        op.lose(machine, "is stopped for good", power=False)
        await asyncio.sleep(4.0)

    async def work(client: Client) -> bool:
        try:
            departure = await replace_bookie(client, machine.name, target, _quietly, stuck_s=STUCK_S)
        except NoSuchBookie:
            return True  # an earlier attempt, whose answer was lost, has removed it
        return _is_out(op, departure, "a bookie was replaced")

    if await _ask(op, "replace", work) and machine.name not in op.stage.rules.lost:
        if machine.running:
            op.lose(machine, "is stopped, it was replaced", power=False)
        else:  # It stopped with its rack meanwhile, and the cluster does not know it any more.
            machine.away = True
            op.stage.rules.bookie_lost(machine.name, False)


async def rest_one(op: Operator) -> None:
    """Put a bookie into maintenance, stop it for longer than the delay, and start it again."""
    await op.nap(op.stage.plan.busy_s)
    if not op.running():
        return
    machine, for_s = op.rng.choice(op.members()), op.rng.choice((8.0, 20.0, 30.0))

    async def work(client: Client) -> bool:
        await begin_maintenance(client, machine.name, for_s)
        return True

    if not await _ask(op, "maintenance", work):
        return
    op.world.report.situation("a bookie rested")
    if machine.away:
        return
    machine.away = True
    op.world.faults += 1
    op.world.crash(machine, power=False)
    await op.nap(for_s * 1.5)
    if machine.name not in op.stage.rules.lost:
        machine.away = False


async def rebalance_all(op: Operator) -> None:
    """Add an empty bookie and rebalance: it gets places of the others."""
    await op.nap(op.stage.plan.busy_s * 2)
    await new_bookie(op)

    async def work(client: Client) -> bool:
        done = await rebalance(client, _quietly, within=0.05, rate=op.rng.choice((0, 20_000)))
        if done.moves:
            op.world.report.situation("space was evened out")
        return not done.failed

    for _ in range(3):
        if op.stage.over:
            return
        await _ask(op, "rebalance", work)
        await op.nap(10.0)


async def new_bookie(op: Operator) -> Machine | None:
    """Add an empty bookie if one more may join, and return its machine."""
    world, plan = op.world, op.stage.plan
    if len(world.machines) >= most_bookies(plan):
        return None
    number = len(world.machines) + 1
    location, site = op.stage.healing.location(number), plan.site(number)
    machine = world.add_machine(f"b{number}", location, site=site)
    if await world.boot(machine):
        world.report.situation("an empty bookie joined")
    op.stage.newcomers.append(machine)
    return machine


DEPARTURES: dict[str, Operation] = {
    "decommission": decommission_one,
    "drain": drain_one,
    "replace": replace_one,
    "maintenance": rest_one,
    "rebalance": rebalance_all,
}
"""The operators' commands of this module, by name."""
