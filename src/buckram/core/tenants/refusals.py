"""Which refused requests become events of the audit trail, and which are only counted. Pure.

The first few of a principal in an interval are events, the others a number by their kind. Principals are bounded, too:
those that come when there are many share one name. So whoever is refused a million times fills nothing, and nothing of
it is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

FIRST = 5
"""Refusals of a principal in an interval that are events of their own."""
INTERVAL_US = 60_000_000
MOST_PRINCIPALS = 500
OTHERS = "other principals"
"""Those that are not counted by their names. No principal is called so: each has a colon, or is anonymous."""


class Counted(NamedTuple):
    """Refusals of a principal that are no events, by their kind; `within_us` is how long that was."""

    principal: str
    kinds: Mapping[str, int]
    within_us: int


class Refusals:
    """One interval after the other. Kinds are few, and chosen by the bookie."""

    def __init__(self, first: int = FIRST, interval_us: int = INTERVAL_US, most: int = MOST_PRINCIPALS) -> None:
        self._first, self._interval_us, self._most = first, interval_us, most
        self._began_us = 0
        self._seen: Counter[str] = Counter()
        self._more: dict[str, Counter[str]] = {}

    def noted(self, now_us: int, principal: str, kind: str, *, room: bool) -> bool:
        """Return whether a refusal is an event; otherwise it is counted, as all are where there is no `room`."""
        if not self._seen:
            self._began_us = now_us
        name = principal if principal in self._seen or len(self._seen) < self._most else OTHERS
        self._seen[name] += 1
        if room and self._seen[name] <= self._first:
            return True
        self._more.setdefault(name, Counter())[kind] += 1
        return False

    def over(self, now_us: int) -> bool:
        """Whether the interval has ended; one that begins in the future has, since the clock was set back."""
        return bool(self._seen) and not self._began_us <= now_us < self._began_us + self._interval_us

    def take(self, now_us: int) -> list[Counted]:
        """End the interval: what was counted in it."""
        within = max(now_us - self._began_us, 0)
        found = [Counted(name, kinds, within) for name, kinds in self._more.items()]
        self._seen.clear()
        self._more.clear()
        return found


__all__ = ["FIRST", "INTERVAL_US", "MOST_PRINCIPALS", "OTHERS", "Counted", "Refusals"]
