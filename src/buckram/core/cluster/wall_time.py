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
"""Maximum difference between clocks of one cluster, microseconds."""
_FRESH_US = 300_000_000
"""Microseconds behind the newest observation after which an older one is dropped: the clock may have been set since."""
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
        """Return whether our clock may be wrong, because it is far from one of the two in the middle."""
        return max(abs(self.own - self.low), abs(self.own - self.high)) > APART_US

    @property
    def best(self) -> int:
        """Return our own time, or the median of the bookies if ours is far from it."""
        if self.own < self.low - APART_US:
            return self.low
        if self.own > self.high + APART_US:
            return self.high
        return self.own

    @property
    def median(self) -> int:
        """Return the one of the two in the middle that is farther from our own clock."""
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
        self._certain: dict[BookieId, bool] = {}
        """State of each bookie that judges its time: true if it is certain of it. Earlier releases do not, and are not
        here.
        """
        self._guessing: dict[BookieId, tuple[int, int]] = {}
        """Observations, as above, of bookies that began in doubt: no other clock may follow them."""
        self._low = self._high = 0
        self._own: int | None = None
        """Our own wall time minus our monotonic time, as of the newest observation."""

    def observe(
        self, bookie: BookieId, wall: int, mono: int, own: int, *, certain: bool | None = None, guess: bool = False
    ) -> None:
        """Record the wall time that a bookie has just sent; 0 or less means that it sends none.

        `certain`: whether it is certain of it; None: it just reads its clock. `guess`: it began in doubt.
        """
        if wall <= 0:
            return
        self._certain.pop(bookie, None)
        self._guessing.pop(bookie, None)
        if guess:
            self._guessing[bookie] = wall - mono, mono
            self._ahead.pop(bookie, None)
            self._update_median()
            return
        self._ahead[bookie] = wall - mono, mono
        if certain is not None:
            self._certain[bookie] = certain
        self._own = own - mono
        self._update_median()

    def keep(self, bookies: Mapping[BookieId, object]) -> None:
        """Forget all bookies but these."""
        self._guessing = {bookie: observed for bookie, observed in self._guessing.items() if bookie in bookies}
        if any(bookie not in bookies for bookie in self._ahead):
            self._ahead = {bookie: observed for bookie, observed in self._ahead.items() if bookie in bookies}
            self._update_median()

    def _update_median(self) -> None:
        newest = max([*(at for _, at in self._ahead.values()), *(at for _, at in self._guessing.values())], default=0)
        self._guessing = {name: (ahead, at) for name, (ahead, at) in self._guessing.items() if newest - at <= _FRESH_US}
        self._ahead = {bookie: (ahead, at) for bookie, (ahead, at) in self._ahead.items() if newest - at <= _FRESH_US}
        found = sorted(ahead for ahead, _ in self._ahead.values())
        if found:
            self._low, self._high = found[(len(found) - 1) // 2], found[len(found) // 2]

    def __contains__(self, bookie: BookieId) -> bool:
        return bookie in self._ahead or bookie in self._guessing

    def sure(self, mono: int) -> tuple[int, int] | None:
        """Return the middle of the clocks of bookies that are certain of the time; None unless most bookies are."""
        found = sorted(ahead for bookie, (ahead, _) in self._ahead.items() if self._certain.get(bookie))
        if 2 * len(found) <= len(self._ahead) + len(self._guessing):
            return None
        return found[(len(found) - 1) // 2] + mono, found[len(found) // 2] + mono

    @property
    def doubting(self) -> int:
        """Return the number of bookies in doubt, if these are half of all that sent their time, or more; else 0."""
        if not self._guessing and False not in self._certain.values():
            return 0
        doubting = len(self._guessing) + sum(self._certain.get(bookie) is False for bookie in self._ahead)
        return doubting if 2 * doubting >= self.telling else 0

    @property
    def telling(self) -> int:
        """Return the number of bookies that sent their time."""
        return len(self._ahead) + len(self._guessing)

    def since(self, mono: int) -> int:
        """Return how many bookies were observed at or after this monotonic time."""
        return sum(at >= mono for _, at in [*self._ahead.values(), *self._guessing.values()])

    def best(self, own: int, mono: int) -> int:
        """Return the wall time to write into records. Cheap, because it is called once per batch of records."""
        if self._own is None or not self._ahead:
            return own
        here = own - mono
        if here < self._low - APART_US:
            return self._low + mono
        return self._high + mono if here > self._high + APART_US else own

    def jumped(self, own: int, mono: int) -> bool:
        """Return whether our clock was set, or the process was suspended, since the last observation: observe again
        then.
        """
        return self._own is not None and abs(own - mono - self._own) > APART_US

    def reading(self, own: int, mono: int) -> Reading | None:
        """Return all clocks as of now; None if no bookie has been observed."""
        return Reading(own, self._low + mono, self._high + mono, len(self._ahead)) if self._ahead else None

    def wrong(self, own: int, mono: int) -> dict[BookieId, int]:
        """Return the bookies whose clocks are far from the median of all clocks, ours included, with the distance."""
        everybody = sorted([own - mono, *(ahead for ahead, _ in self._ahead.values())])
        low, high = everybody[(len(everybody) - 1) // 2], everybody[len(everybody) // 2]
        everywhere = {**self._ahead, **self._guessing}
        far = {bookie: max(ahead - low, ahead - high, key=abs) for bookie, (ahead, _) in everywhere.items()}
        return {bookie: by for bookie, by in sorted(far.items()) if abs(by) > APART_US}


def shown(time_us: int) -> str:
    """Return the time as people read it, in UTC, or as a number if it is no date."""
    if not 0 <= time_us < _NO_TIME:
        return f"{time_us} us"
    return (_EPOCH + timedelta(microseconds=time_us)).strftime("%Y-%m-%dT%H:%M:%SZ")


def between(difference_us: int) -> str:
    """Return in words how far apart two clocks are."""
    return f"{abs(difference_us) / 1_000_000:.0f} s {'ahead' if difference_us > 0 else 'behind'}"
