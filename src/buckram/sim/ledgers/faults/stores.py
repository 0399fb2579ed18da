"""Stories of what lies in a bookie's directory: small files that are compacted all the time, damage to indexes, and a
log whose end is damaged or cut off after a kill."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from buckram.bookie.storage.errors import StoreError
from buckram.sim.engine.damage import damage_tail, damage_tail_without_page, flip_some_index
from buckram.sim.engine.loop import Crashed
from buckram.sim.engine.world import KIB, Died, Machine
from buckram.sim.ledgers.faults.registry import LEDGERS, register

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults
    from buckram.sim.ledgers.plan import Plan


async def _compact(f: Faults, machine: Machine) -> None:
    process, store = machine.process, machine.bookie.store if machine.bookie is not None else None
    if process is None or process.dead or not machine.ready or store is None:
        return
    try:
        await f.world.join(process, store.compact(), "compaction")
    except (Crashed, Died, StoreError, OSError):
        return


async def small_files(f: Faults) -> None:
    """Every few entries the log goes on in another file; compaction and restarts come again and again."""
    for _ in range(f.rng.choice((3, 6, 9))):
        await asyncio.sleep(f.rng.random() * f.plan.busy_s * 0.5)
        machine = f.machine()
        await _compact(f, machine)
        if f.rng.random() < 0.4:
            f.world.crash(machine, power=f.rng.random() < 0.5)


async def crash_in_sync(f: Faults) -> None:
    """A bookie dies while a block is on its way to the device."""
    machine = f.machine()
    for _ in range(400):
        if machine.device.syncing and machine.ready:
            f.world.crash(machine, power=f.rng.random() < 0.7)
            return
        await asyncio.sleep(0.0002 + 0.01 * f.rng.random() ** 4)


async def flip_index(f: Faults) -> None:
    """A byte of a sealed file's footer changes: it is rebuilt from the file's blocks, and nothing is lost."""
    for _ in range(3):
        await asyncio.sleep(f.rng.random() * f.plan.busy_s * 0.5)
        machine = f.machine()
        if flip_some_index(machine.device, f.rng) and f.rng.random() < 0.6:
            f.world.crash(machine, power=f.rng.random() < 0.5)


async def tail(f: Faults) -> None:
    """Killed, and then the end of its log is damaged or cut off: what it acknowledged last is unknown, not absent."""
    for _ in range(20):
        machine = f.machine()
        if machine.ready:
            f.world.crash(machine, power=False)
            if damage_tail(machine.device, f.rng):
                f.world.judge.facts.bookie(machine.name).damaged = True
                return
        await asyncio.sleep(0.1)


async def tail_after_power(f: Faults) -> None:
    """As `tail`, but a loss of power came first and the witness of the log's end went with it. Sometimes the log rested
    before, so that an empty block follows what was acknowledged last."""
    rest = f.rng.random() < 0.6
    for _ in range(40):
        machine = f.machine()
        if machine.ready and f.world.loop.time() > f.plan.busy_s * (1.5 if rest else 0.3):
            f.world.crash(machine, power=True)
            if damage_tail_without_page(machine.device, f.rng):
                f.world.judge.facts.bookie(machine.name).damaged = True
                f.world.report.situation("last block damaged after a loss of power")
                return
        await asyncio.sleep(0.1)


def use_small_files(plan: Plan) -> None:
    plan.configs.store = replace(
        plan.configs.store,
        segment_bytes=4 * KIB,
        commit_max_bytes=4 * KIB,
        compaction_threshold=0.95,
        reserved_bytes=min(plan.configs.store.reserved_bytes, 64 * KIB),
        writable_again_bytes=min(plan.configs.store.writable_again_bytes, 96 * KIB),
    )
    plan.entries, plan.busy_s = max(plan.entries, 20), max(plan.busy_s, 1.0)


def _more(plan: Plan) -> None:
    plan.entries = max(plan.entries, 12)


register("small files", 16, small_files, suit=use_small_files)
register("flip index", 10, flip_index, suit=use_small_files)
register("crash in sync", 12, crash_in_sync, suit=_more)
register("tail", 10, tail, suit=_more, damages=True, lives=(LEDGERS,))
register("tail after power loss", 8, tail_after_power, suit=_more, damages=True, lives=(LEDGERS,))
