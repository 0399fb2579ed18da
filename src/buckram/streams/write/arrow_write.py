"""Encoding Arrow record batches as a stream's entries: buffers are cut and joined, and no object is made per record.

Columns: `value` and `key` (binary or string), `timestamp` (microseconds), `headers` (list of struct of key and value);
all but `value` may be missing. Rows keep their order. It needs pyarrow (not numpy), so import it only where there is a
record batch. Not here: the format of an entry (`core/streams/records/record_format.py`), reading
(`shared/arrow_batches.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from buckram.core.streams.records.record_format import (
    HEADERS,
    KEY_NULLS,
    KEYS,
    TIMESTAMPS,
    VALUE_NULLS,
    BodyBuilder,
    EntryHeader,
    encode_body,
)
from buckram.errors import InvalidArgument, RecordTooLarge
from buckram.streams.shared.arrow_columns import Bytes, Headers, as_binary
from buckram.streams.write.append_queue import MAX_ENTRY_RECORDS
from buckram.streams.write.record_arguments import no_time
from buckram.types import MAX_TIME, MIN_TIME

ENTRY_BYTES = 256 * 1024
_ROW = 34
"""The most bytes that an entry needs for a record beyond its contents: offsets, bitmaps, timestamp."""


class EncodeRows(Protocol):
    def __call__(self, rows: Rows, start: int, stop: int, /) -> bytes:
        """Encode the rows start..stop-1 as the next entry of a ledger."""
        ...


class Rows:
    """One record batch that is cut into entries.

    Raises InvalidArgument for a column of a wrong type, for two columns of one name, and if `value` is missing.
    """

    def __init__(self, stream: str, batch: pa.RecordBatch, append_time: int) -> None:
        columns = _columns(stream, batch)
        self.count = batch.num_rows
        self._stream, self._append_time = stream, append_time
        self._values = Bytes(as_binary(columns["value"]))
        key, headers, times = columns.get("key"), columns.get("headers"), columns.get("timestamp")
        self._keys = Bytes(as_binary(key)) if key is not None and key.null_count < self.count else None
        some = headers is not None and headers.null_count < self.count
        self._headers = Headers(stream, headers) if some else None
        self._times = self._checked(times) if times is not None and times.null_count < self.count else None

    def _checked(self, times: pa.Array) -> pa.Array:
        """Return the times as int64 microseconds UTC; null becomes the append time. InvalidArgument out of range."""
        try:
            # Nanoseconds are cut to microseconds, as everywhere in streams; an overflow is an error.
            given = times.cast(pa.timestamp("us", times.type.tz), safe=times.type.unit != "ns").cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"stream {self._stream}: column timestamp: {error}") from None
        bounds = pc.min_max(given).as_py()
        for bound in (bounds["min"], bounds["max"]):
            if not MIN_TIME <= bound <= MAX_TIME:
                raise InvalidArgument(f"stream {self._stream}: column timestamp: {bound} {no_time(bound)}")
        return pc.fill_null(given, self._append_time) if given.null_count else given

    def _size(self, row: int) -> int:
        """Return the bytes of all records before this row; it increases with the row, so it can be bisected."""
        size = int(self._values.edges[row]) + _ROW * row
        if self._keys is not None:
            size += self._keys.edges[row]
        if self._headers is not None:
            size += self._headers.size(row)
        return size

    def entries(self, encode: EncodeRows, limit: int, most: int) -> Iterator[list[bytes]]:
        """Yield encoded entries in order, in groups of about `most` bytes. RecordTooLarge for a record over `limit`."""
        group: list[bytes] = []
        size = start = 0
        room = min(ENTRY_BYTES, limit + _ROW)
        while start < self.count:
            before = self._size(start)
            end = min(self.count, start + MAX_ENTRY_RECORDS)
            fitting = bisect_right(range(start + 1, end + 1), before + room, key=self._size)
            stop = start + max(1, fitting)
            if stop == start + 1 and (bytes_of := self._size(stop) - before - _ROW) > limit:
                raise RecordTooLarge(self._stream, bytes_of, limit)
            entry = encode(self, start, stop)
            group.append(entry)
            size += len(entry)
            start = stop
            if size >= most:
                yield group
                group, size = [], 0
        if group:
            yield group

    def encode(
        self, start: int, stop: int, *, first: int, lowest: int, highest: int, compression: int
    ) -> tuple[bytes, EntryHeader]:
        """Encode the rows from `start` to before `stop`; `first` is the number of records in the ledger before them.

        `lowest` and `highest` are the least and greatest timestamp in the ledger so far, in microseconds UTC.
        """
        body = BodyBuilder()
        mask = self._values.put(body, start, stop, VALUE_NULLS)
        if self._keys is not None:
            mask |= KEYS | self._keys.put(body, start, stop, KEY_NULLS)
        if self._headers is not None:
            mask |= HEADERS
            self._headers.put(body, start, stop)
        least = greatest = self._append_time
        if self._times is not None:
            mask |= TIMESTAMPS
            part = self._times.slice(start, stop - start)
            bounds = pc.min_max(part).as_py()
            least, greatest = bounds["min"], bounds["max"]
            at = (part.offset * 8, (part.offset + len(part)) * 8)
            body.put(memoryview(part.buffers()[1])[at[0] : at[1]])
        return encode_body(
            body,
            mask,
            stop - start,
            first=first,
            append_time=self._append_time,
            lowest=min(lowest, least),
            highest=max(highest, greatest),
            compression=compression,
        )


_NEEDS = {
    "value": "binary or string",
    "key": "binary or string",
    "timestamp": "timestamp",
    "headers": "a list of structs of key and value",
}


def _columns(stream: str, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns that a record can have, by name. InvalidArgument as for Rows."""
    found: dict[str, pa.Array] = {}
    for place, field in enumerate(batch.schema):
        name, kind = field.name, field.type
        if name not in _NEEDS:
            continue  # For instance `offset`, in a record batch that a reader returned.
        if name in found:
            raise InvalidArgument(f"stream {stream}: there are two columns {name}; leave one of them out")
        if not pa.types.is_null(kind) and not _FITS[name](kind):
            raise InvalidArgument(f"stream {stream}: column {name} is {kind}: needs {_NEEDS[name]}; cast it")
        found[name] = batch.column(place)
    if "value" not in found:
        there = ", ".join(batch.schema.names) or "none"
        raise InvalidArgument(f"stream {stream}: column value is missing: there are {there}")
    return found


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(kind):
        return _is_bytes(kind.value_type)
    tests = (
        types.is_binary,
        types.is_string,
        types.is_large_binary,
        types.is_large_string,
        types.is_fixed_size_binary,
        types.is_binary_view,
        types.is_string_view,
    )
    return any(test(kind) for test in tests)


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not pa.types.is_struct(kind.value_type):
        return False
    pair = [kind.value_type.field(place).type for place in range(kind.value_type.num_fields)]
    return len(pair) == 2 and all(map(_is_bytes, pair))


_FITS: dict[str, Callable[[pa.DataType], bool]] = {
    "value": _is_bytes,
    "key": _is_bytes,
    "timestamp": pa.types.is_timestamp,
    "headers": _is_headers,
}
