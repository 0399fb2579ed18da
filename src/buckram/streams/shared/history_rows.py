"""Batches as rows of history: one batch, or all of a part as one table, whose values are not copied.

It needs pyarrow, so import it only where there is history. Not here: the rows of a batch as readers see them
(`shared/arrow_batches.py`), the file of a part (`shared/history_parts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from buckram.core.streams.records.batch import Batch
from buckram.core.streams.records.record_format import HEADERS, KEYS, PRODUCERS, TIMESTAMPS, TXIDS
from buckram.streams.shared.arrow_batches import (
    binary_array,
    header_array,
    offset_array,
    schema,
    time_array,
    to_arrow,
    txid_array,
)

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
