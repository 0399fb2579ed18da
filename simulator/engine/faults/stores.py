"""Faults of the files in a bookie's directory: small files that are compacted often, damaged indexes, and a log whose
end is damaged or cut off after a crash."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from buckram.bookie.storage.read_results import StoreError
from simulator.engine.damage import damage_tail, damage_tail_without_page, flip_some_index
from simulator.engine.faults.registry import LEDGERS, register_independent
from simulator.engine.loop import Crashed
from simulator.engine.world import KIB, Died, Machine

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner
    from simulator.engine.plan import Plan


async def _compact(f: FaultRunner, machine: Machine) -> None:
    process, store = machine.process, machine.bookie.store if machine.bookie is not None else None
    if process is None or process.dead or not machine.ready or store is None:
        return
    try:
        await f.world.join(process, store.compact(), "compaction")
    except (Crashed, Died, StoreError, OSError):
        return


async def compact_small_files(f: FaultRunner) -> None:
    """Compact bookies repeatedly and crash some of them; a log file holds only a few entries (`use_small_files`)."""
    for _ in range(f.rng.choice((3, 6, 9))):
        await asyncio.sleep(f.rng.random() * f.plan.busy_s * 0.5)
        machine = f.choose_machine()
        await _compact(f, machine)
        if f.rng.random() < 0.4:
            f.world.crash(machine, power=f.rng.random() < 0.5)


async def crash_in_sync(f: FaultRunner) -> None:
    """Kill a bookie while a block is on its way to the device."""
    machine = f.choose_machine()
    for _ in range(400):
        if machine.device.syncing and machine.ready:
            f.world.crash(machine, power=f.rng.random() < 0.7)
            return
        await asyncio.sleep(0.0002 + 0.01 * f.rng.random() ** 4)


async def flip_index(f: FaultRunner) -> None:
    """Change a byte of a sealed file's footer: the footer is rebuilt from the file's blocks, and nothing is lost."""
    for _ in range(3):
        await asyncio.sleep(f.rng.random() * f.plan.busy_s * 0.5)
        machine = f.choose_machine()
        if flip_some_index(machine.device, f.rng) and f.rng.random() < 0.6:
            f.world.crash(machine, power=f.rng.random() < 0.5)


async def damage_log_end(f: FaultRunner) -> None:
    """Kill a bookie, then damage or cut off the end of its log.

    It must answer "unknown" for the entries that it acknowledged last, and not that they do not exist.
    """
    for _ in range(20):
        machine = f.choose_machine()
        if machine.ready:
            f.world.crash(machine, power=False)
            if damage_tail(machine.device, f.rng):
                f.world.judge.facts.bookie(machine.name).damaged = True
                return
        await asyncio.sleep(0.1)


async def damage_log_end_after_power_loss(f: FaultRunner) -> None:
    """Damage the end of a log after a loss of power, which also removed the page that witnesses the log's end.

    Sometimes the log was idle before, so that an empty block follows what was acknowledged last. After a kill:
    `damage_log_end`.
    """
    idle = f.rng.random() < 0.6
    for _ in range(40):
        machine = f.choose_machine()
        if machine.ready and f.world.loop.time() > f.plan.busy_s * (1.5 if idle else 0.3):
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


def _suit_more_entries(plan: Plan) -> None:
    plan.entries = max(plan.entries, 12)


register_independent("small files", 16, compact_small_files, suit=use_small_files)
register_independent("flip index", 10, flip_index, suit=use_small_files)
register_independent("crash in sync", 12, crash_in_sync, suit=_suit_more_entries)
register_independent("tail", 10, damage_log_end, suit=_suit_more_entries, damages=True, lives=(LEDGERS,))
register_independent(
    "tail after power loss", 8, damage_log_end_after_power_loss, suit=_suit_more_entries, damages=True, lives=(LEDGERS,)
)
