"""Rates: a token bucket that may go into debt, and a bookie's share of a rate that many bookies keep together. Pure.

A bucket lets something pass while it is not empty and then takes what that needs; what comes behind waits until the
debt is paid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

BURST_S = 0.5
"""So much of a second's tokens may be saved up."""
PIECE_S = 0.25
"""A run is let through in pieces of so much of a second's tokens, so that whoever waits for it hears of some of it."""
MOST_DEBT_S = 4.0
"""An entry that needs more than this of its rate is paid for with so much: longer than 5 s no client waits."""
_SPARE = 0.02
"""The part of a quota that is kept for bookies that receive nothing yet."""


class Bucket:
    """Refilled with `rate` tokens a second, of which those of `burst_s` seconds are kept at most."""

    __slots__ = ("_at", "_burst_s", "_level", "rate")

    def __init__(self, rate: float, now: float, burst_s: float = BURST_S) -> None:
        self.rate, self._burst_s = rate, burst_s
        self._level, self._at = rate * burst_s, now

    def set_rate(self, rate: float, now: float) -> None:
        """From now on. A debt stays the time that it has left, so that a new rate does not make it longer."""
        self._refill(now)
        if self._level < 0 < self.rate:
            self._level *= rate / self.rate
        self.rate = rate
        self._level = min(self._level, rate * self._burst_s)

    def wait_s(self, now: float) -> float:
        """How long until something may pass; 0: now."""
        self._refill(now)
        if self._level > 0:
            return 0.0
        return math.inf if self.rate <= 0 else max(-self._level / self.rate, 1e-4)

    def take(self, tokens: float) -> None:
        """After `wait_s` was 0, or for what may not wait."""
        self._level = max(self._level - tokens, -MOST_DEBT_S * self.rate)

    def _refill(self, now: float) -> None:
        if now > self._at:
            self._level = min(self._level + (now - self._at) * self.rate, self.rate * self._burst_s)
            self._at = now


def share_of(quota: float, wanted: float, others: Sequence[float]) -> float:
    """The part of a rate that one bookie may use, by what it is asked for and what the others are, each a second.

    The shares of all bookies make up the quota. While less is asked for, everybody has an equal part of the rest.
    """
    bookies = len(others) + 1
    total = wanted + math.fsum(others)
    if total <= quota:
        return wanted + (quota - total) / bookies
    spare = quota * _SPARE / bookies
    return spare + quota * (1 - _SPARE) * wanted / total
