"""Parts: entries of a stream as rows of one Parquet file, and back, byte for byte.

A part has a row for each record, with the columns that readers know (`HISTORY_SCHEMA`), for every engine; values are
not copied on their way into rows. The headers of the entries, and those without records, are in its key-value metadata,
so that the entries can be made again. Compressed entries come back uncompressed. It needs pyarrow, so import it only
where there is history. Not here: the rows of a batch as readers see them (`shared/arrow_batches.py`), reading segments
(`streams/read/history_reader.py`), the order of steps of an offload (`maintain/offload.py`).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from buckram.core.streams.external.history import Part, digest_of, plain_header, split_headers
from buckram.core.streams.metadata.head import Summary
from buckram.core.streams.records.batch import Batch, decode, entry_body
from buckram.core.streams.records.codecs import NONE
from buckram.core.streams.records.record_format import (
    DATA,
    HEADER_SIZE,
    HEADERS,
    KEY_NULLS,
    KEYS,
    NO_TXID,
    PRODUCERS,
    TIMESTAMPS,
    TXIDS,
    VALUE_NULLS,
    BodyBuilder,
    EntryHeader,
    parse_header,
)
from buckram.errors import MalformedBatch
from buckram.streams.shared.arrow_batches import (
    binary_array,
    header_array,
    offset_array,
    schema,
    time_array,
    to_arrow,
    txid_array,
)
from buckram.streams.shared.arrow_columns import Bytes, Headers
from buckram.types import Buffer, EntryId, LedgerId

HISTORY_SCHEMA: pa.Schema = schema().append(pa.field("producer", pa.string())).append(pa.field("sequence", pa.int64()))
_KINDS = {field.name: field.type for field in HISTORY_SCHEMA}


def batch_rows(batch: Batch) -> Any:
    """Return the records of a batch with the columns of HISTORY_SCHEMA."""
    columns = [*to_arrow(batch).columns, _producers(batch), _sequences(batch)]
    return pa.RecordBatch.from_arrays(columns, schema=HISTORY_SCHEMA)


def table_of(batches: Sequence[Batch]) -> pa.Table:
    """Return the records of batches, in order, with the columns of HISTORY_SCHEMA."""
    if not batches:
        return HISTORY_SCHEMA.empty_table()
    counts = list(map(len, batches))
    used = 0
    for batch in batches:
        used |= batch.header.columns
    if used & TIMESTAMPS:
        times = _chunks("timestamp", batches, lambda batch: time_array(pa, batch, _KINDS["timestamp"], *batch.window))
    else:
        times = _repeated("timestamp", [batch.header.append_time for batch in batches], counts)

    def column(name: str, bit: int, of: Callable[[Batch], Any]) -> Any:
        return _chunks(name, batches, of) if used & bit else pa.nulls(sum(counts), _KINDS[name])

    columns = [
        _chunks("offset", batches, lambda batch: offset_array(pa, batch.first_offset, len(batch))),
        _chunks("value", batches, lambda batch: binary_array(pa, batch.value_column, batch.window[0], len(batch))),
        column("key", KEYS, _keys),
        column("headers", HEADERS, _headers),
        times,
        _repeated("append_time", [batch.append_time for batch in batches], counts),
        column("txid", TXIDS, lambda batch: txid_array(pa, batch, *batch.window)),
        column("producer", PRODUCERS, _producers),
        column("sequence", PRODUCERS, _sequences),
    ]
    return pa.Table.from_arrays(columns, schema=HISTORY_SCHEMA)


def _chunks(name: str, batches: Sequence[Batch], of: Callable[[Batch], Any]) -> Any:
    return pa.chunked_array(map(of, batches), _KINDS[name])


def _repeated(name: str, numbers: list[int], counts: list[int]) -> Any:
    """Return a column that has each of these numbers as often as its count says."""
    runs = pa.RunEndEncodedArray.from_arrays(
        pa.array(accumulate(counts), pa.int32()), pa.array(numbers, pa.int64()).cast(_KINDS[name])
    )
    return pc.run_end_decode(runs)


def _keys(batch: Batch) -> Any:
    if batch.key_column is None:
        return pa.nulls(len(batch), _KINDS["key"])
    return binary_array(pa, batch.key_column, batch.window[0], len(batch))


def _headers(batch: Batch) -> Any:
    return header_array(pa, batch, _KINDS["headers"], batch.window[0], len(batch))


def _producers(batch: Batch) -> Any:
    if not batch.header.columns & PRODUCERS:
        return pa.nulls(len(batch), pa.string())
    return pa.array([None if pair is None else pair[0] for pair in batch.producers()], pa.string())


def _sequences(batch: Batch) -> Any:
    if not batch.header.columns & PRODUCERS:
        return pa.nulls(len(batch), pa.int64())
    return pa.array([None if pair is None else pair[1] for pair in batch.producers()], pa.int64())


ENTRIES = b"buckram.entries"
"""The key of the entries' headers in a part's metadata."""
_COUNTS = struct.Struct("<II")
"""The number of entries, and the bytes of their headers and of the bodies of entries without records."""
_LENGTH = struct.Struct("<I")
_COPIED = HEADERS | TXIDS | PRODUCERS
"""Columns that a batch has in another form than a part."""
_NONE_READABLE = ("headers", "txid")
"""Columns of readers that entries without those have as nulls."""
_ENCODINGS = dict.fromkeys(("offset", "timestamp", "sequence", "txid"), "DELTA_BINARY_PACKED")


# -- entries to a file ------------------------------------------------------------------------------------


def build_part(payloads: Sequence[bytes], first_entry: EntryId, base: int, summary: Summary) -> tuple[Buffer, int]:
    """Return the file with these entries, and how many records they have. MalformedBatch.

    `base` is the segment's first offset; append times are within the bounds of `summary`, as readers see them.
    """
    batches: list[Batch] = []
    headers, bodies = bytearray(), bytearray()
    records = 0
    for entry, payload in enumerate(payloads, first_entry):
        found = decode(payload, base, -1, entry)
        headers += plain_header(payload)
        if isinstance(found, Batch):
            batches.append(found.clamped(summary.first_append, summary.last_append))
            records += found.header.records
        else:
            tail = payload[HEADER_SIZE:]
            bodies += _LENGTH.pack(len(tail)) + tail
    table = table_of(batches)
    told = bytes(headers + bodies)
    packed = _COUNTS.pack(len(payloads), len(told)) + pa.compress(told, codec="zstd", asbytes=True)
    table = table.replace_schema_metadata({ENTRIES: base64.b64encode(packed)})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        row_group_size=max(1, table.num_rows),
        compression="zstd",
        compression_level=1,
        use_dictionary=["append_time", "producer"],
        column_encoding=_ENCODINGS,
        write_statistics=["offset", "timestamp", "append_time", "txid"],
    )
    return memoryview(sink.getvalue()).cast("B"), records


def describe_part(file: str, data: Buffer, payloads: Sequence[bytes], first_entry: EntryId, records: int) -> Part:
    """Return the manifest's description of a file that `build_part` made of these entries."""
    last = plain_header(payloads[-1]).hex()
    return Part(file, len(data), digest_of(data), first_entry, len(payloads), records, last)


