"""Proofs by an acknowledgement: which waiting reads may be served, and how fresh a replica is.

Offsets are those of the log; times are monotonic seconds of this replica. Rule R6 of
docs/explanation/machines-design.md. Not here: asking (`state/machine/leader.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Proofs(Generic[T]):
    """Reads that wait for the acknowledgement of a record that is sent after they arrived."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, T]] = deque()
        """The reads, each behind the offset of the record that proves it."""

    def __len__(self) -> int:
        return len(self.waiting)

    def arrived(self, read: T, next_sent: int) -> None:
        """Let a read wait; the next record that is sent will have the offset `next_sent`."""
        self.waiting.append((next_sent, read))

    def lacks_record(self, next_sent: int) -> bool:
        """Return whether a read waits for a record that has not been sent."""
        return bool(self.waiting) and self.waiting[-1][0] >= next_sent

    def applied(self, applied: int) -> list[T]:
        """Return the reads that may be served now: all records below `applied` are acknowledged and applied."""
        served: list[T] = []
        waiting = self.waiting
        while waiting and waiting[0][0] < applied:
            served.append(waiting.popleft()[1])
        return served

    def fail(self) -> list[T]:
        """Return the reads that nothing proves any more, after the leadership ended."""
        left = [read for _, read in self.waiting]
        self.waiting.clear()
        return left


class Freshness:
    """Moment as of which a replica has applied everything that was acknowledged."""

    def __init__(self) -> None:
        self.as_of: float | None = None

    def confirmed(self, moment: float) -> None:
        """Record that everything acknowledged at this moment is applied."""
        self.as_of = moment if self.as_of is None else max(self.as_of, moment)

    def age(self, now: float) -> float | None:
        """Return for how many seconds the state may lack something; None before the first confirmation."""
        return None if self.as_of is None else max(now - self.as_of, 0.0)
