"""A table of a database as a sink of Spark: rows, and which batch they are, in one transaction.

Tasks send their rows to the driver in their messages. It writes them in one transaction of the database, through a
server or led by this process, as `exactly_once.py` decides. The table `buckram_spark` has a row for each application
with its newest version, as the head of a stream has a transaction. It is written together with the rows of the step,
and only if no other step was noted since it was read: the table `buckram_spark_steps` counts them, and its CHECK ends
the transaction otherwise. Not here: what a record means for a step (`core/streams/metadata/transactions.py`), options
(`database_options.py`).
"""

from __future__ import annotations

import base64
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

from buckram.core.cluster.believed_time import Moment
from buckram.core.streams.metadata.head import Transaction
from buckram.core.streams.metadata.transactions import HISTORY_HEADER, StepId, check_known, newest, recorded, settled
from buckram.core.streams.names import stream_name
from buckram.errors import DatabaseError, InvalidArgument, SqlError
from buckram.spark.databases.database_options import DatabaseSinkOptions
from buckram.spark.shared.clients import connection
from buckram.spark.shared.cluster_uri import ClusterUri
from buckram.spark.sink import exactly_once
from buckram.spark.sink.exactly_once import Once
from buckram.spark.sink.replay_check import Tally, digest_of
from buckram.spark.sink.transactions import Attempt, Part

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from buckram.cluster import Client

MOST_BYTES = 32 * 1024 * 1024
"""Maximum bytes of the rows of one step, as Arrow. A transaction may change twice as many bytes of pages."""
LEAD_S = 15.0
"""Time that a driver that writes by itself waits until it leads, seconds."""
ANSWER_S = 60.0
_PARAMETERS = 30_000
_ROWS = 500
_RECORDS = (
    *("application", "version", "query", "rows", "place", "past"),
    *("written", "digest", "summed", "planned", "history"),
)
_TABLE = """CREATE TABLE IF NOT EXISTS buckram_spark (
 application TEXT PRIMARY KEY, version INTEGER NOT NULL, query TEXT NOT NULL, rows INTEGER NOT NULL,
 newer INTEGER NOT NULL CHECK (newer))"""
_ADDED = {
    "place": "TEXT NOT NULL DEFAULT ''",
    "past": "TEXT NOT NULL DEFAULT '[]'",
    "written": "INTEGER NOT NULL DEFAULT 0",
    "digest": "TEXT NOT NULL DEFAULT ''",
    "summed": "INTEGER NOT NULL DEFAULT -1",
    "planned": "INTEGER NOT NULL DEFAULT 0",
    "history": "TEXT NOT NULL DEFAULT ''",
}
"""Columns that the table of earlier releases lacks: where the checkpoint is, replaced queries, when it was written in
microseconds UTC, the tally of the rows of the version `summed`, when Spark planned it, and the mark of the history of
the metadata then."""
_STEPS = """CREATE TABLE IF NOT EXISTS buckram_spark_steps (
 one INTEGER PRIMARY KEY CHECK (one = 1), count INTEGER NOT NULL, seen INTEGER NOT NULL CHECK (seen))"""
_BEGUN = "INSERT OR IGNORE INTO buckram_spark_steps (one, count, seen) VALUES (1, 0, 1)"
_COUNTED = "UPDATE buckram_spark_steps SET count = count + 1, seen = count = ?"
_COUNT = "SELECT count FROM buckram_spark_steps"
_COLUMNS = "SELECT sql FROM sqlite_master WHERE name = 'buckram_spark'"
_KNOWN = f"SELECT {', '.join(_RECORDS)} FROM buckram_spark"
_NOTE = f"""INSERT OR REPLACE INTO buckram_spark ({", ".join(_RECORDS)}, newer)
 VALUES ({", ".join("?" * len(_RECORDS))}, 1)"""
_FORGET = "DELETE FROM buckram_spark WHERE application = ?"
Statement = tuple[str, Sequence[Any]]
Answer = Sequence[Sequence[Any]]


class LeaderLink(Protocol):
    """A way to the process that leads the database. Raises SqlError, and other errors if nothing is known."""

    def batch(self, statements: Sequence[Statement]) -> list[Answer]:
        """Execute statements in one transaction and return their rows."""
        ...

    def moment(self) -> Moment:
        """Return what may be the time now."""
        ...

    def history(self) -> str:
        """Return the mark of the history of the metadata in which the last `batch` was; empty if it is not known."""
        ...


