"""Stories of bookies that die, one or several, at any point, and of one that stands still."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.sim.ledgers.faults.registry import common

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults
    from buckram.sim.ledgers.plan import Plan

SMALL = ((3, 3, 2), (2, 2, 2), (3, 2, 2), (2, 2, 1), (3, 3, 3))
STRIPED = ((3, 2, 2), (4, 2, 2), (4, 3, 3))


async def kill(f: Faults) -> None:
    f.world.crash(f.machine(), power=False)


async def pair(f: Faults) -> None:
    """Two members of one ensemble die at the same moment."""
    for ledger in f.world.judge.facts.ledgers.values():
        if ledger.metadata is not None and not ledger.metadata.closed:
            members = list(ledger.metadata.last_fragment.ensemble)
            f.rng.shuffle(members)
            power, together = f.rng.random() < 0.3, f.rng.random() < 0.7
            # A writer with adds at both that sleeps meanwhile hears of both in one turn.
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


async def lag(f: Faults) -> None:
    """One member is slow to answer the writer, then another one dies: acknowledgements wait behind a hole."""
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


async def power(f: Faults) -> None:
    f.world.crash(f.machine(), power=True)


async def power_all(f: Faults) -> None:
    for machine in f.world.machines.values():
        f.world.crash(machine, power=True)


async def crash_at_op(f: Faults) -> None:
    machine, power = f.machine(), f.rng.random() < 0.6
    process = machine.process
    if process is None or process.dead:
        return
    machine.device.crash_at_op = machine.device.ops + 1 + int(f.rng.random() ** 2 * 30)
    process.on_death(lambda: f.died_in_op(machine, power))


async def crash_at_await(f: Faults) -> None:
    machine, power = f.machine(), f.rng.random() < 0.5
    process = machine.process
    if process is None or process.dead:
        return
    process.crash_after(int(f.rng.random() ** 2 * 300))
    process.on_death(lambda: f.died_in_op(machine, power))


async def pause_bookie(f: Faults) -> None:
    machine = f.machine()
    f.world.pause(machine.name)
    await f.last(8.0)
    f.world.resume(machine.name)


def _for_pairs(plan: Plan) -> None:
    plan.shape = SMALL[plan.seed % len(SMALL)]
    plan.bookies, plan.entries, plan.busy_s = plan.shape[0] + 2, max(plan.entries, 30), 2.0


def _for_lag(plan: Plan) -> None:
    # Striped and Qw == Qa: one slow member holds up its entries while the others' are complete.
    plan.shape = STRIPED[plan.seed % len(STRIPED)]
    plan.bookies, plan.entries, plan.busy_s = plan.shape[0] + 1, max(plan.entries, 20), 1.0


common("kill", 5, kill)
common("power", 5, power)
common("pair", 4, pair, suit=_for_pairs)
common("power all", 3, power_all)
common("crash at op", 5, crash_at_op)
common("crash at await", 4, crash_at_await)
common("pause bookie", 4, pause_bookie)
common("lag", 4, lag, suit=_for_lag)
