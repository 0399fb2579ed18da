"""Reading one thing that several bookies hold: whom to ask next, when it is decided, and how far a read may go.

A Race is one entry (or one batch from its first entry on) against its replicas. It hears answers in any
order and says whom to ask now; timers and messages belong to the caller (client/read/replicas). It delivers no
bytes that were not verified before (S17): what is not Positive never completes it with success.
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
    WIDENING = "the first alone, all others as soon as it says anything but yes or the timer fires"


class Race(Generic[T]):
    """One read against its replicas, in the order in which they should be asked.

    `enough_negatives`: so many explicit negatives are enough for "absent" (recovery: Qw - Qa + 1); by default only all
    of them together are (S18). They decide at once, or, in a `patient` race, when all have answered or at `give_up`:
    until then a copy wins over any number of denials (F18). `outcome` is set exactly once (S20), later answers change
    nothing.
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
        """Whom to ask first."""
        return self._ask(len(self._order) if self._strategy is Strategy.PARALLEL else 1)

    def answered(self, bookie: BookieId, answer: Answer[T]) -> Sequence[BookieId]:
        """Take an answer; returns whom to ask now. Late and repeated answers are no-ops."""
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
        """The speculation timer fired: whom to ask as well. Each read has its own timer and hears nothing of
        what the same bookie did for other entries (L11)."""
        if self.outcome is not None:
            return ()
        return self._ask(len(self._order) if self._strategy is Strategy.WIDENING else 1)

    @property
    def denied(self) -> bool:
        """So many denied it that it cannot have been acknowledged, if they are right."""
        return self._enough is not None and self.negatives >= self._enough

    def give_up(self) -> None:
        """Nobody waits for the others any more: what is denied by enough is absent."""
        if self.outcome is None and self.denied:
            self.outcome = _ABSENT

    @property
    def can_hedge(self) -> bool:
        return self.outcome is None and self._sent < len(self._order)

    def beaten(self) -> Sequence[BookieId]:
        """Those asked before the winner that had not answered when it did: slow."""
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
    """The entries from `entry` to `last` that lie in the fragment of `entry`."""
    fragments = metadata.fragments
    index = _fragment_of(metadata, entry)
    if index + 1 < len(fragments):
        last = min(last, fragments[index + 1].first_entry - 1)
    return Span(fragments[index].ensemble, entry, last)


def ensemble_of(metadata: LedgerMetadata, entry: EntryId) -> tuple[BookieId, ...]:
    """The bookies of the fragment that holds `entry`."""
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
    """first..last cut at fragment borders: an ensemble is only ever asked for what it was given (4.8)."""
    while first <= last:
        span = span_of(metadata, first, last)
        yield span
        first = span.last + 1


def readable_until(metadata: LedgerMetadata, last_confirmed: EntryId) -> EntryId:
    """The last entry that a normal read may return (S16): the last entry of a closed ledger, else the known LAC.

    Everything below the last fragment is committed whatever the bookies say of their LAC (8.2 row 18).
    """
    if metadata.closed:
        assert metadata.last_entry is not None
        return metadata.last_entry
    return max(last_confirmed, metadata.last_fragment.first_entry - 1)