class DatabaseStep:
    """One step of a table, on the driver: `Kept` of `exactly_once.py`."""

    def __init__(
        self, settings: DatabaseSinkOptions, step: StepId, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> None:
        self._settings, self._step, self._columns, self._rows = settings, step, columns, rows
        self._link: LeaderLink = RemoteServer(settings) if settings.server else LocalLeader(settings)
        self._count = 0
        self._known: dict[str, Transaction] = {}
        self._tallies: dict[str, Tally] = {}
        self._read()

    offsets = False

    def foreseen(self) -> bool:
        if settled(self._settings.database, self._known, self._step) is not None:
            return False
        check_known(self._settings.database, self._known, self._step)
        return True

    def discard(self) -> None:
        """Do nothing: the rows were in messages only."""

    def records(self) -> Mapping[str, Transaction]:
        found = self._own()
        return {} if found is None else {self._settings.database: found[1]}

    def tally(self, name: str, done: Transaction) -> Tally | None:
        found = self._own()
        return None if found is None else self._tallies.get(found[0])

    def publish(self) -> bool:
        try:
            self._link.batch([*self._notes(), *inserts(self._settings.table, self._columns, self._rows, self._key)])
        except SqlError:
            before = self._count
            self._read()
            if self._count == before:
                raise
            return False
        return True

    @property
    def _key(self) -> Sequence[str]:
        return self._settings.key

    def _own(self) -> tuple[str, Transaction] | None:
        return newest(self._known, self._step.application, self._step.query)

    def _read(self) -> None:
        """Read all records and their count, in one transaction; the tables are made where they are missing."""
        found = self._link.batch([(_TABLE, ()), (_STEPS, ()), (_BEGUN, ()), (_COLUMNS, ())])
        text = str(found[-1][0][0])
        added = [(f"ALTER TABLE buckram_spark ADD COLUMN {name} {kind}", ())
                 for name, kind in _ADDED.items() if f" {name} " not in text]  # fmt: skip
        count, rows = self._link.batch([*added, (_COUNT, ()), (_KNOWN, ())])[-2:]
        if self._step.query:  # Of these records: who answers next time may know of a restore since.
            self._step = self._step._replace(history=self._link.history())
        self._count = count[0][0]
        self._known, self._tallies = {}, {}
        for application, version, query, number, place, past, written, digest, summed, planned, history in rows:
            done = Transaction(
                version, 0, number, written, query, place, tuple(json.loads(past)), "", 0, planned, history
            )
            self._known[application] = done
            if summed == version:
                self._tallies[application] = Tally(number, int(digest, 16))

    def _notes(self) -> list[Statement]:
        """Return the statements that record the step, and fail if another one was recorded since."""
        step, now = self._step, self._link.moment()
        known, rows = self._known, len(self._rows)
        after = recorded(self._settings.database, known, step, 0, rows, now.best, now.earliest)
        done, seen = after[step.application], row_tally(self._columns, self._rows)
        values = (step.application, done.version, done.query, seen.rows, done.place, json.dumps(done.past), now.best)
        gone = [(_FORGET, (name,)) for name in self._known if name not in after]
        return [
            (_COUNTED, (self._count,)),
            *gone,
            (_NOTE, (*values, f"{seen.digest:016x}", done.version, done.planned, done.history)),
        ]


def row_tally(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Tally:
    """Return the tally of rows, whatever the order of rows and columns."""
    order = sorted(range(len(columns)), key=lambda place: columns[place])
    names = [columns[place].encode() for place in order]
    total = 0
    for row in rows:
        values = (_as_bytes(row[place]) for place in order)
        total += digest_of(part for pair in zip(names, values, strict=True) for part in pair)
    return Tally().plus(Tally(len(rows), total))


def _as_bytes(value: Any) -> bytes | None:
    """Return a value as bytes, with a prefix for its type as SQLite distinguishes types; None for null."""
    if value is None:
        return None
    if isinstance(value, bytes | bytearray):
        return b"b" + value
    if isinstance(value, float):
        return b"f" + repr(value).encode()
    return b"i%d" % value if isinstance(value, int) else b"t" + str(value).encode()


def inserts(table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]) -> list[Statement]:
    """Return the statements that write the rows, each for many; rows with the same `key` replace one another."""
    names = ", ".join(map(_quoted, columns))
    marks = "(" + ", ".join("?" * len(columns)) + ")"
    conflict = ""
    if key:
        others = [f"{_quoted(name)} = excluded.{_quoted(name)}" for name in columns if name not in key]
        action = f"UPDATE SET {', '.join(others)}" if others else "NOTHING"
        conflict = f" ON CONFLICT ({', '.join(map(_quoted, key))}) DO {action}"
    step = max(1, min(_ROWS, _PARAMETERS // len(columns)))
    found: list[Statement] = []
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step]
        sql = f"INSERT INTO {_quoted(table)} ({names}) VALUES {', '.join([marks] * len(some))}{conflict}"
        found.append((sql, [_value(value) for row in some for value in row]))
    return found


def _value(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# -- the process leads ------------------------------------------------------------------------------------


class LocalLeader:
    """Opens the database in this process, leads it for one transaction, and leaves it to others."""

    def __init__(self, settings: DatabaseSinkOptions) -> None:
        self._settings = settings

    def batch(self, statements: Sequence[Statement]) -> list[Answer]:
        name = stream_name(self._settings.database)

        async def write(client: Any) -> list[Answer]:
            async with client.namespace(name.namespace).database(name.stream, create=False) as database:
                if not await database.leads_within(LEAD_S):
                    leader = await database.leader_address()
                    raise DatabaseError(
                        self._settings.database,
                        f"{leader or 'another process'} leads it, and the driver of this sink cannot: write through a "
                        'server, option "server" with the address of `buckram db serve`',
                    )
                return [found.rows for found in await database.batch([(sql, list(of)) for sql, of in statements])]

        return connection(self._settings.metadata).run(write)

    def moment(self) -> Moment:
        async def ask(client: Client) -> Moment:
            await client.services.clocks.ensure()
            return client.services.clocks.moment()

        return connection(self._settings.metadata).run(ask)

    def history(self) -> str:
        return connection(self._settings.metadata).client.services.identities.history_mark


# -- through a server -------------------------------------------------------------------------------------


class RemoteServer:
    """Sends a transaction to `buckram db serve`, in libSQL's protocol; that server knows who leads."""

    def __init__(self, settings: DatabaseSinkOptions) -> None:
        self._settings = settings
        if not settings.server.startswith(("http://", "https://")):
            raise InvalidArgument(f'option "server" = {settings.server!r}: needs an address, http://HOST:PORT')
        self._url = f"{settings.server}/{settings.database}/v2/pipeline"
        self._history = ""

    def batch(self, statements: Sequence[Statement]) -> list[Answer]:
        inside = [{"stmt": {"sql": sql, "args": [_argument(value) for value in of]}} for sql, of in statements]
        steps: list[dict[str, Any]] = [{"stmt": {"sql": "BEGIN IMMEDIATE"}}, *inside, {"stmt": {"sql": "COMMIT"}}]
        for place, one in enumerate(steps[1:]):
            one["condition"] = {"type": "ok", "step": place}
        commit = len(steps) - 1
        unless = {
            "type": "and",
            "conds": [{"type": "ok", "step": 0}, {"type": "not", "cond": {"type": "ok", "step": commit}}],
        }
        steps.append({"stmt": {"sql": "ROLLBACK"}, "condition": unless})
        body = {"requests": [{"type": "batch", "batch": {"steps": steps}}, {"type": "close"}]}
        answer = self._ask(body)["results"][0]
        if answer.get("type") == "error":
            raise self._error(answer["error"])
        result = answer["response"]["result"]
        failed = next((error for error in result["step_errors"][: commit + 1] if error is not None), None)
        if failed is not None:
            raise self._error(failed)
        rows = [result["step_results"][place + 1]["rows"] for place in range(len(statements))]
        return [[[_cell(cell) for cell in row] for row in some] for some in rows]

    def moment(self) -> Moment:
        """Return the time of the driver's clock as in doubt, so that nothing is forgotten by it: it is unconfirmed."""
        now = time.time_ns() // 1000
        return Moment(now, now, now, "no bookie was asked what time it is", bounded=False)

    def history(self) -> str:
        """Return the mark of the history from a header of the last answer; empty from servers of earlier releases."""
        return self._history

    def _ask(self, body: Any) -> Any:
        request = urllib.request.Request(self._url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        uri, context = self._settings.metadata, None
        if isinstance(uri, ClusterUri):
            if uri.token:
                request.add_header("Authorization", f"Bearer {uri.token}")
            if self._url.startswith("https:") and uri.tls.ca:
                context = ssl.create_default_context(cafile=uri.tls.ca)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S, context=context) as answer:
                self._history = answer.headers.get(HISTORY_HEADER, "")
                return json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace")
            raise DatabaseError(self._settings.database, f"{self._url} says {error.code}: {said}") from None
        except (OSError, ValueError) as error:
            raise DatabaseError(
                self._settings.database,
                f"{self._url} cannot be reached, or does not answer: {error}; is "
                "`buckram db serve` there? The batch is written when the query runs again",
            ) from None

    def _error(self, error: Any) -> Exception:
        name, message = str(error.get("code", "")), str(error.get("message", ""))
        return SqlError(self._settings.database, message, 0, 0, name)


def _argument(value: Any) -> dict[str, Any]:
    if value is None:
        return {"type": "null"}
    if isinstance(value, int):
        return {"type": "integer", "value": str(value)}
    if isinstance(value, float):
        return {"type": "float", "value": value}
    if isinstance(value, bytes):
        return {"type": "blob", "base64": base64.b64encode(value).decode()}
    return {"type": "text", "value": str(value)}


def _cell(cell: Any) -> Any:
    kind = cell["type"]
    if kind == "integer":
        return int(cell["value"])
    if kind == "blob":
        return base64.b64decode(cell["base64"])
    return None if kind == "null" else cell["value"]


_KINDS = ("boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary")


class DatabaseSink:
    """`Sink` of `exactly_once.py` for a table."""

    def __init__(self, settings: DatabaseSinkOptions, schema: StructType) -> None:
        self.settings, self._schema = settings, schema

    @property
    def name(self) -> str:
        return self.settings.database

    @property
    def once(self) -> Once:
        return self.settings.once

    @property
    def schema(self) -> StructType:
        return self._schema

    def planned(self, step: StepId | None) -> bool:
        return True  # Nothing is asked before the commit, which alone leads the database.

    def write(self, step: StepId, attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Part:
        import pyarrow as pa

        kept, size, seen = list[Any](), 0, Tally()
        for batch in batches:
            size += batch.nbytes
            if size > MOST_BYTES:
                raise _too_large(self.settings, size)
            if batch.num_rows:
                kept.append(batch)
                seen = seen.plus(row_tally(batch.schema.names, rows_of(batch)) if attempt.query else Tally())
        if not kept:
            return Part(attempt, seen=seen)
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, kept[0].schema) as writer:
            for batch in kept:
                writer.write_batch(batch)
        small = bytes(out.getvalue())
        rows = sum(batch.num_rows for batch in kept)
        return Part(attempt, small=small, rows=rows, seen=seen if attempt.query else None)

    def kept(self, step: StepId, parts: Sequence[Part]) -> DatabaseStep:
        import pyarrow as pa

        texts = [one.small for one in parts if one.small]
        size = sum(map(len, texts))
        if size > MOST_BYTES:
            raise _too_large(self.settings, size)
        rows: list[tuple[Any, ...]] = []
        for text in texts:
            rows += rows_of(pa.ipc.open_stream(text).read_all())
        return DatabaseStep(self.settings, step, self.schema.names, rows)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Return the rows of a table as values of Python."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of one batch job. Raises InvalidArgument for wrong options and columns."""
    return exactly_once.batch_writer(lambda: _sink(options, schema, overwrite))


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Return the writer of one micro-batch, after the checks of `batch_writer`."""
    return exactly_once.stream_writer(lambda: _sink(options, schema, overwrite))


def _sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DatabaseSink:
    if overwrite:
        raise InvalidArgument('rows are only added to a table, or replaced by "key"; use mode("append")')
    settings = DatabaseSinkOptions.parse(options)
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if kind.partition(" ")[0] not in _KINDS:
            raise InvalidArgument(f'column "{field.name}" is {kind}: SQLite has no such values; cast it, to string say')
    missing = [name for name in settings.key if name not in schema.names]
    if missing:
        raise InvalidArgument(
            f'option "key" names {missing[0]!r}, which is none of the columns {", ".join(schema.names)}'
        )
    return DatabaseSink(settings, schema)


def _too_large(settings: DatabaseSinkOptions, size: int) -> InvalidArgument:
    return InvalidArgument(
        f"database {settings.database}: one batch has {size} bytes or more, the limit is {MOST_BYTES}, because it is "
        "one transaction; make batches smaller, by maxOffsetsPerTrigger of the source, say, or write jobs in parts"
    )
