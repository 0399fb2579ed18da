"""Reading side of record_format: a `Batch` is one entry's records as views of its bytes, a `Record` one of them.

A batch may show a part of its entry only (from a start position, up to a stop, above a truncation). Values are copied
out on access only. Not here: Arrow (`streams/shared/arrow_batches`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, repeat
from typing import Any, NamedTuple, TypeAlias

from buckram.core.streams.records.codecs import decompress
from buckram.core.streams.records.record_format import (
    DATA,
    HEADER_SIZE,
    HEADERS,
    IDLE,
    KEY_NULLS,
    KEYS,
    MARK,
    NO_TXID,
    PRODUCERS,
    TIMESTAMPS,
    TXIDS,
    VALUE_NULLS,
    BufferCursor,
    EntryHeader,
    HeaderList,
    parse_header,
)
from buckram.errors import MalformedBatch
from buckram.types import Buffer, EntryId, LedgerId, Offset


class Record(NamedTuple):
    """One record. Times in microseconds UTC. `value` None is the delete marker, different from an empty one."""

    offset: Offset
    """Its number in the stream."""
    value: bytes | None
    """Bytes that were appended; None for a delete marker."""
    key: bytes | None
    """The key, None if it has none."""
    headers: HeaderList
    """Pairs of a name and bytes, in order; names may repeat."""
    timestamp: int
    """Event time, as the application gave it."""
    append_time: int
    """Time at which the writer sent it; never less than that of the record before."""
    txid: int | None
    """The application's own number, None if it gave none."""
    producer: str | None = None
    """Id of the idempotent producer that appended it; None without one."""
    sequence: int | None = None
    """Sequence number that the producer gave it; None without a producer."""


class BinaryColumn(NamedTuple):
    """Arrow's layout of nullable bytes: int32 offsets (one more than rows), bytes, validity bits or None."""

    offsets: memoryview
    data: memoryview
    validity: memoryview | None

    def rows(self, start: int, stop: int) -> list[bytes | None]:
        edges, data = self.offsets[start : stop + 1].tolist(), self.data
        begin = edges[0]
        joined = bytes(data[begin : edges[-1]])
        if begin:
            edges = [edge - begin for edge in edges]
        found: list[bytes | None] = [joined[a:b] for a, b in pairwise(edges)]
        if self.validity is not None:
            bits = self.validity
            found = [item if bits[row >> 3] >> (row & 7) & 1 else None for row, item in enumerate(found, start)]
        return found


class HeaderColumn(NamedTuple):
    """Arrow's layout of list<struct<name: string, value: binary>>."""

    lists: memoryview
    names: BinaryColumn
    values: BinaryColumn

    def rows(self, start: int, stop: int) -> list[HeaderList]:
        edges = self.lists[start : stop + 1].tolist()
        names, values = self.names.rows(edges[0], edges[-1]), self.values.rows(edges[0], edges[-1])
        try:
            pairs = [(str(name or b"", "utf-8"), value or b"") for name, value in zip(names, values, strict=True)]
        except UnicodeDecodeError as error:
            raise MalformedBatch(f"the name of a header is not UTF-8: {error}") from None
        base = edges[0]
        return [tuple(pairs[a - base : b - base]) for a, b in pairwise(edges)]


ArrowRows: TypeAlias = Callable[[int, int, int], Any]
"""Function of an append time, a first row and a number of rows that returns these records of an entry as an Arrow
record batch; None if they are in memory with another append time.
"""


