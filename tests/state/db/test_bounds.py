"""Bounds of memory, descriptors and transactions: each is told, and what is open beside it goes on."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.state.db.kit import check_equal, image_of
from tests.support.polling import until

from buckram.errors import (
    BuckramError,
    DatabaseBusy,
    HandleClosed,
    InvalidArgument,
    ResultTooLarge,
    SqlError,
    StatementRefused,
    TransactionTooLarge,
)
from buckram.namespace import Namespace
from buckram.state.db.commits import committing
from buckram.state.db.database import Database
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine import statements

_LIMIT = 256 * 1024
_MANY = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 900)"


@pytest.fixture
async def db(ns: Namespace) -> AsyncIterator[Database]:
    limits = DatabaseLimits(
        result_bytes=_LIMIT, waiting_calls=5, waiting_bytes=_LIMIT, open_transactions=4, reading_transactions=2
    )
    async with ns.database("main", limits=limits) as database:
        await database.lead()
        await database.batch(["CREATE TABLE item (name TEXT)", "CREATE TABLE large (data BLOB)"])
        yield database


async def _count(db: Database) -> object:
    return (await db.query("SELECT count(*) FROM item")).rows[0][0]


# -- texts of several statements ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO item VALUES ('a'); INSERT INTO item VALUES ('b')",
        "INSERT INTO item VALUES ('a'); nonsense",
        "INSERT INTO item VALUES ('a');;/* c */ 1",
        "PRAGMA user_version = 1; PRAGMA user_version = 2",
        "SELECT 1; DELETE FROM item",
    ],
)
async def test_nothing_of_a_text_of_several_statements_is_executed(db: Database, sql: str) -> None:
    with pytest.raises(StatementRefused, match="more than one statement"):
        await db.execute(sql)
    with pytest.raises(StatementRefused):
        await db.batch(["INSERT INTO item VALUES ('c')", sql])
    async with db.transaction() as transaction:
        with pytest.raises(StatementRefused):
            await transaction.execute(sql)
    assert await _count(db) == 0
    assert (await db.execute("PRAGMA user_version")).rows == [(0,)]


async def test_comments_and_semicolons_behind_a_statement_are_no_statement(db: Database) -> None:
    for sql in ("/* a */ INSERT INTO item VALUES ('a'); -- b", "INSERT INTO item VALUES (';') ;; /* ; */ ;"):
        assert (await db.execute(sql)).rows_affected == 1
    trigger = "CREATE TRIGGER t AFTER INSERT ON large BEGIN DELETE FROM item; SELECT 1; END;"
    await db.execute(trigger)
    assert await _count(db) == 2


# -- results --------------------------------------------------------------------------------------------------


async def test_rows_are_bounded_one_by_one(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    rows = statements.Executor._rows

    def counted(self: statements.Executor, cursor: object) -> object:
        def some() -> object:
            for row in cursor:  # type: ignore[attr-defined]  # a cursor
                made.append(len(row[0]))
                yield row

        return rows(self, some())  # type: ignore[arg-type]  # what it iterates over

    monkeypatch.setattr(statements.Executor, "_rows", counted)
    with pytest.raises(ResultTooLarge, match=f"more than {_LIMIT} bytes"):
        await db.query(f"{_MANY} SELECT zeroblob({_LIMIT // 4}) FROM n")
    assert sum(made) <= _LIMIT + _LIMIT // 4
    assert len((await db.query("SELECT zeroblob(80000) FROM json_each('[1,2,3]')")).rows) == 3


async def test_the_results_of_a_batch_are_bounded_together(db: Database) -> None:
    one = f"SELECT zeroblob({_LIMIT // 3})"
    assert len(await db.batch([one] * 2)) == 2
    with pytest.raises(ResultTooLarge):
        await db.batch(["INSERT INTO item VALUES ('never')", *[one] * 4])
    assert await _count(db) == 0


async def test_calls_behind_large_results_come_in_the_next_group(ns: Namespace) -> None:
    async with ns.database("main", limits=DatabaseLimits(result_bytes=_LIMIT)) as db:
        await db.lead()
        await db.execute("CREATE TABLE item (name TEXT)")
        before = db.groups
        given = await asyncio.gather(
            *(
                db.batch([("INSERT INTO item VALUES (?)", (str(number),)), f"SELECT zeroblob({_LIMIT // 2})"])
                for number in range(9)
            )
        )
        assert [len(one) for one in given] == [2] * 9
        assert 4 <= db.groups - before <= 9
        assert [row[0] for row in (await db.query("SELECT name FROM item")).rows] == list(map(str, range(9)))


async def test_values_and_texts_that_are_too_long_are_refused(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SqlError, match="TOOBIG"):
        await db.execute("INSERT INTO large VALUES (?)", (bytes(_LIMIT + 1),))
    with pytest.raises(SqlError, match="TOOBIG"):
        await db.execute("INSERT INTO large VALUES (zeroblob(?))", (2**30,))
    with pytest.raises(SqlError, match="TOOBIG"):
        await db.execute("SELECT 1 --" + "x" * statements.MOST_SQL_BYTES)
    assert (await db.execute("INSERT INTO large VALUES (?)", (bytes(_LIMIT - 1000),))).rows_affected == 1


async def test_a_transaction_of_a_gigabyte_is_told_early(ns: Namespace) -> None:
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE large (data BLOB)")
        gigabyte = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1024) "
        with pytest.raises(TransactionTooLarge, match=r"more than 67108864 bytes .*transaction_bytes"):
            await db.execute(f"INSERT INTO large {gigabyte} SELECT zeroblob(1048576) FROM n")
        with pytest.raises(TransactionTooLarge):
            async with db.transaction() as transaction:
                await transaction.execute(f"INSERT INTO large {gigabyte} SELECT zeroblob(1048576) FROM n")
        await db.execute("INSERT INTO large VALUES (1)")
        assert (await db.query("SELECT count(*) FROM large")).rows == [(1,)]


# -- what waits -----------------------------------------------------------------------------------------------


async def test_calls_beyond_those_that_may_wait_are_told_at_once(db: Database) -> None:
    insert = "INSERT INTO item VALUES (?)"
    async with db.transaction("immediate"):
        waiting = [asyncio.create_task(db.execute(insert, (str(number),))) for number in range(4)]
        await until(lambda: sum(map(len, db._writer._queue.queues.values())) == 4)
        for _ in range(2):
            with pytest.raises(DatabaseBusy, match=r"5 calls wait already.*waiting_calls"):
                await db.execute(insert, ("never",))
        with pytest.raises(DatabaseBusy):
            await db.begin("immediate")
        assert await _count(db) == 0  # Reads have a queue of their own.
    await asyncio.gather(*waiting)
    async with db.transaction("immediate"):
        waiting = [asyncio.create_task(db.execute(insert, ("x" * (_LIMIT // 2),)))]
        await until(lambda: sum(map(len, db._writer._queue.queues.values())) == 1)
        with pytest.raises(DatabaseBusy, match="waiting_bytes"):
            await db.execute(insert, ("x" * (_LIMIT // 2),))
        with pytest.raises(DatabaseBusy, match="waiting_bytes"):
            await db.batch([(":".join(["INSERT INTO item VALUES (:a)"]), {"a": bytes(_LIMIT // 2)})])
    await asyncio.gather(*waiting)
    assert await _count(db) == 5
    assert (db._writer._room._calls, db._writer._room._bytes) == (0, 0)


async def test_reads_beyond_those_that_may_wait_are_told_at_once(db: Database) -> None:
    slow = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 30000) SELECT max(i) FROM n"
    found = await asyncio.gather(*(db.query(slow, consistency="stale") for _ in range(20)), return_exceptions=True)
    told = [one for one in found if isinstance(one, DatabaseBusy)]
    assert len(told) == 15
    assert "5 reads wait already" in str(told[0])
    assert await _count(db) == 0


# -- transactions ---------------------------------------------------------------------------------------------


async def test_transactions_beyond_those_that_may_be_open_are_told_at_once(db: Database) -> None:
    first = [await db.begin() for _ in range(4)]
    with pytest.raises(DatabaseBusy, match="4 transactions are open"):
        await db.begin()
    for transaction in first[:2]:
        await transaction.execute("SELECT count(*) FROM item")
    with pytest.raises(DatabaseBusy, match=r"2 transactions that have not written.*reading_transactions"):
        await first[2].execute("SELECT count(*) FROM item")
    await first[2].execute("INSERT INTO item VALUES ('it may write')")
    await first[2].commit()
    await first[0].rollback()
    assert (await first[3].execute("SELECT count(*) FROM item")).rows == [(1,)]
    for transaction in first:
        await transaction.rollback()
    assert (db._open.open, db._open.reading) == (0, 0)
    async with db.transaction("immediate") as last:
        await last.execute("INSERT INTO item VALUES ('more')")
    assert await _count(db) == 2


async def test_the_schema_changes_beside_open_transactions(db: Database) -> None:
    await db.execute("INSERT INTO item VALUES ('one')")
    reading, idle = await db.begin(), await db.begin()
    assert (await reading.execute("SELECT * FROM item")).rows == [("one",)]
    await db.batch(["ALTER TABLE item ADD COLUMN n DEFAULT 7", "DROP TABLE large", "CREATE TABLE other (a)"])
    assert (await reading.execute("SELECT * FROM item")).rows == [("one",)]
    assert (await reading.execute("SELECT count(*) FROM large")).rows == [(0,)]
    with pytest.raises(DatabaseBusy, match="SQLITE_BUSY_SNAPSHOT"):
        await reading.execute("INSERT INTO large VALUES (1)")
    await reading.rollback()
    # One that has not read yet sees the newest schema; and who changes it waits for who writes.
    await idle.execute("INSERT INTO other SELECT n FROM item")
    dropping = asyncio.create_task(db.execute("DROP TABLE other"))
    await until(lambda: sum(map(len, db._writer._queue.queues.values())) == 1)
    assert (await idle.execute("SELECT a FROM other")).rows == [(7,)]
    await idle.commit()
    await dropping
    with pytest.raises(SqlError, match="no such table"):
        await db.query("SELECT a FROM other")


# -- descriptors ----------------------------------------------------------------------------------------------


def _descriptors() -> int:
    """Those of files of databases; the others come and go."""
    gc.collect()
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += "buckram-db-" in os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
    return found


async def test_descriptors_are_given_back(ns: Namespace, tmp_path: Path) -> None:
    async with ns.database("main", stand=False) as follower, ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE item (name TEXT)")

        async def use() -> int:
            await db.execute("INSERT INTO item VALUES ('x')")
            await asyncio.gather(*(db.query("SELECT 1") for _ in range(10)))
            await follower.query("SELECT 1", consistency="stale", after=db.applied)
            await db.snapshot()
            await db.snapshot()  # There is nothing new.
            reading = await db.begin()
            await reading.execute("SELECT 1")
            await reading.rollback()
            asking, snapshot = db._engine.image(db.groups), db._state.snapshot()
            asking.cancel()
            snapshot.close()
            snapshot.close()
            backups = [asyncio.create_task(db.backup(tmp_path / f"{number}.db")) for number in range(6)]
            await backups[0]
            for backup in backups[3:]:
                backup.cancel()
            await asyncio.gather(*backups, return_exceptions=True)
            await until(lambda: db._engine.files._images == 0)
            return _descriptors()

        # SQLite keeps a descriptor for the next connection, so that as many stay as were in use at the same time. How
        # many those are grows by a few with the most that ever met; what each use keeps for good makes fifteen more.
        open_then = [await use() for _ in range(20)]
        assert min(open_then[-5:]) < min(open_then[:5]) + 10, open_then
        assert max(open_then) < 40
    assert _descriptors() == 0


async def test_an_image_outlives_its_files(ns: Namespace) -> None:
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE item (name TEXT)")
        await db.execute("INSERT INTO item VALUES (hex(zeroblob(9000)))")
        wanted = await image_of(db)
        image = await db._engine.image(db.groups)
    with closing(image):
        assert b"".join(image.pages()) == wanted
        assert _descriptors() > 0
    assert _descriptors() == 0


async def test_images_that_wait_are_told_of_the_end(ns: Namespace) -> None:
    async with ns.database("main") as db:
        await db.lead()
        never = db._engine.image(db.groups + 1)
        await db.execute("CREATE TABLE t (a)")
        image = await never
        image.close()
        never = db._engine.image(db.groups + 7)
    with pytest.raises(HandleClosed):
        await never
    with pytest.raises(HandleClosed):
        db._engine.image(0)


async def test_a_statement_of_many_results_does_not_hold_up_its_group(ns: Namespace) -> None:
    """A constraint that fails inside a group of others, each with rows of its own."""
    async with ns.database("main") as db, ns.database("main", stand=False) as follower:
        await db.lead()
        await db.execute("CREATE TABLE item (name TEXT UNIQUE, n CHECK (n < 5))")
        calls = (
            db.execute("INSERT INTO item VALUES (?, ?) RETURNING name", (str(number % 7), number % 6))
            for number in range(60)
        )
        found = await asyncio.gather(*calls, return_exceptions=True)
        told = [one for one in found if isinstance(one, BaseException)]
        assert {getattr(one, "name", "") for one in told} == {"SQLITE_CONSTRAINT_UNIQUE", "SQLITE_CONSTRAINT_CHECK"}
        kept = sorted(str(row[0]) for row in (await db.query("SELECT name FROM item")).rows)
        assert kept == sorted(one.rows[0][0] for one in found if not isinstance(one, BaseException))
        await check_equal(db, [follower])


@pytest.mark.parametrize(
    ("name", "value"),
    [("waiting_calls", 0), ("waiting_bytes", 1), ("open_transactions", 1.5), ("reading_transactions", -1)],
)
def test_bad_limits_are_named(name: str, value: object) -> None:
    with pytest.raises((InvalidArgument, BuckramError), match=f"{name} = {value}: needs a whole number"):
        DatabaseLimits(**{name: value})  # type: ignore[arg-type]  # the wrong type


async def test_the_parts_of_a_large_group_are_written_a_few_ahead(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "_PART_BYTES", 2000)
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE item (data BLOB)")
        leader, ahead = await db._committing.leader(), list[int]()
        command = leader.command
        monkeypatch.setattr(leader, "command", lambda *args: (ahead.append(leader.pending), command(*args))[1])
        await db.execute("INSERT INTO item VALUES (randomblob(60000))")
        assert len(ahead) > 30
        assert max(ahead) == committing._PARTS_AHEAD - 1
        assert (await db.query("SELECT length(data) FROM item")).rows == [(60000,)]


# -- files are the server's --------------------------------------------------------------------------------------


async def test_no_statement_tells_where_the_files_are(db: Database) -> None:
    await db.execute("CREATE TABLE names (file TEXT)")
    await db.execute("INSERT INTO names VALUES ('kept')")
    for ask in (db.execute, db.query):
        assert (await ask("PRAGMA database_list")).rows == [(0, "main", "")]
        assert (await ask("/* all */ pragma MAIN . Database_List")).rows == [(0, "main", "")]
        plan = (await ask("EXPLAIN PRAGMA database_list")).rows
        assert not any("main.db" in str(value) for row in plan for value in row)
        assert (await ask("SELECT file FROM names")).rows == [("kept",)]
        assert (await ask("SELECT name FROM pragma_database_list")).rows == [("main",)]
        for sql in ("SELECT * FROM pragma_database_list", "SELECT hex(l.file) FROM pragma_database_list() AS l"):
            with pytest.raises(StatementRefused, match="files are the server's"):
                await ask(sql)
    with pytest.raises(StatementRefused, match="files are the server's"):
        await db.execute("INSERT INTO names SELECT file FROM pragma_database_list")
    await db.execute("CREATE VIEW seen AS SELECT file FROM pragma_database_list")
    with pytest.raises(StatementRefused, match="files are the server's"):
        await db.query("SELECT * FROM seen")
