"""One caller's connection: transactions by statements, what is refused, and what becomes of a lost transaction."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.polling import until

from buckram.cluster import Client
from buckram.errors import InvalidArgument, SqlError, StatementRefused, TransactionExpired
from buckram.sql.session import SqlSession
from buckram.state.db.database import Database
from buckram.state.db.settings import DatabaseLimits


async def test_statements_alone_and_in_a_transaction(database: Database) -> None:
    one, other = SqlSession(database), SqlSession(database)
    await one.execute("CREATE TABLE t (x PRIMARY KEY, y)")
    assert (await one.execute("INSERT INTO t VALUES (?, ?)", (1, "a"))).rows_affected == 1
    await one.execute("BEGIN IMMEDIATE")
    assert not one.autocommit
    assert other.autocommit
    await one.execute("INSERT INTO t VALUES (:x, :y)", {"x": 2, "y": "b"})
    await one.execute("ROLLBACK")
    assert (await other.execute("SELECT * FROM t")).rows == [(1, "a")]
    await one.execute("SAVEPOINT s")
    await one.execute("INSERT INTO t VALUES (3, 'c')")
    await one.execute("RELEASE s")
    assert one.autocommit
    found = await other.execute("SELECT x, y AS z FROM t ORDER BY x -- comment")
    assert (found.columns, found.rows) == (("x", "z"), [(1, "a"), (3, "c")])
    assert (await one.execute(" -- nothing")).rows == []


async def test_closing_rolls_back(database: Database) -> None:
    one, other = SqlSession(database), SqlSession(database)
    await one.execute("CREATE TABLE t (x)")
    await one.execute("BEGIN")
    await one.execute("INSERT INTO t VALUES (1)")
    await one.close()
    await one.close()
    assert (await other.execute("SELECT count(*) FROM t")).rows == [(0,)]


async def test_misuse_has_sqlites_words(database: Database) -> None:
    session = SqlSession(database)
    for sql, words in (
        ("COMMIT", "cannot commit - no transaction is active"),
        ("ROLLBACK", "cannot rollback - no transaction is active"),
        ("RELEASE x", "no such savepoint: x"),
        ("SELECT 1; SELECT 2", "more than one statement"),
        ("SELEKT", "syntax error"),
    ):
        with pytest.raises(SqlError, match=words):
            await session.execute(sql)
    await session.execute("BEGIN")
    with pytest.raises(SqlError, match="cannot start a transaction within a transaction"):
        await session.execute("BEGIN")
    with pytest.raises(InvalidArgument, match="at_most_s"):
        SqlSession(database, at_most_s=1.0)


async def test_an_error_in_a_transaction_leaves_it_open_or_ends_it_as_sqlite_does(database: Database) -> None:
    session = SqlSession(database)
    await session.execute("CREATE TABLE t (x UNIQUE)")
    await session.execute("BEGIN")
    await session.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(SqlError) as caught:
        await session.execute("INSERT INTO t VALUES (1)")
    assert (caught.value.code, caught.value.name) == (19, "SQLITE_CONSTRAINT_UNIQUE")
    assert not session.autocommit
    with pytest.raises(SqlError):
        await session.execute("INSERT OR ROLLBACK INTO t VALUES (1)")
    assert session.autocommit
    with pytest.raises(SqlError, match="no transaction is active"):
        await session.execute("COMMIT")


async def test_a_commit_that_a_constraint_forbids_leaves_the_transaction_open(database: Database) -> None:
    session = SqlSession(database)
    await session.execute("CREATE TABLE p (x PRIMARY KEY)")
    await session.execute("CREATE TABLE c (x REFERENCES p DEFERRABLE INITIALLY DEFERRED)")
    await session.execute("BEGIN")
    await session.execute("INSERT INTO c VALUES (1)")
    with pytest.raises(SqlError, match="FOREIGN KEY"):
        await session.execute("COMMIT")
    assert not session.autocommit
    await session.execute("INSERT INTO p VALUES (1)")
    await session.execute("COMMIT")
    assert session.autocommit


async def test_after_an_expired_transaction_nothing_runs_until_rollback(client: Client) -> None:
    limits = DatabaseLimits(transaction_s=0.2)
    async with client.namespace("shop").database("short", limits=limits) as database:
        await database.lead()
        session = SqlSession(database)
        await session.execute("CREATE TABLE t (x)")
        await session.execute("BEGIN IMMEDIATE")
        transaction = session._transaction
        assert transaction is not None
        await until(lambda: not transaction.open)
        for sql in ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "COMMIT"):
            with pytest.raises(TransactionExpired, match=r"more than 0\.2 s"):
                await session.execute(sql)
        await session.execute("ROLLBACK")
        await session.execute("INSERT INTO t VALUES (3)")
        assert (await session.execute("SELECT x FROM t")).rows == [(3,)]


async def test_a_transaction_begun_as_read_only_writes_nothing(database: Database) -> None:
    session = SqlSession(database)
    await session.execute("CREATE TABLE t (x)")
    await session.execute("BEGIN TRANSACTION READONLY")
    assert (await session.execute("SELECT * FROM t")).rows == []
    with pytest.raises(SqlError, match="read only"):
        await session.execute("INSERT INTO t VALUES (1)")
    await session.execute("COMMIT")


async def test_reads_that_may_be_stale_write_nothing(database: Database) -> None:
    await database.execute("CREATE TABLE t (x)")
    session = SqlSession(database, consistency="stale", at_most_s=5)
    assert (await session.execute("SELECT * FROM t")).rows == []
    with pytest.raises(SqlError, match="readonly"):
        await session.execute("INSERT INTO t VALUES (1)")


async def test_cancelling_a_statement_ends_its_transaction(database: Database) -> None:
    session, other = SqlSession(database), SqlSession(database)
    await session.execute("CREATE TABLE t (x)")
    await session.execute("BEGIN")
    await session.execute("INSERT INTO t VALUES (1)")
    task = asyncio.ensure_future(session.execute("INSERT INTO t SELECT value FROM generate_series(1, 100000)"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(SqlError, match="was cancelled"):
        await session.execute("SELECT 1")
    assert (await other.execute("SELECT count(*) FROM t")).rows == [(0,)]
    await session.execute("ROLLBACK")
    assert session.autocommit


CHANGE = (
    "CREATE TABLE new_author (id INTEGER PRIMARY KEY, name TEXT NOT NULL, born INTEGER)",
    "INSERT INTO new_author SELECT id, name, NULL FROM author",
    "DROP TABLE author",
    "ALTER TABLE new_author RENAME TO author",
)
"""How SQLite's manual changes a table: https://sqlite.org/lang_altertable.html, in twelve steps."""


