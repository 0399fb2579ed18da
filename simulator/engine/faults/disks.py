"""Faults of disks: input/output errors, no space, changed bytes, an empty disk in place of the old one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulator.engine.damage import flip_some_byte
from simulator.engine.faults.registry import register_common

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner
    from simulator.engine.plan import Plan


async def write_error(f: FaultRunner) -> None:
    f.choose_machine().device.fail_writes = 1


async def read_error(f: FaultRunner) -> None:
    f.choose_machine().device.fail_reads = f.rng.choice((1, 3))


async def fill_disk(f: FaultRunner) -> None:
    """Leave hardly any space on a disk for a while. A loss of power replaces the device's model, not its size."""
    device = f.choose_machine().device
    before = device.model.total_bytes
    device.model.total_bytes = device.model.used_bytes() + f.rng.choice((0, 1024, 70_000, 300_000))
    await f.wait_a_while(5.0)
    device.model.total_bytes = before


async def flip_block(f: FaultRunner) -> None:
    machine = f.choose_machine()
    if flip_some_byte(machine.device, f.rng):
        f.world.judge.facts.bookie(machine.name).damaged = True
        if f.rng.random() < 0.6:
            f.world.crash(machine, power=False)


async def wipe_disk(f: FaultRunner) -> None:
    """Replace a disk by an empty one: the bookie must refuse to serve under its old id (M8)."""
    machine = f.choose_machine()
    facts = f.world.judge.facts.bookie(machine.name)
    facts.wiped = True
    f.world.crash(machine, power=True)
    machine.device.wipe()
    f.world.disturb(machine.name, 1)
    await f.wait_a_while()
    started = await f.world.boot(machine)
    f.world.report.check("M8", not started, "{} serves although its disk was replaced", machine.name)


def _suit_full(plan: Plan) -> None:
    plan.large, plan.entries = True, 40


register_common("write error", 2, write_error)
register_common("read error", 2, read_error)
register_common("full", 3, fill_disk, suit=_suit_full)
register_common("flip", 3, flip_block, damages=True)
register_common("wipe", 2, wipe_disk, damages=True)
