"""Retries with growing delays, for a bounded time; all code that retries uses this. Policies: `core/backoff.py`.

Time is the running loop's, so a simulation's too. Cancellation passes at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from buckram.core.backoff import Backoff, Delays, Random

T = TypeVar("T")
Attempt: TypeAlias = Callable[[], Awaitable[T]]
"""One attempt at something, which may be made again."""


class Retries:
    """The attempts of one call: `except SomeError as error: await retries.wait(error)`."""

    def __init__(self, policy: Backoff, within_s: float, rng: Random | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.deadline = self._loop.time() + within_s
        self._delays = Delays(policy, rng)

    async def wait(self, error: BaseException) -> None:
        """Pause before the next attempt; raises `error` when no time is left for one."""
        if self._loop.time() + self._delays.next_s >= self.deadline:
            raise error
        await asyncio.sleep(self._delays.take())


async def retry(
    attempt: Attempt[T],
    on: type[Exception] | tuple[type[Exception], ...],
    policy: Backoff,
    *,
    within_s: float,
    rng: Random | None = None,
    on_error: Callable[[Exception], None] = lambda error: None,
) -> T:
    """Return the first result of `attempt`, which may be made several times; after `within_s` seconds its last error.

    Errors other than `on` are raised at once. `on_error` is called with each error before the wait.
    """
    retries = Retries(policy, within_s, rng)
    while True:
        try:
            return await attempt()
        except on as error:
            on_error(error)
            await retries.wait(error)
