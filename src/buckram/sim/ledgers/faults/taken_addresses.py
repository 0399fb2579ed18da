"""Stories of addresses: another cluster's bookie, or one of ours with a new id, boots where one has died."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from buckram.sim.engine.foreign import ForeignBookies
from buckram.sim.ledgers.faults.registry import LEDGERS, register

if TYPE_CHECKING:
    from buckram.sim.ledgers.faults.runner import Faults
    from buckram.sim.ledgers.plan import Plan


async def address_taken(f: Faults) -> None:
    """Bookies of another cluster, under the names of ours or under others, at the addresses of one or two of ours."""
    others = ForeignBookies(f.world)
    taken = [
        machine
        for machine in dict.fromkeys(f.machine().name for _ in range(f.rng.choice((1, 2, 2))))
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
    await f.last(6.0)
    leave()


async def replaced(f: Faults) -> None:
    """A new bookie of ours, with a new id and an empty disk, boots where one has died; both go on at other times: the
    old one where it was, the new one at an address of its own."""
    world, old = f.world, f.machine()
    name = f"new-{old.name}"
    if old.away or name in world.machines or old.host != old.name:
        return
    old.away = True
    world.crash(old, power=False)
    world.disturb(old.name, 1)
    new = world.add_machine(name, old.rack, host=old.host)
    await world.boot(new)
    await f.last(6.0)
    world.crash(new, power=False)
    new.host = name
    old.away = False
    world.disturb(old.name, -1)
    for _ in range(5):
        if await world.boot(new):
            return
        world.died(new)
        await asyncio.sleep(1.0)


def _fits(plan: Plan) -> bool:
    # A liar is a liar by its address, and a bookie that is gone for good cannot be taken away.
    return not plan.liar and not plan.hung_for_good


register("address taken by another", 12, address_taken, fits=_fits)


def _fits_alone(plan: Plan) -> bool:
    return _fits(plan) and "address taken by another" not in plan.faults  # one at an address is enough


register("bookie replaced at its address", 6, replaced, fits=_fits_alone, lives=(LEDGERS,))
