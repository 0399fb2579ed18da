"""Stories of disks: errors, no space, changed bytes, an empty disk in place of the old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buckram.sim.engine.damage import flip_some_byte
from buckram.sim.ledgers.faults.registry import common

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults
    from buckram.sim.ledgers.plan import Plan


async def write_error(f: Faults) -> None:
    f.machine().device.fail_writes = 1


async def read_error(f: Faults) -> None:
    f.machine().device.fail_reads = f.rng.choice((1, 3))


async def full(f: Faults) -> None:
    model = f.machine().device.model
    before = model.total_bytes
    model.total_bytes = model.used_bytes() + f.rng.choice((0, 1024, 70_000, 300_000))
    await f.last(5.0)
    model.total_bytes = before


async def flip(f: Faults) -> None:
    machine = f.machine()
    if flip_some_byte(machine.device, f.rng):
        f.world.judge.facts.bookie(machine.name).damaged = True
        if f.rng.random() < 0.6:
            f.world.crash(machine, power=False)


async def wipe(f: Faults) -> None:
    """The disk is replaced by an empty one: the bookie must refuse to serve under its old name (M8)."""
    machine = f.machine()
    facts = f.world.judge.facts.bookie(machine.name)
    facts.wiped = True
    f.world.crash(machine, power=True)
    machine.device.wipe()
    f.world.disturb(machine.name, 1)
    await f.last()
    started = await f.world.boot(machine)
    f.world.report.check("M8", not started, "{} serves although its disk was replaced", machine.name)


def _for_full(plan: Plan) -> None:
    plan.large, plan.entries = True, 40


common("write error", 2, write_error)
common("read error", 2, read_error)
common("full", 3, full, suit=_for_full)
common("flip", 3, flip, damages=True)
common("wipe", 2, wipe, damages=True)