class Batch:
    """Records first_offset .. next_offset - 1 of one entry; `len()` of them. No method changes it."""

    __slots__ = (
        "_headers",
        "_keys",
        "_producers",
        "_rows",
        "_sequences",
        "_start",
        "_stop",
        "_timestamps",
        "_txids",
        "_values",
        "append_time",
        "base",
        "entry_id",
        "header",
        "ledger_id",
        "payload",
        "payload_bytes",
    )

    def __init__(
        self, header: EntryHeader, body: Buffer, base: int, ledger_id: LedgerId, entry_id: EntryId, payload: Buffer
    ) -> None:
        self.header, self.base = header, base
        self.ledger_id = ledger_id
        """The ledger that holds the entry, -1 if that is not known."""
        self.entry_id = entry_id
        """Its entry in the ledger, -1 if that is not known."""
        self.payload = payload
        """Stored bytes of the entry, of which this batch may be a part; empty if its columns come from a file."""
        self.payload_bytes = len(payload)
        """Size of the entry's stored bytes."""
        self.append_time = header.append_time
        """Microseconds UTC; the same for all records of an entry, never less than that of the entry before."""
        self._start, self._stop = 0, header.records
        cursor, count, mask = BufferCursor(body), header.records, header.columns
        self._values = _binary(cursor, count, mask & VALUE_NULLS)
        self._keys = _binary(cursor, count, mask & KEY_NULLS) if mask & KEYS else None
        self._headers = _headers(cursor, count) if mask & HEADERS else None
        self._timestamps = cursor.integers("q", count) if mask & TIMESTAMPS else None
        self._txids = cursor.integers("q", count) if mask & TXIDS else None
        self._producers: tuple[list[str], memoryview] | None = None
        self._rows: ArrowRows | None = None
        self._sequences: memoryview | None = None
        if mask & PRODUCERS:
            self._producers = _producers(cursor, count)
            self._sequences = cursor.integers("q", count)
        cursor.end()

    @classmethod
    def of_columns(
        cls,
        header: EntryHeader,
        base: int,
        ledger_id: LedgerId,
        entry_id: EntryId,
        values: BinaryColumn,
        keys: BinaryColumn | None,
        timestamps: memoryview | None,
        rows: ArrowRows,
    ) -> Batch:
        """Return a batch of an entry whose columns are in memory already: values, and perhaps keys and event times
        (int64).

        `rows` gives the same records as Arrow's columns, without making them anew.
        """
        batch = cls.__new__(cls)
        batch.header, batch.base, batch.ledger_id, batch.entry_id = header, base, ledger_id, entry_id
        batch.payload = b""  # it was never put together
        batch.payload_bytes, batch.append_time = HEADER_SIZE + header.body_size, header.append_time
        batch._start, batch._stop = 0, header.records
        batch._values, batch._keys, batch._timestamps = values, keys, timestamps
        batch._rows = rows
        batch._headers = batch._txids = batch._producers = batch._sequences = None
        return batch

    # -- what is in it ------------------------------------------------------------------------------------

    @property
    def first_offset(self) -> int:
        """Return the offset of the first record."""
        return self.base + self.header.first + self._start

    @property
    def next_offset(self) -> int:
        """Return the offset after the last record."""
        return self.base + self.header.first + self._stop

    def __len__(self) -> int:
        return self._stop - self._start

    def values(self) -> list[bytes | None]:
        """Return the value of each record; None is the delete marker."""
        return self._values.rows(self._start, self._stop)

    def keys(self) -> list[bytes | None]:
        """Return the key of each record, None where it has none."""
        return [None] * len(self) if self._keys is None else self._keys.rows(self._start, self._stop)

    def headers(self) -> list[HeaderList]:
        """Return the headers of each record: pairs of a name and bytes."""
        return [()] * len(self) if self._headers is None else self._headers.rows(self._start, self._stop)

    def timestamps(self) -> list[int]:
        """Event times in microseconds UTC."""
        if self._timestamps is None:
            return [self.header.append_time] * len(self)
        return self._timestamps[self._start : self._stop].tolist()

    def txids(self) -> list[int | None]:
        """Return the txid of each record, None where it has none."""
        if self._txids is None:
            return [None] * len(self)
        return [None if txid == NO_TXID else txid for txid in self._txids[self._start : self._stop].tolist()]

    def producers(self) -> list[tuple[str, int] | None]:
        """(producer, sequence) of each record that has them."""
        if self._producers is None or self._sequences is None:
            return [None] * len(self)
        names, places = self._producers
        rows = zip(places[self._start : self._stop], self._sequences[self._start : self._stop], strict=True)
        return [None if place < 0 else (names[place], sequence) for place, sequence in rows]

    def records(self) -> list[Record]:
        """Return the records, one by one."""
        offsets = range(self.first_offset, self.next_offset)
        values, time = self.values(), self.append_time
        if self.header.columns & ~VALUE_NULLS == 0:
            event = self.header.append_time
            plain = map(Record, offsets, values, repeat(None), repeat(()), repeat(event), repeat(time), repeat(None))
            return list(plain)
        rows = list(
            map(Record, offsets, values, self.keys(), self.headers(), self.timestamps(), repeat(time), self.txids())
        )
        if self._producers is not None:
            pairs = self.producers()
            rows = [
                row if pair is None else row._replace(producer=pair[0], sequence=pair[1])
                for row, pair in zip(rows, pairs, strict=True)
            ]
        return rows

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    # -- parts and columns --------------------------------------------------------------------------------

    def clamped(self, least: int, most: int) -> Batch:
        """Return the same records with an append time within these bounds, which their segment's row gives."""
        time = min(max(self.append_time, least), most)
        if time == self.append_time:
            return self
        part = self._copy()
        part.append_time = time
        return part

    def between(self, first: int, stop: int | None = None) -> Batch:
        """Return the records with first <= offset < stop that are in this batch; a view of the same bytes."""
        at = self.base + self.header.first
        start = min(max(self._start, first - at), self._stop)
        end = self._stop if stop is None else max(start, min(self._stop, stop - at))
        if (start, end) == (self._start, self._stop):
            return self
        part = self._copy()
        part._start, part._stop = start, end
        return part

    def _copy(self) -> Batch:
        part = Batch.__new__(Batch)
        for name in Batch.__slots__:
            setattr(part, name, getattr(self, name))
        return part

    @property
    def window(self) -> tuple[int, int]:
        """Return the first and the end row of this batch in the columns below, which are those of the whole entry."""
        return self._start, self._stop

    @property
    def value_column(self) -> BinaryColumn:
        """Values in Arrow's layout."""
        return self._values

    @property
    def key_column(self) -> BinaryColumn | None:
        """Keys in Arrow's layout; None if no record has one."""
        return self._keys

    @property
    def header_column(self) -> HeaderColumn | None:
        """Headers in Arrow's layout; None if no record has any."""
        return self._headers

    @property
    def timestamp_column(self) -> memoryview | None:
        """Event times as int64 microseconds; None if all are the append time."""
        return self._timestamps

    @property
    def txid_column(self) -> memoryview | None:
        """Txids as int64, the least int64 for none; None if no record has one."""
        return self._txids

    @property
    def rows(self) -> ArrowRows | None:
        """Return the function that gives rows of this batch as Arrow's columns if those are in memory already, else
        None.
        """
        return self._rows

    def __repr__(self) -> str:
        last = self.next_offset - 1
        return f"Batch(offsets {self.first_offset} to {last}, ledger {self.ledger_id}, entry {self.entry_id})"


