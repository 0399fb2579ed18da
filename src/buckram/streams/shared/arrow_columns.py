"""Arrow's columns of bytes and headers as buffers of a stream's entry: cut and joined, no object is made per record.

It needs pyarrow, so import it only where there is a column. Not here: which columns an entry has
(`write/arrow_write.py`, `shared/history_parts.py`), the other way round (`shared/arrow_batches.py`).
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from buckram.core.streams.records.batch import BinaryColumn
from buckram.core.streams.records.record_format import BodyBuilder
from buckram.errors import InvalidArgument

PAIR_BYTES = 8
"""Bytes that a header counts beyond its name and value, as in headers_size."""


class Bytes:
    """A binary column in Arrow's layout: int32 offsets (one more than rows), bytes, and a validity bitmap."""

    __slots__ = ("_array", "_data", "_offsets", "edges", "nulls", "rows")

    def __init__(self, array: pa.Array) -> None:
        self.rows, self.nulls = len(array), bool(array.null_count)
        self._array = array
        _, offsets, data = array.buffers()
        start, stop = array.offset, array.offset + self.rows + 1
        self.edges = memoryview(offsets).cast("i")[start:stop] if self.rows else memoryview(bytes(4)).cast("i")
        self._offsets = (
            pa.Array.from_buffers(pa.int32(), len(self.edges), [None, offsets], offset=start) if self.rows else None
        )
        self._data = memoryview(data) if data is not None else memoryview(b"")

    def put(self, body: BodyBuilder, start: int, stop: int, null_bit: int = 0) -> int:
        """Add the rows from `start` to before `stop` to an entry; returns `null_bit` if some are null, else 0."""
        edges, mask = self.edges, 0
        if self.nulls and (bits := _bitmap(self._array.slice(start, stop - start))) is not None:
            body.put(bits)
            mask = null_bit
        base = edges[start]
        if base and self._offsets is not None:
            moved = pc.subtract(self._offsets.slice(start, stop - start + 1), pa.scalar(base, pa.int32()))
            body.put(memoryview(moved.buffers()[1])[: (stop - start + 1) * 4])
        else:
            body.put(edges[start : stop + 1].cast("B"))
        body.put(self._data[base : edges[stop]])
        return mask

    def part(self, start: int, stop: int) -> BinaryColumn:
        """Return the rows from `start` to before `stop`; their bytes are shared, and their offsets begin anywhere."""
        bits = _bitmap(self._array.slice(start, stop - start)) if self.nulls else None
        return BinaryColumn(self.edges[start : stop + 1], self._data, None if bits is None else memoryview(bits))


class Headers:
    """The column of headers: a list of (key, value) for each row."""

    __slots__ = ("edges", "names", "values")

    def __init__(self, stream: str, array: pa.Array) -> None:
        pairs = array.flatten()  # Unlike `array.values`, this leaves out elements behind null lists.
        lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
        ends = pc.cumulative_sum(lengths)
        begin = pa.array([0], pa.int32())
        self.edges = memoryview(pa.concat_arrays([begin, ends]).buffers()[1]).cast("i")
        names, values = pairs.flatten()
        for what, column in (("key", names), ("value", values)):
            if column.null_count:
                raise InvalidArgument(f"stream {stream}: column headers: a header without a {what}; filter those out")
        self.names, self.values = Bytes(as_binary(names)), Bytes(as_binary(values))

    def size(self, row: int) -> int:
        """Return the bytes of all headers before this row."""
        pair = self.edges[row]
        return self.names.edges[pair] + self.values.edges[pair] + PAIR_BYTES * pair

    def put(self, body: BodyBuilder, start: int, stop: int) -> None:
        """Add the headers of the rows from `start` to before `stop` to an entry."""
        first = self.edges[start]
        body.integers("i", [edge - first for edge in self.edges[start : stop + 1]])
        last = self.edges[stop]
        self.names.put(body, first, last)
        self.values.put(body, first, last)


def as_binary(array: pa.Array) -> pa.Array:
    """Return the column as Arrow's `binary` type (int32 offsets); a column that has it already is not copied."""
    if pa.types.is_binary(array.type):
        return array
    if pa.types.is_large_string(array.type):
        array = array.cast(pa.large_binary())
    return array.cast(pa.binary())


def _bitmap(part: pa.Array) -> bytes | None:
    """Return the validity bits of these rows, the first row's in bit 0; None if there is no null."""
    if not part.null_count:
        return None
    start, count = part.offset, len(part)
    held = bytes(memoryview(part.buffers()[0])[start // 8 : (start + count + 7) // 8])
    bits: int = int.from_bytes(held, "little") >> (start % 8) & ((1 << count) - 1)
    return bits.to_bytes((count + 7) // 8, "little")
