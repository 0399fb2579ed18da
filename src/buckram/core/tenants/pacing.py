"""Pacing of large tenants while small ones use the same bookie, rates, and turns of tenants that wait. Pure.

Turns (deficit round robin, by the bytes of the requests) share the capacity of a bookie; they keep none of it free: if
each turn uses all of the disk and the processor, a single small add waits for the turn before it. So large tenants are
paced, just so fast that adds of small ones take about as long as at the slowest pace (`Headroom`).

A rate is a token bucket that may go into debt: it lets a request pass while it is not empty, and then takes all the
tokens that this one needs; later requests wait until the debt is paid. A rate that many bookies keep together is
divided into shares.

Not here: holding requests back and letting them go on (`bookie/service/rate_limiter.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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


# -- rates ----------------------------------------------------------------------------------------------------

BURST_S = 0.5
"""Size of a bucket: seconds of its rate that may be saved up."""

PIECE_S = 0.25
"""Size of the pieces in which a run of entries passes, in seconds of the rate, so that its client sees progress."""

MOST_DEBT_S = 4.0
"""Largest debt, in seconds of the rate: an entry that needs more costs no more, since clients wait for 5 s at most."""

_SPARE = 0.02
"""Share of a quota that is kept for bookies without requests so far."""


class Bucket:
    """Token bucket, refilled with `rate` tokens a second, of which it keeps those of `burst_s` seconds at most."""

    __slots__ = ("_at", "_burst_s", "_level", "rate")

    def __init__(self, rate: float, now: float, burst_s: float = BURST_S) -> None:
        self.rate, self._burst_s = rate, burst_s
        self._level, self._at = rate * burst_s, now

    def set_rate(self, rate: float, now: float) -> None:
        """Change the rate from now on. A debt keeps the time until it is paid, so that a lower rate does not make that
        longer."""
        self._refill(now)
        if self._level < 0 < self.rate:
            self._level *= rate / self.rate
        self.rate = rate
        self._level = min(self._level, rate * self._burst_s)

    def wait_s(self, now: float) -> float:
        """Return the seconds until something may pass; 0: now, infinite: the rate is 0."""
        self._refill(now)
        if self._level > 0:
            return 0.0
        return math.inf if self.rate <= 0 else max(-self._level / self.rate, 1e-4)

    def take(self, tokens: float) -> None:
        """Take tokens, after `wait_s` was 0, or for a request that may not wait."""
        self._level = max(self._level - tokens, -MOST_DEBT_S * self.rate)

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self._level + (now - self._at) * self.rate, self.rate * self._burst_s)
            self._at = now


def share_of(quota: float, wanted: float, others: Sequence[float]) -> float:
    """Return the part of a quota that one bookie may use, given the rate wanted from it and those wanted from others.

    The shares of all bookies add up to the quota. If less is wanted, each bookie has an equal part of the rest.
    """
    bookies = len(others) + 1
    total = wanted + math.fsum(others)
    if total <= quota:
        return wanted + (quota - total) / bookies
    spare = quota * _SPARE / bookies
    return spare + quota * (1 - _SPARE) * wanted / total


# -- turns of tenants that wait -------------------------------------------------------------------------------

QUANTUM = 64 * 1024


class Turns(Generic[T]):
    """Tenants take turns in the order in which they began to wait; each turn adds QUANTUM bytes to what one may take.

    A tenant whose turn is over goes to the end, and one with no request left loses its saved bytes. A turn that is
    interrupted because the room is used up goes on first when there is room again.
    """

    def __init__(self) -> None:
        self._deficits: dict[T, int] = {}
        self._interrupted: T | None = None
        """The first tenant, if it is in the middle of its turn; None if it is not."""

    def __len__(self) -> int:
        return len(self._deficits)

    def __contains__(self, tenant: T) -> bool:
        return tenant in self._deficits

    def wait(self, tenant: T) -> None:
        self._deficits.setdefault(tenant, 0)

    def leave(self, tenant: T) -> None:
        self._deficits.pop(tenant, None)
        if self._interrupted == tenant:
            self._interrupted = None

    def serve(self, room: int, next_size: Callable[[T], int | None], take: Callable[[T], None]) -> int:
        """Let tenants take, one after the other, until `room` bytes are used up. Returns the bytes that are left.

        `next_size` gives the size of a tenant's next request; None: it has none, or may not go on now, and leaves. At
        least one request is served however large it is, or none would ever be.
        """
        served = False
        while self._deficits and (room > 0 or not served):
            tenant = next(iter(self._deficits))
            goes_on, self._interrupted = self._interrupted == tenant, None
            saved = self._deficits[tenant] + (0 if goes_on else QUANTUM)
            size = next_size(tenant)
            while size is not None and size <= saved and (room > 0 or not served):
                take(tenant)
                served = True
                saved -= size
                room -= size
                size = next_size(tenant)
            if size is not None and size <= saved:
                self._deficits[tenant], self._interrupted = saved, tenant
                continue
            del self._deficits[tenant]
            if size is not None:
                self._deficits[tenant] = saved
        return room
