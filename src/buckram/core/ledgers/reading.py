"""Reads an entry that several bookies hold: which replica to ask next, when it is decided, and how far reads go.

A Race reads one entry (or one batch from its first entry on) from its replicas. It takes answers in any order and
returns the replicas to ask next. It delivers only verified bytes (S17): nothing but a Positive answer completes it with
success.
Not here: timers and messages (`client/read/replicas.py`).
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from buckram.core.ledgers.answers import Answer, FailureFold, Negative, Positive
from buckram.errors import Code, InvalidArgument
from buckram.types import BookieId, EntryId, LedgerMetadata

T = TypeVar("T")
_ABSENT = Negative(Code.NO_ENTRY)


class Strategy(enum.Enum):
    SEQUENTIAL = "one after another, the next one also when the timer fires"
    PARALLEL = "all at once"
    WIDENING = "the first alone, all others as soon as it gives no good answer or the timer fires"


class Race(Generic[T]):
    """One read against its replicas, in the order in which they should be asked.

    `enough_negatives`: how many explicit negatives prove absence (recovery: Qw - Qa + 1); by default all replicas must
    deny the entry (S18). They decide at once or, in a `patient` race, when all have answered or at `give_up`: until
    then one copy wins over any number of denials (F18). `outcome` is set exactly once (S20); later answers are ignored.
    """

    __slots__ = (
        "_enough",
        "_failed",
        "_fold",
        "_order",
        "_patient",
        "_sent",
        "_strategy",
        "negatives",
        "outcome",
        "winner",
    )

    def __init__(
        self,
        order: Sequence[BookieId],
        strategy: Strategy = Strategy.SEQUENTIAL,
        *,
        enough_negatives: int | None = None,
        patient: bool = False,
    ) -> None:
        self._order = order
        self._strategy = strategy
        self._enough = enough_negatives
        self._patient = patient
        self._sent = 0
        self._failed: dict[BookieId, None] = {}
        self._fold = FailureFold()
        self.negatives = 0
        self.outcome: Answer[T] | None = None
        self.winner: BookieId | None = None

    def start(self) -> Sequence[BookieId]:
        """Return the replicas to ask first."""
        return self._ask(len(self._order) if self._strategy is Strategy.PARALLEL else 1)

    def answered(self, bookie: BookieId, answer: Answer[T]) -> Sequence[BookieId]:
        """Take an answer and return the replicas to ask now. Late and repeated answers are no-ops."""
        if self.outcome is not None or bookie in self._failed:
            return ()
        if isinstance(answer, Positive):
            self.outcome, self.winner = answer, bookie
            return ()
        self._failed[bookie] = None
        self._fold.add(answer)
        if isinstance(answer, Negative):
            self.negatives += 1
            if self.denied and not self._patient:
                self.outcome = answer
                return ()
        if len(self._failed) == len(self._order):
            self.outcome = _ABSENT if self.denied else self._fold.result
            return ()
        if self._strategy is Strategy.WIDENING:
            return self._ask(len(self._order))
        if len(self._failed) == self._sent:
            return self._ask(1)
        return ()

    def hedge(self) -> Sequence[BookieId]:
        """Return the replicas to ask as well, after the speculation timer fired.

        Each read has its own timer, independent of other reads from the same bookie (L11).
        """
        if self.outcome is not None:
            return ()
        return self._ask(len(self._order) if self._strategy is Strategy.WIDENING else 1)

    @property
    def denied(self) -> bool:
        """Return whether enough replicas denied the entry to prove that it was not acknowledged."""
        return self._enough is not None and self.negatives >= self._enough

    def give_up(self) -> None:
        """Stop waiting for the other replicas: the entry is absent if enough replicas denied it."""
        if self.outcome is None and self.denied:
            self.outcome = _ABSENT

    @property
    def can_hedge(self) -> bool:
        return self.outcome is None and self._sent < len(self._order)

    def beaten(self) -> Sequence[BookieId]:
        """Return the slow replicas: asked before the winner, without an answer when that one came."""
        if self.winner is None:
            return ()
        sent = self._order[: self._sent]
        return [b for b in sent[: sent.index(self.winner)] if b not in self._failed]

    def _ask(self, count: int) -> Sequence[BookieId]:
        more = self._order[self._sent : self._sent + count]
        self._sent += len(more)
        return more


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive entries of one fragment."""

    ensemble: tuple[BookieId, ...]
    first: EntryId
    last: EntryId


def span_of(metadata: LedgerMetadata, entry: EntryId, last: EntryId) -> Span:
    """Return the entries from `entry` to `last` that belong to the fragment of `entry`."""
    fragments = metadata.fragments
    index = _fragment_of(metadata, entry)
    if index + 1 < len(fragments):
        last = min(last, fragments[index + 1].first_entry - 1)
    return Span(fragments[index].ensemble, entry, last)


def ensemble_of(metadata: LedgerMetadata, entry: EntryId) -> tuple[BookieId, ...]:
    """Return the bookies of the fragment that holds `entry`."""
    return metadata.fragments[_fragment_of(metadata, entry)].ensemble


def _fragment_of(metadata: LedgerMetadata, entry: EntryId) -> int:
    fragments = metadata.fragments
    if entry >= fragments[-1].first_entry:
        return len(fragments) - 1
    index = bisect_right(fragments, entry, key=lambda fragment: fragment.first_entry) - 1
    if index < 0:
        raise InvalidArgument(f"entry {entry} lies before the first fragment")
    return index


def spans(metadata: LedgerMetadata, first: EntryId, last: EntryId) -> Iterator[Span]:
    """Cut first..last at fragment borders, so that an ensemble is asked only for entries of its fragment (4.8)."""
    while first <= last:
        span = span_of(metadata, first, last)
        yield span
        first = span.last + 1


def readable_until(metadata: LedgerMetadata, last_confirmed: EntryId) -> EntryId:
    """Return the last entry for normal reads (S16): that of a closed ledger, else the known LAC.

    Everything before the last fragment is committed, whatever LAC the bookies report (8.2 row 18).
    """
    if metadata.closed:
        assert metadata.last_entry is not None
        return metadata.last_entry
    return max(last_confirmed, metadata.last_fragment.first_entry - 1)
