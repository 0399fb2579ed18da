"""Bytes of one stream entry: a batch of records in columns, or a snapshot of the producers, or a mark.

An entry is a 64-byte header and a body, all little-endian. The body is a row of buffers, each beginning at a multiple
of 8, in Apache Arrow's layout, so that a reader hands them on without copying: validity bitmaps (bit set = not null),
int32 offsets (count + 1, from 0) and contiguous bytes. Compression covers the body. Record offsets are relative to the
segment.

    value   [validity] offsets data
    key     [validity] offsets data                                           if KEYS
    headers list offsets, name offsets, names (UTF-8), value offsets, values  if HEADERS
    timestamps int64 (microseconds UTC)                                       if TIMESTAMPS, else append_time
    txids      int64 (NO_TXID: none)                                          if TXIDS
    producers  int32 how many ids, id offsets, ids; int32 index per record (-1: none); int64 sequences   if PRODUCERS

What comes in is checked before a view of it is given out: no offset leaves its buffer. Not here: views of
records (`core/streams/records/batch.py`), the producers' snapshot (`core/streams/records/producers.py`), compression
(`core/streams/records/codecs.py`).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from buckram.core.streams.records.codecs import NONE, compress
from buckram.errors import MalformedBatch, UnknownBatchVersion
from buckram.types import Buffer, EntryId

MAGIC, VERSION = 0x4253, 1
DATA, SNAPSHOT, MARK, IDLE = 0, 1, 2, 3
"""Marks hold nothing but carry the LAC of their ledger: MARK before a segment ends, IDLE when its writer rests."""
VALUE_NULLS, KEYS, KEY_NULLS, HEADERS, TIMESTAMPS, TXIDS, PRODUCERS = 1, 2, 4, 8, 16, 32, 64
ALL_COLUMNS = 127
HEADER = struct.Struct("<HBBBBHIIQqqqqq")
HEADER_SIZE = 64
MAX_BODY_BYTES = 16 * 1024 * 1024
"""No body is larger when uncompressed: what a reader may be made to allocate."""
NO_TXID = -(2**63)
NO_SNAPSHOT = -1
NO_MIN, NO_MAX = 2**63 - 1, -(2**63)
_NO_EXTRAS = (None,) * 5
_BIG = sys.byteorder == "big"

T = TypeVar("T")
HeaderList: TypeAlias = tuple[tuple[str, bytes], ...]
HeadersInput: TypeAlias = Mapping[str, bytes] | Sequence[tuple[str, bytes]]


class EntryHeader(NamedTuple):
    """`first` is relative to the segment; `last_txid` is the stream's after this entry (NO_TXID: none yet).

    The timestamps are the least and greatest of the segment up to and with this entry (NO_MIN, NO_MAX: no record yet),
    so that the last entry tells all of a segment that its row needs.
    """

    kind: int
    compression: int
    columns: int
    records: int
    body_size: int
    first: int
    append_time: int
    last_txid: int
    min_timestamp: int
    max_timestamp: int
    snapshot: EntryId


@dataclass(slots=True)
class Columns:
    """Records to be written, by columns; an unused column is None. Lists have one item per record."""

    values: list[bytes | None] = field(default_factory=list)
    keys: list[bytes | None] | None = None
    headers: list[HeaderList] | None = None
    timestamps: list[int | None] | None = None
    txids: list[int] | None = None
    """NO_TXID where there is none."""
    producers: list[str | None] | None = None
    sequences: list[int] | None = None
    size: int = 0
    """Bytes of values, keys and headers."""

    def __len__(self) -> int:
        return len(self.values)

    def extend(self, other: Columns) -> None:
        """Append the other's records."""
        before, more = len(self.values), len(other.values)
        self.values += other.values
        self.keys = _joined(self.keys, other.keys, None, before, more)
        self.headers = _joined(self.headers, other.headers, (), before, more)
        self.timestamps = _joined(self.timestamps, other.timestamps, None, before, more)
        self.txids = _joined(self.txids, other.txids, NO_TXID, before, more)
        self.producers = _joined(self.producers, other.producers, None, before, more)
        self.sequences = _joined(self.sequences, other.sequences, 0, before, more)
        self.size += other.size

    def slice(self, start: int, stop: int, size: int | None = None) -> Columns:
        """Return the records start..stop as columns; `size` is their bytes, if known."""
        part = Columns(
            self.values[start:stop],
            self.keys and self.keys[start:stop],
            self.headers and self.headers[start:stop],
            self.timestamps and self.timestamps[start:stop],
            self.txids and self.txids[start:stop],
            self.producers and self.producers[start:stop],
            self.sequences and self.sequences[start:stop],
        )
        part.size = sum(part.sizes()) if size is None else size
        return part

    @property
    def overhead(self) -> int:
        """Return the most bytes that one record costs in an entry beyond its own."""
        offset, nullable, number = 4, 5, 8
        return (
            nullable
            + (nullable if self.keys is not None else 0)
            + (offset if self.headers is not None else 0)
            + (number if self.timestamps is not None else 0)
            + (number if self.txids is not None else 0)
            + (2 * number if self.producers is not None else 0)
        )

    @property
    def plain(self) -> bool:
        """Return whether the records have values only."""
        extras: tuple[object, ...] = (self.keys, self.headers, self.timestamps, self.txids, self.producers)
        return extras == _NO_EXTRAS

    def sizes(self) -> list[int]:
        """Return the payload bytes of each record."""
        try:
            sizes = list(map(len, self.values))  # type: ignore[arg-type]  # nulls are what the except is for
        except TypeError:
            sizes = [len(value) if value is not None else 0 for value in self.values]
        if self.keys is not None:
            sizes = [size + len(key or b"") for size, key in zip(sizes, self.keys, strict=True)]
        if self.headers is not None:
            sizes = [size + headers_size(pairs) for size, pairs in zip(sizes, self.headers, strict=True)]
        return sizes


