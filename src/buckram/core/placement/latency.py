"""How long bookies took lately, so that quick ones are asked first and slow ones get no new ensembles.

A moving average for each bookie that follows the newest samples, the faster the longer there was none. Differences
below a factor of two count for nothing, or all would go to one bookie. Times are the caller's, in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from buckram.types import BookieId, EntryId

HALF_LIFE_S = 2.0
"""After this long without a sample the next one counts for half."""
_LEAST_SHARE = 0.2
"""What one of many samples counts for."""
FLOOR_S = 0.002
"""Whatever is quicker counts as this quick."""
RETRY_S = 10.0
"""A slow bookie from which nobody read for so long is asked once, to see whether it recovered."""
FORGET_S = 60.0
"""What is older is not known any more."""
PROBE_S = 0.1
"""So often a writer looks how long its bookies take."""
SAMPLE_S = 0.01
"""Of the answers of one bookie within this time only the first counts, and those that took much longer."""


@dataclass(slots=True)
class _Average:
    seconds: float
    at: float
    asked_at: float
    """When it had its sample, or was to be tried, last."""


class Latencies:
    """Of one kind of request, of the bookies that answered lately. Those that are not known count as quick."""

    def __init__(self) -> None:
        self._known: dict[BookieId, _Average] = {}
        self._best: BookieId | None = None
        self._grades: dict[BookieId, int] = {}
        """Of bookies that are slower than the quickest: how often by two."""

    def took(self, bookie: BookieId, seconds: float, now: float) -> None:
        """It answered, or has not answered for so long."""
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
        else:
            self._grade(bookie, known, best)

    def forget(self, bookie: BookieId) -> None:
        """It is another process now."""
        self._known.pop(bookie, None)
        self._grades.pop(bookie, None)

    def recent_s(self, bookie: BookieId, now: float) -> float | None:
        """Its average; None where there was no sample lately."""
        known = self._known.get(bookie)
        return known.seconds if known is not None and known.at >= now - FORGET_S else None

    @property
    def uneven(self) -> bool:
        """Whether any bookie is known to be slower than another."""
        return bool(self._grades)

    def grade(self, bookie: BookieId) -> int:
        """How often by two it is slower than the quickest; 0 for one that is not known."""
        return self._grades.get(bookie, 0)

    def may_retry(self, bookie: BookieId, now: float) -> bool:
        """Whether a slow one was not asked for long."""
        return bookie not in self._grades or now - self._known[bookie].asked_at >= RETRY_S

    def retried(self, bookie: BookieId, now: float) -> None:
        if bookie in self._grades:
            self._known[bookie].asked_at = now

    def _compare(self, now: float) -> None:
        """Find the quickest one and grade all others anew."""
        self._known = {bookie: one for bookie, one in self._known.items() if one.at >= now - FORGET_S}
        self._best = min(self._known, key=lambda bookie: self._known[bookie].seconds)
        best, self._grades = self._known[self._best], {}
        for bookie, known in self._known.items():
            self._grade(bookie, known, best)

    def _grade(self, bookie: BookieId, known: _Average, best: _Average) -> None:
        grade = int(log2(max(known.seconds, FLOOR_S) / max(best.seconds, FLOOR_S)))
        if grade:
            self._grades[bookie] = grade
        else:
            self._grades.pop(bookie, None)


def quick_first(members: Sequence[BookieId], now: float, kinds: Sequence[Latencies]) -> Sequence[BookieId]:
    """The members, those last that are slow in some kind of request; equals stay as they are.

    Now and then a slow one that comes first stays there: that is how it is found out that it recovered.
    """
    grades = {bookie: max(kind.grade(bookie) for kind in kinds) for bookie in members}
    if not any(grades.values()):
        return members
    first = members[0]
    if grades[first] and all(kind.may_retry(first, now) for kind in kinds):
        for kind in kinds:
            kind.retried(first, now)
        grades[first] = 0
    return sorted(members, key=grades.__getitem__)


class Probe:
    """One entry of a writer at a time, whose acknowledgements tell how long each of its bookies takes.

    `entry` is the one that is followed; -1: none.
    """

    __slots__ = ("_at", "_waiting", "entry")

    def __init__(self) -> None:
        self.entry: EntryId = -1
        self._at = float("-inf")
        self._waiting: dict[BookieId, None] = {}

    def sent(self, entry: EntryId, bookies: Sequence[BookieId], now: float) -> Sequence[tuple[BookieId, float]]:
        """This entry goes to these bookies now. Gives who has not acknowledged the last one, and for how long."""
        late = [(bookie, now - self._at) for bookie in self._waiting]
        self.entry, self._at, self._waiting = entry, now, dict.fromkeys(bookies)
        return late

    def acked(self, bookie: BookieId, now: float) -> float | None:
        """The bookie has the entry; how long that took, the first time."""
        if bookie not in self._waiting:
            return None
        del self._waiting[bookie]
        if not self._waiting:
            self.entry = -1
        return now - self._at

    def due(self, now: float) -> bool:
        """Whether it is time to follow another entry."""
        return now - self._at >= PROBE_S


__all__ = ["FLOOR_S", "FORGET_S", "PROBE_S", "RETRY_S", "SAMPLE_S", "Latencies", "Probe", "quick_first"]
