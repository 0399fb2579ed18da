"""The data source `buckram`: batch reads of ledgers as Arrow, columns `ledger long, entry long, value binary`.

    spark.read.format("buckram").option("metadata", uri).option("ledgers", "3,5,8-12").load()

Partitions are planned once, in the driver's planner: what is readable then is what the query reads. An open ledger is
read up to its last confirmed entry and never fenced. A narrower schema, `.schema("value binary")`, builds only those
columns. Options and cutting are in planning.py, streams in stream_reader.py; the writing side is not here.
"""

from __future__ import annotations

import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)

from buckram.client.open import check_password
from buckram.errors import BuckramError, InvalidArgument
from buckram.spark import stream_reader
from buckram.spark.clients import shared_client
from buckram.spark.planning import LedgerExtent, Options, Slice, slices
from buckram.types import LedgerMetadata

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from buckram import sync

SCHEMA = "ledger long, entry long, value binary"
COLUMNS = {"ledger": "bigint", "entry": "bigint", "value": "binary"}
BATCH_BYTES = 4 * 1024 * 1024
BATCH_ENTRIES = 8_192


@dataclass
class LedgerPartition(InputPartition):
    """Entries of one ledger, and about how many bytes an entry has (for the size of the batches)."""

    work: Slice
    entry_bytes: int

    def __init__(self, work: Slice, entry_bytes: int) -> None:
        super().__init__(work)
        self.work, self.entry_bytes = work, entry_bytes


class BuckramDataSource(DataSource):
    """Found by PySpark through the module pyspark_buckram, or registered with buckram.spark.register."""

    @classmethod
    def name(cls) -> str:
        return "buckram"

    def schema(self) -> str:
        return stream_reader.SCHEMA if Options.parse(self.options).streams else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        options = Options.parse(self.options)
        whole, known = (stream_reader.SCHEMA, stream_reader.COLUMNS) if options.streams else (SCHEMA, COLUMNS)
        names = tuple(field.name for field in schema.fields)
        for field in schema.fields:
            if known.get(field.name) != field.dataType.simpleString():
                raise InvalidArgument(f"column {field.name} {field.dataType.simpleString()}: there are only {whole}")
        nullable = tuple(field.nullable for field in schema.fields)
        if options.streams:
            return stream_reader.StreamBatchReader(options, names, nullable)
        return LedgerReader(options, names, nullable)


    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from buckram.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from buckram.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


class LedgerReader(DataSourceReader):
    """Pickled to the executors; holds values only."""

    def __init__(self, options: Options, columns: tuple[str, ...], nullable: tuple[bool, ...]) -> None:
        self.options, self.columns, self.nullable = options, columns, nullable

    def partitions(self) -> list[InputPartition]:
        try:
            return self._partitions()
        except BuckramError as error:
            # Without the frames it came through: Spark prints them all, and they help nobody.
            raise error.with_traceback(None) from None

    def _partitions(self) -> list[InputPartition]:
        client = shared_client(self.options.metadata)
        extents = [self._extent(client, ledger) for ledger in self._ledgers(client)]
        bytes_of = {e.ledger: e.length // (e.last_entry + 1) for e in extents if e.last_entry >= 0}
        return [LedgerPartition(piece, bytes_of[piece.ledger]) for piece in slices(extents, self.options)]

    def _ledgers(self, client: sync.Client) -> list[int]:
        ranges = self.options.ledgers
        if ranges is None:
            return list(client.list())
        single = [r.first for r in ranges if r.first == r.last]
        wide = [r for r in ranges if r.first != r.last]
        known = list(client.list()) if wide else []
        return sorted({*single, *(k for k in known if any(r.first <= k <= r.last for r in wide))})

    def _extent(self, client: sync.Client, ledger: int) -> LedgerExtent:
        metadata: LedgerMetadata = client.metadata(ledger)
        # Here, so that a wrong password is one error of the driver and not a failed task of each executor.
        check_password(ledger, metadata, self.options.password.encode())
        if metadata.last_entry is not None:
            return LedgerExtent(ledger, metadata.last_entry, metadata.length or 0)
        with client.open(ledger, password=self.options.password) as reader:
            last = reader.read_last_confirmed()
            length = reader.get(last).length if last >= 0 else 0
        return LedgerExtent(ledger, last, length)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, LedgerPartition):
            return  # Spark calls once with an empty partition where there are none
        work = partition.work
        step = max(1, min(BATCH_ENTRIES, BATCH_BYTES // max(1, partition.entry_bytes)))
        client = shared_client(self.options.metadata)
        with client.open(work.ledger, password=self.options.password) as reader:
            for first in range(work.first, work.last + 1, step):
                last = min(work.last, first + step - 1)
                yield self._batch(work.ledger, first, reader.read_payloads(first, last))

    def _batch(self, ledger: int, first: int, payloads: list[bytes]) -> pa.RecordBatch:
        import pyarrow as pa

        count = len(payloads)
        build: dict[str, Any] = {
            "ledger": lambda: _longs(array.array("q", [ledger]) * count),
            "entry": lambda: _longs(array.array("q", range(first, first + count))),
            "value": lambda: pa.array(payloads, pa.binary()),
        }
        arrays = [build[name]() for name in self.columns]
        # Spark compares nullability, too, and the user's schema may say `not null`.
        fields = [
            pa.field(name, column.type, nullable)
            for name, column, nullable in zip(self.columns, arrays, self.nullable, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _longs(values: array.array[int]) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
