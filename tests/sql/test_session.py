"""One caller's connection: transactions by statements, what is refused, and what becomes of a lost transaction."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.plain_database import PlainDatabase

from buckram.errors import InvalidArgument
from buckram.sql.interface import SqlError, TransactionExpired
from buckram.sql.session import Session


async def test_statements_alone_and_in_a_transaction() -> None:
    database = PlainDatabase()
    one, other = Session(database), Session(database)
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


async def test_closing_rolls_back() -> None:
    database = PlainDatabase()
    one, other = Session(database), Session(database)
    await one.execute("CREATE TABLE t (x)")
    await one.execute("BEGIN")
    await one.execute("INSERT INTO t VALUES (1)")
    await one.close()
    await one.close()
    assert (await other.execute("SELECT count(*) FROM t")).rows == [(0,)]


async def test_misuse_has_sqlites_words() -> None:
    session = Session(PlainDatabase())
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
        Session(PlainDatabase(), at_most_s=1.0)


async def test_an_error_in_a_transaction_leaves_it_open_or_ends_it_as_sqlite_does() -> None:
    session = Session(PlainDatabase())
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


async def test_a_commit_that_a_constraint_forbids_leaves_the_transaction_open() -> None:
    database = PlainDatabase()
    database.connection.execute("PRAGMA foreign_keys = ON")
    session = Session(database)
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


async def test_after_an_expired_transaction_nothing_runs_until_rollback() -> None:
    database = PlainDatabase()
    session = Session(database)
    await session.execute("CREATE TABLE t (x)")
    await session.execute("BEGIN IMMEDIATE")
    database.transactions[-1].expire()
    for sql in ("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)", "COMMIT"):
        with pytest.raises(TransactionExpired, match="more than 5 s"):
            await session.execute(sql)
    await session.execute("ROLLBACK")
    await session.execute("INSERT INTO t VALUES (3)")
    assert (await session.execute("SELECT x FROM t")).rows == [(3,)]


async def test_a_transaction_begun_as_read_only_writes_nothing() -> None:
    session = Session(PlainDatabase())
    await session.execute("CREATE TABLE t (x)")
    await session.execute("BEGIN TRANSACTION READONLY")
    assert (await session.execute("SELECT * FROM t")).rows == []
    with pytest.raises(SqlError, match="read only"):
        await session.execute("INSERT INTO t VALUES (1)")
    await session.execute("COMMIT")


async def test_reads_that_may_be_stale_write_nothing() -> None:
    database = PlainDatabase()
    await database.execute("CREATE TABLE t (x)")
    session = Session(database, consistency="stale", at_most_s=5)
    assert (await session.execute("SELECT * FROM t")).rows == []
    with pytest.raises(SqlError, match="readonly"):
        await session.execute("INSERT INTO t VALUES (1)")


async def test_cancelling_a_statement_ends_its_transaction() -> None:
    database = PlainDatabase()
    session = Session(database)
    await session.execute("BEGIN")
    transaction = database.transactions[-1]

    async def endless(sql: str, parameters: object = ()) -> None:
        await asyncio.Event().wait()

    transaction.execute = endless  # type: ignore[method-assign, assignment]
    task = asyncio.ensure_future(session.execute("SELECT 1"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not transaction.active
    with pytest.raises(SqlError, match="was cancelled"):
        await session.execute("SELECT 1")
    await session.execute("ROLLBACK")
    assert session.autocommit