# -- and back ---------------------------------------------------------------------------------------------


def part_rows(part: Part, data: Buffer) -> pa.Table:
    """Return the records of a part. MalformedBatch for bytes that are not what the manifest says."""
    if len(data) != part.bytes or digest_of(data) != part.sha256:
        raise MalformedBatch(f"{part.file} has {len(data)} other bytes than the {part.bytes} that were offloaded")
    try:
        # Unlike pq.read_table this gives columns of one chunk, which are not copied again.
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    except (pa.ArrowException, ValueError) as error:
        raise MalformedBatch(f"{part.file} is no part of history: {error!r}") from None
    if table.schema.names != HISTORY_SCHEMA.names:
        raise MalformedBatch(f"{part.file} is no part of history: its columns are {', '.join(table.schema.names)}")
    if table.num_rows != part.records:
        raise MalformedBatch(f"{part.file} has {table.num_rows} records, {part.records} are expected")
    return table


class LoadedPart:
    """A part in memory: its entries by id. MalformedBatch for bytes that are not what the manifest says."""

    def __init__(self, part: Part, data: Buffer) -> None:
        self.part = part
        table = part_rows(part, data)
        try:
            packed = base64.b64decode(table.schema.metadata[ENTRIES])
            count, size = _COUNTS.unpack_from(packed)
            told = pa.decompress(packed[_COUNTS.size :], decompressed_size=size, codec="zstd", asbytes=True)
        except (pa.ArrowException, KeyError, TypeError, ValueError, struct.error) as error:
            raise MalformedBatch(f"{part.file} is no part of history: {error!r}") from None
        if count != part.entries:
            raise MalformedBatch(f"{part.file} has {count} entries, {part.entries} are expected")
        self._raw = list(split_headers(told, count))
        self.headers: list[EntryHeader] = []
        self._rows: list[int] = []
        self._bodies: dict[int, bytes] = {}
        self._index(told, count)
        self._columns = {name: _one(table.column(name)) for name in HISTORY_SCHEMA.names}
        self._values, self._keys = Bytes(self._columns["value"]), Bytes(self._columns["key"])
        self._headers: Headers | None = None
        self._times = _integers(self._columns["timestamp"])
        self._txids: memoryview | None = None
        self._readable: Any = None

    def _index(self, told: bytes, count: int) -> None:
        """Note where each entry's rows begin, and the bodies of entries without records."""
        row, at = 0, count * HEADER_SIZE
        for place, raw in enumerate(self._raw):
            header = parse_header(raw)
            self.headers.append(header)
            self._rows.append(row)
            if header.kind == DATA:
                row += header.records
                continue
            (size,) = _LENGTH.unpack_from(told, at)
            at += _LENGTH.size
            self._bodies[place] = told[at : at + size]
            at += size
        if row != self.part.records or at != len(told):
            raise MalformedBatch(f"{self.part.file}: its headers tell of {row} records, it has {self.part.records}")

    def payload(self, entry: EntryId) -> bytes:
        """Return an entry, uncompressed."""
        return b"".join(self.pieces(entry))

    def pieces(self, entry: EntryId) -> list[Buffer]:
        """Return the same entry as the buffers that it consists of; values and keys are not copied."""
        place = entry - self.part.first_entry
        header, raw = self.headers[place], self._raw[place]
        if header.kind != DATA:
            return [raw, self._bodies[place]]
        body, mask = BodyBuilder(), header.columns
        start = self._rows[place]
        stop = start + header.records
        _put_bytes(body, self._values, self._columns["value"], start, stop, nulls=bool(mask & VALUE_NULLS))
        if mask & KEYS:
            _put_bytes(body, self._keys, self._columns["key"], start, stop, nulls=bool(mask & KEY_NULLS))
        if mask & HEADERS:
            if self._headers is None:
                self._headers = Headers(self.part.file, self._columns["headers"])
            self._headers.put(body, start, stop)
        if mask & TIMESTAMPS:
            body.put(self._times[8 * start : 8 * stop])
        if mask & TXIDS:
            if self._txids is None:
                self._txids = _integers(pc.fill_null(self._columns["txid"], NO_TXID))
            body.put(self._txids[8 * start : 8 * stop])
        if mask & PRODUCERS:
            names = self._columns["producer"].slice(start, stop - start).to_pylist()
            sequences = pc.fill_null(self._columns["sequence"].slice(start, stop - start), 0).to_pylist()
            body.producers(names, sequences)
        return [raw, *body.parts]

    def decoded(self, entry: EntryId, base: int, ledger: LedgerId) -> Batch | EntryHeader:
        """Return an entry as `decode` does; values, keys and event times are not copied. MalformedBatch.

        `base` is the first offset of the segment, `ledger` what batches name as their ledger.
        """
        place = entry - self.part.first_entry
        header = self.headers[place]
        if header.kind != DATA or header.columns & _COPIED:
            return decode(self.payload(entry), base, ledger, entry)
        start = self._rows[place]
        stop = start + header.records
        keys = self._keys.part(start, stop) if header.columns & KEYS else None
        times = self._times[8 * start : 8 * stop].cast("q") if header.columns & TIMESTAMPS else None
        values = self._values.part(start, stop)
        return Batch.of_columns(header, base, ledger, entry, values, keys, times, partial(self._arrow_rows, start))

    def _arrow_rows(self, start: int, append_time: int, first: int, count: int) -> Any:
        """Return `count` rows from `first` on of the entry whose rows begin at `start`, as ArrowRows says."""
        if self._readable is None:
            # Entries with headers or txids are put together from their bytes, so the others have none.
            shape, rows = schema(), self.part.records
            columns = [
                pa.nulls(rows, field.type) if field.name in _NONE_READABLE else self._columns[field.name]
                for field in shape
            ]
            self._readable = pa.RecordBatch.from_arrays(columns, schema=shape)
        if self._columns["append_time"][start].value != append_time:
            return None  # The row in the segment list has other bounds now than when the file was written.
        return self._readable.slice(start + first, count)


