"""Divides long work into short slices with rests between, so that requests hardly notice it. No thread, no task."""

from __future__ import annotations

import asyncio

REST_S = 0.001
"""The shortest rest in seconds. A request takes several turns of the loop; with a slice of work in every turn it would
wait for a slice in each of them."""


class Slices:
    """Await `step(cost)` after each step of the work; after every `most` units of cost the loop serves requests.

    Steps are counted, not timed, because loops may report one time for a whole turn. The rest adapts: it lasts as long
    as the loop's last turn took, so a busy bookie spends less on the work.
    """

    __slots__ = ("_done", "_most", "rests")

    def __init__(self, most: int) -> None:
        self._most, self._done, self.rests = most, 0, 0

    async def step(self, cost: int = 1) -> None:
        """Count one step, and rest if the slice is over."""
        self._done += cost
        if self._done >= self._most:
            await self.rest()

    async def rest(self) -> None:
        """End the slice: serve requests for at least REST_S."""
        loop = asyncio.get_running_loop()
        self._done = 0
        self.rests += 1
        began = loop.time()
        await asyncio.sleep(0)
        await asyncio.sleep(max(REST_S, loop.time() - began))
