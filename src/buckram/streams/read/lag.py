"""Lag: how many records, bytes and seconds lie between an offset of a stream and its readable end.

Not here: whose offset it is: a query's (`spark/source/query_lag.py`), a mirror's (`replication/lag.py`).
"""

from __future__ import annotations

from typing import NamedTuple

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.names import StreamName
from buckram.errors import NoSuchKey
from buckram.streams.read.locate import Reach, time_of_offset
from buckram.streams.shared.metadata import StreamStore
from buckram.types import Offset

_MOST_SEGMENTS = 2000
"""Number of segments whose bytes are added up; those of further ones are estimated from them."""


class Behind(NamedTuple):
    """Amount of a stream between an offset and its readable end."""

    records: int
    bytes: int
    """Approximate size of these records as they are stored, bytes."""
    since: int
    """Append time of the first of them, in microseconds UTC; the present if there is none."""

    def seconds(self, now: int) -> float:
        """Return the age of the first of them in seconds. `now` in microseconds UTC."""
        return round(max(0, now - self.since) / 1e6, 3)


def bytes_between(segment: Segment, reach: Reach, first: Offset, stop: Offset) -> int:
    """Return about how many bytes these offsets of a segment have. `reach` is that of its stream."""
    size, records = reach.open_bytes, reach.end - segment.base
    if segment.summary is not None:
        size, records = segment.summary.bytes, segment.summary.records
    return size * (stop - first) // max(1, records)


async def behind(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, reach: Reach, first: Offset
) -> Behind:
    """Return the amount from `first` on, which must not be truncated. Raises the errors of reading a stream."""
    clocks = client.services.clocks
    await clocks.ensure()
    records = max(reach.end - first, 0)
    counted, size, segments, since = 0, 0, 0, clocks.now()
    if not records:
        return Behind(0, 0, since)
    try:
        row = await streams.segment_of(head, first)
    except NoSuchKey:  # It was truncated after the head was read.
        row = None
    async for segment in streams.segments(head, from_number=row.number if row else 0):
        begin, stop = max(first, segment.base), segment.end if segment.sealed else reach.end
        if begin >= stop:
            continue
        if not segments:
            since = await time_of_offset(client, name, head.uid, segment, begin)
        counted, segments = counted + stop - begin, segments + 1
        size += bytes_between(segment, reach, begin, stop)
        if segments == _MOST_SEGMENTS:
            break
    return Behind(records, size * records // max(1, counted), since)
