"""One transaction of a database for one step of a sink, once: through a server, or led by this process.

The table `buckram_spark` has a row for each application with its newest version. The row and the rows of the step are
written together, and its CHECK lets no older or equal version through, whoever writes. Not here: what Spark sees
(`db_sink.py`).
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from buckram.core.streams.names import stream_name
from buckram.core.streams.transactions import StepId
from buckram.errors import CheckpointReset, DatabaseError, InvalidArgument, SqlError, StaleTransaction
from buckram.spark.access import ClusterUri
from buckram.spark.clients import connection
from buckram.spark.db_options import DatabaseSinkOptions

MOST_BYTES = 32 * 1024 * 1024
"""Of the rows of one step, as Arrow. A transaction may change twice as many bytes of pages."""
LEAD_S = 15.0
"""How long a driver that writes by itself waits until it leads."""
ANSWER_S = 60.0
_PARAMETERS = 30_000
_ROWS = 500
_TABLE = """CREATE TABLE IF NOT EXISTS buckram_spark (
 application TEXT PRIMARY KEY, version INTEGER NOT NULL, query TEXT NOT NULL, rows INTEGER NOT NULL,
 newer INTEGER NOT NULL CHECK (newer))"""
_NOTE = """INSERT INTO buckram_spark (application, version, query, rows, newer) VALUES (?, ?, ?, ?, 1)
 ON CONFLICT (application) DO UPDATE SET version = excluded.version, query = excluded.query, rows = excluded.rows,
 newer = excluded.version > buckram_spark.version OR (? AND excluded.query <> buckram_spark.query)"""
_KNOWN = "SELECT version, query, rows FROM buckram_spark WHERE application = ?"
Statement = tuple[str, Sequence[Any]]
Answer = Sequence[Sequence[Any]]


class Link(Protocol):
    """A way to the process that leads the database. Raises SqlError, and other errors if nothing is known."""

    def batch(self, statements: Sequence[Statement]) -> list[Answer]:
        """Execute statements in one transaction and return their rows."""
        ...


@dataclass(frozen=True, slots=True)
class Known:
    """What the table says of an application."""

    version: int
    query: str
    rows: int


def write_once(
    settings: DatabaseSinkOptions, step: StepId, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Write the rows and note the step, unless it is noted already.

    Raises StaleTransaction, CheckpointReset, SqlError for what SQLite says of the rows, DatabaseError.
    """
    if not rows:
        return
    link: Link = Server(settings) if settings.server else Led(settings)
    link.batch([(_TABLE, ())])
    if noted(settings, step, _known(link, step)):
        return
    try:
        link.batch([note(step, len(rows)), *inserts(settings.table, columns, rows, settings.key)])
    except SqlError:
        if noted(settings, step, _known(link, step)):
            return  # Another driver has written the step meanwhile.
        raise


def noted(settings: DatabaseSinkOptions, step: StepId, known: Known | None) -> bool:
    """Whether the step was written before. StaleTransaction, CheckpointReset if it never can be."""
    if known is None:
        return False
    if known.query != step.query and not step.new_epoch:
        raise CheckpointReset(settings.database, step.application, step.query, step.version, known.query, known.version)
    if known.query != step.query or known.version < step.version:
        return False
    if known.version > step.version:
        raise StaleTransaction(settings.database, step.application, step.version, known.version)
    return True


def note(step: StepId, rows: int) -> Statement:
    """Return the statement that notes a step; it fails if the same or a later one is noted already."""
    return _NOTE, (step.application, step.version, step.query, rows, int(step.new_epoch))


def _known(link: Link, step: StepId) -> Known | None:
    rows = link.batch([(_KNOWN, (step.application,))])[0]
    return Known(*rows[0]) if rows else None


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


class Led:
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


# -- through a server -------------------------------------------------------------------------------------


class Server:
    """Sends a transaction to `buckram db serve`, in libSQL's protocol; that server knows who leads."""

    def __init__(self, settings: DatabaseSinkOptions) -> None:
        self._settings = settings
        if not settings.server.startswith(("http://", "https://")):
            raise InvalidArgument(f'option "server" = {settings.server!r}: needs an address, http://HOST:PORT')
        self._url = f"{settings.server}/{settings.database}/v2/pipeline"

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


__all__ = ["MOST_BYTES", "Known", "Led", "Link", "Server", "Statement", "inserts", "note", "noted", "write_once"]
