"""Grows log files ahead of the log. They begin small, so that an empty bookie needs little disk space.

The new space is allocated and made durable first, then the superblock records the new length, and only then are blocks
written there. A file that is shorter than its recorded length has therefore lost data.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

from buckram.bookie.storage.segments import Segment
from buckram.bookie.storage.store_state import StoreState
from buckram.core.storage.segment_format import PAGE
from buckram.disk.trouble import passing

log = logging.getLogger("buckram.store")
RETRY_S = 0.25
"""Pause before a file is made longer again that found no room, while a block waits for it."""


class Growth:
    """`publish(change)` writes a superblock, `spawn` starts a task of the store."""

    def __init__(
        self,
        state: StoreState,
        publish: Callable[[Callable[[], dict[str, Any]]], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
    ) -> None:
        self._state, self._publish, self._spawn = state, publish, spawn
        self._running = self._closed = False
        self._moving = asyncio.Lock()

    def low(self) -> None:
        """The log comes near the end of its file, or a block waits for more of it."""
        if not self._running and not self._closed:
            self._running = True
            self._spawn(self._run(), "growth")

    def close(self) -> None:
        """No file grows any more."""
        self._closed = True

    async def settled(self) -> None:
        """No file is being made longer just now: one that the log has left is as long as it gets."""
        async with self._moving:
            return

    async def _run(self) -> None:
        failed = False
        try:
            while (wanting := self._state.log.wanting()) is not None:
                segment, end, urgent = wanting
                size = self._size(segment, end, scarce=failed)
                if not urgent and not self._state.space.may_reserve(size - segment.made):
                    return  # the block that needs it will say so
                try:
                    await self._grow(segment, size, reserve=failed)
                    failed = False
                except OSError as error:
                    if not passing(error):
                        raise
                    if not urgent:
                        return
                    failed = True
                    self._state.log.short_of(str(error))
                    await asyncio.sleep(RETRY_S)
        finally:
            self._running = False

    def _size(self, segment: Segment, end: int, *, scarce: bool) -> int:
        """The next size of the file: twice what it is, up to a whole one; with little room, what is needed."""
        state = self._state
        least = -(-end // PAGE) * PAGE
        size = max(least, min(2 * segment.made, state.file_bytes))
        if scarce or not state.space.may_reserve(size - segment.made):
            size = max(least, min(segment.made + state.first_bytes, state.file_bytes))
        return least if scarce else size

    async def _grow(self, segment: Segment, size: int, *, reserve: bool) -> None:
        state, file = self._state, segment.file
        if file is None:
            return  # sealed meanwhile
        job: Callable[[], None] = partial(state.disk.extend, file, size)
        if reserve:
            job = partial(state.reserve.run, job, log_bytes=size - segment.made)

        def change() -> dict[str, Any]:
            segment.made = max(segment.made, size)
            return {}

        async with self._moving:
            await state.disk.offload(job)
            await self._publish(change)
            state.set_limits(segment)
        state.log.grown()
