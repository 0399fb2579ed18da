"""Ranges of an import: some are written at the same time, and they are published one after another, in their order.

A range takes its turn in four steps: it is written, which is bounded in number, closed, waits for the publication of
the one before, and is published. Not here: what a range is and what the steps do (`maintain/imports.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Protocol

from buckram.errors import BuckramError
from buckram.net.tasks import TaskScope

_WRITTEN_AT_ONCE = 2
"""While one range is read, or waits for the metadata store, another one keeps the disks of the bookies busy."""
_UNPUBLISHED = 4
"""The most ranges between the beginning of their writing and the end of their publication."""


class Range(Protocol):
    """What is published in order. After a failure of `write`, `close` or `publish` nothing is left of it."""

    async def write(self) -> None: ...

    async def close(self) -> None: ...

    async def publish(self) -> None: ...

    async def discard(self) -> None:
        """Leave nothing of what was written and closed."""
        ...


class RangesInOrder:
    """Use `async with`: a publication that has begun comes to its end, whatever happens; nothing is left of others."""

    def __init__(self, name: str) -> None:
        self._room = asyncio.Semaphore(_WRITTEN_AT_ONCE)
        self._scope, self._publishing = TaskScope(name), TaskScope(f"{name}, publication")
        self._ranges: deque[asyncio.Task[BuckramError | None]] = deque()
        self._publication: asyncio.Task[BuckramError | None] | None = None

    async def add(self, one: Range, published: Callable[[], object]) -> None:
        """Begin a range, once there is room; `published` is called after its publication.

        Raises the error of the first range that failed.
        """
        while len(self._ranges) >= _UNPUBLISHED or (self._ranges and self._ranges[0].done()):
            await self._first()
        before = self._ranges[-1] if self._ranges else None
        self._ranges.append(self._scope.spawn(self._take_turn(one, before, published), "range"))

    async def finish(self) -> None:
        """Wait until all ranges are published. Raises the error of the first one that failed."""
        while self._ranges:
            await self._first()

    async def __aenter__(self) -> RangesInOrder:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.close()
        if self._publication is not None:
            await asyncio.wait([self._publication])
        await self._publishing.close()

    async def _first(self) -> None:
        """Wait for the oldest range."""
        await asyncio.wait([self._ranges[0]])
        if (error := self._ranges.popleft().result()) is not None:
            raise error

    async def _take_turn(
        self, one: Range, before: asyncio.Task[BuckramError | None] | None, published: Callable[[], object]
    ) -> BuckramError | None:
        """Return an error as a value: it is raised where it is the first one. If the range before failed, its error."""
        failed = await _error_of(self._write(one))
        if before is not None:
            try:
                await asyncio.wait([before])
                earlier = before.result()
            except BaseException:
                await one.discard()
                raise
            if earlier is not None:
                await one.discard()
                return earlier
        if failed is not None:
            return failed
        self._publication = self._publishing.spawn(_error_of(one.publish()), "publish")
        failed = await asyncio.shield(self._publication)
        if failed is None:
            published()
        return failed

    async def _write(self, one: Range) -> None:
        async with self._room:
            await one.write()
        await one.close()


async def _error_of(work: Awaitable[None]) -> BuckramError | None:
    try:
        await work
    except BuckramError as error:
        return error
    return None


__all__ = ["Range", "RangesInOrder"]