async def _library(session: SqlSession) -> None:
    for sql in (
        "CREATE TABLE author (id INTEGER PRIMARY KEY, name TEXT)",
        "CREATE TABLE book (id INTEGER PRIMARY KEY, author INTEGER REFERENCES author ON DELETE CASCADE)",
        "INSERT INTO author VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO book VALUES (10, 1), (20, 2), (30, 2)",
    ):
        await session.execute(sql)


async def test_a_table_is_made_anew_without_foreign_keys(database: Database) -> None:
    one, other = SqlSession(database), SqlSession(database)
    await _library(one)
    await one.execute("PRAGMA foreign_keys = OFF")
    assert (await one.execute("PRAGMA foreign_keys")).rows == [(0,)]
    assert (await other.execute("PRAGMA foreign_keys")).rows == [(1,)]
    await one.execute("BEGIN")
    assert (await one.execute("PRAGMA foreign_keys")).rows == [(0,)]
    for sql in CHANGE:
        await one.execute(sql)
    await one.execute("COMMIT")
    assert (await other.execute("SELECT id, author FROM book ORDER BY id")).rows == [(10, 1), (20, 2), (30, 2)]
    # It ended with the transaction, and never was anybody else's.
    assert (await one.execute("PRAGMA foreign_keys")).rows == [(1,)]
    for session in (one, other):
        with pytest.raises(SqlError, match="FOREIGN KEY"):
            await session.execute("INSERT INTO book VALUES (40, 99)")
    await one.execute("DELETE FROM author WHERE id = 1")
    assert (await other.execute("SELECT count(*) FROM book")).rows == [(2,)]


