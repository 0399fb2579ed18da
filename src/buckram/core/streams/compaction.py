"""Compaction of a stream's segments, the pure part: which runs of small segments are worth it, the bytes of the copies,
and the one change of the head that replaces a run by a single segment.

Offsets, event times, append times, txids, keys, headers and producers' sequences of the records stay as they are: only
the place where they are read from changes. The segment that holds the producers' table is left alone, so its table is,
too. Not here: copying and the order of steps (`streams/maintain/compaction`).
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from buckram.core.streams.metadata.changes import HeadStep, check_usable, is_dead
from buckram.core.streams.metadata.head import LEDGER, PAGE_SEGMENTS, Head, Page, Segment, Summary
from buckram.core.streams.metadata.mirrors import MIRROR
from buckram.core.streams.policy import Policy
from buckram.core.streams.records.codecs import NONE, compress
from buckram.core.streams.records.record_format import (
    DATA,
    HEADER,
    HEADER_SIZE,
    HEADERS,
    KEY_NULLS,
    KEYS,
    MAGIC,
    NO_MAX,
    NO_MIN,
    NO_SNAPSHOT,
    NO_TXID,
    TIMESTAMPS,
    VALUE_NULLS,
    VERSION,
    BufferCursor,
    EntryHeader,
    parse_header,
)
from buckram.errors import MalformedBatch, StreamError
from buckram.types import Buffer, LedgerId

TINY_BYTES, SMALL_BYTES = 64 * 1024, 1024 * 1024
"""Maximum bytes of a segment that `small_runs` joins from tiny ones, and from small ones."""
_SPANS_PER_RETENTION = 10
_US = 1_000_000


class RunChanged(StreamError):
    """A segment of the run was truncated, deleted or compacted by another client. The list was not changed."""

    retryable = True


@dataclass(frozen=True, slots=True)
class CompactionRun:
    """Neighbouring sealed segments of one page that one segment may replace."""

    rows: tuple[Segment, ...]

    @property
    def base(self) -> int:
        return self.rows[0].base

    @property
    def end(self) -> int:
        return self.rows[-1].end

    @property
    def bytes(self) -> int:
        return sum(_bytes(row) for row in self.rows)

    @property
    def page(self) -> int:
        return self.rows[0].number // PAGE_SEGMENTS


def plan_runs(
    head: Head, rows: Iterable[Segment], *, target_bytes: int, span_us: int | None = None, even: bool = True
) -> list[CompactionRun]:
    """Return runs of neighbours that together have at most `target_bytes`, oldest first.

    No run spans more than `span_us` of append time: truncation by time frees whole segments. Of each run the largest
    segment has at most half of it, so that no byte is copied more than a few times however often this is done; unless
    `even` is false, for segments so small that this does not matter.
    """
    found: list[CompactionRun] = []
    open_run: list[Segment] = []

    def end_run() -> None:
        found.extend(
            _worthwhile(tuple(open_run)) if even else [CompactionRun(tuple(open_run))] if len(open_run) > 1 else []
        )
        open_run.clear()

    for row in rows:
        if not _may_move(head, row) or _bytes(row) * (2 if even else 1) > target_bytes:
            end_run()
            continue
        if open_run and not _fits(open_run, row, target_bytes, span_us):
            end_run()
        open_run.append(row)
    end_run()
    return found


def small_runs(head: Head, policy: Policy, *, at_least: int) -> list[CompactionRun]:
    """Return runs of `at_least` small neighbours in the head's own list, oldest first; none of a mirror or a machine's
    log.

    Many short writers leave one segment each. Tiny segments are joined with those joined before, until together they
    are no longer tiny; larger ones as `plan_runs` does.
    """
    if at_least < 2 or head.snapshots is not None or (head.mirror is not None and head.mirror.state == MIRROR):
        return []
    span = longest_span(policy)
    for most, even in ((TINY_BYTES, False), (SMALL_BYTES, True)):
        runs = plan_runs(head, head.tail, target_bytes=min(most, policy.roll_bytes), span_us=span, even=even)
        if found := [run for run in runs if len(run.rows) >= at_least]:
            return found
    return []


def longest_span(policy: Policy) -> int | None:
    """Return the longest append time, in microseconds, that one segment may span; None without a retention by time.

    Retention frees whole segments, so a long one would keep expired records for as long as it spans.
    """
    return None if policy.retention_s is None else round(policy.retention_s * _US / _SPANS_PER_RETENTION)


def _may_move(head: Head, row: Segment) -> bool:
    return row.sealed and row.kind == LEDGER and row.number != head.producers and not is_dead(head, row)


def _fits(run: Sequence[Segment], row: Segment, target_bytes: int, span_us: int | None) -> bool:
    first = run[0].summary
    assert first is not None
    assert row.summary is not None
    return (
        run[-1].end == row.base
        and run[0].number // PAGE_SEGMENTS == row.number // PAGE_SEGMENTS
        and sum(map(_bytes, run)) + _bytes(row) <= target_bytes
        and (span_us is None or row.summary.last_append - first.first_append <= span_us)
    )


def _worthwhile(rows: tuple[Segment, ...]) -> list[CompactionRun]:
    """Return the parts of a run in which no segment has more than half of the bytes."""
    if len(rows) < 2:
        return []
    largest = max(range(len(rows)), key=lambda place: _bytes(rows[place]))
    if 2 * _bytes(rows[largest]) <= sum(map(_bytes, rows)):
        return [CompactionRun(rows)]
    return _worthwhile(rows[:largest]) + _worthwhile(rows[largest + 1 :])


def _bytes(row: Segment) -> int:
    return row.summary.bytes if row.summary is not None else 0


# -- copies of entries ------------------------------------------------------------------------------------


class EntryRewriter:
    """Entries of a run, in order, as entries of the segment that replaces it. Marks and snapshots are left out."""

    __slots__ = ("_base", "_highest", "_lowest", "_row", "_txid", "bytes", "entries", "records")

    def __init__(self) -> None:
        self.records = self.entries = self.bytes = 0
        self._base = 0
        self._lowest, self._highest, self._txid = NO_MIN, NO_MAX, NO_TXID
        self._row: Summary | None = None

    def segment(self, row: Segment) -> None:
        """Begin with the entries of this segment; those that follow belong to it."""
        self._row, self._base = row.summary, self.records

    def rewrite(self, payload: bytes) -> bytes | None:
        """Return the entry in its new form; None if it has no records. Raises MalformedBatch."""
        header, summary = parse_header(payload), self._row
        if header.kind != DATA:
            return None
        assert summary is not None
        if self._base + header.first != self.records:
            raise MalformedBatch(f"begins at record {header.first} of its segment, {self.records - self._base} is due")
        # Readers see a sealed segment's append times within its row's bounds; these are the new entry's own.
        time = min(max(header.append_time, summary.first_append), summary.last_append)
        columns, size, compression = header.columns, header.body_size, header.compression
        body: Buffer = memoryview(payload)[HEADER_SIZE:]
        if time != header.append_time and not columns & TIMESTAMPS:
            body, compression = with_timestamps(payload, header)
            columns, size = columns | TIMESTAMPS, size + _padded(8 * header.records)
        self._lowest = min(self._lowest, header.min_timestamp)
        self._highest = max(self._highest, header.max_timestamp)
        self._txid = max(self._txid, header.last_txid)
        fields = (
            header.records,
            size,
            self.records,
            time,
            self._txid,
            self._lowest,
            self._highest,
            NO_SNAPSHOT,
        )
        entry = b"".join((HEADER.pack(MAGIC, VERSION, DATA, compression, 0, columns, *fields), body))
        self.records += header.records
        self.entries += 1
        self.bytes += len(entry)
        return entry


def with_timestamps(payload: Buffer, header: EntryHeader) -> tuple[bytes, int]:
    """Return the body with a column of event times, which were the entry's append time, and its compression."""
    from buckram.core.streams.records.batch import entry_body

    body, count, mask = memoryview(entry_body(payload, header)).cast("B"), header.records, header.columns
    cursor = BufferCursor(body)
    for present, nulls in ((True, VALUE_NULLS), (bool(mask & KEYS), KEY_NULLS)):
        if present:
            if mask & nulls:
                cursor.bitmap(count)
            cursor.strings(count)
    if mask & HEADERS:
        pairs = cursor.offsets(count)[count]
        cursor.strings(pairs)
        cursor.strings(pairs)
    column = array("q", (header.append_time,)) * count
    if sys.byteorder == "big":
        column.byteswap()
    place = cursor.position
    grown = b"".join((body[:place], bytes(_padded(place) - place), column.tobytes(), body[place:]))
    if header.compression != NONE:
        packed = compress(header.compression, grown)
        if len(packed) < len(grown):
            return packed, header.compression
    return grown, NONE


