"""Many questions of one kind at once, as a source of thousands of streams has them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

T = TypeVar("T")
AT_ONCE = 128
"""What a metadata store over the network needs to be busy."""


async def in_order(jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Some at a time, each beginning when another one has ended; results in order, or the first error in order."""
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
            if failed:  # all before it have begun, so the first error is among them
                break

    await asyncio.gather(*(work() for _ in range(min(AT_ONCE, len(jobs)))))
    for answer in found:
        if isinstance(answer, BaseException):
            raise answer
    return cast("list[T]", found)


__all__ = ["in_order"]