def headers_size(pairs: HeaderList) -> int:
    return sum(len(name.encode()) + len(value) + 8 for name, value in pairs)


def _joined(mine: list[T] | None, theirs: list[T] | None, blank: T, before: int, more: int) -> list[T] | None:
    if mine is None:
        if theirs is None:
            return None
        mine = [blank] * before
    mine += theirs if theirs is not None else [blank] * more
    return mine


# -- writing ----------------------------------------------------------------------------------------------


def encode(
    columns: Columns,
    *,
    first: int,
    append_time: int,
    last_txid: int = NO_TXID,
    lowest: int = NO_MIN,
    highest: int = NO_MAX,
    snapshot: EntryId = NO_SNAPSHOT,
    compression: int = NONE,
) -> tuple[bytes, EntryHeader]:
    """Return the entry of these records, at least one, and its header. Times in microseconds UTC; `last_txid` after
    these records; `lowest` and `highest` timestamp of the segment before them.
    """
    body = BodyBuilder()
    mask = body.binary(columns.values, VALUE_NULLS)
    if columns.keys is not None:
        mask |= KEYS | body.binary(columns.keys, KEY_NULLS)
    if columns.headers is not None:
        mask |= HEADERS
        body.headers(columns.headers)
    if columns.timestamps is not None:
        mask |= TIMESTAMPS
        times = [append_time if time is None else time for time in columns.timestamps]
        lowest, highest = min(lowest, *times), max(highest, *times)
        body.integers("q", times)
    else:
        lowest, highest = min(lowest, append_time), max(highest, append_time)
    if columns.txids is not None:
        mask |= TXIDS
        body.integers("q", columns.txids)
    if columns.producers is not None and columns.sequences is not None:
        mask |= PRODUCERS
        body.producers(columns.producers, columns.sequences)
    return encode_body(
        body,
        mask,
        len(columns.values),
        first=first,
        append_time=append_time,
        last_txid=last_txid,
        lowest=lowest,
        highest=highest,
        snapshot=snapshot,
        compression=compression,
    )


def encode_body(
    body: BodyBuilder,
    mask: int,
    records: int,
    *,
    first: int,
    append_time: int,
    last_txid: int = NO_TXID,
    lowest: int,
    highest: int,
    snapshot: EntryId = NO_SNAPSHOT,
    compression: int = NONE,
) -> tuple[bytes, EntryHeader]:
    """Return the entry of a body whose columns are encoded already, and its header; `lowest` and `highest` include its
    records.
    """
    header = EntryHeader(
        DATA, compression, mask, records, body.size, first, append_time, last_txid, lowest, highest, snapshot
    )
    return _entry(header, body.parts), header


def encode_plain(
    kind: int,
    body: bytes,
    *,
    first: int,
    append_time: int,
    last_txid: int = NO_TXID,
    lowest: int = NO_MIN,
    highest: int = NO_MAX,
    snapshot: EntryId = NO_SNAPSHOT,
) -> bytes:
    """Return a snapshot or a mark, an entry without records. `first` is the offset of the record that comes next."""
    header = EntryHeader(kind, NONE, 0, 0, len(body), first, append_time, last_txid, lowest, highest, snapshot)
    return _entry(header, [body])


def _entry(header: EntryHeader, parts: list[Buffer]) -> bytes:
    kind, compression, mask, *rest = header
    if compression != NONE:
        packed = compress(compression, b"".join(parts))
        if len(packed) < header.body_size:
            parts = [packed]
        else:
            compression = NONE
    return b"".join((HEADER.pack(MAGIC, VERSION, kind, compression, 0, mask, *rest), *parts))


def framed(header: EntryHeader, body: Buffer) -> bytes:
    """Return the entry of a body in its stored form: already compressed where the header says so."""
    kind, compression, mask, *rest = header
    return b"".join((HEADER.pack(MAGIC, VERSION, kind, compression, 0, mask, *rest), body))


