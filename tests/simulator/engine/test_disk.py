"""The simulated disk: time passes during a sync, crashes keep what was synced, dead processes touch nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from buckram.seams import Read, Write
from simulator.engine.disk import Device, SimDisk
from simulator.engine.loop import Crashed, SimLoop
from simulator.engine.trace import Trace


def play(scenario: Callable[[SimLoop, Device], Awaitable[None]], seed: int = 1) -> None:
    rng = random.Random(seed)
    loop = SimLoop(rng, Trace())

    async def main() -> None:
        await scenario(loop, Device(loop, rng, "d"))

    try:
        loop.run_until_complete(main())
    finally:
        loop.close()


def test_sync_takes_time_and_survives_a_crash() -> None:
    async def scenario(loop: SimLoop, device: Device) -> None:
        process = loop.process("p")
        disk = SimDisk(device, process)
        file = disk.open("log", create=True)
        disk.sync_names()
        done: list[OSError | None] = []
        disk.write([Write(file, 0, [b"synced"])], done.append)
        assert done == []
        await asyncio.sleep(1)
        assert done == [None]
        disk.write([Write(file, 6, [b"lost"])], done.append)
        process.crash()
        await asyncio.sleep(1)
        assert done == [None]
        assert device.model.worst_case().inode("log").read(0, 100) == b"synced"
        device.power_loss()
        assert SimDisk(device, loop.process("q")).open("log").read(0, 6) == b"synced"

    play(scenario)


@pytest.mark.parametrize("op", range(1, 5))
def test_process_may_die_in_any_operation(op: int) -> None:
    async def scenario(loop: SimLoop, device: Device) -> None:
        disk = SimDisk(device, loop.process("p"))
        device.crash_at_op = op
        for n in range(op - 1):
            disk.open(f"f{n}", create=True)
        with pytest.raises(Crashed):
            disk.open("last", create=True)
        with pytest.raises(Crashed):
            disk.names()

    play(scenario)


def test_errors_and_a_full_device_reach_the_caller() -> None:
    async def scenario(loop: SimLoop, device: Device) -> None:
        disk = SimDisk(device, loop.process("p"))
        file = disk.open("log", create=True)
        results: list[object] = []
        device.fail_writes = 1
        disk.write([Write(file, 0, [b"x"])], results.append)
        device.model.total_bytes = 100
        disk.write([Write(file, 0, [bytes(200)])], results.append)
        device.fail_reads = 1
        disk.read([Read(file, 0, 1)], results.append)
        await asyncio.sleep(1)
        assert [type(r) for r in results] == [OSError] * 3
        assert disk.space().free_bytes == 99

    play(scenario)


def test_directory_is_locked_by_one_process() -> None:
    async def scenario(loop: SimLoop, device: Device) -> None:
        first = loop.process("p")
        SimDisk(device, first).lock()
        second = SimDisk(device, loop.process("q"))
        with pytest.raises(OSError, match="in use by p"):
            second.lock()
        first.crash()
        second.lock()

    play(scenario)