def decode(payload: Buffer, base: int, ledger_id: LedgerId = -1, entry_id: EntryId = -1) -> Batch | EntryHeader:
    """Return a Batch with absolute offsets, or only the header of an entry without records. Raises MalformedBatch."""
    header = parse_header(payload)
    if header.kind != DATA:
        return header
    return Batch(header, entry_body(payload, header), base, ledger_id, entry_id, payload)


def entry_body(payload: Buffer, header: EntryHeader) -> Buffer:
    """Return the body of an entry, decompressed. Raises MalformedBatch if its size differs from that in the header."""
    if header.kind in (MARK, IDLE):
        return b""
    return decompress(header.compression, memoryview(payload)[HEADER_SIZE:], header.body_size)


def _binary(cursor: BufferCursor, count: int, nulls: int) -> BinaryColumn:
    validity = cursor.bitmap(count) if nulls else None
    return BinaryColumn(*cursor.strings(count), validity)


def _headers(cursor: BufferCursor, count: int) -> HeaderColumn:
    lists = cursor.offsets(count)
    pairs = lists[count]
    names = BinaryColumn(*cursor.strings(pairs), None)
    return HeaderColumn(lists, names, BinaryColumn(*cursor.strings(pairs), None))


def _producers(cursor: BufferCursor, count: int) -> tuple[list[str], memoryview]:
    (known,) = cursor.integers("i", 1)
    if not 0 < known <= count:
        raise MalformedBatch(f"{known} producers of {count} records")
    ids = BinaryColumn(*cursor.strings(known), None).rows(0, known)
    places = cursor.integers("i", count)
    if min(places) < -1 or max(places) >= known:
        raise MalformedBatch("a record names a producer that is not listed")
    try:
        return [str(name or b"", "utf-8") for name in ids], places
    except UnicodeDecodeError as error:
        raise MalformedBatch(f"the id of a producer is not UTF-8: {error}") from None
