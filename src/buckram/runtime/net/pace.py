"""Pace: a speed limit in bytes per second, for jobs that must leave room to others. No task, no thread."""

from __future__ import annotations

import asyncio

_BURST_S = 0.25


class Pace:
    """Rate limit: `await pace.take(size)` before (or after) moving `size` bytes; None or 0 bytes per second never
    waits."""

    def __init__(self, bytes_per_s: float | None, within: Pace | None = None, *, burst_s: float = _BURST_S) -> None:
        """`within`: a limit shared by several jobs, which applies as well. `burst_s`: seconds of the rate that may be
        used up at once after a pause."""
        self._rate = bytes_per_s or 0.0
        self._within = within
        self._burst_s = burst_s
        self._due = 0.0

    @property
    def limited(self) -> bool:
        """Return whether there is a limit at all, of its own or in `within`."""
        return self._rate > 0 or (self._within is not None and self._within.limited)

    async def take(self, size: int) -> None:
        """Wait until the bytes before these have had their time."""
        if self._within is not None:
            await self._within.take(size)
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - self._burst_s) + size / self._rate
        if self._due > now:
            await asyncio.sleep(self._due - now)
