"""Connections and cursors with the names of DB-API 2.0, for programs that use asyncio: `await connect(...)`.

The blocking ones (`dbapi.py`) call these. A transaction begins by itself; its `isolation` says when:

* "read committed": before the first statement that is not a plain read. Each read before it is linearizable by itself.
* "serializable": before the first statement, which may be a read. All its reads see one state; if others wrote since,
  its first write fails (SQLITE_BUSY_SNAPSHOT), and the program begins again.
* "autocommit": only by BEGIN. Each statement is a transaction of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self, get_args

from buckram.client.shared.handles import Opening
from buckram.core.db.sql import SqlResult, SqlValue
from buckram.core.db.sql_text import Kind, classify, split
from buckram.core.streams.names import stream_name
from buckram.errors import HandleClosed, InvalidArgument
from buckram.sql.dbapi_types import as_dbapi, to_parameters
from buckram.sql.session import SqlSession
from buckram.sql.shared_databases import Shared, sharing
from buckram.state.db.table_engine.statements import first_word
from buckram.state.machine.machine import Consistency

Isolation = Literal["read committed", "serializable", "autocommit"]
"""Transaction modes: when a transaction begins implicitly (see the module's docstring)."""
Row = tuple[SqlValue, ...]
Description = tuple[tuple[str, str | None, None, None, None, None, None], ...]
_READS = frozenset(("SELECT", "VALUES", "EXPLAIN"))
_ALONE = frozenset(("PRAGMA", "VACUUM", "ATTACH", "DETACH"))
"""First words of statements that begin no transaction implicitly; some cannot run inside one."""


def connect(
    uri: str | None,
    database: str,
    *,
    isolation: Isolation = "read committed",
    consistency: Consistency = "linearizable",
    at_most_s: float | None = None,
    create: bool = True,
    leader_wait_s: float = 10.0,
) -> Opening[AsyncConnection]:
    """A connection to the database NAMESPACE/NAME of the cluster `uri` (None: that of BUCKRAM_METADATA).

    `async with connect(...) as connection`, or await it. `consistency` "leader" and "stale" are for reading only, the
    latter with `at_most_s`. Raises errors of DB-API 2.0.
    """

    async def start() -> AsyncConnection:
        with as_dbapi():
            _check_isolation(isolation)
            name = stream_name(database)
            shared = await sharing().acquire(uri, name, create=create, wait_s=leader_wait_s)
            try:
                session = SqlSession(
                    shared.database,
                    consistency=consistency,
                    at_most_s=at_most_s,
                    leader_wait_s=leader_wait_s,
                    announced=shared.announced,
                )
            except BaseException:
                await shared.use.aclose()
                raise
            connection = AsyncConnection(shared, session, isolation)
            sharing().connections.add(connection)
            return connection

    return Opening(start, "buckram.sql.aio.connect()")


class AsyncConnection:
    """A connection. Concurrent calls of one connection queue up: use one connection for each task."""

    def __init__(self, shared: Shared, session: SqlSession, isolation: Isolation) -> None:
        self._shared, self._session, self._isolation = shared, session, isolation
        self._closed = False

    # -- what one can know --------------------------------------------------------------------------------

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return not self._session.autocommit

    @property
    def isolation(self) -> Isolation:
        """The transaction mode: when a transaction begins implicitly. It can be set while no transaction is open."""
        return self._isolation

    @isolation.setter
    def isolation(self, isolation: Isolation) -> None:
        with as_dbapi():
            _check_isolation(isolation)
            if self.in_transaction:
                raise InvalidArgument("the isolation cannot change while a transaction is open: commit or roll back")
            self._isolation = isolation

    # -- statements ---------------------------------------------------------------------------------------

    def cursor(self) -> AsyncCursor:
        """A cursor, which executes statements and holds their rows."""
        with as_dbapi():
            self._check()
        return AsyncCursor(self)

    async def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> AsyncCursor:
        """Execute on a new cursor, and return it."""
        return await self.cursor().execute(sql, parameters)

    async def executemany(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> AsyncCursor:
        """Execute once for each parameters on a new cursor, and return it."""
        return await self.cursor().executemany(sql, parameters)

    async def executescript(self, script: str) -> None:
        """Execute several statements, without rows. As all others they belong to the open transaction."""
        with as_dbapi():
            for sql in split(script):
                await self.run(sql, ())

    # -- transactions -------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit the open transaction; no-op if there is none."""
        with as_dbapi():
            self._check()
            if self.in_transaction:
                await self._session.execute("COMMIT")

    async def rollback(self) -> None:
        """Roll back the open transaction; no-op if there is none."""
        with as_dbapi():
            self._check()
            if self.in_transaction:
                await self._session.execute("ROLLBACK")

    async def close(self) -> None:
        """Roll back the open transaction and close. Idempotent."""
        if self._closed:
            return
        self._closed = True
        sharing().connections.discard(self)
        try:
            with as_dbapi():
                await self._session.close()
        finally:
            await self._shared.use.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, after an error roll back; and close."""
        try:
            await (self.commit() if kind is None else self.rollback())
        finally:
            await self.close()

    # -- for cursors --------------------------------------------------------------------------------------

    async def run(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any]) -> SqlResult:
        """Execute a statement, in a transaction that begins before it if that is due. For cursors."""
        self._check()
        given = to_parameters(parameters)
        await self._begin_before(sql)
        return await self._session.execute(sql, given)

    async def run_many(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> list[SqlResult]:
        """Execute a statement several times; in one transaction also without an open one. For cursors."""
        self._check()
        given = [to_parameters(one) for one in parameters]
        if not given:
            return []
        await self._begin_before(sql)
        session = self._session
        if session.autocommit and session.foreign_keys and classify(sql).kind is Kind.OTHER:
            return await self._session.database.batch([(sql, one) for one in given])
        return [await self._session.execute(sql, one) for one in given]

    async def _begin_before(self, sql: str) -> None:
        if self._isolation == "autocommit" or self.in_transaction:
            return
        kind, word = classify(sql).kind, first_word(sql)
        if kind not in (Kind.OTHER, Kind.SAVEPOINT) or word in _ALONE:
            return
        plain_read = word in _READS or (word == "WITH" and (await self._session.describe(sql)).read_only)
        if plain_read and self._isolation == "read committed":
            return
        await self._session.execute("BEGIN" if self._isolation == "serializable" else "BEGIN IMMEDIATE")

    def _check(self) -> None:
        if self._closed:
            raise HandleClosed("the connection is closed; connect again")


class AsyncCursor:
    """Executes statements and holds the rows of the last one."""

    def __init__(self, connection: AsyncConnection) -> None:
        self.connection = connection
        self.arraysize = 1
        """Default number of rows that fetchmany() returns."""
        self.description: Description | None = None
        """For each column its name and declared type, and None five times; None for a statement without rows."""
        self.rowcount = -1
        """Rows that the statement changed; -1 for a statement that gives rows."""
        self.lastrowid: int | None = None
        """The row id of the last row that was inserted."""
        self._rows: list[Row] = []
        self._next = 0
        self._closed = False

    async def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Self:
        """Execute one statement; values by position for `?`, by name for `:name`."""
        with as_dbapi():
            self._check()
            self._take(await self.connection.run(sql, parameters))
        return self

    async def executemany(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> Self:
        """Execute one statement for each of several parameters, in one transaction."""
        with as_dbapi():
            self._check()
            results = await self.connection.run_many(sql, parameters)
            self._take(SqlResult() if not results else results[-1])
            self.description, self._rows = None, []
            self.rowcount = sum(result.rows_affected for result in results)
        return self

    def _take(self, result: SqlResult) -> None:
        self._rows, self._next = result.rows, 0
        self.description = (
            tuple(
                (name, declared, None, None, None, None, None)
                for name, declared in zip(result.columns, result.declared, strict=True)
            )
            or None
        )
        self.rowcount = -1 if self.description is not None and not result.rows_affected else result.rows_affected
        if result.last_insert_rowid is not None:
            self.lastrowid = result.last_insert_rowid

    async def fetchone(self) -> Row | None:
        """The next row; None after the last one."""
        return self.next_row()

    async def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, `arraysize` of them by default."""
        return self.next_rows(self.arraysize if size is None else size)

    async def fetchall(self) -> list[Row]:
        """All rows that are left."""
        return self.rest()

    def rest(self) -> list[Row]:
        """As fetchall, without waiting: all rows are here."""
        return self.next_rows(len(self._rows))

    def next_row(self) -> Row | None:
        """As fetchone, without waiting: all rows are here."""
        found = self.next_rows(1)
        return found[0] if found else None

    def next_rows(self, size: int) -> list[Row]:
        """Return the next rows, at most `size`, as fetchmany() does."""
        with as_dbapi():
            self._check()
        found = self._rows[self._next : self._next + max(size, 0)]
        self._next += len(found)
        return found

    async def __aiter__(self) -> AsyncIterator[Row]:
        while (row := self.next_row()) is not None:
            yield row

    def setinputsizes(self, sizes: Any) -> None:
        """Do nothing: required by DB-API 2.0."""

    def setoutputsize(self, size: Any, column: Any = None) -> None:
        """Do nothing: required by DB-API 2.0."""

    async def close(self) -> None:
        """Forget the rows. Idempotent."""
        self.end()

    def end(self) -> None:
        """As close, without waiting."""
        self._closed, self._rows, self.description = True, [], None

    def _check(self) -> None:
        if self._closed:
            raise HandleClosed("the cursor is closed; make another one")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def _check_isolation(isolation: str) -> None:
    if isolation not in get_args(Isolation):
        raise InvalidArgument(f"isolation {isolation!r}: choose {', '.join(get_args(Isolation))}")
