"""The only legal changes of a stream's head, as pure functions; and the rules that every head keeps.

Each function takes the freshest head and returns the next one, or None if the change was made already, since it is
called again after every conflict and every lost reply. Not here: who may call it and when (the coroutines in streams/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from buckram.core.streams.metadata.head import (
    PAGE_SEGMENTS,
    Head,
    Mirror,
    Page,
    Segment,
    Summary,
    Transaction,
    WriterInfo,
)
from buckram.core.streams.metadata.mirrors import check_writable
from buckram.core.streams.metadata.purposes import Act, Purpose, check_act, check_marks
from buckram.core.streams.metadata.snapshots import check_rows, spared
from buckram.core.streams.metadata.transactions import StepId, recorded, settled
from buckram.core.streams.names import utf8_size
from buckram.core.streams.records.positions import PositionMark
from buckram.core.streams.records.record_format import NO_SNAPSHOT, NO_TXID
from buckram.errors import (
    InvalidArgument,
    NoSuchStream,
    OffsetOutOfRange,
    OpenSegment,
    StreamEnded,
    StreamError,
    WriterLost,
    check,
)
from buckram.types import LedgerId, Offset

MAX_BULK_SEGMENTS = 2000
MAX_PROPERTIES_BYTES = 64 * 1024
_TAIL_MOST = 2 * PAGE_SEGMENTS


class HeadStep(NamedTuple):
    """The next head, and the pages that the same multi must create."""

    head: Head
    pages: tuple[Page, ...] = ()


def check_usable(name: str, head: Head) -> None:
    """Raise NoSuchStream for a stream that is being deleted, or for a fork that is being made."""
    if head.deleting:
        raise NoSuchStream(name, "is being deleted")
    if head.fork is not None and head.incomplete:
        raise NoSuchStream(name, "is being made as a fork of another stream; it is there when that has ended")


# -- writers ----------------------------------------------------------------------------------------------


def claimed(
    name: str, head: Head, writer: WriterInfo, mirror_of: str = "", acting_for: Purpose = Purpose.RECORDS
) -> HeadStep | None:
    """Claim the stream for a writer: no change by an older epoch succeeds from now on. `mirror_of`: the uid of the
    source, for a writer that copies into a mirror; else empty.

    `acting_for`: the purpose of the stream, for a writer of one that is not for records.
    """
    check_usable(name, head)
    check_act(name, head, Act.WRITE, acting_for)
    check_writable(name, head, mirror_of)
    if head.writer is not None and head.writer.nonce == writer.nonce:
        return None
    if head.ended:
        raise StreamEnded(name, head.end)
    return HeadStep(replace(head, epoch=head.epoch + 1, writer=writer))


def check_epoch(name: str, head: Head, epoch: int) -> None:
    """Raise WriterLost for a writer whose stream was claimed by another one."""
    check_usable(name, head)
    if head.epoch != epoch:
        who = f"writer {head.writer.name!r}" if head.writer else "another writer or a bulk step"
        raise WriterLost(name, f"{who} took it over (epoch {head.epoch}, this writer's was {epoch})")


def sealed(name: str, head: Head, epoch: int, ledger: LedgerId, summary: Summary) -> HeadStep | None:
    """Seal the open segment. An empty one leaves the list, and its ledger is garbage."""
    check_epoch(name, head, epoch)
    if head.open_segment is None or head.open_segment.ledger != ledger:
        return None
    return HeadStep(_sealed(head, summary))


def rolled(
    name: str, head: Head, epoch: int, old: tuple[LedgerId, Summary] | None, ledger: LedgerId, base: int, now: int
) -> HeadStep | None:
    """Seal `old` (None: no segment is open) and list `ledger` as the open segment from `base` on, in one step."""
    check_epoch(name, head, epoch)
    present = head.open_segment
    if present is not None and present.ledger == ledger:
        return None
    if (None if present is None else present.ledger) != (None if old is None else old[0]):
        raise WriterLost(name, f"its open segment is not this writer's any more: {present}")
    if old is not None:
        head = _sealed(head, old[1])
    check(head.end == base, "M9", f"{name}: the list ends at {head.end}, the next segment begins at {base}")
    row = Segment(head.next_number, ledger, head.end, max(now, head.last_append))
    return paged(replace(head, tail=(*head.tail, row), next_number=head.next_number + 1))


def released(
    name: str, head: Head, nonce: str, old: tuple[LedgerId, Summary] | None, *, end: bool = False
) -> HeadStep | None:
    """Release the stream of the writer with this nonce and seal its open segment. `end`: the stream takes no more
    records.
    """
    check_usable(name, head)
    if head.writer is None or head.writer.nonce != nonce:
        if end and not head.ended:
            raise WriterLost(name, "another writer took it over before it was ended")
        return None
    present = head.open_segment
    if present is not None:
        if old is None or present.ledger != old[0]:
            raise WriterLost(name, f"its open segment is not this writer's any more: {present}")
        head = _sealed(head, old[1])
    return HeadStep(replace(head, writer=None, ended=head.ended or end))


def _sealed(head: Head, summary: Summary) -> Head:
    row = head.tail[-1]
    if summary.records == 0:
        # Its number is given out again; readers know segments by ledger and offset.
        return replace(
            head,
            tail=head.tail[:-1],
            next_number=row.number,
            garbage=(*head.garbage, row.ledger),
            producers=head.producers,
        )
    summary = summary._replace(
        last_append=max(summary.last_append, head.last_append), last_txid=max(summary.last_txid, head.last_txid)
    )
    row = replace(row, summary=summary)
    head = replace(
        head, tail=(*head.tail[:-1], row), end=row.end, last_append=summary.last_append, last_txid=summary.last_txid
    )
    if summary.snapshot == NO_SNAPSHOT:
        return head
    garbage = head.garbage if head.table is None else (*head.garbage, head.table.ledger)
    return replace(head, producers=row.number, table=None, garbage=garbage)


# -- bulk -------------------------------------------------------------------------------------------------


def check_publishable(
    name: str, head: Head, step: StepId, *, seal_live: bool = False, acting_for: Purpose = Purpose.RECORDS
) -> bool:
    """Return whether the step can be published now; False if it was already. Raises the error that tells why not."""
    check_usable(name, head)
    check_act(name, head, Act.WRITE, acting_for)
    if settled(name, head.transactions, step, head.came) is not None:
        return False
    check_writable(name, head)
    if head.ended:
        raise StreamEnded(name, head.end)
    if (head.open_segment is not None or head.writer is not None) and not seal_live:
        writer = head.writer
        raise OpenSegment(name, writer.name if writer else "unknown", writer.since if writer else 0)
    return True


def published(
    name: str,
    head: Head,
    segments: Sequence[tuple[LedgerId, Summary]],
    application: str,
    version: int,
    now: int,
    *,
    seal_live: bool = False,
    live: tuple[LedgerId, Summary] | None = None,
    query: str = "",
    place: str = "",
    new_epoch: bool = False,
    was: str = "",
    targets: tuple[str, ...] = (),
    planned: int = 0,
    history: str = "",
    acting_for: Purpose = Purpose.RECORDS,
) -> HeadStep | None:
    """List sealed ledgers as segments and record the transaction. None when this version is recorded already.

    A stream that a writer holds is refused (OpenSegment; an idle writer counts, too: its offsets would be wrong),
    unless `seal_live`: then the open segment, which the caller fenced as `live`, is sealed, and the writer is out.
    """
    step = StepId(application, version, query, place, new_epoch, was, targets, planned, history)
    if not check_publishable(name, head, step, seal_live=seal_live, acting_for=acting_for):
        return None
    present = head.open_segment
    if present is not None or head.writer is not None:
        if present is not None:
            if live is None or live[0] != present.ledger:
                raise LiveMoved(name, "another segment is open than the one that was fenced")
            head = _sealed(head, live[1])
        head = replace(head, epoch=head.epoch + 1, writer=None)
    return paged(_with_ledgers(name, head, segments, step, now))


def insertable(name: str, head: Head, step: StepId, now: int) -> bool:
    """Return whether the stream's writer can publish the step now. Raises nothing: the caller finds the reason
    itself.
    """
    try:
        if not check_publishable(name, head, step, seal_live=True):
            return False
        recorded(name, head.transactions, step, head.end, head.end, max(now, head.last_append))
    except (StreamError, InvalidArgument):
        return False
    return True


def inserted(
    name: str,
    head: Head,
    epoch: int,
    old: tuple[LedgerId, Summary] | None,
    segments: Sequence[tuple[LedgerId, Summary]],
    step: StepId | None,
    now: int,
) -> HeadStep | None:
    """End the segment `old` of the writer of `epoch`, and list the sealed ledgers of a bulk step behind it.

    Its next segment begins behind them. `old` is None if it has no segment in the list. A step that is not
    `insertable`, or None, is left out. None: that was done already, or there is nothing to do.
    """
    check_epoch(name, head, epoch)
    present = head.open_segment
    if present is not None and (old is None or present.ledger != old[0]):
        raise WriterLost(name, f"its open segment is not this writer's any more: {present}")
    if present is None and old is not None:
        return None  # Only the writer of this epoch seals it, and it did.
    if step is not None and not insertable(name, head, step, now):
        step = None
    if old is None and step is None:
        return None
    if old is not None:
        head = _sealed(head, old[1])
    return paged(head if step is None else _with_ledgers(name, head, segments, step, now))


def _with_ledgers(name: str, head: Head, segments: Sequence[tuple[LedgerId, Summary]], step: StepId, now: int) -> Head:
    """Return the head with the sealed ledgers of a step at its end, and the step's transaction."""
    time = max(now, head.last_append)
    first, number, rows = head.end, head.next_number, list(head.tail)
    offset = first
    for ledger, summary in segments:
        # Their entries were stamped by other clocks: readers clamp them to the row's times.
        stamped = summary._replace(first_append=time, last_append=time, last_txid=head.last_txid, snapshot=NO_SNAPSHOT)
        rows.append(Segment(number, ledger, offset, time, stamped))
        offset, number = offset + summary.records, number + 1
    transactions = recorded(name, head.transactions, step, first, offset, time)
    return replace(
        head,
        tail=tuple(rows),
        end=offset,
        next_number=number,
        transactions=transactions,
        last_append=time if segments else head.last_append,
    )


