"""The columns of the data source: names and types, the schema that a query asks for, and Arrow record batches of them.

Only the columns of the schema are built. The columns of a single entry share its buffers; small entries are joined,
with one copy per column, because each record batch costs Spark time.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from buckram.errors import InvalidArgument
from buckram.streams.shared.arrow_batches import binary_array, header_array
from buckram.types import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from buckram.core.streams.records.batch import Batch

STREAM_COLUMNS: Mapping[str, str] = {
    "key": "binary",
    "value": "binary",
    "stream": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "append_time": "timestamp",
}
HEADERS: Mapping[str, str] = {"headers": "array<struct<key:string,value:binary>>"}
LEDGER_COLUMNS: Mapping[str, str] = {"ledger": "bigint", "entry": "bigint", "value": "binary"}
STRUCT = "struct<"
"""Prefix of the type of a typed column `value` in Spark's words."""
BATCH_ROWS = 8_192
BATCH_BYTES = 4 * 1024 * 1024
"""Rows and bytes at which a record batch ends; an entry is never split."""


def ddl(columns: Mapping[str, str]) -> str:
    """Return the columns as a schema in Spark's DDL."""
    # Plain `timestamp` would be a type without time zone where spark.sql.timestampType says so.
    return ", ".join(f"{name} {'timestamp_ltz' if kind == 'timestamp' else kind}" for name, kind in columns.items())


@dataclass(frozen=True)
class Shape:
    """The columns to build, in order, with their nullability; it can be pickled.

    `nested` is the nullability within the column `headers`: of an element, its key, and its value.
    """

    names: tuple[str, ...]
    nullable: tuple[bool, ...]
    nested: tuple[bool, bool, bool] = (True, True, True)
    typed: Any = None
    """The Arrow type of a column `value` of structs; None: it is bytes."""
    uri: str = ""
    schemas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The versions of the schema of each stream, for a typed column."""

    @classmethod
    def of(cls, schema: StructType, known: Mapping[str, str], *, typed: Any = None) -> Shape:
        """Return the shape of the schema that a query asks for; InvalidArgument for a column that is not `known`.

        `typed`: the Arrow type of `value` if that is a struct.
        """
        nested = (True, True, True)
        for one in schema.fields:
            kind = one.dataType.simpleString()
            if one.name == "value" and typed is not None:
                continue
            if known.get(one.name) != kind:
                there = ", ".join(f"{name} {kind}" for name, kind in known.items())
                hint = '; option("includeHeaders", "true") adds headers' if one.name == "headers" else ""
                raise InvalidArgument(f'column "{one.name}" {kind}: there are only {there}{hint}')
            if one.name == "headers":
                array_type: Any = one.dataType
                nested = (array_type.containsNull, *(part.nullable for part in array_type.elementType.fields))
        return cls(tuple(f.name for f in schema.fields), tuple(f.nullable for f in schema.fields), nested, typed)

    @cached_property
    def arrow(self) -> pa.Schema:
        """Return the Arrow schema, with exactly the order, types and nullability that Spark expects."""
        import pyarrow as pa

        element, key, value = self.nested
        header = pa.struct([pa.field("key", pa.string(), key), pa.field("value", pa.binary(), value)])
        types = {
            "key": pa.binary(),
            "value": pa.binary() if self.typed is None else self.typed,
            "stream": pa.string(),
            "offset": pa.int64(),
            "timestamp": pa.timestamp("us", "UTC"),
            "append_time": pa.timestamp("us", "UTC"),
            "headers": pa.list_(pa.field("element", header, element)),
            "ledger": pa.int64(),
            "entry": pa.int64(),
        }
        return pa.schema(
            [pa.field(name, types[name], nullable) for name, nullable in zip(self.names, self.nullable, strict=True)]
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "arrow"}

    def record_batch(self, arrays: Sequence[Any]) -> pa.RecordBatch:
        """Return a record batch of these columns; InvalidArgument if a `not null` column has a null."""
        import pyarrow as pa

        for name, nullable, column in zip(self.names, self.nullable, arrays, strict=True):
            if not nullable and column.null_count:
                raise InvalidArgument(f'column "{name}" was asked for as not null and has a null; ask without not null')
        return pa.RecordBatch.from_arrays(list(arrays), schema=self.arrow)


class StreamRows:
    """Converts the batches of one stream to record batches."""

    def __init__(self, shape: Shape, stream: str) -> None:
        self._shape, self._stream = shape, stream
        self._names: Any = None
        self._typed: Callable[[Batch], pa.Array] | None = None
        if shape.typed is not None:
            from buckram.spark.shared.typed_values import ValueReader

            self._typed = ValueReader(shape.uri, stream, shape.schemas.get(stream, ()), shape.typed).columns()

    def make(self, batches: Sequence[Batch]) -> pa.RecordBatch:
        """Return all records of `batches`, of which there is at least one, with consecutive offsets, as one batch."""
        return self._shape.record_batch([self._column(name, batches) for name in self._shape.names])

    def _column(self, name: str, batches: Sequence[Batch]) -> Any:
        import pyarrow as pa

        if name == "offset":
            return longs(batches[0].first_offset, batches[-1].next_offset)
        if name == "stream":
            return self._stream_names(sum(map(len, batches)))
        if name == "value" and self._typed is not None:
            parts = [self._typed(batch) for batch in batches]
        else:
            build = _BUILDERS[name]
            kind = self._shape.arrow.field(name).type
            parts = [build(pa, batch, kind) for batch in batches]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _stream_names(self, count: int) -> Any:
        import pyarrow as pa

        if self._names is None or len(self._names) < count:
            self._names = pa.array([self._stream] * max(count, BATCH_ROWS), pa.string())
        return self._names[:count]


_COUNTED: list[Any] = []
"""The Arrow array 0, 1, 2, ... that `longs` keeps."""


def longs(first: int, stop: int) -> Any:
    """Return an Arrow array of the numbers from `first` to stop - 1.

    Adding to an array that was made before is much faster than converting a range.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    count = stop - first
    if not _COUNTED or len(_COUNTED[0]) < count:
        numbers = array("q", range(max(count, BATCH_ROWS)))
        _COUNTED[:] = [pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])]
    return pc.add(_COUNTED[0][:count], pa.scalar(first, pa.int64()))


