"""Faults of addresses: a bookie of another cluster, or one with a new id, starts at the address of a dead one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from simulator.engine.faults.registry import LEDGERS, register_independent
from simulator.engine.foreign import ForeignBookies

if TYPE_CHECKING:
    from simulator.engine.faults.runner import FaultRunner
    from simulator.engine.plan import Plan


async def start_foreign_bookies(f: FaultRunner) -> None:
    """Start bookies of another cluster at one or two addresses of this one, under ids of this cluster or others."""
    others = ForeignBookies(f.world)
    taken = [
        machine
        for machine in dict.fromkeys(f.choose_machine().name for _ in range(f.rng.choice((1, 2, 2))))
        if not f.world.machines[machine].away
    ]
    for name in taken:
        machine = f.world.machines[name]
        f.world.disturb(name, 1)
        await others.take(machine, f.rng.choice((None, None, f"other-{name}")))

    def leave() -> None:
        while taken:
            name = taken.pop()
            others.leave(f.world.machines[name])
            f.world.disturb(name, -1)

    f.on_heal(leave)
    await f.wait_a_while(6.0)
    leave()


async def start_new_bookie_at_address(f: FaultRunner) -> None:
    """Start a new bookie with a new id and an empty disk at the address of a dead one.

    Both go on at other times: the old one where it was, the new one at an address of its own.
    """
    world, old = f.world, f.choose_machine()
    name = f"new-{old.name}"
    if old.away or name in world.machines or old.host != old.name:
        return
    old.away = True
    world.crash(old, power=False)
    world.disturb(old.name, 1)
    new = world.add_machine(name, old.rack, host=old.host, site=old.site)
    await world.boot(new)
    await f.wait_a_while(6.0)
    world.crash(new, power=False)
    new.host = name
    old.away = False
    world.disturb(old.name, -1)
    for _ in range(5):
        if await world.boot(new):
            return
        world.record_death(new)
        await asyncio.sleep(1.0)


def _fits(plan: Plan) -> bool:
    # The liar is chosen by its address, and the address of a bookie that is gone for good cannot be taken.
    return not plan.liar and not plan.hung_for_good


register_independent("address taken by another", 12, start_foreign_bookies, fits=_fits)


def _fits_alone(plan: Plan) -> bool:
    return _fits(plan) and "address taken by another" not in plan.faults  # one at an address is enough


register_independent(
    "bookie replaced at its address", 6, start_new_bookie_at_address, fits=_fits_alone, lives=(LEDGERS,)
)