def _padded(size: int) -> int:
    return size + -size % 8


# -- the change of the head -------------------------------------------------------------------------------


def replacement(name: str, run: CompactionRun, ledger: LedgerId, summary: Summary) -> Segment:
    """Return the row that takes the place of a run. Raises StreamError if the new ledger does not hold the same."""
    rows = [row.summary for row in run.rows if row.summary is not None]
    expected = Summary(
        sum(row.records for row in rows),
        summary.last_entry,
        summary.bytes,
        rows[0].first_append,
        rows[-1].last_append,
        min(row.min_timestamp for row in rows),
        max(row.max_timestamp for row in rows),
        rows[-1].last_txid,
        NO_SNAPSHOT,
    )
    same = summary.records == expected.records == run.end - run.base and summary.snapshot == NO_SNAPSHOT
    times = expected.first_append <= summary.first_append <= summary.last_append <= expected.last_append
    span = (expected.min_timestamp, expected.max_timestamp) == (summary.min_timestamp, summary.max_timestamp)
    if not (same and times and span):
        raise StreamError(
            name, f"ledger {ledger} holds {summary}, the segments that it should replace {expected}; kept"
        )
    return Segment(run.rows[0].number, ledger, run.base, run.rows[0].created, expected)


def compacted_page(name: str, page: Page, run: CompactionRun, row: Segment) -> Page | None:
    """Return the page with `row` in the place of the run; None if it has it already. Raises RunChanged."""
    rows = _replaced(name, page.segments, run, row)
    return None if rows is None else Page(page.number, rows)


