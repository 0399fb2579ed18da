"""Pacing of large tenants while small ones use the same bookie. Pure.

Turns alone share the capacity of a bookie; they keep none of it free: if each turn uses all of the disk and the
processor, a single small add waits for the turn before it. So large tenants are paced, just so fast that adds of small
ones take about as long as at the slowest pace.
Not here: holding requests back and letting them go on (`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
TICK_S = 0.02
"""Seconds between calls of `look` while tenants compete."""
SMALL = 0.5
"""Share of the largest tenant's usage up to which a tenant is small."""
LEAST_BYTES = 4 * 1024 * 1024
"""Slowest pace of a tenant, bytes a second."""
_QUICK_S = 0.002
"""Latency of small tenants' adds, in seconds, up to which large tenants are not slowed down."""
_TIMES = 1.5
"""Multiple of their average latency at the slowest pace up to which small tenants' adds may take, if that is more."""
_MEMORY_S, _LEARNING = 60.0, 0.1
"""Seconds for which that average is kept without a new sample, and the weight of one sample in it."""
_USE_S = 0.25
"""Time constant of the usage average, seconds."""
_DOWN, _UP = 0.7, 1.02
_APART, _FREE = 4.0, 8.0
"""`_APART`: least pace as a multiple of the largest usage of a small tenant, which would not be small otherwise.
`_FREE`: multiple of the largest usage above which pacing ends."""


class Headroom(Generic[T]):
    """Pacing of the tenants of one bookie.

    `pace`: limit of each large tenant, in bytes a second; infinite while there is no reason to slow them down.
    """

    def __init__(self) -> None:
        self.pace = math.inf
        self._used: dict[T, float] = {}
        self._small_until = 0.0
        """Usage up to which a tenant is small, bytes a second."""
        self._quiet_s = 0.0
        """Average latency of small tenants' adds at the slowest pace, seconds; 0.0: unknown."""
        self._known_until = 0.0

    def __len__(self) -> int:
        """Return the number of tenants with recent usage."""
        return len(self._used)

    def __contains__(self, tenant: T) -> bool:
        """Return whether a tenant has recent usage."""
        return tenant in self._used

    def is_small(self, tenant: T) -> bool:
        """Return whether a tenant is small, so that large ones are paced for its sake."""
        used = self._used.get(tenant)
        return used is not None and used <= self._small_until

    def look(self, now: float, elapsed_s: float, used: Mapping[T, int], took_s: float | None) -> None:
        """Update the averages, and set the pace.

        `used`: bytes that each tenant used since the last look, `elapsed_s` ago. `took_s`: longest latency of an add of
        a small tenant since then; None: there was no such add, or it is unknown, and the pace stays.
        """
        weight = min(1.0, elapsed_s / _USE_S)
        for tenant, size in used.items():
            before = self._used.get(tenant, size / elapsed_s)
            average = self._used[tenant] = before + weight * (size / elapsed_s - before)
            if average < 1.0:
                del self._used[tenant]
        most = max(self._used.values(), default=0.0)
        self._small_until = SMALL * most
        small = max((rate for rate in self._used.values() if rate <= self._small_until), default=None)
        if small is None:
            self.pace = math.inf
        elif took_s is not None:
            slowest = max(LEAST_BYTES, _APART * small)
            if took_s > max(_QUICK_S, _TIMES * self._quietest_s(now, took_s, self.pace <= slowest)):
                self.pace = max(slowest, _DOWN * min(self.pace, most))
            else:
                self.pace *= _UP
                if self.pace > _FREE * most:
                    self.pace = math.inf

    def _quietest_s(self, now: float, took_s: float, is_slowest: bool) -> float:
        if is_slowest:
            before = self._quiet_s or took_s
            self._quiet_s, self._known_until = before + _LEARNING * (took_s - before), now + _MEMORY_S
        elif now > self._known_until:
            self._quiet_s = 0.0
        return self._quiet_s

    def forget(self) -> None:
        """Drop all usage and end pacing, since no tenants compete any more."""
        self.pace = math.inf
        self._used.clear()


__all__ = ["LEAST_BYTES", "SMALL", "TICK_S", "Headroom"]
