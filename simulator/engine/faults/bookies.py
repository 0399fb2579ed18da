"""Faults of bookies: one or several crash, at any point, with or without a loss of power; one is paused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulator.engine.faults.registry import register_common

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner
    from simulator.engine.plan import Plan

SMALL = ((3, 3, 2), (2, 2, 2), (3, 2, 2), (2, 2, 1), (3, 3, 3))
STRIPED = ((3, 2, 2), (4, 2, 2), (4, 3, 3))


async def kill_one(f: FaultRunner) -> None:
    f.world.crash(f.choose_machine(), power=False)


async def kill_pair(f: FaultRunner) -> None:
    """Kill two members of one ensemble at the same moment."""
    for ledger in f.world.judge.facts.ledgers.values():
        if ledger.metadata is not None and not ledger.metadata.closed:
            members = list(ledger.metadata.last_fragment.ensemble)
            f.rng.shuffle(members)
            power, together = f.rng.random() < 0.3, f.rng.random() < 0.7
            # A writer with adds at both that is paused meanwhile learns of both failures in one turn of its loop.
            if together:
                for name in members[:2]:
                    f.world.pause(name)
                await asyncio.sleep(0.28)
                f.world.pause(ledger.writer)
            for name in members[:2]:
                f.world.crash(f.world.machines[name], power)
            if together:
                await asyncio.sleep(0.05)
                f.world.resume(ledger.writer)
            return


async def slow_one_kill_another(f: FaultRunner) -> None:
    """Slow down a bookie's answers to the writer, then kill another bookie of the ensemble.

    Later entries are complete then, but their acknowledgements wait for an earlier entry that is not.
    """
    open_ones = [
        ledger
        for ledger in f.world.judge.facts.ledgers.values()
        if ledger.metadata is not None and not ledger.metadata.closed
    ]
    if not open_ones:
        return
    ledger = f.rng.choice(open_ones)
    assert ledger.metadata is not None
    members = list(ledger.metadata.last_fragment.ensemble)
    f.rng.shuffle(members)
    slow, dying = members[:2]
    extra_s = 0.7 * f.plan.configs.net.request_timeout_s
    f.world.disturb(ledger.writer, 1)
    f.world.fabric.slow(slow, ledger.writer, extra_s)
    await asyncio.sleep(f.rng.random() * extra_s)
    f.world.crash(f.world.machines[dying], power=False)
    await asyncio.sleep(1.0)
    f.world.fabric.slow(slow, ledger.writer, 0.0)
    f.world.disturb(ledger.writer, -1)


async def power_loss(f: FaultRunner) -> None:
    f.world.crash(f.choose_machine(), power=True)


async def power_loss_everywhere(f: FaultRunner) -> None:
    for machine in f.world.machines.values():
        f.world.crash(machine, power=True)


async def crash_at_op(f: FaultRunner) -> None:
    """Kill a bookie in one of its next 30 disk operations."""
    machine, power = f.choose_machine(), f.rng.random() < 0.6
    process = machine.process
    if process is None or process.dead:
        return
    machine.device.crash_at_op = machine.device.ops + 1 + int(f.rng.random() ** 2 * 30)
    process.on_death(lambda: f.record_death_in_operation(machine, power))


async def crash_at_await(f: FaultRunner) -> None:
    """Kill a bookie at one of the next 300 steps of its process."""
    machine, power = f.choose_machine(), f.rng.random() < 0.5
    process = machine.process
    if process is None or process.dead:
        return
    process.crash_after(int(f.rng.random() ** 2 * 300))
    process.on_death(lambda: f.record_death_in_operation(machine, power))


async def pause_bookie(f: FaultRunner) -> None:
    machine = f.choose_machine()
    f.world.pause(machine.name)
    await f.wait_a_while(8.0)
    f.world.resume(machine.name)


def _suit_kill_pair(plan: Plan) -> None:
    plan.shape = SMALL[plan.seed % len(SMALL)]
    plan.bookies, plan.entries, plan.busy_s = plan.shape[0] + 2, max(plan.entries, 30), 2.0


def _suit_slow_one(plan: Plan) -> None:
    # Striped and Qw == Qa: one slow bookie holds up the entries that it stores, while others are complete.
    plan.shape = STRIPED[plan.seed % len(STRIPED)]
    plan.bookies, plan.entries, plan.busy_s = plan.shape[0] + 1, max(plan.entries, 20), 1.0


register_common("kill", 5, kill_one)
register_common("power", 5, power_loss)
register_common("pair", 4, kill_pair, suit=_suit_kill_pair)
register_common("power all", 3, power_loss_everywhere)
register_common("crash at op", 5, crash_at_op)
register_common("crash at await", 4, crash_at_await)
register_common("pause bookie", 4, pause_bookie)
register_common("lag", 4, slow_one_kill_another, suit=_suit_slow_one)
