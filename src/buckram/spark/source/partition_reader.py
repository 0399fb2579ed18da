"""Reading one partition in an executor, from the bookies, as Arrow record batches.

A slice is read by scans of one replica (`replica_scan.py`, `replica_scan.py`), and after the first failure with the
client; one of an offloaded segment is read from its files. None of them asks the metadata store. If the ledger is not
where the planner saw it, because it was repaired, compacted, offloaded or truncated meanwhile, the rest of the slice is
read through the segment list by a client of the cluster.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from buckram.client.read.open import digest_of
from buckram.client.read.reader import Reader
from buckram.client.shared.services import Services
from buckram.core.ledgers.reading import spans
from buckram.core.ledgers.recovery import quorum_of
from buckram.core.security.encryption import key_id_of
from buckram.core.streams.metadata.head import Segment
from buckram.core.streams.names import StreamId, stream_name
from buckram.core.streams.records.batch import Batch, decode
from buckram.core.streams.records.record_format import parse_header
from buckram.errors import (
    CorruptEntry,
    MalformedBatch,
    NoSuchEntry,
    NoSuchLedger,
    NoSuchStream,
    OffsetOutOfRange,
    OffsetTruncated,
    ReadFailed,
    RecordsLost,
)
from buckram.spark.shared.clients import connection, direct_client, pause, prepare_process, without_traceback
from buckram.spark.shared.cluster_uri import ClusterUri
from buckram.spark.shared.columns import BATCH_BYTES, BATCH_ROWS, Shape, StreamRows
from buckram.spark.shared.stream_partition import Slice, StreamPartition
from buckram.spark.sink.tracing import followed, reading
from buckram.spark.source.planning import StreamOptions
from buckram.spark.source.replica_scan import LocalScan, Scan, ScanFailed
from buckram.streams.read.history_reader import SegmentFiles
from buckram.streams.read.reader import Truncated
from buckram.types import Entry, EntryId, LedgerMetadata, Offset, Versioned

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("buckram.spark")
_PAUSES_S = (0.3, 1.0, 3.0)
"""The pauses before further attempts to read from bookies that do not answer; afterwards Spark retries the task."""


@dataclass(slots=True)
class _Place:
    """The position of a reader: the next offset, and the entry to continue with."""

    offset: int
    entry: EntryId


class PartitionReader:
    """Reads the partitions of one query. It is made once per query and pickled to every task."""

    def __init__(self, options: StreamOptions, shape: Shape) -> None:
        self._uri, self._shape, self._fail_on_loss = options.metadata, shape, options.fail_on_loss
        self._local = options.local_reads

    def read(self, partition: StreamPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records of the partition, in order. Raises RecordsLost, ReadFailed, CorruptEntry."""
        prepare_process()
        with without_traceback(), reading() as step:
            for stream, group in _by_stream(partition.slices):
                rows = StreamRows(self._shape, stream)
                pieces = (followed(step, piece, self._slice(partition, piece)) for piece in group)
                for batches in _join_batches(chain.from_iterable(pieces)):
                    yield rows.make(batches)

    def _slice(self, partition: StreamPartition, piece: Slice) -> Iterator[Batch]:
        """Yield the records of a slice: by scans, then with the client, then through the segment list."""
        place = _Place(piece.first, piece.first_entry)
        if self._may_scan(partition, piece):
            try:
                yield from self._entries(piece, place, _scan_entries(partition, piece, local=self._local))
            except ScanFailed as failed:
                log.info("%s: reading on with the client", failed)
        pauses = iter(_PAUSES_S)
        while place.offset < piece.stop:
            before = place.offset
            try:
                if piece.history is not None:
                    found = _read_history(piece, piece.history, place.offset)
                else:
                    found = self._read_ledger(partition, piece, place.entry)
                yield from self._entries(piece, place, found)
                if place.offset < piece.stop:
                    raise NoSuchEntry(piece.ledger, piece.last_entry, f"it ends at offset {place.offset} of its stream")
            except (NoSuchLedger, NoSuchEntry) as moved:
                log.info("%s: reading on at offset %d through the segment list", moved, place.offset)
                yield from self._read_through_list(piece, place.offset)
                return
            except ReadFailed as failed:
                if place.offset > before:
                    pauses = iter(_PAUSES_S)
                seconds = next(pauses, None)
                if seconds is None and piece.history is not None:
                    raise
                if seconds is None:
                    raise ReadFailed(piece.ledger, _explain_failure(failed, partition, piece)) from None
                pause(seconds)

    def _may_scan(self, partition: StreamPartition, piece: Slice) -> bool:
        """Scans know neither TLS nor logins, nor keys of encrypted ledgers: the client does. History has no bookies."""
        if piece.history is not None:
            return False
        secured = isinstance(self._uri, ClusterUri) and self._uri.secured
        return not secured and not key_id_of(partition.ledgers[piece.ledger].custom_metadata)

    def _entries(self, piece: Slice, place: _Place, found: Iterator[tuple[EntryId, bytes]]) -> Iterator[Batch]:
        """Yield the wanted records of entries from `place` on, and move it."""
        for entry, payload in found:
            batch = _decode(piece, entry, payload)
            if batch is not None and len(part := batch.between(place.offset, piece.stop)):
                place.offset = part.next_offset
                yield part
            place.entry = entry + 1

    def _read_ledger(self, partition: StreamPartition, piece: Slice, entry: EntryId) -> Iterator[tuple[EntryId, bytes]]:
        """Yield the ledger's entries from `entry` on, by a client that needs no metadata store for that."""
        link = direct_client(self._uri, partition.cluster, partition.history)
        link.pin(partition.bookies, identity_required=partition.identity_required)
        metadata = partition.ledgers[piece.ledger]

        async def begin() -> tuple[Reader, AsyncIterator[list[Entry]]]:
            reader = _reader(link.client.services, piece, metadata)
            return reader, reader.chunks(min(entry, piece.last_entry), piece.last_entry)

        reader, chunks = link.thread.run(begin)

        async def step() -> list[Entry] | None:
            return await anext(chunks, None)

        try:
            while (entries := link.thread.run(step)) is not None:
                for found in entries:
                    yield found.entry_id, found.payload
        finally:
            if link.thread.usable:
                link.thread.run(reader.close)

    def _read_through_list(self, piece: Slice, position: int) -> Iterator[Batch]:
        """Yield the records from `position` on through the stream's segment list, with a metadata session."""
        full = stream_name(piece.stream)
        on_truncated: Truncated = "error" if self._fail_on_loss else "skip"
        ns = connection(self._uri).blocking.namespace(full.namespace)
        try:
            with ns.read(full.stream, start=position, stop=piece.stop, on_truncated=on_truncated) as reader:
                reader.open()
                # The uid is checked after opening, because an open reader stays with its stream.
                if ns.info(full.stream).uid != piece.uid:
                    raise NoSuchStream(piece.stream, "was deleted and made anew")
                for batch in reader.batches():
                    if batch.first_offset > position:
                        log.warning("%s", RecordsLost(piece.stream, position, batch.first_offset, "was truncated"))
                    yield batch
                    position = batch.next_offset
        except OffsetTruncated as gone:
            raise RecordsLost(piece.stream, gone.offset, gone.earliest, "was truncated") from None
        except (NoSuchStream, OffsetOutOfRange):
            pass  # The stream was deleted, or another one of its name is shorter.
        if position < piece.stop:
            lost = RecordsLost(piece.stream, position, None, "is no longer there")
            if self._fail_on_loss:
                raise lost
            log.warning("%s", lost)


