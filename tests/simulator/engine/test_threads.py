"""Simulated threads: they run as steps of their process, in an order that the seed decides."""

from __future__ import annotations

import asyncio
import random

from simulator.engine.loop import make_loop
from simulator.engine.threads import SimThreads
from simulator.engine.trace import Trace


class _World:
    def __init__(self, seed: int = 1) -> None:
        self.loop = make_loop(random.Random(seed), Trace(None))
        self.process = self.loop.process("p")
        self.threads = SimThreads(self.loop, self.process, random.Random(seed))
        self.done: list[str] = []

    def close(self) -> None:
        self.loop.close()
        self.threads.close()


def test_jobs_run_in_order_and_a_thread_waits_for_a_decision() -> None:
    world = _World()
    queue, decided = world.threads.queue(), world.threads.event()

    def work() -> None:
        while (job := queue.get()) is not None:
            world.done.append(job)
            if job == "b":
                decided.wait()
                world.done.append("decided")

    async def life() -> None:
        thread = world.threads.start(work, "worker")
        for job in ("a", "b", "c"):
            queue.put(job)
        await asyncio.sleep(1.0)
        assert world.done == ["a", "b"]
        decided.set()
        queue.put(None)
        await asyncio.sleep(1.0)
        assert world.done == ["a", "b", "decided", "c"]
        assert not thread.is_alive()

    world.loop.run_until_complete(life())
    world.close()


def test_threads_of_a_paused_process_stand_still() -> None:
    world = _World()
    queue = world.threads.queue()

    async def life() -> None:
        world.threads.start(lambda: world.done.append(queue.get()), "worker")
        world.process.pause()
        queue.put("a")
        await asyncio.sleep(1.0)
        assert world.done == []
        world.process.resume()
        await asyncio.sleep(1.0)
        assert world.done == ["a"]

    world.loop.run_until_complete(life())
    world.close()


def test_the_end_of_a_life_ends_threads_wherever_they_wait() -> None:
    world = _World()
    queue, decided = world.threads.queue(), world.threads.event()

    def decide() -> None:
        try:
            decided.wait()
        finally:
            world.done.append("rolled back")

    async def life() -> None:
        world.threads.start(lambda: world.done.append(str(queue.get())), "worker")
        world.threads.start(decide, "decision")
        await asyncio.sleep(1.0)

    world.loop.run_until_complete(life())
    assert world.done == []
    world.close()
    assert world.done == ["None", "rolled back"]
