"""Batches as Arrow record batches, without copying values, keys or headers. pyarrow is imported at its first use.

Not here: encoding Arrow record batches as entries (`write/arrow_write.py`), Spark's columns
(`spark/shared/columns.py`).
"""

from __future__ import annotations

from array import array
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from buckram.core.streams.records.batch import Batch, BinaryColumn
from buckram.core.streams.records.record_format import NO_TXID
from buckram.errors import ConfigError
from buckram.extras import needs

if TYPE_CHECKING:
    import pyarrow as pa

_NUMBERS = 65_536
"""The size of a block of offsets."""


@cache
def schema() -> pa.Schema:
    """Return the schema: offset, value, key, headers, timestamp, append_time, txid. Times are microseconds UTC."""
    arrow = _arrow()
    time = arrow.timestamp("us", "UTC")
    header = arrow.struct(
        [
            arrow.field("key", arrow.string(), nullable=False),
            arrow.field("value", arrow.binary(), nullable=False),
        ]
    )
    return arrow.schema(
        [
            arrow.field("offset", arrow.int64(), nullable=False),
            arrow.field("value", arrow.binary()),
            arrow.field("key", arrow.binary()),
            arrow.field("headers", arrow.list_(header)),
            arrow.field("timestamp", time, nullable=False),
            arrow.field("append_time", time, nullable=False),
            arrow.field("txid", arrow.int64()),
        ]
    )


def to_arrow(batch: Batch) -> pa.RecordBatch:
    """Return the batch's records; buffers are shared with the entry wherever its layout is Arrow's."""
    arrow, shape = _arrow(), schema()
    start, stop = batch.window
    count = stop - start
    if batch.rows is not None and (found := batch.rows(batch.append_time, start, count)) is not None:
        return found
    fields = {field.name: field.type for field in shape}
    appended = arrow.py_buffer(array("q", [batch.append_time]) * count)
    columns = [
        offset_array(arrow, batch.first_offset, count),
        binary_array(arrow, batch.value_column, start, count),
        arrow.nulls(count, fields["key"])
        if batch.key_column is None
        else binary_array(arrow, batch.key_column, start, count),
        header_array(arrow, batch, fields["headers"], start, count),
        time_array(arrow, batch, fields["timestamp"], start, stop),
        _fixed(arrow, fields["append_time"], count, appended),
        txid_array(arrow, batch, start, stop),
    ]
    return arrow.RecordBatch.from_arrays(columns, schema=shape)


def offset_array(arrow: Any, first: int, count: int) -> Any:
    """Return `count` numbers from `first` on."""
    block, skipped = divmod(first, _NUMBERS)
    if skipped + count > 2 * _NUMBERS:  # an entry with more records than nearly every one
        return _consecutive(arrow, first, count)
    return _numbers(block).slice(skipped, count)


@lru_cache(4)
def _numbers(block: int) -> Any:
    """Return the numbers of a block and the one after it, of which batches are slices: making them takes longer."""
    return _consecutive(_arrow(), block * _NUMBERS, 2 * _NUMBERS)


def _consecutive(arrow: Any, first: int, count: int) -> Any:
    """Return `count` numbers from `first` on; no object is made for any of them."""
    return arrow.compute.cumulative_sum(arrow.repeat(arrow.scalar(1, arrow.int64()), count), start=first - 1)


def _fixed(arrow: Any, kind: Any, count: int, data: Any) -> Any:
    return arrow.Array.from_buffers(kind, count, [None, data])


def binary_array(arrow: Any, column: BinaryColumn, start: int, count: int, kind: Any = None) -> Any:
    """Return `count` rows of a bytes column from `start` on, as `kind` (default: binary), sharing its buffers."""
    validity = None if column.validity is None else arrow.py_buffer(column.validity)
    buffers = [validity, arrow.py_buffer(column.offsets), arrow.py_buffer(column.data)]
    return arrow.Array.from_buffers(kind or arrow.binary(), count, buffers, offset=start)


def header_array(arrow: Any, batch: Batch, kind: Any, start: int, count: int) -> Any:
    """Return the headers of `count` rows from `start` on as `kind`, a list of structs of a string and bytes.

    The buffers are the entry's own. Raises ArrowInvalid for a name that is not UTF-8.
    """
    column = batch.header_column
    if column is None:
        return arrow.nulls(count, kind)
    pairs = column.lists[len(column.lists) - 1]
    names = binary_array(arrow, column.names, 0, pairs, arrow.string())
    names.validate(full=True)  # Arrow requires UTF-8, the only property of the layout that decoding does not check.
    structs = arrow.StructArray.from_arrays(
        [names, binary_array(arrow, column.values, 0, pairs)], fields=list(kind.value_type)
    )
    return arrow.Array.from_buffers(
        kind, count, [None, arrow.py_buffer(column.lists)], offset=start, children=[structs]
    )


def time_array(arrow: Any, batch: Batch, kind: Any, start: int, stop: int) -> Any:
    """Return the event times of the rows from `start` to before `stop` as `kind`."""
    if batch.timestamp_column is not None:
        times = arrow.py_buffer(batch.timestamp_column[start:stop])
    else:
        times = arrow.py_buffer(array("q", [batch.header.append_time]) * (stop - start))
    return _fixed(arrow, kind, stop - start, times)


def txid_array(arrow: Any, batch: Batch, start: int, stop: int) -> Any:
    """Return the txids of the rows from `start` to before `stop`; null for none."""
    column = batch.txid_column
    if column is None:
        return arrow.nulls(stop - start, arrow.int64())
    part = column[start:stop]
    if min(part) == NO_TXID:
        return arrow.array([None if txid == NO_TXID else txid for txid in part], arrow.int64())
    return _fixed(arrow, arrow.int64(), stop - start, arrow.py_buffer(part))


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError:
        raise ConfigError(needs("a table of Arrow", "arrow")) from None
    return pyarrow