def _read_history(piece: Slice, segment: Segment, offset: Offset) -> Iterator[tuple[EntryId, bytes]]:
    """Yield the entries of an offloaded segment that hold the offsets from `offset` to before the end of the slice."""
    files = SegmentFiles(StreamId(stream_name(piece.stream), piece.uid), segment)
    begin = files.first_entry(lambda header: piece.base + header.first + header.records > offset)
    for chunk in files.chunks(begin, piece.last_entry):
        for entry, payload in chunk:
            if piece.base + parse_header(payload).first >= piece.stop:
                return
            yield entry, payload


def _reader(services: Services, piece: Slice, metadata: LedgerMetadata) -> Reader:
    """Return a reader with the metadata that the planner saw; its version -1 lets any newer metadata replace it."""
    digest = services.encryption.reading(piece.ledger, metadata, digest_of(piece.ledger, metadata, b"", None))
    return Reader(services, piece.ledger, Versioned(metadata, -1), digest, piece.last_entry)


def _scan_entries(partition: StreamPartition, piece: Slice, *, local: bool) -> Iterator[tuple[EntryId, bytes]]:
    """Yield the entries of a slice from one replica. ScanFailed, also if no replica has all entries of the ledger."""
    metadata = partition.ledgers[piece.ledger]
    if not quorum_of(metadata).mirrored:
        raise ScanFailed(f"ledger {piece.ledger}: no bookie has all entries")
    digest = digest_of(piece.ledger, metadata, b"", None)
    entry_bytes = piece.bytes // (piece.last_entry - piece.first_entry + 1)
    for span in spans(metadata, piece.first_entry, piece.last_entry):
        # The partitions of one ledger are spread over its bookies.
        peer = partition.peer(span.ensemble[(piece.ledger + piece.first_entry) % len(span.ensemble)])
        if peer is None:
            raise ScanFailed(f"ledger {piece.ledger}: no address of {span.ensemble}")
        position = span.first
        if local:
            for first, payloads in LocalScan(peer, piece.ledger, digest, position, span.last).entries():
                yield from enumerate(payloads, first)
                position = first + len(payloads)
        if position <= span.last:
            with closing(Scan(peer, piece.ledger, digest, position, span.last, entry_bytes)) as scan:
                for first, payloads in scan.entries():
                    yield from enumerate(payloads, first)