async def test_foreign_keys_are_looked_at_before_the_commit(database: Database) -> None:
    session = SqlSession(database)
    await _library(session)
    await session.execute("PRAGMA foreign_keys(0);")
    await session.execute("BEGIN IMMEDIATE")
    await session.execute("DELETE FROM author WHERE id = 2")
    with pytest.raises(SqlError, match=r"2 rows name rows that do not exist.*table book") as raised:
        await session.execute("COMMIT")
    assert raised.value.name == "SQLITE_CONSTRAINT_FOREIGNKEY"
    assert not session.autocommit
    await session.execute("INSERT INTO author VALUES (2, 'again')")
    await session.execute("COMMIT")
    await session.execute("PRAGMA foreign_keys=off")
    await session.execute("BEGIN")
    await session.execute("ROLLBACK")
    assert (await session.execute("PRAGMA main.foreign_keys")).rows == [(1,)]
    # Alone a statement is a transaction: it never does what foreign keys would have done, nor leaves them violated.
    await session.execute("PRAGMA foreign_keys = 'no'")
    with pytest.raises(SqlError, match="FOREIGN KEY"):
        await session.execute("DROP TABLE author")
    assert (await session.execute("INSERT INTO book VALUES (40, 1) RETURNING id")).rows == [(40,)]
    await session.execute("PRAGMA foreign_keys = ON")
    assert (await session.execute("SELECT count(*) FROM book JOIN author ON author.id = author")).rows == [(4,)]


async def test_whoever_has_no_connection_cannot_turn_foreign_keys_off(database: Database) -> None:
    with pytest.raises(StatementRefused, match="before BEGIN"):
        await database.execute("PRAGMA foreign_keys = OFF")
    session = SqlSession(database)
    await session.execute("BEGIN")
    with pytest.raises(StatementRefused, match="before BEGIN"):
        await session.execute("PRAGMA foreign_keys = OFF")
    await session.close()


async def test_foreign_keys_that_are_off_may_be_said_to_be_off_or_on_inside(database: Database) -> None:
    """As tools do, which turn them off before the transaction and say so again in the migration. It changes nothing."""
    session = SqlSession(database)
    await _library(session)
    await session.execute("PRAGMA foreign_keys = OFF")
    await session.execute("BEGIN")
    for sql in ("PRAGMA foreign_keys=OFF", *CHANGE, "PRAGMA foreign_keys=ON", "PRAGMA foreign_keys=OFF"):
        await session.execute(sql)
    assert (await session.execute("PRAGMA foreign_keys")).rows == [(0,)]
    await session.execute("COMMIT")
    await session.execute("BEGIN")
    await session.execute("PRAGMA foreign_keys=ON")
    assert (await session.execute("PRAGMA foreign_keys")).rows == [(1,)]
    await session.execute("ROLLBACK")
    assert (await session.execute("SELECT count(*) FROM book")).rows == [(3,)]


async def test_foreign_keys_are_on_again_however_the_transaction_ended(database: Database) -> None:
    session = SqlSession(database)
    await _library(session)
    await session.execute("PRAGMA foreign_keys = OFF")
    await session.execute("BEGIN")
    with pytest.raises(SqlError):
        await session.execute("INSERT OR ROLLBACK INTO author VALUES (1, 'there')")
    assert session.autocommit
    assert (await session.execute("PRAGMA foreign_keys")).rows == [(1,)]


async def test_whoever_lost_a_transaction_is_told_so_until_the_rollback(client: Client) -> None:
    limits = DatabaseLimits(transaction_s=0.2)
    async with client.namespace("shop").database("lost", limits=limits) as database:
        await database.lead()
        session = SqlSession(database)
        await session.execute("PRAGMA foreign_keys = OFF")
        await session.execute("BEGIN")
        transaction = session._transaction
        assert transaction is not None
        await until(lambda: not transaction.open)
        with pytest.raises(TransactionExpired):
            await session.execute("CREATE TABLE t (x)")
        await session.execute("-- nothing")
        for sql in ("CREATE TABLE t (x)", "PRAGMA foreign_keys"):
            with pytest.raises(TransactionExpired):
                await session.execute(sql)
        await session.execute("ROLLBACK")
        assert (await session.execute("PRAGMA foreign_keys")).rows == [(1,)]
