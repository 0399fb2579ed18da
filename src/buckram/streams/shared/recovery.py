"""Recovery of another writer's segment: fence its ledger, and read what it holds from its first and last entry.

It also reads the table of producers. Not here: changing the head, which is the caller's part.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Protocol

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.reader import Reader
from buckram.core.streams.metadata.head import Head, Segment, Summary
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.records.batch import Batch, decode, entry_body
from buckram.core.streams.records.producers import ProducerTable
from buckram.core.streams.records.record_format import (
    NO_MAX,
    NO_MIN,
    NO_SNAPSHOT,
    NO_TXID,
    SNAPSHOT,
    EntryHeader,
    parse_header,
)
from buckram.errors import CorruptEntry, MalformedBatch, NoSuchLedger, StreamError
from buckram.metadata.tree.removals import is_recorded
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.ownership import opened, recovered
from buckram.types import Entry, EntryId, LedgerId

_log = logging.getLogger("buckram.streams")
EMPTY = Summary(0, -1, 0, 0, 0, NO_MIN, NO_MAX, NO_TXID, NO_SNAPSHOT)


async def recover_segment(client: LedgerClient, name: StreamName, uid: str, ledger: LedgerId) -> Summary:
    """Fence the segment's writer, close its ledger, and return what it holds.

    Raises RecoveryFailed, MetadataUnavailable, CorruptEntry, ForeignLedger, and NoSuchLedger if the ledger was deleted;
    no record in it was acknowledged then.
    """
    async with recovered(client, StreamId(name, uid), ledger) as reader:
        return await summarise(name, reader)


async def summarise(name: StreamName, reader: Reader) -> Summary:
    """Return what a closed ledger holds; this takes two reads."""
    last = reader.last_confirmed
    if last < 0:
        return EMPTY
    header = entry_header(name, await reader.get(last))
    first = header if last == 0 else entry_header(name, await reader.get(0))
    return Summary(
        header.first + header.records,
        last,
        reader.length or 0,
        first.append_time,
        header.append_time,
        header.min_timestamp,
        header.max_timestamp,
        header.last_txid,
        header.snapshot,
    )


async def load_producers(client: LedgerClient, streams: StreamStore, name: StreamName, head: Head) -> ProducerTable:
    """Return the table of producers at the end of the stream, all of whose segments must be sealed."""
    if head.producers is None:
        return ProducerTable()
    wanted, segment = head.producers, head.table
    if segment is None:
        segment = await streams.find(head, lambda row: row.number >= wanted)
    if segment is None or segment.number != wanted or segment.summary is None:
        raise StreamError(str(name), f"its producers' table was in segment {wanted}, and the list has {segment} there")
    try:
        async with opened(client, StreamId(name, head.uid), segment.ledger) as reader:
            return await replayed(name, segment, reader, segment.summary.snapshot, segment.summary.last_entry)
    except NoSuchLedger:
        if not await was_deleted(streams, name, segment):
            raise
    _log.warning("stream %s: its producers are forgotten, ledger %d was deleted", name, segment.ledger)
    return ProducerTable()


async def was_deleted(streams: StreamStore, name: StreamName, row: Segment) -> bool:
    """Return whether the stream lists a segment whose ledger was deleted: a backup of the metadata brought it back.

    The list is read after the record of the deletion, so that it is not older. Raises NoSuchStream, MetadataError.
    """
    if not await is_recorded(streams.metadata, row.ledger):
        return False
    head = (await streams.read(name)).head
    if head.table is not None and head.table.ledger == row.ledger:
        return True
    now = await streams.find(head, lambda other: other.number >= row.number)
    return now is not None and now.ledger == row.ledger


async def producers_of(
    client: LedgerClient, name: StreamName, uid: str, segment: Segment, summary: Summary
) -> ProducerTable:
    """Return the table of producers at the end of a closed segment, from its ledger alone."""
    if summary.snapshot == NO_SNAPSHOT:
        return ProducerTable()
    async with opened(client, StreamId(name, uid), segment.ledger) as reader:
        return await replayed(name, segment, reader, summary.snapshot, summary.last_entry)


class EntryChunks(Protocol):
    """The part of a segment's reader that a replay needs."""

    def chunks(self, first: EntryId, last: EntryId) -> AsyncIterator[list[Entry]]: ...


async def replayed(
    name: StreamName, segment: Segment, reader: EntryChunks, first: EntryId, last: EntryId
) -> ProducerTable:
    """Return the table of producers after entry `last`; entry `first` is the newest snapshot before it."""
    table = ProducerTable()
    async for chunk in reader.chunks(first, last):
        for entry in chunk:
            try:
                found = decode(entry.payload, segment.base, segment.ledger, entry.entry_id)
                if isinstance(found, Batch):
                    table.replay(found)
                elif found.kind == SNAPSHOT:
                    table = ProducerTable.decode(entry_body(entry.payload, found))
            except MalformedBatch as error:
                raise CorruptEntry(str(name), segment.ledger, entry.entry_id, str(error)) from None
    return table


def entry_header(name: StreamName, entry: Entry) -> EntryHeader:
    """Parse an entry's header. Raises CorruptEntry, which names stream, ledger and entry."""
    try:
        return parse_header(entry.payload)
    except MalformedBatch as error:
        raise CorruptEntry(str(name), entry.ledger_id, entry.entry_id, str(error)) from None
