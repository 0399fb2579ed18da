"""Entries of a ledger that its record places on a bookie. Pure; not here: asking whether it has them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from buckram.core.ledgers.metadata import fragment_end
from buckram.core.ledgers.recovery import quorum_of
from buckram.types import BookieId, EntryId, LedgerMetadata

Row = tuple[EntryId, EntryId]
"""First and last of consecutive ids."""


def held_rows(metadata: LedgerMetadata, bookie: BookieId, end: EntryId | None = None) -> Iterator[Row]:
    """Yield the ids that the bookie must hold, ascending. Those of the fragment that can still grow end at `end`; None:
    it is left out.
    """
    quorum = quorum_of(metadata)
    for index, fragment in enumerate(metadata.fragments):
        if bookie not in fragment.ensemble:
            continue
        last = fragment_end(metadata, index)
        last = end if last is None else last
        if last is not None:
            yield from quorum.held_ranges(fragment.ensemble.index(bookie), fragment.first_entry, last)


def without(wanted: Iterable[Row], runs: Iterable[tuple[EntryId, int]]) -> Iterator[Row]:
    """Yield the parts of `wanted` that no run (first id, count) covers; both ascending."""
    held = iter(runs)
    run = next(held, None)
    for first, last in wanted:
        at = first
        while at <= last:
            while run is not None and run[0] + run[1] <= at:
                run = next(held, None)
            if run is None or run[0] > last:
                yield at, last
                break
            if run[0] > at:
                yield at, run[0] - 1
            at = run[0] + run[1]


__all__ = ["Row", "held_rows", "without"]
