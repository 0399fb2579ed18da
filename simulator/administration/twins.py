"""Directories in wrong places: those of two bookies swapped, a copy under another id, a copy under the same id."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

from buckram.bookie.process import Bookie
from buckram.errors import BuckramError
from simulator.administration.rules import TWIN
from simulator.administration.stage import Stage
from simulator.engine.disk import Device, SimDisk
from simulator.engine.world import Machine


async def swap_directories(stage: Stage, rng: random.Random) -> None:
    """Swap the disks of two bookies: neither may start until they are back in their places."""
    first, second = stage.choose(rng), None
    if first is not None:
        stage.busy.add(first.name)
        second = stage.choose(rng)
    if first is None or second is None:
        return
    stage.busy.add(second.name)
    for machine in (first, second):
        stage.stop(machine)
    _swap(first, second)
    for machine in (first, second):
        started = await stage.world.boot(machine)
        text = "{} serves from the directory of another bookie"
        stage.world.report.check("directory", not started, text, machine.name)
        if not started:
            stage.world.report.situation("swapped directories were refused")
    for machine in (first, second):
        if machine.running:
            stage.world.crash(machine, power=False)
    _swap(first, second)
    for machine in (first, second):
        await stage.let_serve(machine)
        stage.busy.discard(machine.name)


def _swap(first: Machine, second: Machine) -> None:
    first.device, second.device = second.device, first.device


async def copy_directory(stage: Stage, rng: random.Random) -> None:
    """Start a copy of a bookie's directory under another id: it must not serve."""
    machine = stage.choose(rng)
    if machine is None:
        return
    served, why = await _start(stage, machine, f"copy-of-{machine.name}", rng, 0.0)
    text = "a copy of the directory of {} serves under another id"
    stage.world.report.check("directory", not served, text, machine.name)
    if why:
        stage.world.report.situation("a copied directory was refused")


async def run_twin(stage: Stage, rng: random.Random) -> None:
    """Run a copy of a bookie's directory under the same id elsewhere, while the bookie runs: it must not be listed.

    While metadata wait to be accepted no bookie is registered, and then the first one is: which of the two has the id
    nobody can know.
    """
    machine = stage.choose(rng) if stage.may_damage() else None
    if machine is None:
        return
    stage.world.report.situation("two processes of one directory")
    stage.busy.add(machine.name)
    before, rules, began = machine.process, stage.rules, stage.world.loop.time()
    served, _ = await _start(stage, machine, machine.name, rng, 5.0 + rng.random() * 30.0)
    waited = rules.unaccepted_at is not None or rules.history_at >= began
    if before is machine.process and machine.running and not waited:
        text = "a copy of the directory of {} was registered while {} ran"
        served = served and rules.registrants.get(machine.name) == f"{TWIN}{machine.name}"
        stage.world.report.check("directory", not served, text, machine.name, machine.name)
    stage.busy.discard(machine.name)


async def _start(stage: Stage, machine: Machine, bookie_id: str, rng: random.Random, for_s: float) -> tuple[bool, str]:
    """Start a copy of a directory. Return whether it was registered, and why it refused to start, if it did."""
    world = stage.world
    host = f"{TWIN}{machine.name}"
    process = world.process(host)
    device = Device(world.loop, random.Random(f"{host} {world.seed}"), host)
    device.model = machine.device.snapshot()
    runtime = world.runtime(process, host)
    config = replace(world.configs.bookie, host=host, port=3181, bookie_id=bookie_id)
    ended, refused = asyncio.Event(), [""]
    served = [False]

    async def run() -> None:
        store = world.store(process, runtime.rng)
        bookie = Bookie(runtime, SimDisk(device, process), store, config, world.configs.store, world.configs.net)
        try:
            await bookie.start()
            served[0] = True
            if bookie_id == machine.name:  # the directory of the bookie itself is the older one of the two from now on
                world.judge.facts.bookie(machine.name).damaged = True
            await bookie.failed
        except (BuckramError, OSError) as error:
            refused[0] = f"{type(error).__name__}: {error}"
            world.trace.note(host, f"ends: {refused[0]}")
        ended.set()

    process.on_death(ended.set)
    process.spawn(run(), "bookie")
    try:
        async with asyncio.timeout(for_s or 60.0):
            await ended.wait()
    except TimeoutError:
        world.trace.note(host, "is stopped")
    if not process.dead:
        process.crash()
    return served[0], refused[0]
