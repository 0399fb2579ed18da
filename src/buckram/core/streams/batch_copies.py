"""Copies of batches for a stream in another cluster: the body of an entry as it is stored, under a header of its own.

A whole entry is taken as it is, without a look at its records. Only where the entry does not say all that readers see
(a part of an entry, or an append time that its segment's row decides) the body is made anew. Pure. Not here: who may
write a mirror (`core/streams/metadata/mirrors.py`), reading and appending (`replication/`).
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.core.streams.compaction import with_timestamps
from buckram.core.streams.records.batch import Batch
from buckram.core.streams.records.record_format import HEADER_SIZE, NO_TXID, TIMESTAMPS, Columns, encode, parse_header
from buckram.types import Buffer


@dataclass(frozen=True, slots=True)
class BatchCopy:
    """The records of one entry, ready to be appended to another stream at the same offsets."""

    batch: Batch
    """Where they come from: offsets, producers, and the append time."""
    columns: int
    """Bits of the columns in the body, as in an entry's header."""
    compression: int
    body_size: int
    """Bytes of the body before compression."""
    body: Buffer
    lowest: int
    """The least event time, microseconds UTC."""
    highest: int
    """The greatest event time."""

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def size(self) -> int:
        """Return the stored bytes of the body."""
        return len(self.body)

    @property
    def append_time(self) -> int:
        """Return the append time that readers of the source see, microseconds UTC."""
        return self.batch.append_time

    @property
    def last_txid(self) -> int:
        """Return the greatest txid of the source up to these records, as far as the entry has it."""
        return self.batch.header.last_txid


def copy_of(batch: Batch) -> BatchCopy:
    """Return a batch as a copy that is the same to readers. Raises MalformedBatch for bytes that are no entry."""
    header = batch.header
    times = batch.timestamps() if header.columns & TIMESTAMPS else (header.append_time,)
    lowest, highest = min(times), max(times)
    if batch.window != (0, header.records):
        return _of_part(batch, lowest, highest)
    if batch.append_time == header.append_time or header.columns & TIMESTAMPS:
        body = memoryview(batch.payload)[HEADER_SIZE:]
        return BatchCopy(batch, header.columns, header.compression, header.body_size, body, lowest, highest)
    grown, compression = with_timestamps(batch.payload, header)
    size = header.body_size + 8 * header.records
    return BatchCopy(batch, header.columns | TIMESTAMPS, compression, size, grown, lowest, highest)


def _of_part(batch: Batch, lowest: int, highest: int) -> BatchCopy:
    """Return a copy of a part of an entry, with its records encoded anew."""
    columns = columns_of(batch)
    columns.timestamps = list(batch.timestamps())
    payload, header = encode(columns, first=0, append_time=batch.append_time, compression=batch.header.compression)
    stored = parse_header(payload)  # Its body may be stored as it is where compression does not pay.
    body = memoryview(payload)[HEADER_SIZE:]
    return BatchCopy(batch, header.columns, stored.compression, header.body_size, body, lowest, highest)


def columns_of(batch: Batch) -> Columns:
    """Return the records of a batch, which may be a part of an entry, as columns that can be encoded anew."""
    columns = Columns(batch.values())
    if batch.key_column is not None:
        columns.keys = batch.keys()
    if batch.header_column is not None:
        columns.headers = batch.headers()
    if batch.timestamp_column is not None:
        columns.timestamps = list(batch.timestamps())
    if batch.txid_column is not None:
        columns.txids = [NO_TXID if txid is None else txid for txid in batch.txids()]
    pairs = batch.producers()
    if any(pair is not None for pair in pairs):  # No reader accepts a column of producers that names none.
        columns.producers = [None if pair is None else pair[0] for pair in pairs]
        columns.sequences = [0 if pair is None else pair[1] for pair in pairs]
    return columns
