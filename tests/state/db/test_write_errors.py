"""What fails between the log and the files, and callers that go away in the middle of a turn."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import apsw
import pytest
from tests.support.polling import until

from buckram.errors import BuckramError, DatabaseFailed, ResultTooLarge, SqlError, StatementRefused
from buckram.namespace import Namespace
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine.capture_vfs import CaptureVfs


async def test_a_group_that_the_files_did_not_take_stops_the_replica(
    ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x)")
        await db.execute("INSERT INTO t VALUES (1)")
        writes = CaptureVfs.writes

        def full(self: CaptureVfs, data: bytes, offset: int) -> None:
            writes(self, data, offset)
            if db._engine.execution._captured is not None:  # the log has it
                raise apsw.FullError("the disk is full")

        monkeypatch.setattr(CaptureVfs, "writes", full)
        with pytest.raises(DatabaseFailed, match="could not be written"):
            await db.execute("INSERT INTO t VALUES (2)")
        monkeypatch.setattr(CaptureVfs, "writes", writes)
        with pytest.raises(DatabaseFailed):
            await db.execute("INSERT INTO t VALUES (3)")
    async with ns.database("main") as again:
        await again.lead(takeover=True)
        assert (await again.query("SELECT x FROM t ORDER BY x")).rows == [(1,), (2,)]


async def test_a_begin_that_was_cancelled_leaves_no_transaction(ns: Namespace) -> None:
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x)")
        execution, held, go = db._engine.execution, threading.Event(), threading.Event()
        begin = execution.begin

        def slow(leadership: int, foreign_keys: bool = True) -> None:
            held.set()
            assert go.wait(20)
            begin(leadership, foreign_keys)

        execution.begin = slow  # type: ignore[method-assign]
        beginning = asyncio.create_task(db.begin("immediate"))
        await until(held.is_set)
        beginning.cancel()
        await asyncio.wait([beginning], timeout=20)
        go.set()
        execution.begin = begin  # type: ignore[method-assign]
        await db.execute("INSERT INTO t VALUES (1)")
        assert (await db.query("SELECT x FROM t")).rows == [(1,)]


async def test_a_rollback_that_was_cancelled_gives_the_turn_back(ns: Namespace) -> None:
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x)")
        transaction = await db.begin("immediate")
        await transaction.execute("INSERT INTO t VALUES (1)")
        execution, held, go = db._engine.execution, threading.Event(), threading.Event()
        roll_back = execution.roll_back

        def slow() -> None:
            held.set()
            assert go.wait(20)
            roll_back()

        execution.roll_back = slow  # type: ignore[method-assign]
        ending = asyncio.create_task(transaction.rollback())
        await until(held.is_set)
        ending.cancel()
        await asyncio.wait([ending], timeout=20)
        go.set()
        await db.execute("INSERT INTO t VALUES (2)")
        assert (await db.query("SELECT x FROM t")).rows == [(2,)]


async def test_a_savepoint_of_a_reader_does_not_hold_the_past(ns: Namespace) -> None:
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x)")

        async def counts() -> list[Any]:
            found = await asyncio.gather(*[db.query("SELECT count(*) FROM t") for _ in range(20)])
            return [one.rows[0][0] for one in found]

        for _ in range(4):
            await db.query("SAVEPOINT x")
        assert set(await counts()) == {0}
        await db.execute("INSERT INTO t VALUES (1)")
        assert set(await counts()) == {1}


async def test_a_virtual_table_of_the_writing_connection_is_refused(ns: Namespace) -> None:
    async with ns.database("main") as db:
        await db.lead()
        with pytest.raises(StatementRefused):
            await db.execute("CREATE VIRTUAL TABLE temp.t USING dbstat")


@pytest.mark.parametrize("cdc", [False, True])
async def test_a_statement_whose_rows_are_refused_leaves_none_in_its_transaction(ns: Namespace, cdc: bool) -> None:
    limits = DatabaseLimits(result_bytes=64 * 1024)
    await ns.create_database("main", cdc=cdc)
    async with ns.database("main", limits=limits) as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x UNIQUE, y)")
        async with db.transaction() as transaction:
            await transaction.execute("INSERT INTO t VALUES ('before', 1)")
            for failing in (
                "INSERT INTO t SELECT key, printf('%.9000c', 'x') FROM json_each('[1,2,3,4,5,6,7,8,9]') RETURNING *",
                "WITH n AS (SELECT key FROM json_each('[1,2,3,4,5,6,7,8,9]')) INSERT INTO t SELECT key, 1 FROM n "
                "RETURNING zeroblob(9000)",
                "/* as well */ UPDATE t SET y = 2 RETURNING zeroblob(60000), zeroblob(60000)",
                "DELETE FROM t RETURNING zeroblob(60000), zeroblob(60000)",
                "REPLACE INTO t VALUES ('before', 7), ('more', 8) RETURNING CAST(x'ff' AS TEXT)",
            ):
                with pytest.raises(BuckramError):
                    await transaction.execute(failing)
                assert (await transaction.execute("SELECT x, y FROM t")).rows == [("before", 1)]
            # SQLite's own: what came before the one that fails stays, as whoever wrote OR FAIL wants it.
            with pytest.raises(SqlError, match="UNIQUE"):
                await transaction.execute("INSERT OR FAIL INTO t VALUES ('kept', 3), ('before', 4) RETURNING x")
            assert (await transaction.execute("INSERT INTO t VALUES ('last', 5) RETURNING x")).rows == [("last",)]
        assert (await db.query("SELECT x, y FROM t")).rows == [("before", 1), ("kept", 3), ("last", 5)]
        with pytest.raises(ResultTooLarge):
            await db.execute("DELETE FROM t RETURNING zeroblob(60000)")
        assert (await db.query("SELECT count(*) FROM t")).rows == [(3,)]
        if cdc:
            noted = [change async for change in db.changes() if change.operation != "schema"]
            assert [change.new and change.new["x"] for change in noted] == ["before", "kept", "last"]


async def test_a_statement_whose_caller_went_away_fails_in_silence(
    ns: Namespace, caplog: pytest.LogCaptureFixture
) -> None:
    async with ns.database("main", limits=DatabaseLimits(transaction_s=0.3, query_s=1.0)) as db:
        await db.lead()
        await db.batch(["CREATE TABLE t (x)", "INSERT INTO t VALUES (0)"])
        endless = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n, t"
        for mode, sql in (("immediate", f"INSERT INTO t {endless}"), ("deferred", endless)):
            transaction = await db.begin(mode)  # type: ignore[arg-type]  # one of them
            asked = asyncio.ensure_future(transaction.execute(sql))
            await until(lambda transaction=transaction: transaction._one_by_one.locked())
            asked.cancel()
            await asyncio.wait([asked])
            await transaction.rollback()
        await db.execute("INSERT INTO t VALUES (1)")
        del asked
    gc.collect()
    assert [record.message for record in caplog.records if record.name == "asyncio"] == []
