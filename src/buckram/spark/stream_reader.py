"""Batch reads of streams: columns `stream string, offset long, key binary, value binary, timestamp, append_time`.

    spark.read.format("buckram").option("metadata", uri).option("streams", "shop/orders,shop/returns").load()

What is readable when the query is planned is what it reads, cut along segments into partitions of about
`maxPartitionBytes`. Following streams and writing them are not here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from buckram.core.stream_names import stream_name
from buckram.errors import BuckramError
from buckram.spark.clients import shared_client
from buckram.spark.planning import OffsetRange, Options, StreamExtent, offset_ranges

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.core.stream_batch import Batch

SCHEMA = "stream string, offset long, key binary, value binary, timestamp timestamp, append_time timestamp"
COLUMNS = {
    "stream": "string", "offset": "bigint", "key": "binary", "value": "binary", "timestamp": "timestamp",
    "append_time": "timestamp",
}  # fmt: skip


@dataclass
class StreamPartition(InputPartition):
    """Offsets of one stream."""

    work: OffsetRange

    def __init__(self, work: OffsetRange) -> None:
        super().__init__(work)
        self.work = work


class StreamBatchReader(DataSourceReader):
    """Pickled to the executors; holds values only."""

    def __init__(self, options: Options, columns: tuple[str, ...], nullable: tuple[bool, ...]) -> None:
        self.options, self.columns, self.nullable = options, columns, nullable

    def partitions(self) -> list[InputPartition]:
        try:
            extents = [extent for name in self.options.streams for extent in self._extents(name)]
            return [StreamPartition(work) for work in offset_ranges(extents, self.options.partition_bytes)]
        except BuckramError as error:
            # Without the frames it came through: Spark prints them all, and they help nobody.
            raise error.with_traceback(None) from None

    def _extents(self, name: str) -> Iterator[StreamExtent]:
        full = stream_name(name)
        ns = shared_client(self.options.metadata).namespace(full.namespace)
        info = ns.info(full.stream)
        for segment in ns.segments(full.stream):
            first = max(segment.base, info.earliest)
            stop = min(segment.end if segment.sealed else info.end, info.end)
            if first < stop:
                # An open segment's size is not in the list: it becomes one partition.
                yield StreamExtent(str(full), first, stop, segment.summary.bytes if segment.summary is not None else 0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StreamPartition):
            return  # Spark calls once with an empty partition where there are none
        work = partition.work
        full = stream_name(work.stream)
        ns = shared_client(self.options.metadata).namespace(full.namespace)
        with ns.read(full.stream, start=work.first, stop=work.stop) as reader:
            for batch in reader.batches():
                yield self._arrow(work.stream, batch)

    def _arrow(self, stream: str, batch: Batch) -> pa.RecordBatch:
        import pyarrow as pa

        from buckram.streams.arrow import to_arrow

        records = to_arrow(batch)
        arrays: list[Any] = [
            pa.array([stream], pa.string()).take(pa.array([0] * len(batch), pa.int32()))
            if name == "stream"
            else records.column(name)
            for name in self.columns
        ]
        # Spark compares nullability, too, and the user's schema may say `not null`.
        fields = [
            pa.field(name, column.type, nullable)
            for name, column, nullable in zip(self.columns, arrays, self.nullable, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
