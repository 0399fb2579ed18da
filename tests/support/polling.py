"""Waiting for a fact that has no event of its own: ask again until it holds, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
INTERVAL_S = 0.02


def wait_until(condition: Callable[[], bool], otherwise: str, seconds: float = 60.0) -> None:
    """Block until `condition` holds. After `seconds` an AssertionError says `otherwise`, what is wrong then."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"{otherwise} after {seconds:g} s"
        time.sleep(INTERVAL_S)


async def until(condition: Callable[[], bool], otherwise: str = "it did not happen", seconds: float = 60.0) -> None:
    """As `wait_until`, while the event loop goes on."""
    limit = time.monotonic() + seconds
    while not condition():  # what is awaited sets no event
        assert time.monotonic() < limit, f"{otherwise} after {seconds:g} s"
        await asyncio.sleep(0.002)


async def eventually(
    condition: Callable[[], Awaitable[bool]], otherwise: str = "it did not happen", seconds: float = 60.0
) -> None:
    """As `until`, for a condition that is asked for."""
    limit = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < limit, f"{otherwise} after {seconds:g} s"
        await asyncio.sleep(INTERVAL_S)


async def answered(
    ask: Callable[[], Awaitable[T]], good: Callable[[T], bool] = bool, otherwise: str = "", seconds: float = 60.0
) -> T:
    """Ask until the answer is `good`, and return it."""
    limit = time.monotonic() + seconds
    while not good(answer := await ask()):
        assert time.monotonic() < limit, f"{otherwise or 'no good answer'} after {seconds:g} s; the last was {answer!r}"
        await asyncio.sleep(INTERVAL_S)
    return answer