class LiveMoved(StreamError):
    """The open segment changed while a bulk step fenced it: fence the one that is open now and ask again."""

    retryable = True


# -- mirrors ----------------------------------------------------------------------------------------------


def handed_over(name: str, head: Head, mark: Mirror, live: tuple[LedgerId, Summary] | None) -> HeadStep | None:
    """Change which of the two clusters' sides is written from now on; the present writer here loses the stream.

    An open segment is sealed, which the caller fenced as `live`, and the mark gets the offset at which the stream ends
    then. None when the mark is there already.
    """
    check_usable(name, head)
    if head.mirror is not None and head.mirror._replace(end=mark.end) == mark:
        return None
    present = head.open_segment
    if present is not None:
        if live is None or live[0] != present.ledger:
            raise LiveMoved(name, "another segment is open than the one that was fenced")
        head = _sealed(head, live[1])
    return HeadStep(replace(head, epoch=head.epoch + 1, writer=None, mirror=mark._replace(end=head.end)))


def mirrored(
    name: str,
    head: Head,
    source: str,
    policy: Mapping[str, Any],
    properties: Mapping[str, str],
    transactions: Mapping[str, Transaction],
) -> HeadStep | None:
    """Give a mirror the settings and transactions of its source, the stream with the uid `source`."""
    check_usable(name, head)
    check_writable(name, head, source)
    after = replace(head, policy=dict(policy), properties=dict(properties), transactions=dict(transactions))
    return HeadStep(after) if after != head else None


