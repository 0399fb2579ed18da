"""Faults of a life of administration: processes that hang for minutes, full disks, and directories in wrong places.

Not here: faults that any life may have (`simulator/engine/faults`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping

from simulator.administration.plan import ROLLED_BACK
from simulator.administration.stage import Stage
from simulator.administration.twins import copy_directory, run_twin, swap_directories
from simulator.engine.faults import all_faults
from simulator.engine.healers import AUDITOR, REPLICATOR
from simulator.engine.metadata import HOST

Fault = Callable[[Stage, random.Random], Awaitable[None]]
HANG_S = (40.0, 150.0)
"""Shortest and longest time for which a process hangs, seconds."""


async def hang_bookie(stage: Stage, rng: random.Random) -> None:
    """Pause a bookie for minutes; its session ends meanwhile, or not."""
    machine = stage.choose(rng)
    if machine is None:
        return
    world = stage.world
    stage.busy.add(machine.name)
    world.pause(machine.name)
    world.report.situation("a bookie hung for minutes")
    if rng.random() < 0.7:
        await asyncio.sleep(3.0)
        world.sessions[machine.name].expire()
    await asyncio.sleep(rng.uniform(*HANG_S))
    world.resume(machine.name)
    stage.busy.discard(machine.name)


async def hang_healer(stage: Stage, rng: random.Random) -> None:
    """Pause an auditor or a replicator for minutes; others take its place, and it goes on as if nothing had been."""
    world = stage.world
    hosts = [one for one, p in world.processes.items() if one.startswith((AUDITOR, REPLICATOR)) and not p.dead]
    if not hosts:
        return
    host = rng.choice(hosts)
    process = world.processes[host]
    world.pause(host)
    world.report.situation("a healer hung for minutes")
    if rng.random() < 0.8:
        await asyncio.sleep(3.0)
        world.sessions[host].expire()
    await asyncio.sleep(rng.uniform(*HANG_S))
    if world.processes[host] is process:
        world.resume(host)


async def cut_auditor(stage: Stage, rng: random.Random) -> None:
    """Cut one auditor off from the metadata store for a while: it goes on with the bookies that it saw last."""
    world, host = stage.world, f"{AUDITOR}{rng.randrange(stage.admin.auditors) + 1}"
    world.fabric.block(HOST, host)
    if rng.random() < 0.5:
        world.fabric.block(host, HOST)
    if stage.admin.auditors > 1:
        world.report.situation("auditors saw different bookies")
    await asyncio.sleep(10.0 + rng.random() * 40.0)
    world.fabric.unblock(HOST, host)
    world.fabric.unblock(host, HOST)


async def fill_disks(stage: Stage, rng: random.Random) -> None:
    """Leave hardly any space on disks for a while."""
    machines = list(stage.world.machines.values())
    rng.shuffle(machines)
    filled = machines[: rng.choice((1, 2, len(machines)))]
    for machine in filled:
        stage.world.disturb(machine.name, 1)
        machine.device.model.total_bytes = machine.device.model.used_bytes() + rng.choice((0, 1024, 20_000))
    stage.world.report.situation("disks were full")
    await asyncio.sleep(10.0 + rng.random() * 30.0)
    for machine in filled:
        machine.device.model.total_bytes = 1 << 40
        stage.world.disturb(machine.name, -1)


OWN: Mapping[str, Fault] = {
    "hang bookie": hang_bookie,
    "hang healer": hang_healer,
    "views": cut_auditor,
    "full": fill_disks,
    "swap": swap_directories,
    "copy": copy_directory,
    "twin": run_twin,
}


async def run_trouble(stage: Stage) -> None:
    """Run the faults of the plan, each at a random time."""
    await asyncio.gather(*(_run(stage, name) for name in stage.plan.faults))


async def _run(stage: Stage, name: str) -> None:
    rng = random.Random(f"{name} {stage.admin.seed}")
    await stage.nap(rng, stage.plan.busy_s * 3)
    if stage.over:
        return
    stage.world.faults += 1
    stage.world.trace.note("fault", name)
    if name in OWN:
        await OWN[name](stage, rng)
        return
    if name == ROLLED_BACK:
        if not stage.may_damage():
            return
        stage.world.report.situation("a directory went back")
        name = "older directory"
    await all_faults()[name].run(stage.faults)