def _values(pa: Any, batch: Batch, kind: Any) -> Any:
    start, stop = batch.window
    return binary_array(pa, batch.value_column, start, stop - start)


def _keys(pa: Any, batch: Batch, kind: Any) -> Any:
    start, stop = batch.window
    if batch.key_column is None:
        return pa.nulls(stop - start, kind)
    return binary_array(pa, batch.key_column, start, stop - start)


def _timestamps(pa: Any, batch: Batch, kind: Any) -> Any:
    start, stop = batch.window
    if batch.timestamp_column is None:
        return _same(pa, batch.header.append_time, stop - start, kind)
    return pa.Array.from_buffers(kind, stop - start, [None, pa.py_buffer(batch.timestamp_column[start:stop])])


def _append_times(pa: Any, batch: Batch, kind: Any) -> Any:
    return _same(pa, batch.append_time, len(batch), kind)


def _headers(pa: Any, batch: Batch, kind: Any) -> Any:
    start, stop = batch.window
    if batch.header_column is None:
        # Records without headers get an empty list, as in entries where other records have headers.
        blank, none = pa.py_buffer(bytes(4 * (stop - start + 1))), pa.array([], kind.value_type)
        return pa.Array.from_buffers(kind, stop - start, [None, blank], children=[none])
    return header_array(pa, batch, kind, start, stop - start)


def _same(pa: Any, value: int, count: int, kind: Any) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(array("q", [value]) * count)])


_BUILDERS = {
    "key": _keys,
    "value": _values,
    "timestamp": _timestamps,
    "append_time": _append_times,
    "headers": _headers,
}


def ledger_batch(shape: Shape, ledger: LedgerId, first: int, payloads: Sequence[bytes]) -> pa.RecordBatch:
    """Return consecutive entries of a ledger, the first of which is `first`, as one record batch."""
    import pyarrow as pa

    count = len(payloads)
    build = {
        "ledger": lambda: _same(pa, ledger, count, pa.int64()),
        "entry": lambda: longs(first, first + count),
        "value": lambda: pa.array(payloads, pa.binary()),
    }
    return shape.record_batch([build[name]() for name in shape.names])
