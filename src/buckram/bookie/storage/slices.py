"""Divides long work into short slices with rests between, so that requests hardly notice it. No thread, no task."""

from __future__ import annotations

import asyncio

REST_S = 0.001
"""The shortest rest. Several steps of one request lie between arrival and answer; with a slice in every turn of the
loop each of them would wait for one."""


class Slices:
    """`await slices.step(cost)` after each step; every `most` units the loop gets the turn, and a rest.

    Steps are counted, not timed: loops may keep one time for a whole turn. What adapts is the rest: as long as the loop
    took for everybody's work since the slice began, so a busy bookie is asked for less.
    """

    __slots__ = ("_done", "_most", "rests")

    def __init__(self, most: int) -> None:
        self._most, self._done, self.rests = most, 0, 0

    async def step(self, cost: int = 1) -> None:
        self._done += cost
        if self._done >= self._most:
            await self.rest()

    async def rest(self) -> None:
        loop = asyncio.get_running_loop()
        self._done = 0
        self.rests += 1
        began = loop.time()
        await asyncio.sleep(0)
        await asyncio.sleep(max(REST_S, loop.time() - began))
