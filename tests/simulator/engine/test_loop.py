"""The simulated loop: virtual time, asyncio's own primitives, the seeded choice between processes, crash and pause."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from simulator.engine.loop import SimLoop, Stuck
from simulator.engine.trace import Trace


def make_loop(seed: int = 1, **kwargs: Any) -> SimLoop:
    return SimLoop(random.Random(seed), Trace(), **kwargs)


def run(main: Coroutine[Any, Any, Any], loop: SimLoop) -> Any:
    try:
        return loop.run_until_complete(main)
    finally:
        loop.close()


def test_virtual_time_takes_no_real_time() -> None:
    loop = make_loop()

    async def main() -> float:
        await asyncio.sleep(3600)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run(main(), loop) == 3610


def test_asyncio_primitives_work() -> None:
    loop = make_loop()

    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)
        lock, seen = asyncio.Lock(), []

        async def produce() -> None:
            for n in range(5):
                await queue.put(n)

        async def consume() -> None:
            for _ in range(5):
                async with lock:
                    seen.append(await queue.get())

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
        done, _ = await asyncio.wait([asyncio.ensure_future(asyncio.sleep(n, n + 6)) for n in (1, 2)])
        return seen + [task.result() for task in done]

    assert sorted(run(main(), loop)) == [0, 1, 2, 3, 4, 7, 8]


def steps_of(seed: int) -> tuple[list[str], str]:
    loop, order = make_loop(seed), []

    async def work(name: str) -> None:
        for n in range(6):
            order.append(f"{name}{n}")
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*[loop.process(name).spawn(work(name)) for name in "abc"])

    run(main(), loop)
    return order, loop.trace.digest


def test_seed_orders_processes_and_each_is_fifo() -> None:
    orders = {tuple(steps_of(seed)[0]) for seed in range(20)}
    assert len(orders) > 5
    for order in orders:
        for name in "abc":
            assert [x for x in order if x[0] == name] == [f"{name}{n}" for n in range(6)]
    assert steps_of(3) == steps_of(3)
    assert steps_of(3)[1] != steps_of(4)[1]


def test_crashed_process_runs_no_more_code() -> None:
    loop, seen = make_loop(), []
    victim = loop.process("victim")
    gate: list[asyncio.Future[None]] = []

    async def work() -> None:
        try:
            gate.append(asyncio.get_running_loop().create_future())
            await gate[0]
            seen.append("resumed")
        finally:
            seen.append("finally")

    async def main() -> None:
        victim.spawn(work())
        await asyncio.sleep(1)
        victim.crash()
        gate[0].set_result(None)
        victim.spawn(work())
        await asyncio.sleep(1)

    try:
        loop.run_until_complete(main())
        assert seen == []
    finally:
        loop.close()


@pytest.mark.parametrize("handles", range(1, 6))
def test_crash_at_every_await(handles: int) -> None:
    loop, seen = make_loop(), []
    victim = loop.process("victim")

    async def work() -> None:
        for n in range(10):
            seen.append(n)
            await asyncio.sleep(0)

    async def main() -> None:
        victim.crash_after(handles)
        victim.spawn(work())
        await asyncio.sleep(1)

    run(main(), loop)
    assert seen == list(range(handles))


def test_paused_process_misses_no_event() -> None:
    loop, seen = make_loop(), []
    sleeper = loop.process("sleeper")

    async def work() -> None:
        for n in range(4):
            await asyncio.sleep(1)
            seen.append((n, asyncio.get_running_loop().time()))

    async def main() -> None:
        sleeper.spawn(work())
        await asyncio.sleep(1.5)
        sleeper.pause()
        await asyncio.sleep(10)
        sleeper.resume()
        await asyncio.sleep(10)

    run(main(), loop)
    assert seen == [(0, 1.0), (1, 11.5), (2, 12.5), (3, 13.5)]


async def wait_for_ever() -> None:
    await asyncio.Event().wait()


async def spin() -> None:
    for _ in range(10_000):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("main", "text"), [(wait_for_ever, "deadlock"), (spin, "spins")])
def test_deadlock_and_livelock_are_reported(main: Callable[[], Coroutine[Any, Any, None]], text: str) -> None:
    loop = make_loop(max_idle_steps=1000)
    with pytest.raises(Stuck, match=text):
        run(main(), loop)


def test_uncaught_errors_are_reported_with_their_process() -> None:
    errors: list[tuple[str, str]] = []
    loop = make_loop(on_error=lambda process, _, error: errors.append((process.name, repr(error))))
    process = loop.process("p")

    async def fail() -> None:
        raise ValueError("lost")

    async def main() -> None:
        process.spawn(fail())
        process.context.run(loop.call_soon, [].pop)
        await asyncio.sleep(1)

    run(main(), loop)
    assert ("p", "IndexError('pop from empty list')") in errors
    assert ("p", "ValueError('lost')") in errors
