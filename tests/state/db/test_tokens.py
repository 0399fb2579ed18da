"""Tokens: whatever is done under one is done once, leaves a receipt, and can be asked for at any time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest
from tests.serve.hrana.kit import Hrana, execute, serving
from tests.state.db.kit import check_equal
from tests.support.polling import until

from buckram.cluster import Client
from buckram.errors import DatabaseBusy, NotLeader, SqlError
from buckram.namespace import Namespace
from buckram.serve.hrana.server import DatabaseServer
from buckram.sql import aio
from buckram.sql.session import SqlSession
from buckram.sql.shared_databases import sharing
from buckram.state.db.database import Database
from buckram.state.db.settings import DatabaseLimits
from buckram.testing import Cluster

INSERT = "INSERT INTO item (name) VALUES (?)"


@pytest.fixture
async def db(ns: Namespace) -> AsyncIterator[Database]:
    async with ns.database("main", limits=DatabaseLimits(wait_s=3.0)) as database:
        await database.lead()
        await database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        yield database


async def _names(db: Database) -> list[object]:
    return [row[0] for row in (await db.query("SELECT name FROM item ORDER BY id")).rows]


async def test_a_transaction_under_a_used_token_is_rolled_back_and_told_the_first_counts(db: Database) -> None:
    first = await db.begin()
    await first.execute(INSERT, ("one",))
    await first.execute("UPDATE item SET name = upper(name)")
    told = await first.commit(token="t")
    assert [(one.rows_affected, one.last_insert_rowid) for one in told] == [(1, 1), (1, None)]
    again = await db.begin()
    await again.execute(INSERT, ("again",))
    assert await again.commit(token="t") == told
    assert not again.open
    assert await _names(db) == ["ONE"]
    # The other ways of doing something under a token know it as well.
    assert [one.rows_affected for one in await db.batch([(INSERT, ("x",))] * 2, token="t")] == [1, 1]
    await db.execute(INSERT, ("two",), token="u")
    last = await db.begin()
    await last.execute(INSERT, ("again",))
    assert (await last.commit(token="u"))[0].last_insert_rowid == 2
    assert await _names(db) == ["ONE", "two"]


async def test_what_changes_nothing_leaves_a_receipt_too(db: Database, ns: Namespace) -> None:
    async with ns.database("main", stand=False) as follower:
        await db.execute("UPDATE item SET name = 'x' WHERE id = 7", token="no row")
        await db.execute("SELECT count(*) FROM item", token="a read")
        await db.batch(["SELECT 1", "DELETE FROM item"], token="a batch")
        assert (await db.execute("PRAGMA user_version", token="a pragma")).rows == [(0,)]
        await db.execute("VACUUM", token="a vacuum")
        await (await db.begin()).commit(token="a transaction")
        await check_equal(db, [follower])
    used = ["no row", "a read", "a batch", "a pragma", "a vacuum", "a transaction"]
    assert [await db.outcome(token) for token in used] == ["committed"] * 6
    before = db.groups
    assert (await db.execute("PRAGMA user_version = 3", token="a pragma")).rows_affected == 0
    assert (await db.execute("PRAGMA user_version")).rows == [(0,)]
    await db.execute("VACUUM", token="a vacuum")
    assert db.groups == before
    await db.snapshot()
    await db.aclose()
    async with ns.database("main") as again:
        await again.lead()
        assert [await again.outcome(token) for token in used] == ["committed"] * 6
        assert (await ns.verify_database("main")).faults == ()


async def test_what_fails_leaves_no_receipt(db: Database) -> None:
    for sql in ("INSERT INTO missing VALUES (1)", "PRAGMA journal_mode = DELETE"):
        with pytest.raises(Exception, match=r"missing|setting"):
            await db.execute(sql, token="t")
    transaction = await db.begin("immediate")
    await transaction.execute(INSERT, ("never",))
    await transaction.rollback()
    assert await db.outcome("t") == "aborted"
    await db.execute(INSERT, ("one",), token="t")
    assert await _names(db) == ["one"]


async def test_a_call_that_waits_is_pending(db: Database, ns: Namespace) -> None:
    async with ns.database("main", stand=False) as follower:
        await follower.query("SELECT 1", consistency="stale", after=db.applied)
        async with db.transaction("immediate") as transaction:
            waiting = asyncio.create_task(db.execute(INSERT, ("one",), token="t"))
            late = asyncio.create_task(db.execute("VACUUM", token="late"))
            await until(lambda: sum(map(len, db._writer._queue.queues.values())) == 2)
            assert [await db.outcome("t"), await db.outcome("late"), await db.outcome("other")] == [
                "pending",
                "pending",
                "aborted",
            ]
            asked = "SELECT buckram_outcome('t'), buckram_outcome('other')"
            assert (await db.execute(asked)).rows == [("pending", "aborted")]
            assert (await transaction.execute(asked)).rows == [("pending", "aborted")]
            # Who does not lead cannot know of it.
            assert (await follower.query(asked, consistency="stale")).rows == [("pending", "pending")]
            with pytest.raises(DatabaseBusy):
                await waiting
            assert await db.outcome("t") == "aborted"
            with pytest.raises(DatabaseBusy):
                await late
    await db.execute(INSERT, ("two",), token="t")
    assert await db.outcome("t") == "committed"


async def test_a_call_that_is_being_executed_is_pending(db: Database) -> None:
    execution, held, go = db._engine.execution, threading.Event(), threading.Event()
    group, commit = execution.group, execution.commit

    def wait() -> None:
        held.set()
        assert go.wait(20)

    execution.group = lambda *args: (wait(), group(*args))[1]  # type: ignore[method-assign]
    execution.commit = lambda *args: (wait(), commit(*args))[1]  # type: ignore[method-assign]
    calling = asyncio.create_task(db.execute(INSERT, ("one",), token="t"))
    await until(held.is_set)
    calling.cancel()  # Whoever called does not wait any more; it is executed all the same.
    assert await db.outcome("t") == "pending"
    go.set()
    transaction = await db.begin("immediate")
    assert await db.outcome("t") == "committed"
    held.clear()
    go.clear()
    committing = asyncio.create_task(transaction.commit(token="u"))
    await until(held.is_set)
    committing.cancel()
    assert await db.outcome("u") == "pending"
    go.set()
    await until(lambda: not db._writer.is_using("u"))
    assert await db.outcome("u") == "committed"


async def test_what_was_asked_of_an_earlier_leadership_is_not_executed(db: Database) -> None:
    transaction = await db.begin("immediate")
    waiting = asyncio.create_task(db.execute(INSERT, ("never",), token="t"))
    await until(lambda: db._writer.is_using("t"))
    await db.step_down()
    await db.lead()
    await transaction.rollback()
    with pytest.raises(NotLeader):
        await waiting
    assert await db.outcome("t") == "aborted"
    assert await _names(db) == []


async def test_the_function_is_there_in_every_way_of_asking(
    three_bookies: Cluster, client: Client, ns: Namespace
) -> None:
    async with serving(client, "shop/main") as server:
        await _asks(server)
    try:
        async with aio.connect(three_bookies.uri, "shop/main") as connection:
            for isolation in ("autocommit", "read committed", "serializable"):
                connection.isolation = isolation  # type: ignore[assignment]  # one of the three
                cursor = await connection.execute("SELECT buckram_outcome(?), buckram_outcome('none')", ("t",))
                assert await cursor.fetchall() == [("committed", "aborted")]
                await connection.commit()
    finally:
        await sharing().close()


async def _asks(server: DatabaseServer) -> None:
    db = await server.databases.get("shop/main")
    await db.lead()
    await db.execute("CREATE TABLE item (name)", token="t")
    hrana = await Hrana.to(server.url)
    asked = "SELECT buckram_outcome('t'), buckram_outcome('none')"
    assert await hrana.rows(asked) == [["committed", "aborted"]]
    await hrana.pipeline(execute("BEGIN IMMEDIATE"))
    assert await hrana.rows(asked) == [["committed", "aborted"]]
    await hrana.raw.close()


async def test_a_wrong_number_of_arguments_is_told(db: Database) -> None:
    with pytest.raises(SqlError, match="wrong number of arguments"):
        await db.execute("SELECT buckram_outcome()")


async def test_where_no_more_tokens_can_be_kept_new_ones_are_refused(ns: Namespace) -> None:
    limits = DatabaseLimits(token_bytes=64 * 1024)
    async with ns.database("small", limits=limits) as db:
        await db.lead()
        await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)", token="first")
        calls = [db.execute(INSERT, (str(number),), token=f"{number:0100}") for number in range(600)]
        told = await asyncio.gather(*calls, return_exceptions=True)
        kept = [number for number, one in enumerate(told) if not isinstance(one, BaseException)]
        assert 200 < len(kept) < 600
        with pytest.raises(DatabaseBusy, match=r"tokens of the last 24 hours.*65536.*without a token.*token_bytes"):
            await db.execute(INSERT, ("more",), token="more")
        assert await db.outcome("more") == "aborted"
        # What was done is known, and done once; what has no token of its own goes on.
        assert (await db.execute(INSERT, ("again",), token=f"{kept[0]:0100}")).rows_affected == 1
        assert await db.outcome("first") == "committed"
        transaction = await db.begin("immediate")
        await transaction.execute(INSERT, ("transaction",))
        with pytest.raises(DatabaseBusy, match="token_bytes"):
            await transaction.commit(token="more")
        await transaction.commit()
        names = [row[0] for row in (await db.query("SELECT name FROM item ORDER BY id")).rows]
        assert names == [*map(str, kept), "transaction"]


@pytest.mark.parametrize("keys", [True, False])
async def test_a_token_of_a_session_is_for_its_next_transaction_alone(db: Database, keys: bool) -> None:
    """Also where foreign keys are not looked at, and a statement is a transaction of its own kind."""
    session = SqlSession(db)
    try:
        for repetition in range(2):
            if not keys:
                await session.execute("PRAGMA foreign_keys = OFF", ())
            session.use_token("t")
            if keys:
                await session.execute("BEGIN", ())
            result = await session.execute(INSERT, ("under the token",))
            if keys:
                await session.execute("COMMIT", ())
            assert result.rows_affected == 1, repetition
        await session.execute("BEGIN", ())
        await session.execute(INSERT, ("of its own",))
        await session.execute("COMMIT", ())
    finally:
        await session.close()
    assert await _names(db) == ["under the token", "of its own"]
