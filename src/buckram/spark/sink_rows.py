"""Converting rows to record batches, for PySpark 4.0, which has no Arrow writer for streaming queries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

ROWS = 4096


def record_batches(rows: Iterator[Row], schema: StructType) -> Iterator[pa.RecordBatch]:
    """Yield the rows in groups of ROWS, with the columns that BulkLedger.arrow_entries accepts."""
    import pyarrow as pa

    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    while group := list(islice(rows, ROWS)):
        names: list[str] = []
        arrays: list[Any] = []
        for place, field in enumerate(schema.fields):
            column: list[Any] = [row[place] for row in group]
            if field.name == "timestamp":
                # Spark's own conversion applies, since rows have times without a zone, in the zone of the process.
                arrays.append(pa.array(map(field.dataType.toInternal, column), pa.timestamp("us", "UTC")))
            elif field.name == "headers":
                pairs = [None if row is None else [pair and tuple(pair) for pair in row] for row in column]
                named = [None if row is None else [{"key": k, "value": v} for k, v in row] for row in pairs]
                arrays.append(pa.array(named, pa.list_(header)))
            else:
                binary = field.dataType.simpleString() == "binary"
                arrays.append(pa.array(column, pa.binary() if binary else pa.string()))
            names.append(field.name)
        yield pa.RecordBatch.from_arrays(arrays, names=names)


__all__ = ["record_batches"]