def _put_bytes(body: BodyBuilder, column: Bytes, array: Any, start: int, stop: int, *, nulls: bool) -> None:
    if nulls and not array.slice(start, stop - start).null_count:
        count = stop - start
        body.put(((1 << count) - 1).to_bytes((count + 7) // 8, "little"))
    column.put(body, start, stop)


def _integers(column: Any) -> memoryview:
    """Return the bytes of a column of 64-bit integers, which is no slice of another."""
    buffer = column.buffers()[1]
    return memoryview(b"") if buffer is None else memoryview(buffer)[8 * column.offset :]


def _one(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


# -- the comparison before the ledger may go --------------------------------------------------------------


def difference(payloads: Sequence[bytes], loaded: LoadedPart) -> str:
    """Say how the entries that a file gives back differ from those that were written, or nothing."""
    if len(payloads) != loaded.part.entries:
        return f"it has {loaded.part.entries} entries, {len(payloads)} were written"
    for entry, payload in enumerate(payloads, loaded.part.first_entry):
        if not _is(_uncompressed(payload), loaded.pieces(entry)) and not _same(payload, loaded.payload(entry)):
            return f"entry {entry} comes back with other records"
    return ""


def _uncompressed(payload: bytes) -> bytes:
    header = parse_header(payload)
    return payload if header.compression == NONE else plain_header(payload) + bytes(entry_body(payload, header))


def _is(payload: bytes, pieces: Sequence[Buffer]) -> bool:
    """Return whether an entry consists of these buffers. Arrow compares memory, Python would go item by item."""
    whole, at = pa.py_buffer(payload), 0
    for piece in pieces:
        size = len(piece)
        if at + size > len(payload) or not whole.slice(at, size).equals(pa.py_buffer(piece)):
            return False
        at += size
    return at == len(payload)


def _same(payload: bytes, again: bytes) -> bool:
    """Return whether two forms of an entry have the same header and records; only one of them may be compressed."""
    if plain_header(payload) != plain_header(again):
        return False
    first, second = decode(payload, 0), decode(again, 0)
    if isinstance(first, Batch) and isinstance(second, Batch):
        return first.records() == second.records()
    return payload[HEADER_SIZE:] == again[HEADER_SIZE:]
