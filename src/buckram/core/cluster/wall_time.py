"""Comparing the client's wall clock with the clocks of bookies, to decide which clock to trust (T1, T2).

Each bookie sends its wall time in its introduction. The client stores the difference from its own monotonic time, which
stays valid if somebody sets the local clock. The median outvotes a single wrong clock, including the client's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from buckram.types import BookieId

APART_US = 60_000_000
"""Clocks of one cluster may differ by at most this."""
_FRESH_US = 300_000_000
"""A bookie's time that is so much older than the newest one is dropped: its clock may have been set since."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME = 253_402_300_000_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """All clocks at one moment, in microseconds since 1970. `low` and `high` are the middle of the bookies' clocks: the
    median for an odd number of them, the two in the middle for an even number.
    """

    own: int
    low: int
    high: int
    bookies: int

    @property
    def apart(self) -> bool:
        """Whether our clock may be wrong, because it is far from one of the two in the middle."""
        return max(abs(self.own - self.low), abs(self.own - self.high)) > APART_US

    @property
    def best(self) -> int:
        """Our own time, or the median of the bookies if ours is far from it."""
        if self.own < self.low - APART_US:
            return self.low
        if self.own > self.high + APART_US:
            return self.high
        return self.own

    @property
    def median(self) -> int:
        """The one of the two in the middle that is farther from our own clock."""
        return self.low if abs(self.own - self.low) >= abs(self.own - self.high) else self.high

    def __str__(self) -> str:
        return (
            f"own clock {shown(self.own)}, median of {self.bookies} {'bookie' if self.bookies == 1 else 'bookies'} "
            f"{shown(self.median)}: {between(self.own - self.median)}, {APART_US // 1_000_000} s are allowed; set the "
            "clock that is wrong"
        )


class WallClocks:
    """The bookies' clocks as one client has observed them.

    `mono` is the client's monotonic time and `own` its wall time at the same moment, both in microseconds.
    """

    def __init__(self) -> None:
        self._ahead: dict[BookieId, tuple[int, int]] = {}
        """By bookie: its wall time minus our monotonic time, and the monotonic time of the observation."""
        self._low = self._high = 0
        self._own: int | None = None
        """Our own wall time minus our monotonic time, as of the newest observation."""

    def observe(self, bookie: BookieId, wall: int, mono: int, own: int) -> None:
        """Record the wall time that a bookie has just sent; 0 or less means that it sends none."""
        if wall <= 0:
            return
        self._ahead[bookie] = wall - mono, mono
        self._own = own - mono
        self._update_median()

    def keep(self, bookies: Mapping[BookieId, object]) -> None:
        """Forget all bookies but these."""
        if any(bookie not in bookies for bookie in self._ahead):
            self._ahead = {bookie: observed for bookie, observed in self._ahead.items() if bookie in bookies}
            self._update_median()

    def _update_median(self) -> None:
        newest = max((at for _, at in self._ahead.values()), default=0)
        self._ahead = {bookie: (ahead, at) for bookie, (ahead, at) in self._ahead.items() if newest - at <= _FRESH_US}
        found = sorted(ahead for ahead, _ in self._ahead.values())
        if found:
            self._low, self._high = found[(len(found) - 1) // 2], found[len(found) // 2]

    def __contains__(self, bookie: BookieId) -> bool:
        return bookie in self._ahead

    def since(self, mono: int) -> int:
        """Return how many bookies were observed at or after this monotonic time."""
        return sum(at >= mono for _, at in self._ahead.values())

    def best(self, own: int, mono: int) -> int:
        """Return the wall time to write into records. Cheap, because it is called once per batch of records."""
        if self._own is None or not self._ahead:
            return own
        here = own - mono
        if here < self._low - APART_US:
            return self._low + mono
        return self._high + mono if here > self._high + APART_US else own

    def jumped(self, own: int, mono: int) -> bool:
        """Whether our clock was set, or the process was suspended, since the last observation: observe again."""
        return self._own is not None and abs(own - mono - self._own) > APART_US

    def reading(self, own: int, mono: int) -> Reading | None:
        """Return all clocks as of now; None if no bookie has been observed."""
        return Reading(own, self._low + mono, self._high + mono, len(self._ahead)) if self._ahead else None

    def wrong(self, own: int, mono: int) -> dict[BookieId, int]:
        """Return the bookies whose clocks are far from the median of all clocks, ours included, with the distance."""
        everybody = sorted([own - mono, *(ahead for ahead, _ in self._ahead.values())])
        low, high = everybody[(len(everybody) - 1) // 2], everybody[len(everybody) // 2]
        far = {bookie: max(ahead - low, ahead - high, key=abs) for bookie, (ahead, _) in self._ahead.items()}
        return {bookie: by for bookie, by in sorted(far.items()) if abs(by) > APART_US}


class Steadiness:
    """Detects steps of the wall clock against monotonic time from one round of some work to the next."""

    def __init__(self) -> None:
        self._last: int | None = None

    def moved(self, own: int, mono: int) -> int:
        """Return by how much the wall clock was set since the round before, if that is over APART_US; else 0."""
        before, self._last = self._last, own - mono
        by = 0 if before is None else self._last - before
        return by if abs(by) > APART_US else 0


def shown(time_us: int) -> str:
    """Return the time as people read it, in UTC, or as a number if it is no date."""
    if not 0 <= time_us < _NO_TIME:
        return f"{time_us} us"
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%SZ")


def between(difference_us: int) -> str:
    """Return in words how far apart two clocks are."""
    return f"{abs(difference_us) / 1_000_000:.0f} s {'ahead' if difference_us > 0 else 'behind'}"


__all__ = ["APART_US", "Reading", "Steadiness", "WallClocks", "between", "shown"]
