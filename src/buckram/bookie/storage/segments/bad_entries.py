"""The known bad entries of one log file: reads of them are errors, and lists of entries leave them out.

They belong to places in one file: a newer copy of the same entry, which is in another file, is good.
Not here: how bad bytes are found (`bookie/storage/upkeep/verifying.py`), and who decides (`bookie/integrity/scrub.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from buckram.bookie.storage.read_results import Outcome, StoreError
from buckram.types import EntryId, LedgerId

Span: TypeAlias = tuple[EntryId, EntryId]
"""Range of entries: the first one, and the one after the last."""


class BadEntries:
    """Spans of bad entries by ledger, ascending and disjoint."""

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: dict[LedgerId, list[Span]] = {}

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def spans(self) -> int:
        """Return the number of spans."""
        return sum(map(len, self._spans.values()))

    @property
    def entries(self) -> int:
        """Return the number of entries."""
        return sum(end - first for spans in self._spans.values() for first, end in spans)

    def ledgers(self) -> dict[LedgerId, list[Span]]:
        """Return a copy: the spans of each ledger."""
        return {ledger: list(spans) for ledger, spans in self._spans.items()}

    def of(self, ledger: LedgerId) -> Sequence[Span]:
        """Return the spans of one ledger."""
        return self._spans.get(ledger, ())

    def replace(self, ledger: LedgerId, spans: Iterable[Span]) -> None:
        """Set the spans of a ledger, in any order; none: nothing of it is bad."""
        found = union(spans)
        if found:
            self._spans[ledger] = found
        else:
            self._spans.pop(ledger, None)

    def add(self, ledger: LedgerId, spans: Iterable[Span]) -> None:
        """Add spans to those of a ledger."""
        self.replace(ledger, [*self.of(ledger), *spans])

    def meets(self, ledger: LedgerId, first: EntryId, count: int) -> bool:
        """Return whether any of `count` entries from `first` on is bad."""
        spans = self._spans.get(ledger)
        if spans is None:
            return False
        number = bisect_left(spans, (first + count,)) - 1
        return number >= 0 and spans[number][1] > first

    def masked(self, outcomes: Sequence[Outcome], ledger: LedgerId, first: EntryId) -> Sequence[Outcome]:
        """Return the outcomes of consecutive entries with an error in place of each bad one."""
        if not self.meets(ledger, first, len(outcomes)):
            return outcomes
        found = list(outcomes)
        for low, end in self._spans[ledger]:
            for entry in range(max(low, first), min(end, first + len(found))):
                found[entry - first] = StoreError(
                    "corrupt", f"ledger {ledger} entry {entry}: its block in the log file fails its checksum"
                )
        return found


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the spans as ascending ones that neither meet nor touch."""
    found: list[Span] = []
    for first, end in sorted(spans):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return found


def without(spans: Iterable[Span], others: Sequence[Span]) -> Iterator[Span]:
    """Return the parts of `spans` that are in none of `others`, which ascend and are disjoint."""
    for first, end in spans:
        for low, high in others:
            if high <= first:
                continue
            if low >= end:
                break
            if low > first:
                yield first, low
            first = max(first, high)
        if first < end:
            yield first, end
