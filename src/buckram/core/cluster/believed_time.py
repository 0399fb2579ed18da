"""The time that a process believes: its wall clock, compared with its monotonic clock. Pure (T2 to T5).

A wall clock that leaves the line on which it ran is not believed at once. The new time is believed once it has held for
`hold_us`, if processes that are certain of the time report the same, or if an operator accepts it. Until then the time
is in doubt: it is one of two. Code that ends something by its age takes the earlier one, code that admits somebody
takes both. Not here: the other clocks of a cluster (`core/cluster/wall_time.py`), reading them
(`client/cluster/clocks.py`, `bookie/trust/timekeeper.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from buckram.core.cluster.wall_time import APART_US, between, shown

HOLD_US = 3600 * 1_000_000
"""Default time for which a new time must hold before it is believed, microseconds."""
SEEN_US = 900 * 1_000_000
"""Maximum gap between readings, microseconds, or a quarter of `hold_us` if that is less: in longer gaps a clock may
have shown anything.
"""
SEEN_LEAST_US = 60 * 1_000_000
"""Lower bound of that gap, microseconds, however short `hold_us` is: a bookie reads its clock every 15 s."""
ACCEPTED_WITHIN_US = 600 * 1_000_000
"""Microseconds that a clock may be ahead of a time that an operator accepted for the acceptance to hold for it."""
UNSTEADY_AFTER = 3
"""Returns of a clock to its line within `hold_us` after which it is unsteady: several processes set it differently, and
it is unknown which one is right.
"""
KEPT_JUMPS = 8
RECORD_US = 60 * 1_000_000
"""Interval at which a process that is certain of the time records it, microseconds; a record may be that much older."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The time now, in microseconds since 1970: `low` and `high` are the earliest and the latest that it may be.

    `best` is the one for records. `why` describes the doubt; it is empty if there is none. `bounded`: it is certainly
    not earlier than `low`; other processes may doubt a time whose history they do not know.
    """

    low: int
    high: int
    best: int
    why: str = ""
    bounded: bool = True

    @property
    def certain(self) -> int | None:
        """Return the time; None while it is in doubt."""
        return None if self.why else self.best

    @property
    def earliest(self) -> int:
        """Return the earliest possible time, 0 if it is unbounded: only what ends before it has ended for certain."""
        return self.low if self.bounded else 0


class TellsTime(Protocol):
    """Judge of the time in a process: `client/cluster/clocks.py`, `bookie/trust/timekeeper.py`."""

    def moment(self) -> Moment:
        """Return what may be the time now."""
        ...

    async def ensure(self) -> None:
        """Compare the clock with others, if that was not done recently. Call it before the first `moment`."""
        ...


@dataclass(frozen=True, slots=True)
class Jump:
    """Wall time went ahead by `by` and was in doubt from `begin` to `end` of the time before, until it was believed.

    Records stamped in between are younger by `by` than their stamps.
    """

    begin: int
    end: int
    by: int

    def like(self, other: Jump) -> bool:
        """Return whether another process observed the same jump."""
        near = abs(self.begin - other.begin) <= 10 * APART_US and abs(self.by - other.by) <= 2 * APART_US
        return near and abs(self.end - other.end) <= 10 * APART_US


@dataclass(frozen=True, slots=True)
class _New:
    """A time that is not believed yet: wall minus monotonic time, and the monotonic time since which it holds.

    `after`: the monotonic time of the last reading that was on the line, since it is not known when the clock was set.
    """

    ahead: int
    since: int
    after: int


class BelievedTime:
    """The time as one process believes it. `wall` and `mono` are readings of its clocks at the same moment, in
    microseconds; the monotonic clock should go on while the machine sleeps.
    """

    def __init__(self, hold_us: int = HOLD_US) -> None:
        self.hold_us = hold_us
        self.seen_us = max(min(hold_us // 4, SEEN_US), SEEN_LEAST_US)
        """Maximum gap between readings over which a time is seen to hold, microseconds."""
        self._read_at = self._watched = 0
        """Monotonic times of the last reading, and since which no readings were further apart than `seen_us`."""
        self._line: int | None = None
        """Believed wall time minus monotonic time; None before the first reading."""
        self._anchor = self._anchored = 0
        """Line and monotonic time of the anchor: the line may move by APART_US from it, and it moves to the line every
        `hold_us`.
        """
        self._new: _New | None = None
        self._on_line = 0
        """Monotonic time of the last reading that was on the line."""
        self._doubted: tuple[int, int] | None = None
        """Monotonic times at which the last doubt began and the clock was back on the line; it may rightly go ahead
        again.
        """
        self._began_in_doubt = False
        """True if the doubt is about the time before this process began."""
        self._later = 0
        """Wall minus monotonic time of the later possible line if the process began in doubt; a clock that shows an
        earlier time lowers it.
        """
        self._contradicted: int | None = None
        """Monotonic time at which others were certain of a time other than the new one; None if they were not."""
        self._away: list[tuple[int, int]] = []
        """Monotonic times at which the clock came back to the line within `hold_us`, with the other line on which it
        had been.
        """
        self._unsteady = False
        self.believed_jumps = 0
        """Number of changes of the believed time to another line."""
        self.jumps: tuple[Jump, ...] = ()
        """Last KEPT_JUMPS jumps ahead that were believed."""

    def begin(self, recorded: int, wall: int, mono: int) -> None:
        """Begin with the time that was recorded last, which may be older than now by any time that nothing ran."""
        if 0 <= wall - recorded <= RECORD_US + APART_US or abs(wall - recorded) <= APART_US:
            self._believe(wall - mono, mono)
        else:
            self._believe(recorded - mono, mono)
            self._new, self._began_in_doubt = _New(wall - mono, mono, mono), True
            self._later = max(wall, recorded) - mono

    def continued(self, recorded: int, wall: int, mono: int) -> None:
        """Begin with the time that a process before this one believed, extrapolated by a clock that never stopped."""
        self._believe(recorded - mono, mono)
        self._began_in_doubt = False
        self.observe(wall, mono)

    def observe(self, wall: int, mono: int) -> None:
        """Take a reading of both clocks. Cheap: it is taken for every batch of records."""
        ahead = wall - mono
        if mono - self._read_at > self.seen_us:
            self._watched = mono
        self._read_at = mono
        if self._line is None:
            self._believe(ahead, mono)
            return
        if abs(ahead - self._anchor) <= APART_US:
            if self._new is not None:
                self._doubted = self._new.after, mono
                self._away.append((mono, self._new.ahead))
            self._line, self._new, self._began_in_doubt, self._on_line = ahead, None, False, mono
            if self._away:
                self._steady(mono)
            if mono - self._anchored >= self.hold_us:
                self._anchor, self._anchored = ahead, mono
            return
        if self._began_in_doubt and self._line <= ahead < self._later:
            self._later = ahead
        if self._new is None or abs(ahead - self._new.ahead) > APART_US:
            self._began_in_doubt = self._began_in_doubt and self._new is not None
            again = self._new is None and self._doubted is not None and mono - self._doubted[1] < self.hold_us
            after = self._on_line if self._new is None else self._new.after
            self._new = _New(ahead, mono, self._doubted[0] if again and self._doubted is not None else after)
        elif self._seen(self._new.since, mono) >= self.hold_us and not self._is_contradicted(mono):
            self._jumped(ahead, mono)

    def _seen(self, since: int, mono: int) -> int:
        """Return for how long the clock's behaviour since then was observed without a gap, microseconds."""
        return mono - max(since, self._watched)

    def _steady(self, mono: int) -> None:
        """Note a reading on the line of a clock that was away: check whether it has stayed for `hold_us`, or comes and
        goes."""
        if self._seen(self._away[-1][0], mono) >= self.hold_us:
            self._away.clear()
        elif not self._unsteady:
            self._away = [one for one in self._away if mono - one[0] < self.hold_us]
        else:
            lines = [ahead for _, ahead in self._away]
            at = self._away[-1][0]
            self._away = [(at, min(lines)), (at, max(lines))]  # as many as it takes, however long it goes on
        self._unsteady = bool(self._away) and (self._unsteady or len(self._away) >= UNSTEADY_AFTER)

    def _jumped(self, ahead: int, mono: int) -> None:
        """Believe the new line from now on, and record a jump ahead."""
        if self._line is not None and self._new is not None and ahead > self._line:
            jump = Jump(self._line + self._new.after, self._line + mono, ahead - self._line)
            self.jumps = (*self.jumps, jump)[-KEPT_JUMPS:]
        self.believed_jumps += 1
        self._believe(ahead, mono)

    def _believe(self, ahead: int, mono: int) -> None:
        self._line = self._anchor = ahead
        self._anchored = self._on_line = mono
        self._new, self._began_in_doubt, self._contradicted, self._doubted = None, False, None, None
        self._away, self._unsteady = [], False

    def _why_unsteady(self, mono: int) -> str:
        left = max(self.hold_us - self._seen(self._away[-1][0], mono), 0) // 1_000_000
        times = ", ".join(sorted({shown(ahead + mono) for _, ahead in self._away}))
        return (
            f"the clock is set again and again, to {times} and back: see who sets it; it is believed when it has been "
            f"steady for {left} s more, or by `buckram cluster accept-time`"
        )

    def _is_contradicted(self, mono: int) -> bool:
        return self._contradicted is not None and mono - self._contradicted < self.hold_us

    def told(self, low: int, high: int, wall: int, mono: int) -> None:
        """Take note that others who are certain of the time report `low` to `high`, which decides a doubt."""
        self.observe(wall, mono)
        if self._new is None:
            return
        if low - APART_US <= wall <= high + APART_US:
            self._jumped(wall - mono, mono)
        else:
            self._contradicted = mono

    def accept(self, time: int, wall: int, mono: int) -> bool:
        """Accept the clocks that showed `time` a moment ago, as an operator confirms. Return whether that changed
        anything.
        """
        self.observe(wall, mono)
        if not self.doubtful or not -APART_US <= wall - time <= ACCEPTED_WITHIN_US:
            return False
        if self._new is None:
            self._believe(wall - mono, mono)
        else:
            self._jumped(wall - mono, mono)
        return True

    @property
    def doubtful(self) -> bool:
        """Return whether the last reading is not believed."""
        return self._new is not None or self._unsteady

    @property
    def guesses(self) -> bool:
        """Return whether it has been in doubt since it began, so that its time does not continue one that it was
        certain of.
        """
        return self._began_in_doubt

    def best(self, wall: int, mono: int) -> int:
        """Take a reading, and return the time for records.

        While the process runs, that is the line which it believed before. A process that began in doubt takes the later
        one: a record stamped too late lives too long, one stamped too early would end too early.
        """
        self.observe(wall, mono)
        assert self._line is not None
        line = self._line + mono
        return self._later + mono if self._began_in_doubt else line

    def moment(self, wall: int, mono: int) -> Moment:
        """Take a reading, and return what may be the time."""
        best = self.best(wall, mono)
        assert self._line is not None
        if self._new is None and not self._unsteady:
            return Moment(min(self._line + mono, wall), max(best, self._line + mono, wall), best)
        times = [self._line + mono, wall, *(ahead + mono for _, ahead in self._away if self._unsteady)]
        return Moment(min(times), max(best, *times), best, self._why(wall, mono))

    def _why(self, wall: int, mono: int) -> str:
        if self._new is None:
            return self._why_unsteady(mono) if self._unsteady else ""
        assert self._line is not None
        held, line = mono - self._new.since, self._line + mono
        if self._began_in_doubt:
            what = f"the clock shows {shown(wall)}, {between(wall - line)} the time that was recorded last"
        else:
            what = f"wall time was set {between(wall - line)} to {shown(wall)}, {held // 1_000_000} s ago"
        if self._is_contradicted(mono):
            return f"{what}, and other bookies are certain of another time: correct this clock"
        left = max(self.hold_us - self._seen(self._new.since, mono), 0) // 1_000_000
        return f"{what}: it is believed when it has run steadily for {left} s more, or by `buckram cluster accept-time`"


