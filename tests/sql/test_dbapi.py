"""DB-API 2.0 as programs use it: transactions, isolation, cursors, types, errors, threads, and the end of a process."""

from __future__ import annotations

import datetime
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import buckram.sql as dbapi
import buckram.sync
from buckram.errors import CommitUnknown, NotLeader, SqlError
from buckram.sql.dbapi_types import mapped
from buckram.testing import ThreadedCluster

SCHEMA = "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT UNIQUE, size REAL, data BLOB)"


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as cluster:
        with buckram.sync.connect(cluster.uri) as client:
            client.namespaces.create("shop")
        yield cluster.uri
        dbapi.close_all()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"shop/{request.node.name[5:40]}"


@pytest.fixture
def connection(uri: str, name: str) -> Iterator[dbapi.Connection]:
    opened = dbapi.connect(uri, name)
    yield opened
    opened.close()


def test_the_module_says_what_it_is() -> None:
    assert (dbapi.apilevel, dbapi.threadsafety, dbapi.paramstyle) == ("2.0", 1, "qmark")
    assert dbapi.sqlite_version_info >= (3, 40)
    for error in (dbapi.InterfaceError, dbapi.DatabaseError):
        assert issubclass(error, dbapi.Error)
    for error in (
        *(dbapi.DataError, dbapi.OperationalError, dbapi.IntegrityError),
        *(dbapi.InternalError, dbapi.ProgrammingError, dbapi.NotSupportedError),
    ):
        assert issubclass(error, dbapi.DatabaseError)
        assert getattr(dbapi.Connection, error.__name__) is error


def test_a_transaction_begins_with_the_first_write_and_ends_with_commit(
    uri: str, name: str, connection: dbapi.Connection
) -> None:
    connection.execute(SCHEMA)
    assert connection.in_transaction
    connection.commit()
    cursor = connection.cursor()
    cursor.execute("INSERT INTO t (name, size, data) VALUES (?, :size, ?3)", ("é", 1.5, b"\x00"))
    assert (cursor.rowcount, cursor.lastrowid, cursor.description) == (1, 1, None)
    connection.rollback()
    assert not connection.in_transaction
    cursor.executemany("INSERT INTO t (name) VALUES (?)", ((name,) for name in "abc"))
    assert (cursor.rowcount, cursor.lastrowid) == (3, 3)
    connection.commit()
    connection.commit()
    connection.rollback()
    with dbapi.connect(uri, name) as other:
        cursor = other.execute("SELECT id, name, size * 2 AS twice FROM t WHERE name <> :not ORDER BY id", {"not": "b"})
        assert not other.in_transaction
        assert cursor.rowcount == -1
        assert cursor.description is not None
        assert [column[:2] for column in cursor.description] == [("id", "INTEGER"), ("name", "TEXT"), ("twice", None)]
        assert cursor.description[0][1] == dbapi.NUMBER != dbapi.STRING
        assert (cursor.fetchone(), cursor.fetchmany(), cursor.fetchall()) == ((1, "a", None), [(3, "c", None)], [])
        assert cursor.fetchone() is None
        other.execute("UPDATE t SET size = 2 WHERE id = 1")
    assert list(connection.execute("SELECT size FROM t")) == [(2.0,), (None,), (None,)]


def test_with_rolls_back_after_an_error(connection: dbapi.Connection) -> None:
    connection.execute(SCHEMA)
    with pytest.raises(ZeroDivisionError), connection:
        raise ZeroDivisionError
    with pytest.raises(dbapi.OperationalError, match="no such table: t"):
        connection.execute("SELECT * FROM t")


def test_isolation_says_when_a_transaction_begins(uri: str, name: str, connection: dbapi.Connection) -> None:
    connection.executescript(f"{SCHEMA}; INSERT INTO t (id) VALUES (1);")
    connection.commit()
    for sql in (
        "SELECT 1",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "EXPLAIN SELECT 1",
        "PRAGMA user_version",
        "VALUES (1)",
    ):
        connection.execute(sql)
        assert not connection.in_transaction, sql
    connection.execute("WITH x AS (SELECT 2) INSERT INTO t (id) SELECT * FROM x")
    assert connection.in_transaction
    with pytest.raises(dbapi.ProgrammingError, match="cannot change while a transaction is open"):
        connection.isolation = "autocommit"
    connection.rollback()
    connection.isolation = "serializable"
    connection.execute("SELECT 1")
    assert connection.in_transaction
    connection.commit()
    connection.isolation = "autocommit"
    connection.execute("INSERT INTO t (id) VALUES (3)")
    connection.executemany("INSERT INTO t (id) VALUES (?)", [(4,), (5,)])
    assert not connection.in_transaction
    with pytest.raises(dbapi.IntegrityError):
        connection.executemany("INSERT INTO t (id) VALUES (?)", [(6,), (5,)])
    assert connection.execute("SELECT count(*) FROM t").fetchall() == [(4,)]
    connection.execute("BEGIN")
    connection.execute("DELETE FROM t")
    connection.execute("ROLLBACK")
    with pytest.raises(dbapi.ProgrammingError, match="choose read committed, serializable, autocommit"):
        dbapi.connect(uri, name, isolation="chaos")  # type: ignore[arg-type]


