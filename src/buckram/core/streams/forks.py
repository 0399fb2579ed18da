"""Forks of streams, the pure part: what of a source a fork shares and what it copies, and the head that it gets.

A fork at offset N begins with the records of its source below N. Segments that are whole below N are shared: both
streams list the same ledger. The segment in which N lies is copied up to N, entry for entry, so every segment of a
fork is an ordinary one. Not here: who holds a shared ledger (`streams/shared/shared_ledgers.py`), the order of steps
(`streams/maintain/fork.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from buckram.core.streams.batch_copies import columns_of
from buckram.core.streams.metadata.changes import HeadStep, deleted, paged
from buckram.core.streams.metadata.head import HISTORY, Head, Segment, Summary, Transaction
from buckram.core.streams.metadata.purposes import purpose_of
from buckram.core.streams.records.batch import Batch, decode
from buckram.core.streams.records.record_format import (
    NO_MAX,
    NO_MIN,
    NO_SNAPSHOT,
    NO_TXID,
    PRODUCERS,
    EntryHeader,
    encode,
    parse_header,
)
from buckram.errors import MalformedBatch, StreamError
from buckram.types import LedgerId, Offset


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """Segments of the source that a fork shares and copies, computed from one head of the source and its pages."""

    at: Offset
    earliest: Offset
    whole: tuple[Segment, ...]
    """Segments that end at or below `at`, the oldest first."""
    cut: Segment | None
    """The segment in which `at` lies; it may be open. None if `at` is the end of a segment."""
    table: Segment | None
    """The segment that has the producers' table and is in no list any more."""
    producers: int | None
    """Number of the segment with the producers' table, unless the cut segment has it."""
    producers_known: bool
    """False if compaction has left no table as of `at`: then producers are new to the fork."""
    inherits: bool
    """False if the source is a fork that does not know all producers of its records itself."""
    first: int
    """Number of the first segment, or of the next one if there is none."""
    last_append: int
    last_txid: int
    """Greatest txid up to the last whole segment; `last_append` is the append time of its last record."""
    transactions: Mapping[str, Transaction]

    @property
    def shared(self) -> tuple[LedgerId, ...]:
        """Return the ledgers that both streams list from now on."""
        rows = [row for row in self.whole if row.kind != HISTORY]
        return tuple(dict.fromkeys(row.ledger for row in (*rows, *([self.table] if self.table else ()))))

    @property
    def gapless(self) -> bool:
        """Return whether the segments cover every offset from `earliest` to `at`. Pages deleted during reading leave
        gaps.
        """
        rows = (*self.whole, *([self.cut] if self.cut is not None else ()))
        if not rows:
            return self.earliest == self.at
        ends = [self.earliest if rows[0].base <= self.earliest else -1, *(row.end for row in self.whole)]
        bases = [self.earliest, *(row.base for row in rows[1:])]
        return ends[: len(rows)] == bases and (self.cut is not None or ends[-1] == self.at)


class CopiedSegment(NamedTuple):
    """Segment of the source and the fork's own copy that replaces it."""

    origin: Segment
    row: Segment


def plan_fork(head: Head, rows: Iterable[Segment], at: Offset) -> ForkPlan:
    """Return what a fork at `at` takes; the caller has checked that the offset is readable. `rows`: the whole list."""
    rows = list(rows)
    alive = [row for row in rows if row.base < at and (not row.sealed or row.end > head.earliest)]
    cut = alive[-1] if alive and (not alive[-1].sealed or alive[-1].end > at) else None
    whole = alive[:-1] if cut is not None else alive
    producers, table, known = _producers(head, rows, whole, at)
    last = whole[-1].summary if whole else None
    at_end = at == head.end
    first = alive[0].number if alive else head.next_number
    return ForkPlan(
        at,
        head.earliest,
        tuple(whole),
        cut,
        table,
        producers,
        known,
        head.fork is None or head.fork.producers_known,
        first,
        last.last_append if last is not None else head.last_append if at_end else 0,
        last.last_txid if last is not None else head.last_txid if at_end else NO_TXID,
        {name: done for name, done in head.transactions.items() if done.next_offset <= at},
    )


def _producers(
    head: Head, rows: Sequence[Segment], whole: Sequence[Segment], at: Offset
) -> tuple[int | None, Segment | None, bool]:
    """Return the segment with the producers' table as of the end of `whole`, by number or as a row of its own, and
    whether the table is known. Only compaction makes segments that had producers and have no table any more, and none
    of those is behind the segment that the head names.
    """
    if head.producers is None:
        return None, None, True
    last = whole[-1] if whole else None
    if last is not None and _has_table(last):
        return last.number, None, True
    if head.table is not None:
        # It was trimmed, so every segment that is left came later.
        return (head.producers, head.table, True) if head.table.end <= at else (None, None, False)
    row = next((row for row in rows if row.number == head.producers), None)
    if row is None or not row.sealed or row.end > at:
        return None, None, False
    # All of its records may be truncated: then it is in the list for its table only, and not in that of the fork.
    return row.number, None if row in whole else row, True