def marked(name: str, head: Head, source: str, mark: PositionMark | None) -> HeadStep | None:
    """Record in a mirror how far it was the same as its source, the stream with the uid `source`."""
    check_usable(name, head)
    check_writable(name, head, source)
    return None if head.mark == mark else HeadStep(replace(head, mark=mark))


# -- truncation, garbage, settings ------------------------------------------------------------------------


def truncated(name: str, head: Head, offset: Offset, known_end: int) -> HeadStep | None:
    """Hide records below `offset` from readers. `known_end`: offset after the last record known to be readable.

    Of a machine's log only those go that no snapshot needs.
    """
    check_usable(name, head)
    end = max(known_end, head.end)
    if type(offset) is not int:
        raise InvalidArgument(f"stream {name}: offset {offset!r}: needs an int from 0 on")
    if not 0 <= offset <= end:
        raise OffsetOutOfRange(name, offset, head.earliest, end)
    offset = min(offset, spared(head))
    return HeadStep(replace(head, earliest=offset)) if offset > head.earliest else None


def is_dead(head: Head, segment: Segment) -> bool:
    """Return whether no reader can read the segment any more, and nothing else needs it."""
    return segment.sealed and segment.end <= head.earliest and segment.number != head.producers


def trimmed(name: str, head: Head, first: int, kept: Segment | None = None) -> HeadStep | None:
    """Remove segments below number `first` from the list. All of them were dead and are deleted, but for `kept`: it
    held the producers' table when that was looked at. Pages below `first` go in the same multi.
    """
    check_usable(name, head)
    if first <= head.first:
        return None
    for segment in head.tail:
        needed = segment.number < first and segment != kept and not is_dead(head, segment)
        check(not needed, "trim", f"{name}: segment {segment} is needed")
    tail = tuple(segment for segment in head.tail if segment.number >= first)
    head = replace(head, tail=tail, first=first)
    if kept is not None and head.producers == kept.number:
        head = replace(head, table=kept)
    elif kept is not None:
        head = replace(head, garbage=(*head.garbage, kept.ledger))
    return HeadStep(head)