def test_a_serializable_transaction_fails_if_others_wrote_what_it_may_have_read(
    uri: str, name: str, connection: dbapi.Connection
) -> None:
    connection.executescript("CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (1);")
    connection.commit()
    connection.isolation = "serializable"
    assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
    with dbapi.connect(uri, name) as other:
        other.execute("UPDATE t SET x = 2")
    assert connection.execute("SELECT x FROM t").fetchall() == [(1,)]
    with pytest.raises(dbapi.OperationalError) as refused:
        connection.execute("UPDATE t SET x = x + 1")
    assert refused.value.sqlite_errorname == "SQLITE_BUSY_SNAPSHOT"
    connection.rollback()
    connection.execute("UPDATE t SET x = x + 1")
    connection.commit()
    assert connection.execute("SELECT x FROM t").fetchall() == [(3,)]


def test_savepoints_are_inside_the_transaction(connection: dbapi.Connection) -> None:
    connection.execute("SAVEPOINT a")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("RELEASE a")
    assert connection.in_transaction
    connection.rollback()
    with pytest.raises(dbapi.OperationalError, match="no such table"):
        connection.execute("SELECT * FROM t")


def test_errors_are_those_of_sqlite3(connection: dbapi.Connection) -> None:
    """The same statements on Python's sqlite3 raise errors of the same names."""
    other = sqlite3.connect(":memory:")
    for one in (connection, other):
        one.execute(SCHEMA)
        one.execute("INSERT INTO t (name) VALUES ('a')")
        one.execute("CREATE TABLE n (x INTEGER NOT NULL CHECK (x > 0))")
    for sql, parameters in (
        ("INSERT INTO t (name) VALUES ('a')", ()),
        ("INSERT INTO n VALUES (NULL)", ()),
        ("INSERT INTO n VALUES (0)", ()),
        ("SELEKT", ()),
        ("SELECT * FROM missing", ()),
        ("SELECT ?", ()),
        ("SELECT ?", (1, 2)),
        ("INSERT INTO t (id) VALUES ('text')", ()),
    ):
        with pytest.raises(sqlite3.Error) as expected:
            other.execute(sql, parameters)
        with pytest.raises(dbapi.Error) as found:
            connection.execute(sql, parameters)
        assert type(found.value).__name__ == type(expected.value).__name__, sql
        if expected.value.__dict__:
            assert found.value.sqlite_errorname == expected.value.sqlite_errorname
            assert str(found.value) == str(expected.value)
            assert isinstance(found.value.__cause__, SqlError)
    with pytest.raises(dbapi.NotSupportedError, match="ATTACH"):
        connection.execute("ATTACH 'x' AS y")
    assert type(mapped(NotLeader("shop/x", "other"))) is dbapi.OperationalError
    assert type(mapped(CommitUnknown("shop/x", "token", "fenced"))) is dbapi.OperationalError


def test_values_of_python(connection: dbapi.Connection) -> None:
    given: list[Any] = [
        *(None, True, 2**62, 0.1, "é", b"\xff", bytearray(b"a"), memoryview(b"b")),
        *(dbapi.Date(2026, 1, 2), dbapi.Time(3, 4, 5), dbapi.Timestamp(2026, 1, 2, 3, 4, 5)),
    ]
    row = connection.execute(f"SELECT {', '.join('?' * len(given))}", given).fetchone()
    assert row == (
        *(None, 1, 2**62, 0.1, "é", b"\xff", b"a", b"b"),
        *("2026-01-02", "03:04:05", "2026-01-02 03:04:05"),
    )
    assert dbapi.DateFromTicks(0) == datetime.datetime.fromtimestamp(0).date()
    assert dbapi.TimestampFromTicks(0).time() == dbapi.TimeFromTicks(0)
    for value in (object(), 1j, 2**63):
        with pytest.raises(dbapi.ProgrammingError):
            connection.execute("SELECT ?", (value,))
    with pytest.raises(dbapi.ProgrammingError, match="needs a sequence"):
        connection.execute("SELECT ?", "x")


def test_closed_things_say_so(uri: str, name: str) -> None:
    connection = dbapi.connect(uri, name)
    cursor = connection.execute("SELECT 1")
    cursor.close()
    cursor.close()
    with pytest.raises(dbapi.InterfaceError, match="the cursor is closed"):
        cursor.fetchone()
    connection.close()
    connection.close()
    with pytest.raises(dbapi.InterfaceError, match="the connection is closed"):
        connection.execute("SELECT 1")
    with pytest.raises(dbapi.InterfaceError):
        connection.cursor()
    with pytest.raises(dbapi.ProgrammingError, match="'b/c' holds a separator"):
        dbapi.connect(uri, "a/b/c")
    with pytest.raises(dbapi.Error):
        dbapi.connect(uri, "shop/missing", create=False)


def test_connections_of_a_process_share_one_replica(uri: str, name: str, connection: dbapi.Connection) -> None:
    connection.isolation = "autocommit"
    connection.execute("CREATE TABLE t (x INTEGER)")

    def work() -> None:
        with dbapi.connect(uri, name) as own:
            for _ in range(5):
                own.execute("INSERT INTO t SELECT coalesce(max(x), 0) + 1 FROM t")
                own.commit()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert connection.execute("SELECT count(DISTINCT x) FROM t").fetchall() == [(40,)]


def test_a_program_that_just_ends_has_committed_what_it_committed(uri: str, name: str) -> None:
    program = (
        "import sys, buckram.db\n"
        "c = buckram.db.connect(sys.argv[1], sys.argv[2])\n"
        "c.execute('CREATE TABLE t (x)'); c.commit()\n"
        "c.execute('INSERT INTO t VALUES (1)')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, uri, name], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    with dbapi.connect(uri, name) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
