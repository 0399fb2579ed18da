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
"""Clocks that differ by more are not those of one well kept cluster."""
_FRESH_US = 300_000_000
"""What a bookie said so long before the others counts no more: its clock may have been set."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME = 253_402_300_000_000_000


@dataclass(frozen=True, slots=True)
class Reading:
    """What the clocks say at one moment. `low` and `high` are the middle of the bookies' clocks: the same for an odd
    number of them, the two in the middle for an even one."""

    own: int
    low: int
    high: int
    bookies: int

    @property
    def apart(self) -> bool:
        """It is not certain that our clock is right: it is far from one of the two in the middle."""
        return max(abs(self.own - self.low), abs(self.own - self.high)) > APART_US

    @property
    def best(self) -> int:
        """Our own time; where it is far from the median of the bookies, that."""
        if self.own < self.low - APART_US:
            return self.low
        if self.own > self.high + APART_US:
            return self.high
        return self.own

    @property
    def median(self) -> int:
        """That of the two in the middle which is farther away."""
        return self.low if abs(self.own - self.low) >= abs(self.own - self.high) else self.high

    def __str__(self) -> str:
        return (
            f"own clock {shown(self.own)}, median of {self.bookies} {'bookie' if self.bookies == 1 else 'bookies'} "
            f"{shown(self.median)}: {between(self.own - self.median)}, {APART_US // 1_000_000} s are allowed; set the "
            "clock that is wrong"
        )


class WallClocks:
    """The bookies' clocks as one client has heard them. `mono` is its monotonic time in microseconds."""

    def __init__(self) -> None:
        self._ahead: dict[BookieId, tuple[int, int]] = {}
        """Wall time minus our monotonic time, and when we heard that."""
        self._low = self._high = 0
        self._own: int | None = None
        """Our own, of the time of the newest answer."""

    def heard(self, bookie: BookieId, wall: int, mono: int, own: int) -> None:
        """It told the time, which arrived now. 0: it does not tell."""
        if wall <= 0:
            return
        self._ahead[bookie] = wall - mono, mono
        self._own = own - mono
        self._reckon()

    def keep(self, bookies: Mapping[BookieId, object]) -> None:
        """Forget all others."""
        if any(bookie not in bookies for bookie in self._ahead):
            self._ahead = {bookie: told for bookie, told in self._ahead.items() if bookie in bookies}
            self._reckon()

    def _reckon(self) -> None:
        newest = max((at for _, at in self._ahead.values()), default=0)
        self._ahead = {bookie: told for bookie, told in self._ahead.items() if newest - told[1] <= _FRESH_US}
        found = sorted(ahead for ahead, _ in self._ahead.values())
        if found:
            self._low, self._high = found[(len(found) - 1) // 2], found[len(found) // 2]

    def __contains__(self, bookie: BookieId) -> bool:
        return bookie in self._ahead

    def since(self, mono: int) -> int:
        """How many have told the time at or after that moment."""
        return sum(at >= mono for _, at in self._ahead.values())

    def best(self, own: int, mono: int) -> int:
        """The time to write down. Cheap: once per batch of records."""
        if self._own is None or not self._ahead:
            return own
        here = own - mono
        if here < self._low - APART_US:
            return self._low + mono
        return self._high + mono if here > self._high + APART_US else own

    def jumped(self, own: int, mono: int) -> bool:
        """Our clock was set since a bookie told its time, or all time stood still for us: ask again."""
        return self._own is not None and abs(own - mono - self._own) > APART_US

    def reading(self, own: int, mono: int) -> Reading | None:
        """None: no bookie has told the time."""
        return Reading(own, self._low + mono, self._high + mono, len(self._ahead)) if self._ahead else None

    def wrong(self, own: int, mono: int) -> dict[BookieId, int]:
        """Bookies whose clocks are far from the median of all clocks, ours included, with their distance from it."""
        everybody = sorted([own - mono, *(ahead for ahead, _ in self._ahead.values())])
        low, high = everybody[(len(everybody) - 1) // 2], everybody[len(everybody) // 2]
        far = {bookie: max(ahead - low, ahead - high, key=abs) for bookie, (ahead, _) in self._ahead.items()}
        return {bookie: by for bookie, by in sorted(far.items()) if abs(by) > APART_US}


class Steadiness:
    """Whether wall time goes on as monotonic time does, from one round of some work to the next."""

    def __init__(self) -> None:
        self._last: int | None = None

    def moved(self, own: int, mono: int) -> int:
        """By how much it was set since the round before, if that is too much; else 0."""
        before, self._last = self._last, own - mono
        by = 0 if before is None else self._last - before
        return by if abs(by) > APART_US else 0


def shown(time_us: int) -> str:
    """As people read it, UTC; what is no date as a number."""
    if not 0 <= time_us < _NO_TIME:
        return f"{time_us} us"
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%SZ")


def between(difference_us: int) -> str:
    """How far apart two clocks are."""
    return f"{abs(difference_us) / 1_000_000:.0f} s {'ahead' if difference_us > 0 else 'behind'}"


__all__ = ["APART_US", "Reading", "Steadiness", "WallClocks", "between", "shown"]
