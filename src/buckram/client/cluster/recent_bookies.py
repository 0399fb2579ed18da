"""The recent behaviour of bookies, as one client saw it: who failed, who was beaten by another, and how long they took.

Only ever a preference (quarantine, L9). Times are the caller's. Not here: who is registered (`client/cluster/bookies`).
"""

from __future__ import annotations

from collections.abc import Sequence

from buckram.core.placement.latency import Latencies, quick_first
from buckram.types import BookieId


class RecentBookies:
    """The recent behaviour of all bookies. `reads`, `batches` and `adds` hold how long such requests took."""

    def __init__(self, quarantine_s: float) -> None:
        self._quarantine_s = quarantine_s
        self._failed_until: dict[BookieId, float] = {}
        self._slow_until: dict[BookieId, float] = {}
        self.reads, self.batches, self.adds = Latencies(), Latencies(), Latencies()

    def failed(self, bookie: BookieId, now: float) -> None:
        """Avoid a bookie for a while where there is a choice."""
        self._failed_until[bookie] = now + self._quarantine_s

    def beaten(self, bookie: BookieId, now: float, for_s: float | None) -> None:
        """Read from others first, for a while or for `for_s`."""
        until = now + (self._quarantine_s if for_s is None else for_s)
        self._slow_until[bookie] = max(until, self._slow_until.get(bookie, 0.0))

    def answered(self, bookie: BookieId) -> None:
        """Forget that it failed."""
        if self._failed_until:
            self._failed_until.pop(bookie, None)

    def forget(self, bookie: BookieId) -> None:
        """Forget a bookie that registered anew: whatever it did before was another process or session."""
        self._failed_until.pop(bookie, None)
        self._slow_until.pop(bookie, None)
        for kind in (self.reads, self.batches, self.adds):
            kind.forget(bookie)

    def quarantined(self, bookie: BookieId, now: float) -> bool:
        until = self._failed_until.get(bookie)
        if until is None:
            return False
        if until > now:
            return True
        del self._failed_until[bookie]
        return False

    @property
    def quiet(self) -> bool:
        """Return whether no bookie failed or was beaten by another lately."""
        return not self._failed_until and not self._slow_until

    @property
    def uneven(self) -> bool:
        """Return whether reads from some bookie take longer than from others."""
        return bool(self.reads.grades or self.batches.grades)

    def quick_first(self, members: Sequence[BookieId], now: float) -> Sequence[BookieId]:
        """Return the members, with those last from which reads took long."""
        return quick_first(members, now, (self.reads, self.batches))

    def read_class(self, bookie: BookieId, now: float) -> int:
        """Return 0 if nothing speaks against reading from a bookie, 1 if it was beaten by another lately, 2 if it
        failed."""
        if self.quarantined(bookie, now):
            return 2
        until = self._slow_until.get(bookie)
        if until is None:
            return 0
        if until > now:
            return 1
        del self._slow_until[bookie]
        return 0