def _decode(piece: Slice, entry: EntryId, payload: bytes) -> Batch | None:
    try:
        found = decode(payload, piece.base, piece.ledger, entry)
    except MalformedBatch as error:
        raise CorruptEntry(piece.stream, piece.ledger, entry, str(error)) from None
    if not isinstance(found, Batch):
        return None
    return found if piece.times is None else found.clamped(*piece.times)


def _by_stream(slices: list[Slice]) -> Iterator[tuple[str, list[Slice]]]:
    group: list[Slice] = []
    for piece in slices:
        # A record batch has consecutive offsets, so a new group begins after a gap.
        if group and (group[-1].stream != piece.stream or group[-1].stop != piece.first):
            yield group[0].stream, group
            group = []
        group.append(piece)
    if group:
        yield group[0].stream, group


def _join_batches(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Join neighbouring batches until they have enough rows or bytes for a record batch."""
    group: list[Batch] = []
    rows = size = 0
    for batch in batches:
        if group and (batch.first_offset != group[-1].next_offset or size + batch.payload_bytes > BATCH_BYTES):
            yield group
            group, rows, size = [], 0, 0
        group.append(batch)
        rows += len(batch)
        size += batch.payload_bytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _explain_failure(failed: ReadFailed, partition: StreamPartition, piece: Slice) -> str:
    """Return an error text that names the host and the addresses that it could not read from."""
    places = {info.bookie_id: str(info.address) for info in partition.bookies}
    members = dict.fromkeys(b for f in partition.ledgers[piece.ledger].fragments for b in f.ensemble)
    there = ", ".join(f"{b} at {places[b]}" if b in places else f"{b} (not registered)" for b in members)
    return (
        f"offsets {piece.first} to {piece.stop - 1} of stream {piece.stream} cannot be read from host "
        f"{socket.gethostname()}: every executor must reach the bookies {there} ({failed})"
    )
