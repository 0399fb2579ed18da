"""Foreign bookies: bookies of another cluster that listen at addresses of this one.

The other cluster has its own metadata store, which faults do not touch and the judge does not watch. Its bookies
introduce themselves with the id that they are given, and serve like any bookie. The judge tells them
apart by the names of their processes, so their replies do not count as replies of the bookie whose address they use.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from buckram.bookie.process import Bookie
from simulator.engine.disk import Device, SimDisk
from simulator.engine.loop import Process
from simulator.engine.stores import MemoryStores
from simulator.engine.world import Machine, World


class ForeignBookies:
    """The other cluster. Its bookies `take` addresses of this one, and `leave` them again."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._stores = MemoryStores(world.fabric, random.Random(f"strangers {world.seed}"))
        self._known: dict[str, Process] = {}
        self._initialised = False

    async def take(self, machine: Machine, bookie_id: str | None = None) -> Process:
        """Stop the machine's bookie and start a foreign one at its address, by default under the same id."""
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
        """Stop the foreign bookie, so that the supervisor may start the machine's own one again."""
        process = self._known.pop(machine.host, None)
        if process is not None:
            process.crash()
        machine.away = False
