"""Batch reads of tables about the cluster itself: `spark.read.format("buckram").option("table", "segments")`.

The driver gathers the rows once for each query; of ledgers, of which there may be millions, it lists the ids, and the
executors read the records. Not here: what each table has (`tables.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from buckram.spark.shared.clients import connection, prepare_process, without_traceback
from buckram.spark.shared.columns import Shape
from buckram.spark.source.stream_planner import Planner
from buckram.spark.tables import TABLES, ledger_rows
from buckram.types import LedgerId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from buckram.cluster import Client
    from buckram.spark.source.planning import StreamOptions
    from buckram.spark.tables import Row

LEDGERS_AT_ONCE = 5000
"""Maximum ledgers of one partition, and ids of one request for the next ids."""


class TablePartition(InputPartition):
    """Rows, or the ids of ledgers whose rows are to be made."""

    def __init__(self, rows: Sequence[Row] = (), ledgers: Sequence[LedgerId] = ()) -> None:
        super().__init__(None)
        self.rows, self.ledgers = rows, ledgers


class TableReader(DataSourceReader):
    """The reader of a query. `streams` says of which streams; None for a table that is not of streams.

    InvalidArgument for a column that there is not.
    """

    def __init__(self, metadata: str, table: str, streams: StreamOptions | None, schema: StructType) -> None:
        self.metadata, self.table, self.streams, self.schema = metadata, table, streams, schema
        Shape.of(schema, TABLES[table].columns)

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the cluster for the rows. Raises AccessRefused without the permission, NoSuchStream, MetadataError."""
        with without_traceback():
            return connection(self.metadata).run(self._partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns that the query asks for."""
        if not isinstance(partition, TablePartition):
            return  # Without partitions Spark calls this once, with an empty one.
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        rows = list(partition.rows)
        if partition.ledgers:
            prepare_process()
            with without_traceback():
                rows = connection(self.metadata).run(lambda client: ledger_rows(client, partition.ledgers))
        yield pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(self.schema, timezone="UTC"))

    async def _partitions(self, client: Client) -> list[InputPartition]:
        rows = TABLES[self.table].rows
        if rows is None:
            return await _ledger_partitions(client)
        options = self.streams
        names = [] if options is None else await Planner(client).names(options)
        strict = options is not None and options.pattern is None
        return [TablePartition(await rows(client, names, strict))]


async def _ledger_partitions(client: Client) -> list[InputPartition]:
    found: list[InputPartition] = []
    ids: list[LedgerId] = []
    async for ledger in client.list():
        ids.append(ledger)
        if len(ids) == LEDGERS_AT_ONCE:
            found.append(TablePartition(ledgers=ids))
            ids = []
    return [*found, TablePartition(ledgers=ids)] if ids else found


__all__ = ["TablePartition", "TableReader"]
