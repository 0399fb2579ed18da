"""Recent latencies of bookies, so that quick ones are asked first and slow ones get no new ensembles. Pure.

Each bookie has a moving average that follows new samples the faster, the longer there was none. Differences below a
factor of two are ignored, or all requests would go to one bookie. A bookie that takes far longer than the others is
detected, so that it is reported and others may replace it. Times are given by the caller, in seconds.

Not here: reporting slow bookies (`client/cluster/slow_bookies.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from statistics import median

from buckram.types import BookieId, EntryId

HALF_LIFE_S = 2.0
"""Seconds without a sample after which the next one has a weight of one half in the moving average."""

_LEAST_SHARE = 0.2
"""Smallest weight of one sample in the moving average."""

FLOOR_S = 0.002
"""Seconds: averages below it are graded as if they were as long."""

RETRY_S = 10.0
"""Seconds after which a slow bookie without a sample is tried once, to see whether it has recovered."""

FORGET_S = 60.0
"""Seconds after its last sample at which the average of a bookie expires."""

PROBE_S = 0.1
"""Least seconds between the entries by which a writer measures its bookies (`Probe`)."""

SAMPLE_S = 0.01
"""Seconds after a sample within which further ones of that bookie are ignored, unless they took at least twice its
average."""


@dataclass(slots=True)
class _Average:
    seconds: float
    at: float
    asked_at: float
    """Time of its last sample or retry, whichever is later."""


class Latencies:
    """Moving averages of one kind of request, by bookie. An unknown bookie counts as quick."""

    def __init__(self) -> None:
        self._known: dict[BookieId, _Average] = {}
        self._best: BookieId | None = None
        self.grades: dict[BookieId, int] = {}
        """Grades of the bookies that take at least twice as long as the quickest; 1 for twice, 2 for four times: the
        binary logarithm of how many times its latency they take, rounded down."""

    def took(self, bookie: BookieId, seconds: float, now: float) -> None:
        """Record a latency sample (or the age of an unanswered request), in seconds."""
        known = self._known.get(bookie)
        if known is None:
            known = self._known[bookie] = _Average(seconds, now, now)
        elif 0 <= now - known.at < SAMPLE_S and seconds < 2 * known.seconds:
            return
        else:
            share = max(_LEAST_SHARE, 1.0 - 0.5 ** ((now - known.at) / HALF_LIFE_S))
            known.seconds += share * (seconds - known.seconds)
            known.at = known.asked_at = now
        best = None if self._best is None else self._known.get(self._best)
        if best is None or best is known or known.seconds < best.seconds or best.at < now - FORGET_S:
            self._compare(now)
        elif bookie in self.grades or known.seconds >= 2 * max(best.seconds, FLOOR_S):
            self._grade(bookie, known, best)

    def forget(self, bookie: BookieId) -> None:
        """Drop the average of a bookie, because another process serves under its id now."""
        self._known.pop(bookie, None)
        self.grades.pop(bookie, None)

    def recent_s(self, bookie: BookieId, now: float) -> float | None:
        """Return the average of a bookie in seconds; None without a sample in the last FORGET_S."""
        known = self._known.get(bookie)
        return known.seconds if known is not None and known.at >= now - FORGET_S else None

    def may_retry(self, bookie: BookieId, now: float) -> bool:
        """Return whether a bookie is not slow, or has had neither a sample nor a retry for RETRY_S."""
        return bookie not in self.grades or now - self._known[bookie].asked_at >= RETRY_S

    def retried(self, bookie: BookieId, now: float) -> None:
        if bookie in self.grades:
            self._known[bookie].asked_at = now

    def _compare(self, now: float) -> None:
        """Drop expired averages, find the quickest bookie and grade all others anew."""
        best: _Average | None = None
        for bookie, known in list(self._known.items()):
            if known.at < now - FORGET_S:
                del self._known[bookie]
            elif best is None or known.seconds < best.seconds:
                self._best, best = bookie, known
        self.grades = {}
        if best is not None:
            slow = 2 * max(best.seconds, FLOOR_S)  # below this the grade is 0
            for bookie, known in self._known.items():
                if known.seconds >= slow:
                    self._grade(bookie, known, best)

    def _grade(self, bookie: BookieId, known: _Average, best: _Average) -> None:
        grade = int(log2(max(known.seconds, FLOOR_S) / max(best.seconds, FLOOR_S)))
        if grade:
            self.grades[bookie] = grade
        else:
            self.grades.pop(bookie, None)


def quick_first(members: Sequence[BookieId], now: float, kinds: Sequence[Latencies]) -> Sequence[BookieId]:
    """Return the members ordered by their worst grade in any kind of request; equals keep their order.

    Once in RETRY_S a slow member that comes first keeps its place, so that its recovery is noticed.
    """
    grades = dict.fromkeys(members, 0)
    for kind in kinds:
        for bookie, grade in kind.grades.items():
            if grade > grades.get(bookie, grade):
                grades[bookie] = grade
    if not any(grades.values()):
        return members
    first = members[0]
    if grades[first] and all(kind.may_retry(first, now) for kind in kinds):
        for kind in kinds:
            kind.retried(first, now)
        grades[first] = 0
    return sorted(members, key=grades.__getitem__)


class Probe:
    """Latency probe of a writer: follows one entry at a time, and times its acknowledgements by each bookie.

    `entry`: id of the entry that is followed; -1: none.
    """

    __slots__ = ("_at", "_waiting", "entry")

    def __init__(self) -> None:
        self.entry: EntryId = -1
        self._at = float("-inf")
        self._waiting: dict[BookieId, None] = {}

    def sent(self, entry: EntryId, bookies: Sequence[BookieId], now: float) -> Sequence[tuple[BookieId, float]]:
        """Follow an entry that is sent to these bookies now.

        Returns the bookies that have not acknowledged the previous one, each with the seconds since it was sent.
        """
        late = [(bookie, now - self._at) for bookie in self._waiting] if self._waiting else ()
        self.entry, self._at, self._waiting = entry, now, dict.fromkeys(bookies)
        return late

    def acked(self, bookie: BookieId, now: float) -> float | None:
        """Note an acknowledgement, and return how many seconds it took; None if it was none that is waited for."""
        if bookie not in self._waiting:
            return None
        del self._waiting[bookie]
        if not self._waiting:
            self.entry = -1
        return now - self._at

    def due(self, now: float) -> bool:
        """Return whether it is time to follow another entry."""
        return now - self._at >= PROBE_S


# -- bookies far slower than the others -----------------------------------------------------------------------

SLOW_FLOOR_S = 0.1
"""Seconds: a bookie whose adds take less is not slow, whatever the others take."""

SLOW_FACTOR = 8.0
"""Multiple of the others' median from which a bookie is slow; it has recovered below half of that multiple."""


