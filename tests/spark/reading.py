"""Reading without Spark: helpers that call the data source's classes as Spark calls them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from buckram import sync
from buckram.spark.data_source import BuckramDataSource

Row = dict[str, Any]
HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
TYPES = {
    "key": BinaryType(), "value": BinaryType(), "stream": StringType(), "offset": LongType(),
    "timestamp": TimestampType(), "append_time": TimestampType(), "headers": HEADERS, "ledger": LongType(),
    "entry": LongType(),
}  # fmt: skip
STREAM_NAMES = ("key", "value", "stream", "offset", "timestamp", "append_time")


def schema(*names: str, nullable: bool = True) -> StructType:
    return StructType([StructField(name, TYPES[name], nullable) for name in names])


def batch_reader(uri: str, *names: str, **options: object) -> Any:
    """Return a reader as the planner makes it, from options by their names."""
    source = BuckramDataSource({"metadata": uri, **{key: str(value) for key, value in options.items()}})
    return source.reader(schema(*(names or STREAM_NAMES)))


def live_reader(uri: str, *names: str, **options: object) -> Any:
    source = BuckramDataSource({"metadata": uri, **{key: str(value) for key, value in options.items()}})
    return source.streamReader(schema(*(names or STREAM_NAMES)))


def record_batches(reader: Any, partitions: Iterable[Any]) -> list[pa.RecordBatch]:
    """Return the rows that executors read; reader and partitions are pickled, as on their way to executors."""
    other = pickle.loads(pickle.dumps(reader))
    return [batch for part in partitions for batch in other.read(pickle.loads(pickle.dumps(part)))]


def rows(reader: Any, partitions: Iterable[Any] | None = None) -> list[Row]:
    found = record_batches(reader, reader.partitions() if partitions is None else partitions)
    return [row for batch in found for row in batch.to_pylist()]


def offsets(uri: str, **options: object) -> list[int]:
    return [row["offset"] for row in rows(batch_reader(uri, "offset", **options))]


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % n for n in range(start, start + count)]


def write(uri: str, stream: str, *segments: Sequence[bytes], **columns: Any) -> None:
    """Write each of `segments` as a sealed segment."""
    with sync.connect(uri) as client, client.namespace().writer(stream) as writer:
        for at, values in enumerate(segments):
            if at:
                writer.roll()
            # The records are written in several entries.
            step = max(1, len(values) // 4)
            for first in range(0, len(values), step):
                part = slice(first, first + step)
                writer.append_many(values[part], **{name: column[part] for name, column in columns.items()})


def readable(uri: str, stream: str, end: int) -> None:
    """Wait until readers of an open segment see the record before `end`: the LAC follows the acknowledgement."""
    with sync.connect(uri) as client:
        reader = client.namespace().read(stream, start=end - 1, follow=True)
        next(iter(reader))
        reader.close()


def raises_plainly(error: BaseException, deepest: int = 2) -> bool:
    """Check that an error has few frames of Buckram, because Spark prints every frame."""
    depth, trace = 0, error.__traceback__
    while trace is not None:
        depth, trace = depth + ("/buckram/" in trace.tb_frame.f_code.co_filename), trace.tb_next
    return depth <= deepest and error.__cause__ is None


Make = Callable[[], Any]
