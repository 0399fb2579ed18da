"""Positions of mirrors: what two clusters have at one offset, and whether the source of a mirror went back since.

Not here: what a position means (`core/streams/records/positions.py`), how a mirror goes on whose source went back
(`replication/stream_copy.py`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple

from buckram.core.streams.metadata.changes import HeadStep, marked
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamName
from buckram.core.streams.records.batch import Record
from buckram.core.streams.records.positions import (
    PositionMark,
    PositionVerdict,
    PresentStream,
    SeenRecord,
    compare,
    mark_of,
    same_history,
    seen,
)
from buckram.errors import OffsetNotReadable, OffsetTruncated, SourceWentBack
from buckram.replication.sides import Side
from buckram.streams.read.batch_source import StreamSource
from buckram.streams.read.locate import end_of_acknowledged, known_end, readable_end
from buckram.types import History, Offset

_UNKNOWN_HISTORY = History(-1)


class ComparedStream(NamedTuple):
    """A stream of one cluster that is read for a comparison."""

    side: Side
    name: StreamName


async def record_at(place: ComparedStream, offset: Offset) -> Record | None:
    """Return the record with this offset; None if it is not there (any more, or yet). Raises the errors of reading."""
    async with aclosing(records_between(place, offset, offset + 1)) as found:
        try:
            return await anext(found, None)
        except OffsetTruncated:
            return None


async def records_between(place: ComparedStream, first: Offset, stop: Offset) -> AsyncGenerator[Record, None]:
    """Iterate over the records from `first` to `stop` - 1, as far as they are there. Raises OffsetTruncated."""
    client, streams = place.side.client, place.side.streams
    if first < 0:
        return
    at = await streams.read(place.name)
    source = StreamSource(client, streams, place.name, at, first, stop, follow=False, skip_truncated=False)
    try:
        while batch := await source.next():
            for record in batch:
                yield record
    finally:
        await source.close()


async def mark_at(mirror: ComparedStream, head: Head, offset: Offset) -> PositionMark:
    """Return the position of a mirror that ends at `offset`, in the history in which it was compared last."""
    known = head.mark
    history = _UNKNOWN_HISTORY if known is None else History(known.epoch, known.restore)
    record = await record_at(mirror, offset - 1)
    if record is not None:
        return mark_of(offset, seen(record), history)
    if known is not None and known.offset == offset:
        return known
    # Its own retention took it. The time of the last record that was sealed is still known.
    return mark_of(
        offset, SeenRecord(head.last_append, "") if head.last_append and offset == head.end else None, history
    )


async def source_mark(source: ComparedStream, head: Head, offset: Offset, history: History) -> PositionMark:
    """Return a position in a source, by the record before it, or by what is known of that record without reading it."""
    record = await record_at(source, offset - 1)
    if record is not None:
        return mark_of(offset, seen(record), history)
    if offset == head.end and head.last_append:
        return mark_of(offset, SeenRecord(head.last_append, ""), history)
    rows = [SeenRecord(row.created, row.digest) for row in head.snapshots or () if row.offset == offset]
    return mark_of(offset, rows[0] if rows else None, history)


async def judged(
    source: ComparedStream, mark: PositionMark, mirror: Head, history: History
) -> tuple[PositionVerdict, PresentStream]:
    """Compare a mirror's position with what its source is now. `history`: that of the source's metadata.

    Raises OffsetNotReadable if it cannot be decided before the source's writer is opened again, and the errors of
    reading.
    """
    client, streams = source.side.client, source.side.streams
    try:
        head, end = await readable_end(client, streams, source.name, mark.offset)
    except OffsetNotReadable:
        if not same_history(mark.epoch, mark.restore, history):
            raise
        head = (await streams.read(source.name)).head
        end = await known_end(client, source.name, head)
    record = await record_at(source, mark.offset - 1) if mark.offset <= end else None
    now = PresentStream(
        head.earliest,
        end,
        head.open_segment is not None,
        head.end,
        head.last_append,
        history,
        None if record is None else seen(record),
        _same_snapshot(head, mirror, mark),
    )
    verdict = compare(mark, now)
    if verdict is PositionVerdict.SHORTER and now.live:
        # Records of a dead writer may be there again when the next one opens the stream: nobody else has to keep them.
        stored = await end_of_acknowledged(client, streams, source.name)
        if stored > end:
            raise OffsetNotReadable(str(source.name), stored - 1, head.earliest, end)
    return verdict, now


def _same_snapshot(source: Head, mirror: Head, mark: PositionMark) -> bool:
    """Return whether the source has a snapshot of the machine at this offset that the mirror has, or remembers."""
    here = {mark.digest, *(row.digest for row in mirror.snapshots or () if row.offset == mark.offset)}
    return any(row.offset == mark.offset and row.digest in here for row in source.snapshots or ())


async def write_mark(mirror: ComparedStream, uid: str, source_uid: str, mark: PositionMark) -> Head:
    """Have the mirror with this uid remember its position. Raises the errors of changing a mirror."""

    def change(head: Head) -> HeadStep | None:
        return marked(str(mirror.name), head, source_uid, mark)

    return await mirror.side.streams.change(mirror.name, change, uid=uid)


async def went_back(
    source: ComparedStream,
    mirror: ComparedStream,
    head: Head,
    mark: PositionMark,
    verdict: PositionVerdict,
    now: PresentStream,
) -> SourceWentBack:
    """Return the error for a mirror whose position is not that of its source; it names the first offset that
    differs.
    """
    low, end = max(head.earliest, now.earliest), mark.offset
    since = (
        "" if same_history(mark.epoch, mark.restore, now.history) else f" (its metadata have epoch {now.history.epoch})"
    )
    if verdict is PositionVerdict.UNKNOWN:
        first, what = (
            head.earliest,
            (
                f"the source's metadata were restored{since} and it has truncated the records below {now.earliest}, so "
                f"that what the mirror has up to {end - 1} cannot be compared"
            ),
        )
    elif verdict is PositionVerdict.SHORTER:
        first = await parted(source, mirror, low, max(now.end, low))
        what = f"the source went back{since}: it ends at offset {now.end}, and the mirror at {end}"
    else:
        first = await parted(source, mirror, low, max(end, low))
        what = (
            f"the source went back{since}: it has other records from offset {first} on than were copied up to {end - 1}"
        )
    if first < end:
        what += f"; the records {first} to {end - 1} are only in the mirror"
    return SourceWentBack(str(mirror.name), f"{what}; {choices(mirror.name.namespace)}", first, end)


def choices(namespace: str) -> str:
    """Return the ways to go on with a mirror whose source went back."""
    return (
        "`buckram replicate run --keep-diverged` keeps aside what only the mirror has and begins it anew, `buckram "
        f"replicate promote {namespace}` makes the mirror the side that is written"
    )


async def parted(one: ComparedStream, other: ComparedStream, low: Offset, high: Offset) -> Offset:
    """Return the first offset from `low` to `high` at which two streams differ that have the same records below it.

    It reads O(log n) records. One that only one of them has differs; `high` if those below are the same.
    """
    while low < high:
        middle = (low + high) // 2
        here, there = await record_at(one, middle), await record_at(other, middle)
        if here == there and here is not None:
            low = middle + 1
        else:
            high = middle
    return low


async def first_difference(one: ComparedStream, other: ComparedStream, first: Offset, stop: Offset) -> Offset:
    """Return the first offset from `first` on at which two streams differ, by reading all records; `stop` if none."""
    position = first
    async with (
        aclosing(records_between(one, first, stop)) as here,
        aclosing(records_between(other, first, stop)) as there,
    ):
        async for record in here:
            if record != await anext(there, None):
                return position
            position += 1
    return position


def in_history(mark: PositionMark, history: History) -> PositionMark:
    """Return a position that was compared in this history."""
    return mark._replace(epoch=history.epoch, restore=history.restore)
