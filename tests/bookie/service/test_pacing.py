"""GivingWay on a real bookie: a large tenant is paced while adds of a small one take long, and free afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.support.bookie_kit import HeldDisk
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.tenants_kit import tenants

from buckram.client.write.writer import Writer

PAYLOAD = b"x" * 1000


@pytest.fixture(autouse=True)
def no_unix_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")


async def compete(disk: HeldDisk, large: Writer, small: Writer) -> list[asyncio.Future[int]]:
    """Have both add while the disk is slow; the adds of the large one."""
    await small.append(PAYLOAD)
    pending = [large.append_nowait(PAYLOAD) for _ in range(3000)]
    for _ in range(20):
        disk.holding = True
        add = small.append_nowait(PAYLOAD)
        pending += [large.append_nowait(PAYLOAD) for _ in range(50)]
        await until(lambda: disk.waiting > 0)
        await pass_time(0.05)
        disk.release()
        await add
    return pending


async def test_a_large_one_is_paced_while_a_small_one_waits_and_loses_nothing(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with tenants(tmp_path, "shop", "log", disk=disk) as here:
        await here.limit("shop", stored_bytes=2**40)
        large, small = await here.writer("shop"), await here.writer("log")
        pending = await compete(disk, large, small)
        assert here.tenant("shop").is_limited
        assert not here.tenant("log").is_limited
        await pass_time(6.0)
        assert not here.tenant("shop").is_limited
        assert await asyncio.gather(*pending) == list(range(len(pending)))
        assert (large.ensemble_changes, large.degraded) == (0, False)


async def test_reads_of_a_large_one_are_paced_with_its_adds(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with tenants(tmp_path, "shop", "log", disk=disk) as here:
        await here.limit("shop", stored_bytes=2**40)
        large, small = await here.writer("shop"), await here.writer("log")
        pending = await compete(disk, large, small)
        shop, now = here.tenant("shop"), asyncio.get_running_loop().time()
        shop.read(64 * 1024 * 1024)
        assert shop.wait_s("reads", now) > 0
        assert shop.wait_s("adds", now) > 0
        await pass_time(12.0)
        await asyncio.gather(*pending)


async def test_nobody_is_paced_while_all_are_quick(tmp_path: Path) -> None:
    disk = HeldDisk(tmp_path)
    async with tenants(tmp_path, "shop", "log", disk=disk) as here:
        await here.limit("shop", stored_bytes=2**40)
        large, small = await here.writer("shop"), await here.writer("log")
        for _ in range(20):
            await asyncio.gather(large.append_many([PAYLOAD] * 20), small.append(PAYLOAD))
        assert not here.tenant("log").is_limited
