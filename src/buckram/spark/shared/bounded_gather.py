"""Running many requests of one kind concurrently, for queries over thousands of streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

T = TypeVar("T")
AT_ONCE = 128
"""The number of concurrent requests that keeps a metadata store busy over the network."""


async def run_in_order(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Run the jobs, at most AT_ONCE at a time. Returns the results in order, or raises the first error in order."""
    found: list[T | BaseException | None] = [None] * len(jobs)
    places = iter(range(len(jobs)))
    failed = False

    async def work() -> None:
        nonlocal failed
        for place in places:
            try:
                found[place] = await jobs[place]()
            except Exception as error:
                found[place] = error
                failed = True
            if failed:  # All jobs before it have begun, so the first error in order is among those that run.
                break

    await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(jobs)))))
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return cast("list[T]", found)