def compacted(name: str, head: Head, run: CompactionRun, row: Segment, *, paged: bool) -> HeadStep | None:
    """Put `row` in the place of the run, whose ledgers become garbage. Raises RunChanged; nothing was changed then.

    `paged`: the run is in a page, and the same multi writes that page, as `compacted_page` made it. Otherwise None
    when it was done already.
    """
    check_usable(name, head)
    if paged != (run.rows[0].number < head.paged):
        raise RunChanged(name, f"segments from offset {run.base} on were moved to a page")
    if not paged and any(kept.ledger == row.ledger for kept in head.tail):
        return None
    if any(not _may_move(head, kept) for kept in run.rows) or run.rows[0].number < head.first:
        raise RunChanged(name, f"segments from offset {run.base} on were truncated")
    if paged:
        # The counter tells every client that caches pages to read them again.
        return HeadStep(replace(head, rewritten=head.rewritten + 1))
    rows = _replaced(name, head.tail, run, row)
    assert rows is not None
    return HeadStep(replace(head, tail=rows))


def _replaced(name: str, rows: tuple[Segment, ...], run: CompactionRun, row: Segment) -> tuple[Segment, ...] | None:
    if any(kept.ledger == row.ledger for kept in rows):
        return None
    size = len(run.rows)
    for place in range(len(rows) - size + 1):
        if rows[place : place + size] == run.rows:
            return (*rows[:place], row, *rows[place + size :])
    raise RunChanged(name, f"segments from offset {run.base} on are not in the list as they were")