class BodyBuilder:
    """Collects buffers, each padded to a multiple of 8."""

    __slots__ = ("parts", "size")

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.size = 0

    def put(self, data: Buffer) -> None:
        """Append bytes, or a view of bytes that do not change before the entry is made."""
        self.parts.append(data)
        pad = -len(data) % 8
        if pad:
            self.parts.append(bytes(pad))
        self.size += len(data) + pad

    def integers(self, kind: str, numbers: Iterable[int]) -> None:
        column = array(kind, numbers)
        if _BIG:
            column.byteswap()
        self.put(column.tobytes())

    def strings(self, items: Sequence[bytes]) -> None:
        self.integers("i", accumulate(map(len, items), initial=0))
        self.put(b"".join(items))

    def binary(self, items: list[bytes | None], null_bit: int) -> int:
        """Append nullable bytes; return the bit for the mask if there are nulls."""
        try:
            joined = b"".join(items)  # type: ignore[arg-type]  # a null is what the except is for
        except TypeError:
            self.put(_validity(items))
            self.strings([item if item is not None else b"" for item in items])
            return null_bit
        self.integers("i", accumulate(map(len, items), initial=0))  # type: ignore[arg-type]  # no null: joined
        self.put(joined)
        return 0

    def headers(self, rows: list[HeaderList]) -> None:
        self.integers("i", accumulate(map(len, rows), initial=0))
        self.strings([name.encode() for row in rows for name, _ in row])
        self.strings([value for row in rows for _, value in row])

    def producers(self, names: list[str | None], sequences: list[int]) -> None:
        places = {name: place for place, name in enumerate(dict.fromkeys(n for n in names if n is not None))}
        self.integers("i", [len(places)])
        self.strings([name.encode() for name in places])
        self.integers("i", [-1 if name is None else places[name] for name in names])
        self.integers("q", sequences)


def _validity(items: Sequence[object]) -> bytes:
    bits = int("".join("0" if item is None else "1" for item in reversed(items)) or "0", 2)
    return bits.to_bytes((len(items) + 7) // 8, "little")


# -- reading ----------------------------------------------------------------------------------------------


def parse_header(payload: Buffer) -> EntryHeader:
    """Parse the first 64 bytes of an entry. Raises MalformedBatch, or UnknownBatchVersion for a newer one."""
    if len(payload) < HEADER_SIZE:
        raise MalformedBatch(f"{len(payload)} bytes are no stream entry, its header alone has {HEADER_SIZE}")
    magic, version, kind, compression, zero, mask, count, size, *rest = HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise MalformedBatch(f"begins with {magic:#06x} instead of {MAGIC:#06x}: not written as a stream")
    if version != VERSION or kind > IDLE or mask & ~ALL_COLUMNS or zero:
        raise UnknownBatchVersion(
            f"record version {version}, kind {kind}, columns {mask:#x}: this version of buckram knows version "
            f"{VERSION}; read it with a newer one"
        )
    if size > MAX_BODY_BYTES or count > size or rest[0] > 2**62:
        raise MalformedBatch(f"{count} records in {size} bytes from {rest[0]}: out of bounds ({MAX_BODY_BYTES} bytes)")
    if (kind == DATA) is not (count > 0):
        raise MalformedBatch(f"an entry of kind {kind} with {count} records")
    return EntryHeader(kind, compression, mask, count, size, *rest)


class BufferCursor:
    """Takes buffers out of a body, one after another, each checked."""

    __slots__ = ("_at", "_body")

    def __init__(self, body: Buffer) -> None:
        self._body = memoryview(body).cast("B")
        self._at = 0

    @property
    def position(self) -> int:
        """Return the offset at which the next buffer begins."""
        return self._at

    def take(self, size: int) -> memoryview:
        start = self._at
        if size < 0 or start + size > len(self._body):
            raise MalformedBatch(f"a column needs {size} bytes at {start}, the body has {len(self._body)}")
        self._at = min(start + size + (-size % 8), len(self._body))
        return self._body[start : start + size]

    def integers(self, kind: Literal["i", "q"], count: int) -> memoryview:
        size = count * (4 if kind == "i" else 8)
        data = self.take(size)
        if _BIG:
            column = array(kind, data.tobytes())
            column.byteswap()
            return memoryview(column)
        return data.cast(kind)

    def offsets(self, count: int) -> memoryview:
        """Return count + 1 offsets that ascend from 0. Raises MalformedBatch if they do not."""
        column = self.integers("i", count + 1)
        found = column.tolist()
        # Sorting a sorted list costs one comparison per item, in C.
        if found[0] or sorted(found) != found:
            raise MalformedBatch("the offsets of a column do not ascend from 0")
        return column

    def strings(self, count: int) -> tuple[memoryview, memoryview]:
        offsets = self.offsets(count)
        return offsets, self.take(offsets[count])

    def bitmap(self, count: int) -> memoryview:
        return self.take((count + 7) // 8)

    def end(self) -> None:
        if self._at != len(self._body):
            raise MalformedBatch(f"{len(self._body) - self._at} bytes are left after the last column")
