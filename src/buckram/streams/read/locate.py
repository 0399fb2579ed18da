"""Locating a record: its segment by the segment list, its entry by binary search in the ledger, with O(log n) reads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import NamedTuple, TypeVar

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.reader import Reader
from buckram.core.backoff import READABLE
from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.records.batch import Batch, decode
from buckram.core.streams.records.record_format import EntryHeader
from buckram.errors import CorruptEntry, MalformedBatch, NoSuchLedger, OffsetNotReadable
from buckram.runtime.process.retry import Retries
from buckram.streams.read.history_reader import HistoryReader, Reached, SegmentReader, open_segment
from buckram.streams.shared.metadata import HeadAt, StreamStore
from buckram.streams.shared.ownership import opened
from buckram.streams.shared.recovery import entry_header
from buckram.types import Entry, EntryId, LedgerId, Offset

T = TypeVar("T")
_READABLE_WITHIN_S = 3.0
"""Longest wait for acknowledged records to become readable, seconds. Those of a dead writer become so at the seal."""
_LOOK_S = 0.5
"""Time after which the list of segments is read again, seconds."""


async def first_entry(
    name: StreamName, reader: SegmentReader, last: EntryId, reached: Reached, guess: EntryId = -1
) -> EntryId:
    """Return the first entry from 0 to `last` for which `reached` is true; last + 1 if there is none.

    `guess` is where the binary search begins.
    """
    if isinstance(reader, HistoryReader):
        return await reader.first_entry(reached)  # Its manifest decides without many reads.
    low, high = 0, last + 1
    probe = guess if low <= guess < high else (low + high) // 2
    while low < high:
        if reached(entry_header(name, await reader.get(probe))):
            high = probe
        else:
            low = probe + 1
        probe = (low + high) // 2
    return low


async def entry_of_offset(
    name: StreamName, reader: SegmentReader, segment: Segment, offset: Offset, last: EntryId
) -> EntryId:
    """Return the entry from which on the records from this offset are read; last + 1 if that is beyond `last`.

    At the beginning of the segment that is its first entry, which may have no record but the producers as of then.
    """
    relative = offset - segment.base
    if relative <= 0:
        return 0
    guess = -1
    if segment.summary is not None and segment.summary.records:
        guess = relative * (segment.summary.last_entry + 1) // segment.summary.records
    return await first_entry(name, reader, last, lambda header: header.first + header.records > relative, guess)


async def entry_of_record(
    name: StreamName, reader: SegmentReader, segment: Segment, offset: Offset, last: EntryId
) -> EntryId:
    """Return the first entry that has records up to this offset or beyond; last + 1 if that is beyond `last`."""
    relative = max(offset - segment.base, 0)
    return await first_entry(name, reader, last, lambda header: header.first + header.records > relative)


class Reach(NamedTuple):
    """Readable end of a stream at one moment."""

    end: Offset
    """The offset after the last readable record."""
    open_bytes: int
    """The bytes of the open segment up to there."""
    append_time: int = 0
    """Append time of the last record of the open segment, microseconds UTC; 0 if that was not read."""


async def known_end(client: LedgerClient, name: StreamName, head: Head) -> int:
    """Return the offset after the last record that is readable now."""
    return (await known_reach(client, name, head)).end


async def known_reach(client: LedgerClient, name: StreamName, head: Head) -> Reach:
    """Return the readable end of the stream and the bytes of its open segment now."""
    segment = head.open_segment
    if segment is None:
        return Reach(head.end, 0)
    async with opened(client, StreamId(name, head.uid), segment.ledger) as reader:
        return await readable_reach(name, reader, segment)


async def readable_reach(name: StreamName, reader: Reader, segment: Segment) -> Reach:
    """Return the reach as `known_reach` does, for the open segment, whose ledger `reader` reads."""
    last = reader.last_confirmed
    if last < 0:
        return Reach(segment.base, 0)
    entry = await reader.get(last)
    header = entry_header(name, entry)
    time = header.append_time if header.records else 0
    return Reach(segment.base + header.first + header.records, entry.length, time)


async def by_newest_list(streams: StreamStore, name: StreamName, act: Callable[[HeadAt], Awaitable[T]]) -> T:
    """Return act(head), begun anew where it finds a ledger gone because the list of segments has changed meanwhile.

    Raises NoSuchStream, MetadataUnavailable, and what `act` raises: NoSuchLedger only for a ledger of the newest list.
    """
    while True:
        at = await streams.read(name)
        try:
            return await act(at)
        except NoSuchLedger:
            if (await streams.read(name)).version == at.version:
                raise


async def end_of_acknowledged(client: LedgerClient, streams: StreamStore, name: StreamName) -> int:
    """Return an offset above every record that was acknowledged before this call; records below it may be missing yet.

    Unlike `known_end` it does not depend on the LAC that the writer has published. Raises NoSuchStream,
    MetadataUnavailable, ReadFailed, NoSuchLedger (the list has changed: call it again).
    """
    await streams.keys.sync()
    head = (await streams.read(name)).head
    segment = head.open_segment
    if segment is None:
        return head.end
    async with opened(client, StreamId(name, head.uid), segment.ledger) as reader:
        last = await reader.last_stored()
    if last is None:
        return segment.base
    header = entry_header(name, last)
    return segment.base + header.first + header.records


async def readable_end(
    client: LedgerClient, streams: StreamStore, name: StreamName, wanted: Offset
) -> tuple[Head, Offset]:
    """Return the head and the readable end, which is at least `wanted` if records up to there were acknowledged.

    Readers get the last records of a live writer a moment after they were acknowledged, so this waits for that moment,
    but not for records that were never written. OffsetNotReadable: the writer died, or publishes no LAC.
    """
    retries = Retries(READABLE, _READABLE_WITHIN_S)
    written: LedgerId | None = None
    while True:
        try:
            head = (await streams.read(name)).head
            segment = head.open_segment
            if segment is None:
                return head, head.end
            async with opened(client, StreamId(name, head.uid), segment.ledger) as reader:
                end = (await readable_reach(name, reader, segment)).end
                if end >= wanted:
                    return head, end
                if written != segment.ledger:
                    if await end_of_acknowledged(client, streams, name) < wanted:
                        return head, end
                    written = segment.ledger
                await _more_confirmed(reader)
        except NoSuchLedger as error:  # the list has changed
            await retries.wait(error)
        else:
            await retries.wait(OffsetNotReadable(str(name), wanted - 1, head.earliest, end))


async def went_back(client: LedgerClient, streams: StreamStore, name: StreamName, position: Offset) -> bool:
    """Return whether a stream ends below a position up to which it was once read: its metadata were restored.

    Raises NoSuchStream, and as reading does.
    """
    await streams.keys.sync()
    try:
        _, end = await readable_end(client, streams, name, position)
    except OffsetNotReadable:  # They are stored, and readable when the next writer opens the stream.
        return False
    return end < position


async def _more_confirmed(reader: Reader) -> None:
    """Wait until more of an open ledger is confirmed, or _LOOK_S have passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LOOK_S), aclosing(reader.tail(reader.last_confirmed + 1)) as tail:
            await tail.next_chunk()


