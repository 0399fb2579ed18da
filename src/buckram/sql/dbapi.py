"""DB-API 2.0 (PEP 249): `connection = connect(uri, "shop/main")`. The parameter style is qmark; named ones work too.

All connections of a process share one thread with an event loop, and one replica of each database. The blocking calls
may come from any thread, one at a time for each connection. The same for asyncio is `aio.py`.
"""

from __future__ import annotations

import atexit
import datetime
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

import apsw

from buckram.core.db.sql import SqlValue
from buckram.sql import aio
from buckram.sql.aio import Description, Isolation, Row
from buckram.sql.dbapi_types import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
    as_dbapi,
)
from buckram.sql.shared_databases import sharing
from buckram.state.machine.machine import Consistency
from buckram.sync.thread import LoopThread

T = TypeVar("T")
apilevel = "2.0"
threadsafety = 1
"""Threads may share the module, but not connections."""
paramstyle = "qmark"
sqlite_version = apsw.sqlite_lib_version()
"""Version of the SQLite library that executes the statements."""
sqlite_version_info = tuple(int(part) for part in sqlite_version.split("."))

Date, Time, Timestamp, Binary = datetime.date, datetime.time, datetime.datetime, bytes
_CLOSE_S = 10.0


def DateFromTicks(ticks: float) -> datetime.date:
    """Return the date of a Unix time, as DB-API 2.0 requires."""
    return datetime.date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> datetime.time:
    """Return the time of day of a Unix time, as DB-API 2.0 requires."""
    return datetime.datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    """Return the date and time of a Unix time, as DB-API 2.0 requires."""
    return datetime.datetime.fromtimestamp(ticks)


class _Thread:
    """The thread of all connections of this process; another one after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: LoopThread | None = None

    def get(self) -> LoopThread:
        with self._lock:
            if self._thread is None or not self._thread.usable:
                self._thread = LoopThread()
            return self._thread

    def close(self) -> None:
        """Close every database; connections that are open are of no use then."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread.usable:
            thread.stop(lambda: sharing().close(), _CLOSE_S)


_shared_thread = _Thread()


def close_all() -> None:
    """Close every database that this process has open by connections, and those with them. Called at its end."""
    try:
        _shared_thread.close()
    except TimeoutError:
        return  # A cluster that does not answer keeps no program from ending.


atexit.register(close_all)


def connect(
    uri: str | None,
    database: str,
    *,
    isolation: Isolation = "read committed",
    consistency: Consistency = "linearizable",
    at_most_s: float | None = None,
    create: bool = True,
    leader_wait_s: float = 10.0,
) -> Connection:
    """A connection to the database NAMESPACE/NAME of the cluster `uri` (None: that of BUCKRAM_METADATA).

    Arguments as those of `buckram.sql.aio.connect`.
    """
    thread = _shared_thread.get()

    async def start() -> aio.AsyncConnection:
        return await aio.connect(
            uri,
            database,
            isolation=isolation,
            consistency=consistency,
            at_most_s=at_most_s,
            create=create,
            leader_wait_s=leader_wait_s,
        )

    return Connection(thread, _run(thread, start))


def _run(thread: LoopThread, make: Callable[[], Awaitable[T]]) -> T:
    with as_dbapi():
        return thread.run(make)


class Connection:
    """A connection. `with` commits at the end and rolls back after an error, like a connection of Python's sqlite3."""

    Warning: ClassVar = Warning
    Error: ClassVar = Error
    InterfaceError: ClassVar = InterfaceError
    DatabaseError: ClassVar = DatabaseError
    DataError: ClassVar = DataError
    OperationalError: ClassVar = OperationalError
    IntegrityError: ClassVar = IntegrityError
    InternalError: ClassVar = InternalError
    ProgrammingError: ClassVar = ProgrammingError
    NotSupportedError: ClassVar = NotSupportedError

    def __init__(self, thread: LoopThread, connection: aio.AsyncConnection) -> None:
        self._thread, self._connection = thread, connection

    @property
    def in_transaction(self) -> bool:
        """Return whether a transaction is open."""
        return self._connection.in_transaction

    @property
    def isolation(self) -> Isolation:
        """The transaction mode: when a transaction begins implicitly. It can be set while no transaction is open."""
        return self._connection.isolation

    @isolation.setter
    def isolation(self, isolation: Isolation) -> None:
        self._connection.isolation = isolation

    def cursor(self) -> Cursor:
        """A cursor, which executes statements and holds their rows."""
        return Cursor(self, self._connection.cursor())

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Cursor:
        """Execute on a new cursor, and return it."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> Cursor:
        """Execute once for each parameters on a new cursor, and return it."""
        return self.cursor().executemany(sql, parameters)

    def executescript(self, script: str) -> None:
        """Execute several statements, without rows. As all others they belong to the open transaction."""
        self.run(lambda: self._connection.executescript(script))

    def commit(self) -> None:
        """Commit the open transaction; no-op if there is none."""
        self.run(self._connection.commit)

    def rollback(self) -> None:
        """Roll back the open transaction; no-op if there is none."""
        self.run(self._connection.rollback)

    def close(self) -> None:
        """Roll back the open transaction and close. Idempotent."""
        if self._thread.usable:
            self.run(self._connection.close)

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """Wait for something on the thread of all connections. For cursors."""
        return _run(self._thread, make)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.rollback()


class Cursor:
    """Executes statements and holds the rows of the last one."""

    def __init__(self, connection: Connection, cursor: aio.AsyncCursor) -> None:
        self.connection, self._cursor = connection, cursor

    @property
    def description(self) -> Description | None:
        """For each column its name and declared type, and None five times; None for a statement without rows."""
        return self._cursor.description

    @property
    def rowcount(self) -> int:
        """Rows that the statement changed; -1 for a statement that gives rows."""
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        """The row id of the last row that was inserted."""
        return self._cursor.lastrowid

    @property
    def arraysize(self) -> int:
        """Default number of rows that fetchmany() returns."""
        return self._cursor.arraysize

    @arraysize.setter
    def arraysize(self, size: int) -> None:
        self._cursor.arraysize = size

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Self:
        """Execute one statement; values by position for `?`, by name for `:name`."""
        self.connection.run(lambda: self._cursor.execute(sql, parameters))
        return self

    def executemany(self, sql: str, parameters: Iterable[Sequence[Any] | Mapping[str, Any]]) -> Self:
        """Execute one statement for each of several parameters, in one transaction."""
        given = list(parameters)
        self.connection.run(lambda: self._cursor.executemany(sql, given))
        return self

    def fetchone(self) -> Row | None:
        """The next row; None after the last one."""
        return self._cursor.next_row()

    def fetchmany(self, size: int | None = None) -> list[Row]:
        """The next rows, `arraysize` of them by default."""
        return self._cursor.next_rows(self.arraysize if size is None else size)

    def fetchall(self) -> list[Row]:
        """All rows that are left."""
        return self._cursor.rest()

    def __iter__(self) -> Iterator[tuple[SqlValue, ...]]:
        return self

    def __next__(self) -> tuple[SqlValue, ...]:
        row = self._cursor.next_row()
        if row is None:
            raise StopIteration
        return row

    def setinputsizes(self, sizes: Any) -> None:
        """Do nothing: required by DB-API 2.0."""

    def setoutputsize(self, size: Any, column: Any = None) -> None:
        """Do nothing: required by DB-API 2.0."""

    def close(self) -> None:
        """Forget the rows. Idempotent."""
        self._cursor.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "close_all",
    "connect",
    "paramstyle",
    "sqlite_version",
    "sqlite_version_info",
    "threadsafety",
]
