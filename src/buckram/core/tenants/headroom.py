"""How fast tenants that use much may go while one that uses little is beside them. Pure.

Turns alone share what a bookie can do; they do not keep it free: where each turn uses all of the disk and the
processor, whoever comes with one small add waits for the turn before it. So the large ones are paced, as fast as the
adds of the small ones still take about as long as they do at the quietest.
Not here: who is held back and when it goes on (`bookie/service/turnstile.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")
TICK_S = 0.02
"""How often `look` is called while tenants compete."""
SMALL = 0.5
"""A tenant is small that uses at most so much of what the largest one uses."""
LEAST_BYTES = 4 * 1024 * 1024
"""No tenant is paced below so many bytes a second."""
_QUICK_S = 0.002
"""Adds of small tenants that take no longer hold nobody up."""
_TIMES = 1.5
"""Where the disk is slower than that, they may take so many times of what they take at the slowest pace."""
_MEMORY_S, _LEARNING = 60.0, 0.1
"""For how long that is known, and the weight of one look."""
_USE_S = 0.25
"""Over about so long it is averaged what a tenant uses."""
_DOWN, _UP = 0.7, 1.02
_APART, _FREE = 4.0, 8.0
"""The pace is at least so many times what a small one uses, or that would be none; and none if it is far above use."""


class Headroom(Generic[T]):
    """`pace` is what each large tenant may use, in bytes a second; infinite while nobody has to give way."""

    def __init__(self) -> None:
        self.pace = math.inf
        self._used: dict[T, float] = {}
        self._small_until = 0.0
        """Who uses at most so much is small."""
        self._quiet_s = 0.0
        """What adds of small tenants took on average at the slowest pace; 0.0: not known."""
        self._known_until = 0.0

    def __len__(self) -> int:
        """How many tenants used anything lately."""
        return len(self._used)

    def __contains__(self, tenant: T) -> bool:
        """Whether it used anything lately."""
        return tenant in self._used

    def is_small(self, tenant: T) -> bool:
        """Whether others give way to it."""
        used = self._used.get(tenant)
        return used is not None and used <= self._small_until

    def look(self, now: float, elapsed_s: float, used: Mapping[T, int], took_s: float | None) -> None:
        """Learn what each tenant used since the last look, in bytes, and the longest that an add of a small one took
        (None: there was none, or nothing is known)."""
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
        """Nobody competes any more."""
        self.pace = math.inf
        self._used.clear()


__all__ = ["LEAST_BYTES", "SMALL", "TICK_S", "Headroom"]
