"""Positions remembered outside of the metadata, such as a query's checkpoint or the id of an event.

After a restore of the metadata a stream may end earlier, and grow again: then other records come at the same offsets.
So a remembered position includes the append time of the record before it, and the history of the metadata in which that
was read. While the history is the same nothing is read. Not here: the rules of the comparison
(`core/streams/records/positions.py`), mirrors, which remember a digest as well (`replication/positions.py`).
"""

from __future__ import annotations

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.records.positions import (
    PositionMark,
    PositionVerdict,
    PresentStream,
    SeenRecord,
    compare,
    same_history,
)
from buckram.errors import NoSuchKey, NoSuchLedger
from buckram.streams.read.history_reader import open_segment
from buckram.streams.read.locate import entry_of_record
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.recovery import entry_header
from buckram.types import History, Offset


def history_now(client: LedgerClient) -> History:
    """Return the history of the metadata that a client uses; it refuses those of another one."""
    return client.services.identities.past.history


async def time_before(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, position: Offset
) -> int:
    """Return when the record before a readable position was appended, microseconds UTC.

    0 if that is not known: there is none, or it was truncated. Raises as reading does.
    """
    if position <= head.earliest:
        return 0
    if position == head.end:
        return head.last_append
    try:
        row = await streams.segment_of(head, position - 1)
        if row is None:
            return 0
        summary = row.summary
        if summary is not None and position == row.end:
            return summary.last_append
        async with open_segment(client, StreamId(name, head.uid), row) as reader:
            last = reader.last_confirmed if summary is None else summary.last_entry
            entry = await entry_of_record(name, reader, row, position - 1, last)
            if entry > last:
                return 0
            header = entry_header(name, await reader.get(entry))
    except (NoSuchKey, NoSuchLedger):  # It was truncated or replaced after the head was read.
        return 0
    if row.base + header.first >= position:
        return 0  # A compaction removed the record.
    time = header.append_time
    return time if summary is None else min(max(time, summary.first_append), summary.last_append)


async def verdict_on(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, end: Offset, mark: PositionMark
) -> PositionVerdict:
    """Compare a remembered position with a stream that is readable up to `end` now.

    SAME if no time is remembered. Raises as reading does.
    """
    now = history_now(client)
    if not mark.append_time or same_history(mark.epoch, mark.restore, now):
        return PositionVerdict.SAME
    time = await time_before(client, streams, name, head, mark.offset) if mark.offset <= end else 0
    before = SeenRecord(time, "") if time else None
    return compare(
        mark, PresentStream(head.earliest, end, head.open_segment is not None, head.end, head.last_append, now, before)
    )
