"""Rates: a token bucket that may go into debt, and a bookie's share of a rate that many bookies keep together. Pure.

A bucket lets a request pass while it is not empty, and then takes all the tokens that this one needs; later requests
wait until the debt is paid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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
