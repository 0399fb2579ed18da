"""Writing: who is served when, what fails alone, what is refused, and what a limit does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.state.db.kit import check_equal
from tests.support.polling import until

from buckram.errors import (
    BuckramError,
    DatabaseBusy,
    HandleClosed,
    InvalidArgument,
    ResultTooLarge,
    SqlError,
    StatementRefused,
    TransactionExpired,
    TransactionTooLarge,
)
from buckram.namespace import Namespace
from buckram.state.db.commits.write_queue import CALLER
from buckram.state.db.database import Database
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine import execution

_ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "


@pytest.fixture
async def db(ns: Namespace) -> AsyncIterator[Database]:
    limits = DatabaseLimits(transaction_s=0.5, wait_s=20.0, transaction_bytes=512 * 1024, result_bytes=256 * 1024)
    async with ns.database("main", limits=limits) as database:
        await database.lead()
        await database.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT UNIQUE, n INTEGER DEFAULT 0)")
        yield database


async def _count(db: Database) -> int:
    found = (await db.query("SELECT count(*) FROM item")).rows[0][0]
    assert isinstance(found, int)
    return found


async def test_statements_of_one_moment_share_a_group_and_fail_alone(db: Database) -> None:
    before = db._state.sequence
    names = [str(number % 90) for number in range(100)]
    calls = (db.execute("INSERT INTO item (name) VALUES (?)", (name,)) for name in names)
    results = await asyncio.gather(*calls, return_exceptions=True)
    failed = [result for result in results if isinstance(result, SqlError)]
    assert len(failed) == 10
    assert {(error.code, error.name) for error in failed} == {(19, "SQLITE_CONSTRAINT_UNIQUE")}
    ids = [result.last_insert_rowid for result in results if not isinstance(result, BaseException)]
    assert sorted(map(int, filter(None, ids))) == list(range(1, 91))
    assert db._state.sequence - before < 20
    assert await _count(db) == 90


async def test_a_deferred_foreign_key_fails_alone(db: Database) -> None:
    await db.execute(
        "CREATE TABLE part (id INTEGER PRIMARY KEY, item REFERENCES item (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    insert = "INSERT INTO part (item) VALUES (?)"
    found = await asyncio.gather(
        db.execute(insert, (7,)),
        db.batch([(insert, (1,)), ("INSERT INTO item (id, name) VALUES (1, 'bolt')", ())]),
        return_exceptions=True,
    )
    assert isinstance(found[0], SqlError)
    assert found[0].name == "SQLITE_CONSTRAINT_FOREIGNKEY"
    assert not isinstance(found[1], BaseException)
    assert (await db.query("SELECT item FROM part")).rows == [(1,)]
    async with db.transaction() as transaction:
        await transaction.execute(insert, (9,))
        with pytest.raises(SqlError, match="FOREIGN KEY"):
            await transaction.commit()
        await transaction.execute("DELETE FROM part WHERE item = 9")
    assert (await db.query("SELECT item FROM part")).rows == [(1,)]


async def test_a_batch_is_all_or_nothing(db: Database) -> None:
    with pytest.raises(SqlError, match="no such table"):
        await db.batch([("INSERT INTO item (name) VALUES (?)", ("bolt",)), "INSERT INTO missing VALUES (1)"])
    assert await _count(db) == 0
    given = await db.batch(
        [
            ("INSERT INTO item (name) VALUES (:name) RETURNING id", {"name": "bolt"}),
            "UPDATE item SET n = n + 1",
            "SELECT name, n FROM item",
        ]
    )
    assert [result.rows for result in given] == [[(1,)], [], [("bolt", 1)]]
    assert [result.rows_affected for result in given] == [1, 1, 0]
    assert [result.columns for result in given] == [("id",), (), ("name", "n")]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("ATTACH '/tmp/x' AS x", "stands alone"),
        ("PRAGMA journal_mode = DELETE", "its own setting"),
        ("PRAGMA writable_schema = 1", "does not execute it"),
        ("SELECT load_extension('x')", "load"),
        ("CREATE TEMP TABLE x (a)", "temporary"),
        ("CREATE TABLE temp.x (a)", "schema temp"),
        ('CREATE TABLE IF NOT EXISTS "TEMP"."item" AS SELECT 1', "schema temp"),
        ("CREATE VIEW temp.item AS SELECT 1 AS id", "schema temp"),
        ("CREATE TRIGGER temp.x AFTER INSERT ON main.item BEGIN DELETE FROM item; END", "schema temp"),
        ("CREATE VIRTUAL TABLE temp.x USING fts5 (a)", "schema temp"),
        ("ANALYZE temp", "schema temp"),
        ("PRAGMA temp.user_version = 3", "schema temp"),
        ("PRAGMA legacy_alter_table = ON", "begin one first"),
        ("PRAGMA auto_vacuum = FULL", "its own setting"),
        ("BEGIN", "begin\\(\\)"),
        ("COMMIT", "begin\\(\\)"),
        ("SAVEPOINT buckram_unit", "the database's own"),
        ("DELETE FROM item; DELETE FROM item", "more than one statement"),
        ("VACUUM INTO '/tmp/copy'", "backup"),
    ],
)
async def test_what_a_replicated_database_does_not_execute(db: Database, sql: str, message: str) -> None:
    with pytest.raises((StatementRefused, SqlError), match=message):
        await db.execute(sql)
    await db.execute("INSERT INTO item (name) VALUES ('after')")
    assert await _count(db) == 1


@pytest.mark.parametrize("set_by", ["PRAGMA legacy_alter_table = ON", "EXPLAIN PRAGMA legacy_alter_table(1)"])
@pytest.mark.parametrize("end", ["commit", "rollback", "batch", "failed batch"])
async def test_what_a_caller_sets_ends_with_his_transaction(db: Database, set_by: str, end: str) -> None:
    """With legacy_alter_table a view goes on naming the table that was renamed."""
    await db.execute("CREATE VIEW names AS SELECT name FROM item")
    if end == "batch":
        await db.batch([set_by])
    elif end == "failed batch":
        with pytest.raises(SqlError):
            await db.batch([set_by, "INSERT INTO missing VALUES (1)"])
    else:
        other = await db.begin("immediate")
        await other.execute(set_by)
        assert (await other.execute("PRAGMA legacy_alter_table")).rows == [(1,)]
        await (other.commit() if end == "commit" else other.rollback())
    renaming, reading = db.batch(["ALTER TABLE item RENAME TO thing"]), "SELECT name FROM names"
    await renaming
    assert (await db.query(reading)).rows == []
    async with db.transaction(mode="immediate") as mine:
        assert (await mine.execute("PRAGMA legacy_alter_table")).rows == [(0,)]


async def test_what_a_unit_sets_is_not_there_for_those_that_share_its_commit(db: Database) -> None:
    await db.execute("CREATE VIEW names AS SELECT name FROM item")
    turn = await db.begin("immediate")  # until it ends, what follows gathers for one commit
    both = asyncio.gather(db.batch(["PRAGMA legacy_alter_table = ON"]), db.batch(["ALTER TABLE item RENAME TO thing"]))
    await asyncio.sleep(0)
    await turn.rollback()
    await both
    assert (await db.query("SELECT name FROM names")).rows == []


async def test_values_that_do_not_fit_are_named(db: Database) -> None:
    with pytest.raises(InvalidArgument, match="placeholders"):
        await db.execute("INSERT INTO item (name) VALUES (?)", ())
    with pytest.raises(InvalidArgument, match="placeholders"):
        await db.execute("INSERT INTO item (name) VALUES (?)", (object(),))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="sequence"):
        await db.execute("INSERT INTO item (name) VALUES (?)", "bolt")  # type: ignore[arg-type]
    with pytest.raises(SqlError, match="incomplete input"):
        await db.execute("INSERT INTO")


async def test_under_a_token_it_is_executed_once(db: Database, ns: Namespace) -> None:
    insert = "INSERT INTO item (name) VALUES (?)"
    found = await asyncio.gather(*(db.execute(insert, (str(number),), token="one") for number in range(5)))
    assert {result.last_insert_rowid for result in found} == {1}
    assert await db.outcome("one") == "committed"
    assert await db.outcome("two") == "aborted"
    with pytest.raises(SqlError):
        await db.execute(insert, ("0",), token="two")
    assert (await db.execute("SELECT buckram_outcome('one'), buckram_outcome('two')")).rows == [
        ("committed", "aborted")
    ]
    await db.snapshot()
    await db.aclose()
    async with ns.database("main") as again:
        await again.lead()
        assert (await again.execute(insert, ("x",), token="one")).rows_affected == 1
        assert await _count(again) == 1


async def test_a_transaction_that_is_open_for_too_long_is_rolled_back_and_told(db: Database) -> None:
    transaction = await db.begin("immediate")
    await transaction.execute("INSERT INTO item (name) VALUES ('never')")
    assert (await db.execute("INSERT INTO item (name) VALUES ('next')")).rows_affected == 1
    with pytest.raises(TransactionExpired, match=r"more than 0\.5 s"):
        await transaction.execute("SELECT 1")
    with pytest.raises(TransactionExpired):
        await transaction.commit()
    await transaction.rollback()
    assert (await db.query("SELECT name FROM item")).rows == [("next",)]


async def test_a_statement_without_end_is_stopped_and_others_of_its_group_are_committed(db: Database) -> None:
    insert = "INSERT INTO item (name) VALUES (?)"
    found = await asyncio.gather(
        db.execute(insert, ("before",)),
        db.execute("INSERT INTO item (name) " + _ENDLESS + "SELECT sum(i) FROM n"),
        db.execute(insert, ("after",)),
        return_exceptions=True,
    )
    assert isinstance(found[1], TransactionExpired)
    assert sorted((await db.query("SELECT name FROM item")).rows) == [("after",), ("before",)]


async def test_each_of_63_writers_has_its_turn_beside_one_that_idles(db: Database) -> None:
    idle = await db.begin("immediate")

    async def write(number: int) -> None:
        async with db.transaction("immediate") as transaction:
            await transaction.execute("INSERT INTO item (name) VALUES (?)", (str(number),))

    await asyncio.gather(*(write(number) for number in range(63)))
    with pytest.raises(TransactionExpired):
        await idle.commit()
    assert await _count(db) == 63


async def test_who_waits_for_too_long_is_told(ns: Namespace) -> None:
    async with ns.database("busy", limits=DatabaseLimits(transaction_s=5, wait_s=0.1)) as db:
        await db.lead()
        async with db.transaction("immediate"):
            with pytest.raises(DatabaseBusy, match=r"more than 0\.1 s") as busy:
                await db.execute("CREATE TABLE t (a)")
            assert (busy.value.code, busy.value.name) == (5, "SQLITE_BUSY")
            with pytest.raises(DatabaseBusy):
                await db.begin("immediate")
        await db.execute("CREATE TABLE t (a)")


async def test_each_waits_for_its_own_time(ns: Namespace) -> None:
    async with ns.database("busy", limits=DatabaseLimits(transaction_s=5, wait_s=0.4)) as db:
        await db.lead()
        loop, waited = asyncio.get_running_loop(), list[float]()

        async def wait(after: asyncio.Future[None]) -> None:
            await after
            began = loop.time()
            with pytest.raises(DatabaseBusy):
                await db.execute("CREATE TABLE t (a)")
            waited.append(loop.time() - began)

        async with db.transaction("immediate"):
            starts = [loop.create_future() for _ in range(3)]
            waiting = [asyncio.ensure_future(wait(start)) for start in starts]
            for number, start in enumerate(starts):
                loop.call_later(number * 0.15, start.set_result, None)
            await asyncio.gather(*waiting)
        assert min(waited) >= 0.39
        await db.execute("CREATE TABLE t (a)")


async def test_a_transaction_that_is_too_large_fails_alone(db: Database) -> None:
    large = "INSERT INTO item (name) SELECT hex(randomblob(3000)) FROM json_each('[1" + ",1" * 300 + "]')"
    found = await asyncio.gather(
        db.execute("INSERT INTO item (name) VALUES ('before')"),
        db.execute(large),
        db.execute("INSERT INTO item (name) VALUES ('after')"),
        return_exceptions=True,
    )
    assert isinstance(found[1], TransactionTooLarge)
    assert [type(found[0]), type(found[2])] == [type(found[0])] * 2
    assert sorted((await db.query("SELECT name FROM item")).rows) == [("after",), ("before",)]
    transaction = await db.begin()
    await transaction.execute("INSERT INTO item (name) VALUES ('never')")
    await transaction.execute(large)  # It is in SQLite's memory as yet.
    with pytest.raises(TransactionTooLarge, match="524288 bytes"):
        await transaction.commit()
    await transaction.rollback()
    assert await _count(db) == 2


async def test_a_result_that_is_too_large_is_told(db: Database) -> None:
    await db.execute("INSERT INTO item (name) VALUES (hex(zeroblob(50000)))")
    with pytest.raises(ResultTooLarge, match="262144 bytes"):
        await db.query("SELECT name FROM item, json_each('[1,2,3,4,5,6]')")
    async with db.transaction() as transaction:
        with pytest.raises(ResultTooLarge):
            await transaction.execute("SELECT name FROM item, json_each('[1,2,3,4,5,6]')")
        await transaction.execute("UPDATE item SET n = 3")
    assert (await db.query("SELECT n FROM item")).rows == [(3,)]


async def test_the_last_row_id_is_that_of_the_caller(db: Database) -> None:
    await db.execute("INSERT INTO item (id, name) VALUES (41, 'other')")
    given = await db.batch(
        [
            "SELECT last_insert_rowid()",
            "INSERT INTO item (name) VALUES ('one')",
            "INSERT INTO item (name, n) VALUES ('two', last_insert_rowid())",
            "SELECT last_insert_rowid(), changes()",
            "UPDATE item SET n = n",
            "INSERT OR IGNORE INTO item (name) VALUES ('one')",
        ]
    )
    assert [result.last_insert_rowid for result in given] == [None, 42, 43, None, None, None]
    assert (given[0].rows, given[3].rows) == ([(0,)], [(43, 1)])
    assert (await db.query("SELECT n FROM item WHERE id = 43")).rows == [(42,)]


async def test_a_deferred_transaction_that_reads_holds_nobody_up(db: Database) -> None:
    await db.execute("INSERT INTO item (name) VALUES ('one')")
    reading = await db.begin()
    assert (await reading.execute("SELECT name FROM item")).rows == [("one",)]
    await db.execute("INSERT INTO item (name) VALUES ('two')")
    assert (await reading.execute("SELECT name FROM item")).rows == [("one",)]
    with pytest.raises(DatabaseBusy, match="SQLITE_BUSY_SNAPSHOT") as busy:
        await reading.execute("DELETE FROM item")
    assert busy.value.extended_code == 517
    assert (await reading.execute("SELECT count(*) FROM item")).rows == [(1,)]
    await reading.commit()
    with pytest.raises(HandleClosed):
        await reading.execute("SELECT 1")
    async with db.transaction() as transaction:
        assert (await transaction.execute("SELECT count(*) FROM item")).rows == [(2,)]
        await transaction.execute("DELETE FROM item WHERE name = 'one'")
        assert (await transaction.execute("SELECT count(*) FROM item")).rows == [(1,)]
    assert await _count(db) == 1
    async with db.transaction() as transaction:
        assert (await transaction.execute("SELECT count(*) FROM item")).rows == [(1,)]
    assert not transaction.open


async def test_spilled_pages_of_a_rolled_back_savepoint_are_in_no_group(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "_CACHE_KIB", 40)
    fill = "INSERT INTO {} SELECT hex(randomblob(1000)) FROM json_each('[1" + ",1" * 199 + "]')"
    async with ns.database("spilled") as db, ns.database("spilled", stand=False) as follower:
        await db.lead()
        await db.batch([f"CREATE TABLE {name} (a)" for name in "abc"])
        async with db.transaction() as transaction:
            for name in ("a", "b", "a", "c", "b"):
                await transaction.execute("SAVEPOINT here")
                await transaction.execute(fill.format(name))
                await transaction.execute("ROLLBACK TO here")
                await transaction.execute("RELEASE here")
                await transaction.execute(fill.format("c"))
        await check_equal(db, [follower])
        transaction = await db.begin("immediate")
        await transaction.execute(fill.format("a"))
        await transaction.rollback()
        await db.execute(fill.format("b"))
        await check_equal(db, [follower])
        counts = "SELECT (SELECT count(*) FROM a), (SELECT count(*) FROM b), (SELECT count(*) FROM c)"
        assert (await db.query(counts)).rows == [(0, 200, 1000)]


async def _fail_within(db: Database) -> None:
    async with db.transaction() as transaction:
        await transaction.execute("DELETE FROM item")
        await transaction.execute("SELECT * FROM missing")


async def test_savepoints_within_a_transaction(db: Database) -> None:
    async with db.transaction() as transaction:
        await transaction.execute("SAVEPOINT here")
        await transaction.execute("INSERT INTO item (name) VALUES ('never')")
        await transaction.execute("ROLLBACK TO here")
        await transaction.execute("RELEASE here")
        await transaction.execute("INSERT INTO item (name) VALUES ('kept')")
    with pytest.raises(SqlError):
        await _fail_within(db)
    assert (await db.query("SELECT name FROM item")).rows == [("kept",)]


async def test_what_is_open_or_waits_when_it_is_closed_is_told(db: Database) -> None:
    transaction = await db.begin("immediate")
    waiting = asyncio.create_task(db.execute("INSERT INTO item (name) VALUES ('never')"))
    await asyncio.sleep(0)
    await db.aclose()
    with pytest.raises(HandleClosed):
        await waiting
    with pytest.raises(BuckramError):
        await transaction.execute("SELECT 1")
    with pytest.raises(HandleClosed):
        await db.execute("SELECT 1")


async def test_a_group_of_many_records_is_one_transaction(ns: Namespace) -> None:
    async with ns.database("large") as db, ns.database("large", stand=False) as follower:
        await db.lead()
        await db.execute("CREATE TABLE t (a)")
        await db.execute("INSERT INTO t SELECT randomblob(3000) FROM json_each('[1" + ",1" * 999 + "]')")
        assert len(await check_equal(db, [follower])) > 3_000_000
        await db.execute("DELETE FROM t")
        await db.execute("VACUUM")
        assert len(await check_equal(db, [follower])) == 2 * 4096


async def test_a_transaction_that_sqlite_rolled_back_has_ended(db: Database) -> None:
    await db.execute("CREATE TABLE once (a INTEGER PRIMARY KEY)")
    await db.execute("INSERT INTO once VALUES (1)")
    transaction = await db.begin("immediate")
    await transaction.execute("INSERT INTO once VALUES (2)")
    with pytest.raises(SqlError):
        await transaction.execute("INSERT OR ROLLBACK INTO once VALUES (1)")
    with pytest.raises(HandleClosed):
        await transaction.execute("INSERT INTO once VALUES (3)")
    await db.execute("INSERT INTO once VALUES (4)")
    assert (await db.query("SELECT a FROM once ORDER BY a")).rows == [(1,), (4,)]


async def test_who_asks_again_and_again_does_not_hold_others(db: Database) -> None:
    held = await db.begin("immediate")
    order: list[str] = []

    async def write(caller: str, number: int) -> None:
        CALLER.set(caller)
        transaction = await db.begin("immediate")
        order.append(f"{caller}{number}")
        await transaction.execute("UPDATE item SET n = ?", (number,))
        await transaction.commit()

    async def write_alone(caller: str) -> None:
        CALLER.set(caller)
        await db.execute("UPDATE item SET n = 0")
        order.append(caller)

    many = [asyncio.create_task(write("a", number)) for number in range(4)]
    await asyncio.sleep(0)
    few = [asyncio.create_task(write("b", 0)), asyncio.create_task(write_alone("c"))]
    await until(lambda: len(list(db._writer._queue.oldest())) == 3)
    await held.rollback()
    await asyncio.gather(*many, *few)
    assert order == ["a0", "b0", "c", "a1", "a2", "a3"]


async def test_a_statement_that_says_or_fail_keeps_what_it_did_beside_those_of_others(db: Database) -> None:
    await db.execute("CREATE TABLE once (a INTEGER PRIMARY KEY)")
    await db.execute("INSERT INTO once VALUES (1)")
    together = [
        "INSERT OR FAIL INTO once VALUES (2), (1), (3)",
        "INSERT INTO once VALUES (4)",
        "INSERT OR ROLLBACK INTO once VALUES (5), (1)",  # SQLite rolls back what is open: the others are done again
        "INSERT INTO once VALUES (6), (1)",
        "UPDATE OR FAIL once SET a = a + 6 WHERE a < 3 RETURNING a",
    ]
    given = await asyncio.gather(*map(db.execute, together), return_exceptions=True)
    assert [isinstance(one, SqlError) for one in given] == [True, False, True, True, False]
    with pytest.raises(SqlError):
        await db.batch(["INSERT INTO once VALUES (20)", "INSERT OR FAIL INTO once VALUES (21), (4)"])
    for _ in range(2):
        with pytest.raises(SqlError):
            await db.execute("INSERT OR FAIL INTO once VALUES (30), (4)", token="executed once or not at all")
    assert (await db.query("SELECT a FROM once ORDER BY a")).rows == [(4,), (7,), (8,)]


async def test_a_read_that_begins_with_with_takes_no_turn(db: Database) -> None:
    read = "WITH n (i) AS (SELECT count(*) FROM item) SELECT i, replace('a', 'a', 'b') FROM n"
    reading = await db.begin()
    async with db.transaction("immediate") as held:
        await held.execute("INSERT INTO item (name) VALUES ('held')")
        for given in (await db.execute(read), await db.query(read), await reading.execute(read)):
            assert given.rows == [(0, "b")]
    await reading.rollback()
    for number, change in enumerate(
        (
            "WITH n (i) AS (VALUES ('x'), ('y')) INSERT INTO item (name) SELECT i FROM n RETURNING name",
            "WITH n (i) AS (VALUES ('x')) DELETE FROM item WHERE name IN (SELECT i FROM n) RETURNING name",
            "WITH n (i) AS (VALUES ('z')) REPLACE /* seems to read */ INTO item (name) SELECT i FROM n RETURNING name",
        )
    ):
        assert len((await db.execute(change)).rows) == (2, 1, 1)[number]
        async with db.transaction() as transaction:
            await transaction.execute("DELETE FROM item WHERE name IN ('x', 'y')" if number == 0 else "SELECT 1")
            assert len((await transaction.execute(change)).rows) == (2, 0, 1)[number]
    assert [name for (name,) in (await db.query("SELECT name FROM item ORDER BY name")).rows] == ["held", "y", "z"]
