"""Refused requests: the first ones become events of the audit trail, the others are counted. Pure.

The first few refusals of a principal in an interval are events; the others are counted by their kind. The number of
principals is bounded, too: further ones share one name. So a million refusals do not fill the trail, and each of them
is in it as an event or in a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

FIRST = 5
"""Number of refusals of a principal in an interval that are events of their own."""
INTERVAL_US = 60_000_000
MOST_PRINCIPALS = 500
OTHERS = "other principals"
"""Name under which principals beyond MOST_PRINCIPALS are counted. It is no principal's: those have a colon, or are
"anonymous"."""


class Counted(NamedTuple):
    """Number of refusals of a principal that became no events, by their kind; `within_us`: length of the interval."""

    principal: str
    kinds: Mapping[str, int]
    within_us: int


class Refusals:
    """Refusals of the present interval. Kinds are few, and chosen by the bookie."""

    def __init__(self, first: int = FIRST, interval_us: int = INTERVAL_US, most: int = MOST_PRINCIPALS) -> None:
        self._first, self._interval_us, self._most = first, interval_us, most
        self._began_us = 0
        self._seen: Counter[str] = Counter()
        self._more: dict[str, Counter[str]] = {}

    def noted(self, now_us: int, principal: str, kind: str, *, room: bool) -> bool:
        """Return whether a refusal becomes an event; otherwise count it. Without `room` none becomes an event."""
        if not self._seen:
            self._began_us = now_us
        name = principal if principal in self._seen or len(self._seen) < self._most else OTHERS
        self._seen[name] += 1
        if room and self._seen[name] <= self._first:
            return True
        self._more.setdefault(name, Counter())[kind] += 1
        return False

    def over(self, now_us: int) -> bool:
        """Return whether the interval has ended; one that begins in the future has, since the clock was set back."""
        return bool(self._seen) and not self._began_us <= now_us < self._began_us + self._interval_us

    def take(self, now_us: int) -> list[Counted]:
        """End the interval, and return the counts of it."""
        within = max(now_us - self._began_us, 0)
        found = [Counted(name, kinds, within) for name, kinds in self._more.items()]
        self._seen.clear()
        self._more.clear()
        return found


__all__ = ["FIRST", "INTERVAL_US", "MOST_PRINCIPALS", "OTHERS", "Counted", "Refusals"]