class Slowness:
    """The slow ones among the bookies that one client writes to, and since when each is slow."""

    def __init__(self) -> None:
        self._since: dict[BookieId, float] = {}
        self.why: dict[BookieId, str] = {}
        """By bookie that was slow at the last look: its latency and that of the others, as a sentence."""

    def look(self, took: Mapping[BookieId, float], now: float) -> None:
        """Judge all bookies anew.

        `took`: about how many seconds each bookie takes to acknowledge an add, or has not acknowledged one.
        """
        for bookie in [bookie for bookie in self._since if bookie not in took]:
            del self._since[bookie], self.why[bookie]
        for bookie, seconds in took.items():
            others = [other for name, other in took.items() if name != bookie]
            factor = SLOW_FACTOR / 2 if bookie in self._since else SLOW_FACTOR
            if others and seconds >= max(SLOW_FLOOR_S, factor * median(others)):
                self._since.setdefault(bookie, now)
                self.why[bookie] = f"an add takes {seconds:.2g} s there, and {median(others):.2g} s at the others"
            elif bookie in self._since:
                del self._since[bookie], self.why[bookie]

    def longer_than(self, seconds: float, now: float) -> list[BookieId]:
        """Return the bookies that were slow at every look of the last so many seconds."""
        return [bookie for bookie, since in self._since.items() if now - since >= seconds]
