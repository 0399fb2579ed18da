"""Moving the metadata to another store, with the bookies stopped, and going on there."""

from __future__ import annotations

import asyncio
import random

from buckram.errors import BuckramError, ConfigError
from buckram.metadata.maintain.migration import move
from buckram.metadata.tree.store import TreeStore
from simulator.administration.commands import Administrator
from simulator.administration.departing import SESSION_S
from simulator.engine.loop import Process
from simulator.engine.stores import MemoryStores
from simulator.engine.world import Died


async def move_all(admin: Administrator) -> None:
    """Stop the bookies, move the metadata to another store, and start them there."""
    stage, world = admin.stage, admin.world
    machines = [machine for machine in world.machines.values() if not machine.away]
    for machine in machines:
        stage.busy.add(machine.name)
        stage.stop(machine)
    await asyncio.sleep(SESSION_S)
    target = _other_store(admin)
    admin.rules.moving = True
    admin.interrupted = False

    async def work(store: TreeStore, process: Process) -> bool:
        there, _ = target.open(process, random.Random(f"there {process.name}"))
        try:
            await move(store, there, random.Random(f"move {process.name} {stage.admin.seed}"))
        except ConfigError as error:
            if "writable" not in str(error):
                raise
            return False  # the session of a bookie that was stopped has not ended
        return True

    moved = await admin.ask_store("move-metadata", work, tries=40, puts_back=True)
    if admin.interrupted:
        admin.report.situation("a move was interrupted and given again")
    if moved:
        admin.did("move-metadata")
        admin.report.situation("the metadata were moved")
        await _refused_there(admin)
        _go_on(admin, target)
    admin.rules.moving = False
    for machine in machines:
        await stage.let_serve(machine)
        stage.busy.discard(machine.name)


def _other_store(admin: Administrator) -> MemoryStores:
    world = admin.world
    target = MemoryStores(world.fabric, random.Random(f"other store {world.seed}"), "memory:other")
    server, here = target.server, world.metadata
    server.late_chance, server.late_s, server.timeout_s = here.late_chance, here.late_s, here.timeout_s
    server.observers = here.observers
    return target


async def _refused_there(admin: Administrator) -> None:
    """Check that a client that comes with the name of the former store is refused."""
    try:
        await admin.world.client("x1")
    except (BuckramError, Died) as error:
        admin.world.trace.note("x1", f"{error!r}")
        admin.report.situation("a client of the former store was refused")
    else:
        admin.report.check("waiting", False, "a client may use the store that the metadata were moved from")


def _go_on(admin: Administrator, target: MemoryStores) -> None:
    """Have everybody use the other store; what runs is restarted with its name."""
    world = admin.world
    for host, process in list(world.processes.items()):
        if host not in world.machines and not process.dead:
            process.crash()
    world.stores, world.metadata = target, target.server
    admin.rules.went_back()
