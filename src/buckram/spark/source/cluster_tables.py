"""Tables of a cluster for Spark: usage, ledgers, and segments, cursors and transactions of streams.

`spark.read.format("buckram").option("table", "segments")` reads one. The driver gathers the rows once for each query;
of ledgers, of which there may be millions, it lists the ids, and the executors read the records. Each table has its
columns and a coroutine that gives its rows; times are timestamps. Not here: what is counted for usage
(`bookie/accounting/namespace_usage.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceReader, InputPartition

from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.streams.names import OWNER, StreamName, stream_name
from buckram.errors import MetadataError, NoSuchStream
from buckram.metadata.records.tenants import TenantStore
from buckram.serve.json_views.ledgers import STATES, away, records_of
from buckram.serve.json_views.status import fresh, usage_rows
from buckram.serve.json_views.streams import tier
from buckram.spark.shared.clients import connection, prepare_process, without_traceback
from buckram.spark.shared.columns import Shape
from buckram.spark.source.stream_planner import Planner
from buckram.types import LedgerId, LedgerMetadata

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from buckram.cluster import Client
    from buckram.namespace import Namespace
    from buckram.spark.source.planning import StreamOptions

Row = dict[str, Any]
_CURSORS_AT_ONCE = 1000
LEDGERS_AT_ONCE = 5000
"""Maximum ledgers of one partition, and ids of one request for the next ids."""


# -- reading ----------------------------------------------------------------------------------------------


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


# -- the tables -------------------------------------------------------------------------------------------


class Table(NamedTuple):
    """`rows` gets the names of streams, none where the table is not of streams, and whether all of them must exist.

    Without `rows` it is the table of ledgers, whose rows executors make (`ledger_rows`).
    """

    columns: Mapping[str, str]
    rows: Callable[[Client, Sequence[str], bool], Awaitable[list[Row]]] | None


async def _usage(client: Client, names: Sequence[str], strict: bool) -> list[Row]:
    """Return a row for each namespace (`application` is null), and one for each application with its closed ledgers."""
    store = client.services.store
    published, _ = await fresh(store)
    found: list[Row] = []
    for namespace, row in usage_rows(published, await TenantStore(store).quotas(), "").items():
        whole = {name: value for name, value in row.items() if name in _USAGE_COLUMNS}
        found.append({"namespace": namespace, "application": None, **whole})
        for application, size in row["applications"].items():
            found.append({"namespace": namespace, "application": application, "stored_bytes": size})
    return found


_OneStream = Callable[["Namespace", StreamName], Awaitable[list[Row]]]


def _of_each(one: _OneStream) -> Callable[[Client, Sequence[str], bool], Awaitable[list[Row]]]:
    async def rows(client: Client, names: Sequence[str], strict: bool) -> list[Row]:
        found: list[Row] = []
        for name in map(stream_name, names):
            try:
                found += await one(client.namespace(name.namespace), name)
            except NoSuchStream:  # Deleted since the names were listed.
                if strict:
                    raise
        return found

    return rows


async def _segments(ns: Namespace, name: StreamName) -> list[Row]:
    rows: list[Row] = []
    async for row in ns.segments(name.stream):
        summary, place = row.summary, row.offloaded
        rows.append(
            {
                "stream": str(name),
                "number": row.number,
                "ledger": row.ledger,
                "state": "sealed" if row.sealed else "open",
                "tier": tier(row),
                "first_offset": row.base,
                "records": None if summary is None else summary.records,
                "bytes": None if summary is None else summary.bytes,
                "created": row.created,
                "first_append": None if summary is None else summary.first_append,
                "last_append": None if summary is None else summary.last_append,
                "location": None if place is None else place.location,
            }
        )
    return rows


async def _cursors(ns: Namespace, name: StreamName) -> list[Row]:
    rows: list[Row] = []
    after = ""
    while page := await ns.cursors(name.stream, after=after, limit=_CURSORS_AT_ONCE):
        after = page[-1].name
        rows += [
            {"stream": str(name), "cursor": one.name, "offset": one.offset, "lag": one.lag, "changed": one.changed}
            for one in page
        ]
    return rows


async def _transactions(ns: Namespace, name: StreamName) -> list[Row]:
    done = (await ns.info(name.stream)).transactions
    return [
        {
            "stream": str(name),
            "application": application,
            "version": one.version,
            "first_offset": one.first_offset,
            "next_offset": one.next_offset,
            "published": one.time,
            "query": one.query or None,
        }
        for application, one in done.items()
    ]


async def ledger_rows(client: Client, ledgers: Sequence[LedgerId]) -> list[Row]:
    """Return the rows of these ledgers; one whose record cannot be read says why in `error`."""
    rows: list[Row] = []
    for ledger, answer in await records_of(client, ledgers):
        if isinstance(answer, MetadataError):
            rows.append({"ledger": ledger, "state": "unreadable", "error": str(answer)})
        else:
            rows.append(_ledger_row(client, ledger, answer))
    return rows


def _ledger_row(client: Client, ledger: LedgerId, metadata: LedgerMetadata) -> Row:
    custom = metadata.custom_metadata
    created = metadata.creation_time_ms
    return {
        "ledger": ledger,
        "state": STATES[metadata.state],
        "entries": None if metadata.last_entry is None else metadata.last_entry + 1,
        "bytes": metadata.length,
        "ensemble_size": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "fragments": len(metadata.fragments),
        "bookies": list(dict.fromkeys(one for fragment in metadata.fragments for one in fragment.ensemble)),
        "away": list(away(client, metadata)),
        "namespace": _text(custom, LEDGER_NAMESPACE),
        "application": _text(custom, "application"),
        "stream": _text(custom, OWNER),
        "created": None if created is None else created * 1000,
        "error": None,
    }


def _text(custom: Mapping[str, bytes], name: str) -> str | None:
    return custom[name].decode("utf-8", "backslashreplace") if name in custom else None


_USAGE_COLUMNS: Mapping[str, str] = {
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
_LEDGER_COLUMNS: Mapping[str, str] = {
    "ledger": "bigint",
    "state": "string",
    "entries": "bigint",
    "bytes": "bigint",
    "ensemble_size": "int",
    "write_quorum": "int",
    "ack_quorum": "int",
    "fragments": "int",
    "bookies": "array<string>",
    "away": "array<string>",
    "namespace": "string",
    "application": "string",
    "stream": "string",
    "created": "timestamp",
    "error": "string",
}
_SEGMENT_COLUMNS: Mapping[str, str] = {
    "stream": "string",
    "number": "bigint",
    "ledger": "bigint",
    "state": "string",
    "tier": "string",
    "first_offset": "bigint",
    "records": "bigint",
    "bytes": "bigint",
    "created": "timestamp",
    "first_append": "timestamp",
    "last_append": "timestamp",
    "location": "string",
}
_CURSOR_COLUMNS: Mapping[str, str] = {
    "stream": "string",
    "cursor": "string",
    "offset": "bigint",
    "lag": "bigint",
    "changed": "timestamp",
}
_TRANSACTION_COLUMNS: Mapping[str, str] = {
    "stream": "string",
    "application": "string",
    "version": "bigint",
    "first_offset": "bigint",
    "next_offset": "bigint",
    "published": "timestamp",
    "query": "string",
}
TABLES: Mapping[str, Table] = {
    "usage": Table(_USAGE_COLUMNS, _usage),
    "ledgers": Table(_LEDGER_COLUMNS, None),
    "segments": Table(_SEGMENT_COLUMNS, _of_each(_segments)),
    "cursors": Table(_CURSOR_COLUMNS, _of_each(_cursors)),
    "transactions": Table(_TRANSACTION_COLUMNS, _of_each(_transactions)),
}
"""Tables by the value of the option `table`."""
