"""Locating a record: its segment by the segment list, its entry by binary search in the ledger, with O(log n) reads."""

from __future__ import annotations

from typing import NamedTuple

from buckram.client.client import Client
from buckram.client.read.reader import Reader
from buckram.core.streams.batch import Batch, decode
from buckram.core.streams.head import Head, Segment
from buckram.core.streams.names import StreamName
from buckram.core.streams.record_format import EntryHeader
from buckram.errors import CorruptEntry, MalformedBatch
from buckram.streams.read.history import HistoryReader, Reached, SegmentReader, open_segment
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.recovery import entry_header
from buckram.types import Entry, EntryId, Offset


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
    """Return the entry that holds the record with this offset; last + 1 if it is beyond `last`."""
    relative = offset - segment.base
    if relative <= 0:
        return 0
    guess = -1
    if segment.summary is not None and segment.summary.records:
        guess = relative * (segment.summary.last_entry + 1) // segment.summary.records
    return await first_entry(name, reader, last, lambda header: header.first + header.records > relative, guess)


class Reach(NamedTuple):
    """How far a stream goes at one moment."""

    end: Offset
    """The offset after the last readable record."""
    open_bytes: int
    """The bytes of the open segment up to there."""


async def known_end(client: Client, name: StreamName, head: Head) -> int:
    """Return the offset after the last record that is readable now."""
    return (await known_reach(client, name, head)).end


async def known_reach(client: Client, name: StreamName, head: Head) -> Reach:
    """Return how far the stream is readable now."""
    segment = head.open_segment
    if segment is None:
        return Reach(head.end, 0)
    async with client.open(segment.ledger) as reader:
        return await readable_reach(name, reader, segment)


async def readable_reach(name: StreamName, reader: Reader, segment: Segment) -> Reach:
    """Like known_reach, for the open segment, whose ledger `reader` reads."""
    last = reader.last_confirmed
    if last < 0:
        return Reach(segment.base, 0)
    entry = await reader.get(last)
    header = entry_header(name, entry)
    return Reach(segment.base + header.first + header.records, entry.length)


async def end_of_acknowledged(client: Client, streams: StreamStore, name: StreamName) -> int:
    """Return an offset above every record that was acknowledged before this call; records below it may be missing yet.

    Unlike `known_end` it does not depend on what the writer has told about its acknowledgements. Raises NoSuchStream,
    MetadataUnavailable, ReadFailed, NoSuchLedger (the list has changed: ask again).
    """
    await streams.keys.sync()
    head = (await streams.read(name)).head
    segment = head.open_segment
    if segment is None:
        return head.end
    async with client.open(segment.ledger) as reader:
        last = await reader.last_stored()
    if last is None:
        return segment.base
    header = entry_header(name, last)
    return segment.base + header.first + header.records


async def offset_at_time(client: Client, streams: StreamStore, name: StreamName, head: Head, time: int) -> int:
    """Return the first offset with an append time of at least `time` (microseconds UTC), or the readable end."""
    segment = await streams.find(head, lambda row: row.summary is None or row.summary.last_append >= time)
    if segment is None:
        return head.end
    summary = segment.summary
    if summary is not None and summary.first_append >= time:
        return segment.base
    async with open_segment(client, name, segment) as reader:
        last = summary.last_entry if summary is not None else reader.last_confirmed
        return await _offset_of(name, reader, segment, last, lambda header: header.append_time >= time)


async def time_of_offset(client: Client, name: StreamName, segment: Segment, offset: Offset) -> int:
    """Return when the record with this offset, which is in the segment, was appended, in microseconds UTC."""
    summary = segment.summary
    if summary is not None and (offset <= segment.base or summary.first_append == summary.last_append):
        return summary.first_append
    async with open_segment(client, name, segment) as reader:
        last = summary.last_entry if summary is not None else reader.last_confirmed
        entry = await entry_of_offset(name, reader, segment, offset, last)
        time = entry_header(name, await reader.get(min(entry, last))).append_time
    # Entries of bulk steps were stamped by other clocks, as in decode_entry.
    return time if summary is None else min(max(time, summary.first_append), summary.last_append)


async def offset_of_txid(client: Client, streams: StreamStore, name: StreamName, head: Head, txid: int) -> int:
    """Return the first offset with a txid of at least `txid`, or the readable end if there is none."""
    segment = await streams.find(head, lambda row: row.summary is None or row.summary.last_txid >= txid)
    if segment is None:
        return head.end
    async with open_segment(client, name, segment) as reader:
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