@dataclass(frozen=True, slots=True)
class Recorded:
    """Record of a process's time: the time that it believed, the boot of its machine and the time since then.

    `boot` is empty where that is not known. `jumps`: those that it came to believe.
    """

    time_us: int
    boot: str = ""
    up_us: int = 0
    jumps: tuple[Jump, ...] = ()


def agreed_jumps(recorded: Iterable[Recorded]) -> tuple[Jump, ...]:
    """Return the jumps that most processes came to believe, of those that recorded the time since."""
    all_of_them = list(recorded)
    found: list[Jump] = []
    for jump in (jump for one in all_of_them for jump in one.jumps):
        since = [one for one in all_of_them if one.time_us >= jump.end or one.jumps]
        believers = sum(any(jump.like(other) for other in one.jumps) for one in since)
        if 2 * believers > len(since) and not any(jump.like(other) for other in found):
            found.append(jump)
    return tuple(found)


def held_back(cutoff: int, jumps: Iterable[Jump], now: int) -> int:
    """Return the time before which all stamps are certainly at least as old as `cutoff`.

    Records stamped during the doubt before a jump stay until all of them are that old. A jump to a time in the future
    was a mistake that has been corrected since.
    """
    for jump in sorted(jumps, key=lambda jump: -jump.begin):
        if jump.end + jump.by <= now + APART_US and jump.begin < cutoff <= jump.end + jump.by:
            cutoff = jump.begin
    return cutoff


def agreeing(recorded: Mapping[str, int], wall: int) -> bool:
    """Return whether more than half of these processes recorded the time recently, by this clock; False for none."""
    near = sum(-APART_US <= wall - time <= RECORD_US + APART_US for time in recorded.values())
    return 2 * near > len(recorded)


def advanced(recorded: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return the records that moved on between two looks: those of processes that live and are certain of the time."""
    return {name: time for name, time in recorded.items() if time > before.get(name, time)}


def middle(times: Iterable[int]) -> tuple[int, int] | None:
    """Return the median, as the two in the middle; None for none."""
    found = sorted(times)
    return (found[(len(found) - 1) // 2], found[len(found) // 2]) if found else None
