"""Time that passes for the event loop of a test without anybody waiting for it, and clocks that a test sets.

For tests that assert that something does not happen within some time, or that happens by a timer alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

STEP_S = 0.005
TURNS = 10
"""Turns of the loop after each step: a request to a peer on the same loop and its reply take fewer."""


SECOND = 1_000_000
DAY = 86_400 * SECOND
HELD_STEP = 600 * SECOND


class SettableClock:
    """The machine's time, with `passed` more microseconds that went by; its wall clock is wrong by `ahead`."""

    def __init__(self, ahead: int = 0) -> None:
        self.ahead, self.passed = ahead, 0

    def wall_us(self) -> int:
        return self.true_us() + self.ahead

    def up_us(self) -> int:
        return time.monotonic_ns() // 1000 + self.passed

    def boot(self) -> str:
        return ""

    async def hold(self, us: int, look: Callable[[], Awaitable[object]]) -> None:
        """Let the time go by in steps of ten minutes, and `look` at it after each, so that it is seen to hold."""
        for left in range(us, 0, -HELD_STEP):
            self.passed += min(left, HELD_STEP)
            await look()

    def true_us(self) -> int:
        """The time that a right clock would show."""
        return time.time_ns() // 1000 + self.passed


class LoopClock:
    """The time of one event loop, which a test can move forward."""

    def __init__(self, real: Callable[[], float]) -> None:
        self._real, self.ahead_s = real, 0.0

    def __call__(self) -> float:
        return self._real() + self.ahead_s


async def pass_time(seconds: float) -> None:
    """Move the running loop's clock forward in small steps; all timers due run, and all I/O on this loop meanwhile.

    It stays ahead for the rest of the test. Threads, other processes and `time.monotonic` know nothing of it.
    """
    loop: Any = asyncio.get_running_loop()
    if not isinstance(loop.time, LoopClock):
        loop.time = LoopClock(loop.time)
    clock = loop.time
    end = clock.ahead_s + seconds
    while clock.ahead_s < end:
        clock.ahead_s = min(clock.ahead_s + STEP_S, end)
        for _ in range(TURNS):
            await asyncio.sleep(0)