async def offset_at_time(client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, time: int) -> int:
    """Return the first offset with an append time of at least `time` (microseconds UTC), or the readable end."""
    segment = await streams.find(head, lambda row: row.summary is None or row.summary.last_append >= time)
    if segment is None:
        return head.end
    summary = segment.summary
    if summary is not None and summary.first_append >= time:
        return segment.base
    async with open_segment(client, StreamId(name, head.uid), segment) as reader:
        last = summary.last_entry if summary is not None else reader.last_confirmed
        return await _offset_of(name, reader, segment, last, lambda header: header.append_time >= time)


async def time_of_offset(client: LedgerClient, name: StreamName, uid: str, segment: Segment, offset: Offset) -> int:
    """Return when the record with this offset, which is in the segment, was appended, in microseconds UTC."""
    summary = segment.summary
    if summary is not None and summary.first_append == summary.last_append:
        return summary.first_append
    async with open_segment(client, StreamId(name, uid), segment) as reader:
        last = summary.last_entry if summary is not None else reader.last_confirmed
        entry = await entry_of_record(name, reader, segment, offset, last)
        time = entry_header(name, await reader.get(min(entry, last))).append_time
    # Entries of bulk steps were stamped by other clocks, as in decode_entry.
    return time if summary is None else min(max(time, summary.first_append), summary.last_append)


async def offset_of_txid(client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, txid: int) -> int:
    """Return the first offset with a txid of at least `txid`, or the readable end if there is none."""
    segment = await streams.find(head, lambda row: row.summary is None or row.summary.last_txid >= txid)
    if segment is None:
        return head.end
    async with open_segment(client, StreamId(name, head.uid), segment) as reader:
        last = segment.summary.last_entry if segment.summary is not None else reader.last_confirmed
        entry = await first_entry(name, reader, last, lambda header: header.last_txid >= txid)
        if entry <= last:
            found = decode_entry(name, segment, await reader.get(entry))
            if isinstance(found, Batch):
                txids = enumerate(found.txids(), found.first_offset)
                return next((offset for offset, seen in txids if seen is not None and seen >= txid), found.first_offset)
        return await _offset_of(name, reader, segment, last, lambda header: header.last_txid >= txid)


async def _offset_of(name: StreamName, reader: SegmentReader, segment: Segment, last: EntryId, reached: Reached) -> int:
    entry = await first_entry(name, reader, last, reached)
    if entry <= last:
        return segment.base + entry_header(name, await reader.get(entry)).first
    if segment.sealed or isinstance(reader, HistoryReader):
        return segment.end
    return (await readable_reach(name, reader, segment)).end


def decode_entry(name: StreamName, segment: Segment, entry: Entry) -> Batch | EntryHeader:
    """Decode an entry: a batch, or the header of an entry without records. Raises CorruptEntry.

    Append times in a sealed segment are clamped to the range in its row.
    """
    try:
        found = decode(entry.payload, segment.base, segment.ledger, entry.entry_id)
    except MalformedBatch as error:
        raise CorruptEntry(str(name), segment.ledger, entry.entry_id, str(error)) from None
    return in_bounds(segment, found)


def in_bounds(segment: Segment, found: Batch | EntryHeader) -> Batch | EntryHeader:
    """Return an entry with its append time clamped to the range in the row of a sealed segment."""
    if isinstance(found, Batch) and segment.summary is not None:
        return found.clamped(segment.summary.first_append, segment.summary.last_append)
    return found