def swept(head: Head, ledgers: Sequence[LedgerId]) -> HeadStep | None:
    """Remove these ledgers, which are deleted, from the garbage."""
    left = tuple(ledger for ledger in head.garbage if ledger not in ledgers)
    return HeadStep(replace(head, garbage=left)) if left != head.garbage else None


def configured(
    name: str, head: Head, policy: Mapping[str, Any] | None, properties: Mapping[str, str] | None
) -> HeadStep | None:
    """Replace the overrides or properties; None leaves them. A mirror, and a side that was replaced, keeps its
    properties.
    """
    check_usable(name, head)
    if policy is not None:
        check_act(name, head, Act.POLICY)
    if properties is not None:
        check_properties(properties)
        check_act(name, head, Act.PROPERTIES)
        check_marks(name, head, properties)
        if properties != head.properties:
            check_writable(name, head)
    after = replace(
        head,
        policy=dict(policy) if policy is not None else head.policy,
        properties=dict(properties) if properties is not None else head.properties,
    )
    return HeadStep(after) if after != head else None


def check_properties(properties: Mapping[str, str]) -> None:
    if not isinstance(properties, Mapping):
        raise InvalidArgument(f"properties are a mapping of names to values, not {type(properties).__name__}")
    size = 0
    for key, value in properties.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key or min(sizes := _sizes(key, value)) < 0:
            raise InvalidArgument(f"property {key!r}: {value!r}: names and values are str, names not empty")
        size += sum(sizes)
    if size > MAX_PROPERTIES_BYTES:
        raise InvalidArgument(f"properties of {size} bytes, the limit is {MAX_PROPERTIES_BYTES}; store less")


def _sizes(key: str, value: str) -> tuple[int, int]:
    return utf8_size(key), utf8_size(value)


