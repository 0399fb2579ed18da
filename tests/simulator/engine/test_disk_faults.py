"""Faults of disks end: whatever else happens to the machine meanwhile, its disk is what it was before."""

from __future__ import annotations

import asyncio

from simulator.engine.faults.disks import fill_disk
from simulator.ledgers.life import Life
from simulator.ledgers.plan import make_plan


def test_a_full_disk_has_room_again_after_a_loss_of_power() -> None:
    life = Life(make_plan(1))
    device = life.world.add_machine("b1").device
    before = device.model.total_bytes

    async def fill_and_lose_power() -> None:
        filling = asyncio.create_task(fill_disk(life.faults))
        await asyncio.sleep(0)
        device.power_loss()
        assert device.model.total_bytes < before, "full while the machine starts again"
        await filling

    life.world.loop.run_until_complete(fill_and_lose_power())
    life.world.close()
    assert device.model.total_bytes == before
