"""Batch reads of what namespaces use: `spark.read.format("buckram").option("table", "usage")`, for administrators.

A namespace has a row of its own, in which `application` is null, and one for each application that made closed ledgers
in it, with their bytes and nothing else. The rows are read by the driver, once for each query, a few seconds old at
most. Not here: what is counted (`bookie/accounting.py`), the same for commands (`views/usage.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from buckram.metadata.tenants import TenantStore
from buckram.spark.clients import connection, without_traceback
from buckram.spark.columns import Shape
from buckram.views.usage import fresh, usage_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from buckram.client.client import Client

Row = dict[str, Any]
USAGE_COLUMNS: Mapping[str, str] = {
    "namespace": "string",
    "application": "string",
    "stored_bytes": "bigint",
    "ledgers": "bigint",
    "streams": "bigint",
    "databases": "bigint",
    "in_bytes_per_s": "double",
    "in_entries_per_s": "double",
    "out_bytes_per_s": "double",
    "connections": "bigint",
    "quotas": "map<string,bigint>",
}


class UsagePartition(InputPartition):
    """All rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        super().__init__(None)
        self.rows = rows


class UsageReader(DataSourceReader):
    """The reader of a query. InvalidArgument for a column that there is not."""

    def __init__(self, metadata: str, schema: StructType) -> None:
        self.metadata, self.schema = metadata, schema
        Shape.of(schema, USAGE_COLUMNS)

    def partitions(self) -> Sequence[InputPartition]:
        """Ask the cluster. AccessRefused for who is no administrator, MetadataError."""
        with without_traceback():
            return [UsagePartition(connection(self.metadata).run(_rows))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows with the columns that the query asks for."""
        if not isinstance(partition, UsagePartition):
            return  # Without partitions Spark calls this once, with an empty one.
        import pyarrow as pa
        from pyspark.sql.pandas.types import to_arrow_schema

        yield pa.RecordBatch.from_pylist(list(partition.rows), schema=to_arrow_schema(self.schema, timezone="UTC"))


async def _rows(client: Client) -> list[Row]:
    store = client.services.store
    published, _ = await fresh(store)
    found: list[Row] = []
    for namespace, row in usage_rows(published, await TenantStore(store).quotas(), "").items():
        whole = {name: value for name, value in row.items() if name in USAGE_COLUMNS}
        found.append({"namespace": namespace, "application": None, **whole})
        for application, size in row["applications"].items():
            found.append({"namespace": namespace, "application": application, "stored_bytes": size})
    return found


__all__ = ["USAGE_COLUMNS", "UsagePartition", "UsageReader"]
