"""Bookies that are not whom one expects: of another cluster, at the address of one of ours.

The other cluster has a metadata store of its own, which no fault touches and nobody judges. Its bookies say that they
are who they are told to be, and take everything that their own store lets them take. What they answer is no claim of
the bookie whose address they have: the judge knows them by the names of their processes.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from buckram.bookie.process import Bookie
from buckram.sim.engine.disk import Device, SimDisk
from buckram.sim.engine.loop import Process
from buckram.sim.engine.stores import MemoryStores
from buckram.sim.engine.world import Machine, World


class Strangers:
    """The other cluster. `take` a host's address, `leave` it again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stores = MemoryStores(world.fabric, random.Random(f"strangers {world.seed}"))
        self._known: dict[str, Process] = {}
        self._initialised = False

    async def take(self, machine: Machine, bookie_id: str | None = None) -> Process:
        """The machine goes away, and a bookie of the other cluster listens where it did; by default under its name."""
        world, host = self._world, machine.host
        machine.away = True
        world.crash(machine, power=False)
        if not self._initialised:
            self._initialised = True
            await self._stores.open(world.loop.world, world.rng)[0].initialise()
        process = world.loop.process(f"stranger at {host}")
        self._known[host] = process
        runtime = world.runtime(process, host)
        device = Device(world.loop, random.Random(f"stranger {world.seed} {host}"), process.name)
        config = replace(world.configs.bookie, host=host, port=3181, bookie_id=bookie_id or machine.name)
        world.fabric.set_dark(host, False)
        up = asyncio.Event()

        async def run() -> None:
            store, _ = self._stores.open(process, runtime.rng)
            bookie = Bookie(runtime, SimDisk(device, process), store, config, world.configs.store, world.configs.net)
            await bookie.start()
            up.set()

        process.on_death(up.set)
        process.spawn(run(), "stranger")
        await up.wait()
        world.trace.note(process.name, "listens")
        return process

    def leave(self, machine: Machine) -> None:
        """The address is free again, and the supervisor may start the machine's own bookie."""
        process = self._known.pop(machine.host, None)
        if process is not None:
            process.crash()
        machine.away = False
