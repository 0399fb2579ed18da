"""Batch reads of streams. What is readable when the query is planned is what it reads.

Two reader classes: Spark refuses every read of a reader that has `pushFilters` while its setting for that is off, so
only option("pushdown", "true") gives the one that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from buckram.client.client import Client
from buckram.core.stream_errors import OffsetOutOfRange
from buckram.errors import InvalidArgument
from buckram.spark.clients import connection, plainly
from buckram.spark.columns import Shape
from buckram.spark.planning import Bounds, RecordsLost, StreamOptions, resolve
from buckram.spark.stream_plan import Look, Planner, StreamPartition, Wanted
from buckram.spark.stream_read import PartitionReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OPERATORS = {
    "EqualTo": "=", "EqualNullSafe": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<",
    "LessThanOrEqual": "<=", "In": "in",
}  # fmt: skip


class StreamBatchReader(DataSourceReader):
    """Pickled to the executors; holds values only."""

    def __init__(self, options: StreamOptions, shape: Shape) -> None:
        self.options, self.shape = options, shape
        self.bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        with plainly():
            link = connection(self.options.metadata)
            return link.run(lambda client: batch_partitions(client, self.options, self.bounds))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StreamPartition):
            return iter(())  # Spark calls once with an empty partition where there are none
        options = self.options
        return PartitionReader(options, self.shape).read(partition)


class FilteringStreamReader(StreamBatchReader):
    """Narrows the read by filters on stream, offset and append_time; Spark applies all of them again."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for wanted in filters:
            operator = _OPERATORS.get(type(wanted).__name__)
            if operator is not None:
                # Kept in self: it goes to `partitions` with the pickled reader.
                self.bounds = self.bounds.narrowed(*condition(wanted, operator))
        return filters


def condition(wanted: Any, operator: str) -> tuple[str, str, Any]:
    """Column, operator and value; one that says nothing where the value is of a kind that is not understood."""
    column, value = ".".join(wanted.attribute), wanted.value
    if isinstance(value, datetime):
        value = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
        value //= timedelta(microseconds=1)
    if column in ("offset", "append_time") and type(value) is not int:
        return "", operator, None
    return column, operator, value


async def batch_partitions(client: Client, options: StreamOptions, bounds: Bounds) -> list[InputPartition]:
    """What a batch read reads. NoSuchStream, OffsetOutOfRange, RecordsLost, InvalidArgument."""
    planner = Planner(client)
    names = await planner.names(options)
    unknown = [stream for stream in options.starting.offsets if stream not in names]
    if unknown:
        raise InvalidArgument(f'option "startingOffsets" names {unknown[0]}, which is not among the streams to read')
    if bounds.streams is not None:
        names = [name for name in names if name in bounds.streams]
    # A stream that a pattern found may go before it is looked at; one that was named must be there.
    looks = await planner.looks(names, may_miss=options.pattern is not None)
    wanted = []
    for name, look in looks.items():
        first = await first_offset(planner, options, name, look)
        stop = await _stop_offset(planner, options, name, look)
        if options.starting.offsets.get(name, -1) >= 0 and name in options.ending.offsets and first > stop:
            raise InvalidArgument(f"stream {name}: startingOffsets says {first}, endingOffsets {stop}, which is before")
        first, stop = max(first, bounds.first), stop if bounds.stop is None else min(stop, bounds.stop)
        if bounds.first_time is not None:
            first = max(first, await planner.offset_at(look, bounds.first_time))
        if bounds.stop_time is not None:
            stop = min(stop, await planner.offset_at(look, bounds.stop_time))
        if first < stop:
            wanted.append(Wanted(look, first, stop))
    return await planner.partitions(wanted, options)


async def first_offset(planner: Planner, options: StreamOptions, name: str, look: Look) -> int:
    """Where a read of the stream begins."""
    if options.starting_time is not None:
        return await planner.offset_at(look, options.starting_time)
    offset = resolve(options.starting, name, look.earliest, look.end)
    if offset > look.end:
        raise OffsetOutOfRange(name, offset, look.earliest, look.end)
    if offset < look.earliest:
        if options.fail_on_loss:
            raise RecordsLost(name, offset, look.earliest, "was truncated")
        return look.earliest
    return offset


async def _stop_offset(planner: Planner, options: StreamOptions, name: str, look: Look) -> int:
    if options.ending_time is not None:
        return await planner.offset_at(look, options.ending_time)
    offset = resolve(options.ending, name, look.earliest, look.end)
    if offset > look.end:
        raise OffsetOutOfRange(name, offset, look.earliest, look.end)
    return offset
