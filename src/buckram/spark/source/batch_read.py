"""Batch reads of streams and of ledgers: a query reads what is readable when it is planned.

    spark.read.format("buckram").option("metadata", uri).option("ledgers", "3,5,8-12").load()

has the columns `ledger long, entry long, value binary`; an open ledger is read up to the LAC at planning time, and is
never fenced. There is no `pushFilters`, because PySpark reuses the plan of a frame's first query, with its filters, for
later ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from buckram.client.read.open import check_password
from buckram.cluster import Client
from buckram.errors import InvalidArgument, OffsetOutOfRange, RecordsLost
from buckram.spark.shared.clients import connection, prepare_process, shared_client, without_traceback
from buckram.spark.shared.columns import BATCH_BYTES, BATCH_ROWS, Shape, ledger_batch
from buckram.spark.shared.stream_partition import StreamPartition
from buckram.spark.source.partition_reader import PartitionReader
from buckram.spark.source.planning import (
    LedgerExtent,
    LedgerOptions,
    LedgerSlice,
    StreamOptions,
    ledger_slices,
    resolve,
    time_of,
)
from buckram.spark.source.stream_planner import Planner, StreamState, Wanted
from buckram.types import LedgerId, LedgerMetadata

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram import sync


# -- streams ----------------------------------------------------------------------------------------------


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


# -- ledgers ----------------------------------------------------------------------------------------------


@dataclass
class LedgerPartition(InputPartition):
    """Entries of one ledger. `entry_bytes` is the average size of an entry, for the size of record batches."""

    work: LedgerSlice
    entry_bytes: int

    def __init__(self, work: LedgerSlice, entry_bytes: int) -> None:
        super().__init__(None)
        self.work, self.entry_bytes = work, entry_bytes


class LedgerReader(DataSourceReader):
    """The reader of a batch query over ledgers. It is pickled to the executors, so it holds only values."""

    def __init__(self, options: LedgerOptions, shape: Shape) -> None:
        self.options, self.shape = options, shape

    def partitions(self) -> Sequence[InputPartition]:
        with without_traceback():
            client = shared_client(self.options.metadata)
            extents = [self._extent(client, ledger) for ledger in self._ledgers(client)]
            bytes_of = {e.ledger: e.length // (e.last_entry + 1) for e in extents if e.last_entry >= 0}
            return [LedgerPartition(piece, bytes_of[piece.ledger]) for piece in ledger_slices(extents, self.options)]

    def _ledgers(self, client: sync.Client) -> list[int]:
        ranges = self.options.ledgers
        if ranges is None:
            return list(client.list())
        single = [r.first for r in ranges if r.first == r.last]
        wide = [r for r in ranges if r.first != r.last]
        known = list(client.list()) if wide else []
        return sorted({*single, *(k for k in known if any(r.first <= k <= r.last for r in wide))})

    def _extent(self, client: sync.Client, ledger: LedgerId) -> LedgerExtent:
        metadata: LedgerMetadata = client.metadata(ledger)
        # Checked here, so that a wrong password is one error of the driver instead of a failed task on each executor.
        check_password(ledger, metadata, self.options.password.encode())
        if metadata.last_entry is not None:
            return LedgerExtent(ledger, metadata.last_entry, metadata.length or 0)
        with client.open(ledger, password=self.options.password) as reader:
            last = reader.read_last_confirmed()
            length = reader.get(last).length if last >= 0 else 0
        return LedgerExtent(ledger, last, length)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LedgerPartition):
            return  # Without partitions Spark calls this once, with an empty one.
        prepare_process()
        work = partition.work
        step = max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, partition.entry_bytes)))
        with without_traceback():
            client = shared_client(self.options.metadata)
            with client.open(work.ledger, password=self.options.password) as reader:
                for first in range(work.first, work.last + 1, step):
                    last = min(work.last, first + step - 1)
                    yield ledger_batch(self.shape, work.ledger, first, reader.read_payloads(first, last))
