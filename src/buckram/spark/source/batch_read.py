"""Batch reads of streams: a query reads what is readable when it is planned.

There is no `pushFilters`, because PySpark reuses the plan of a frame's first query, with its filters, for later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from buckram.cluster import Client
from buckram.errors import InvalidArgument, OffsetOutOfRange, RecordsLost
from buckram.spark.shared.clients import connection, without_traceback
from buckram.spark.shared.columns import Shape
from buckram.spark.shared.stream_partition import StreamPartition
from buckram.spark.source.partition_reader import PartitionReader
from buckram.spark.source.planning import StreamOptions, resolve, time_of
from buckram.spark.source.stream_planner import Planner, StreamState, Wanted

if TYPE_CHECKING:
    import pyarrow as pa


class StreamBatchReader(DataSourceReader):
    """The reader of a batch query. It is pickled to the executors, so it holds only values."""

    def __init__(self, options: StreamOptions, shape: Shape) -> None:
        self.options, self.shape = options, shape

    def partitions(self) -> Sequence[InputPartition]:
        with without_traceback():
            link = connection(self.options.metadata)
            return link.run(lambda client: batch_partitions(client, self.options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StreamPartition):
            return iter(())  # Without partitions Spark calls this once, with an empty one.
        options = self.options
        return PartitionReader(options, self.shape).read(partition)


async def batch_partitions(client: Client, options: StreamOptions) -> list[InputPartition]:
    """Plan a batch read. Raises NoSuchStream, OffsetOutOfRange, RecordsLost, InvalidArgument."""
    planner = Planner(client)
    names = await planner.names(options)
    named = {"startingOffsets": options.starting.offsets, "startingTimestamp": options.starting_times.of_one}
    for option, of_one in named.items():
        unknown = [stream for stream in of_one if stream not in names]
        if unknown:
            raise InvalidArgument(f'option "{option}" names {unknown[0]}, which is not among the streams to read')
    # A stream found by a pattern may be deleted before it is read; one that was named must exist.
    states = await planner.read_states(names, may_miss=options.pattern is not None)
    wanted = []
    for name, state in states.items():
        first = await first_offset(planner, options, name, state)
        stop = await _stop_offset(planner, options, name, state)
        if options.starting.offsets.get(name, -1) >= 0 and name in options.ending.offsets and first > stop:
            raise InvalidArgument(f"stream {name}: startingOffsets says {first}, endingOffsets {stop}, which is before")
        if first < stop:
            wanted.append(Wanted(state, first, stop))
    return await planner.partitions(wanted, options)


async def first_offset(planner: Planner, options: StreamOptions, name: str, state: StreamState) -> int:
    """Return the offset at which a read of the stream begins. Raises OffsetOutOfRange or RecordsLost."""
    if (time := time_of(options.starting_times, name)) is not None:
        return await planner.offset_at(state, time)
    offset = resolve(options.starting, name, state.earliest, state.end)
    if offset > state.end:
        raise OffsetOutOfRange(name, offset, state.earliest, state.end)
    if offset < state.earliest:
        if options.fail_on_loss:
            raise RecordsLost(name, offset, state.earliest, "was truncated")
        return state.earliest
    return offset


async def _stop_offset(planner: Planner, options: StreamOptions, name: str, state: StreamState) -> int:
    if (time := time_of(options.ending_times, name)) is not None:
        return await planner.offset_at(state, time)
    offset = resolve(options.ending, name, state.earliest, state.end)
    if offset > state.end:
        raise OffsetOutOfRange(name, offset, state.earliest, state.end)
    return offset