def without_producers(plan: ForkPlan) -> ForkPlan:
    """Return the plan for a fork whose producers are not known: some of their records have no table."""
    return replace(plan, producers=None, table=None, producers_known=False)


def with_copies(plan: ForkPlan, made: Iterable[CopiedSegment]) -> ForkPlan:
    """Return the plan without what its copies make superfluous: one with a producers' table needs no older table."""
    newer = any(one.origin == plan.cut and _has_table(one.row) for one in made)
    return replace(plan, table=None) if newer else plan


def _has_table(row: Segment) -> bool:
    return row.summary is not None and row.summary.snapshot != NO_SNAPSHOT


def hides_producers(header: EntryHeader) -> bool:
    """Return whether an entry has records of producers but its segment has no table of them, as after compaction."""
    return bool(header.columns & PRODUCERS) and header.snapshot == NO_SNAPSHOT


# -- the copy of the segment in which the offset lies -----------------------------------------------------


def cut_entry(payload: bytes, records: int, before: EntryHeader | None, last_txid: int) -> bytes:
    """Return an entry without the records of its segment from number `records` on. MalformedBatch.

    `before` is the header of the entry before it in its ledger, `last_txid` that of the stream before the segment.
    """
    header = parse_header(payload)
    if header.first + header.records <= records:
        return payload
    found = decode(payload, 0)
    if not isinstance(found, Batch) or header.first >= records:
        raise MalformedBatch(f"has records from {header.first} on, one below {records} is looked for")
    columns = columns_of(found.between(0, records))
    reached = max(last_txid, before.last_txid if before is not None else NO_TXID, *(columns.txids or ()))
    entry, _ = encode(
        columns,
        first=header.first,
        append_time=header.append_time,
        last_txid=min(reached, header.last_txid),
        lowest=before.min_timestamp if before is not None else NO_MIN,
        highest=before.max_timestamp if before is not None else NO_MAX,
        snapshot=header.snapshot,
        compression=header.compression,
    )
    return entry


def records_of(plan: ForkPlan, row: Segment) -> int:
    """Return how many records of a segment the fork gets."""
    return (min(row.end, plan.at) if row.sealed else plan.at) - row.base


def copied_row(name: str, plan: ForkPlan, origin: Segment, ledger: LedgerId, found: Summary) -> Segment:
    """Return the row of the copy of a segment, whose closed ledger holds `found`. StreamError if it is not it."""
    due = records_of(plan, origin)
    if found.records != due:
        raise StreamError(name, f"ledger {ledger} holds {found}, {due} records were to be copied; it was discarded")
    first, last = found.first_append, max(found.last_append, plan.last_append)
    txid, snapshot = max(found.last_txid, plan.last_txid), found.snapshot
    if origin.summary is not None:
        # Entries of bulk steps were stamped by other clocks: their row says what counts.
        whole = origin.summary
        first, last = whole.first_append, min(max(last, whole.first_append), whole.last_append)
        txid = min(txid, whole.last_txid)
        snapshot = snapshot if whole.snapshot != NO_SNAPSHOT else NO_SNAPSHOT
    summary = found._replace(first_append=first, last_append=last, last_txid=txid, snapshot=snapshot)
    return Segment(origin.number, ledger, origin.base, origin.created, summary)


# -- the head ---------------------------------------------------------------------------------------------


def forked(name: str, head: Head, plan: ForkPlan, made: Sequence[CopiedSegment], *, done: bool = True) -> HeadStep:
    """Return the head of a fork that is complete, and its pages. `made`: the copies that take the places of others.

    Without `done` it has its rows and cannot be used yet. StreamError if the fork was deleted or taken by somebody
    meanwhile.
    """
    check_forking(name, head)
    assert head.fork is not None
    copies = {one.origin.number: one.row for one in made}
    rows = [copies.get(row.number, row) for row in (*plan.whole, *([plan.cut] if plan.cut is not None else ()))]
    last = rows[-1].summary if rows else None
    producers, table = plan.producers, plan.table
    if plan.cut is not None and _has_table(rows[-1]):
        producers, table = rows[-1].number, None
    known = plan.inherits and (plan.producers_known or producers is not None)
    return paged(
        replace(
            head,
            fork=head.fork._replace(done=done, producers_known=known),
            earliest=plan.earliest,
            first=plan.first,
            tail=tuple(rows),
            end=plan.at,
            next_number=rows[-1].number + 1 if rows else plan.first,
            last_append=last.last_append if last is not None else plan.last_append,
            last_txid=last.last_txid if last is not None else plan.last_txid,
            producers=producers,
            table=table,
            transactions=plan.transactions,
        )
    )


def given_up(name: str, head: Head) -> HeadStep | None:
    """Return the head, to be deleted, of a fork that will not be completed; None if it is complete."""
    return deleted(name, head, purpose_of(name, head)) if head.incomplete else None


def check_forking(name: str, head: Head) -> None:
    """Raise StreamError unless the fork is still being made and was not changed otherwise."""
    if head.deleting or head.fork is None or head.fork.done or head.epoch:
        raise StreamError(name, "was deleted or taken by another process while it was made as a fork; fork again")