def deleted(name: str, head: Head, acting_for: Purpose = Purpose.RECORDS) -> HeadStep | None:
    """Begin deletion: every other change is refused from now on. `acting_for` as in `claimed`.

    Any process may complete a deletion that has begun.
    """
    if head.deleting:
        return None
    check_act(name, head, Act.DELETE, acting_for)
    said = "" if acting_for is Purpose.RECORDS else acting_for.value
    return HeadStep(replace(head, deleting=True, epoch=head.epoch + 1, writer=None, deleted_for=said))


def paged(head: Head) -> HeadStep:
    """Move whole pages out of a tail that has become long."""
    pages: list[Page] = []
    paged, tail = max(head.paged, head.first // PAGE_SEGMENTS * PAGE_SEGMENTS), head.tail
    while len(tail) >= _TAIL_MOST:
        stop = paged + PAGE_SEGMENTS
        pages.append(Page(paged // PAGE_SEGMENTS, tuple(row for row in tail if row.number < stop)))
        tail, paged = tuple(row for row in tail if row.number >= stop), stop
    return HeadStep(replace(head, tail=tail, paged=paged), tuple(pages))


# -- rules ------------------------------------------------------------------------------------------------


def check_head(name: str, head: Head) -> None:
    """Check the rules of one head. Raises InvariantViolation."""
    previous: Segment | None = None
    for row in head.tail:
        check(previous is None or previous.sealed, "M9", f"{name}: an open segment before the last, {previous}")
        if previous is not None:
            # The mirror of a machine's log has a gap where it went on at a snapshot.
            follows = row.base == previous.end or previous.end <= row.base <= head.earliest
            check(row.number > previous.number and follows, "M9", f"{name}: {previous} then {row}")
        check(row.summary is None or row.summary.records > 0, "stream", f"{name}: an empty segment {row}")
        previous = row
    if previous is not None:
        check(previous.number < head.next_number, "stream", f"{name}: {previous} beyond {head.next_number}")
        end = previous.end if previous.sealed else previous.base
        check(end == head.end or end <= head.end == head.earliest, "stream", f"{name}: end {head.end}")
    check(head.open_segment is not None or head.earliest <= head.end, "stream", f"{name}: earliest {head.earliest}")
    check(not (head.ended and head.open_segment), "M9", f"{name}: ended with an open segment")
    check_rows(name, head)


def check_step(name: str, before: Head, after: Head) -> None:
    """Check that nothing went back from one head to the next. Raises InvariantViolation."""
    check(before.uid == after.uid and before.created == after.created, "stream", f"{name}: another stream")
    for what in ("epoch", "earliest", "first", "paged", "end", "last_append", "last_txid", "rewritten"):
        check(getattr(before, what) <= getattr(after, what), "stream", f"{name}: {what} went back")
    check(after.ended or not before.ended, "stream", f"{name}: no longer ended")
    check(after.deleting or not before.deleting, "stream", f"{name}: no longer deleted")
    known = {row.ledger: row for row in before.tail}
    ends = {row.end for row in before.tail}
    kept = {row.number: row for row in after.tail}
    for row in before.tail:
        now = kept.get(row.number)
        if now is not None and row.sealed and row.number >= after.paged and now != row:
            # Compaction: a new ledger holds this segment and whole ones after it.
            whole = now.ledger not in known and now.base == row.base and now.sealed and now.end in ends
            check(whole, "M9", f"{name}: a sealed segment changed, {row} to {now}")
    check_head(name, after)


__all__ = [
    "MAX_BULK_SEGMENTS",
    "NO_TXID",
    "LiveMoved",
    "HeadStep",
    "check_epoch",
    "check_head",
    "check_properties",
    "check_publishable",
    "check_step",
    "check_usable",
    "claimed",
    "configured",
    "deleted",
    "handed_over",
    "insertable",
    "inserted",
    "is_dead",
    "paged",
    "marked",
    "mirrored",
    "published",
    "released",
    "rolled",
    "sealed",
    "swept",
    "trimmed",
    "truncated",
]
