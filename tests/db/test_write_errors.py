"""What fails between the log and the files, and callers that go away in the middle of a turn."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import apsw
import pytest
from tests.support.polling import until

from buckram.db.capture import CaptureVfs
from buckram.errors import DatabaseFailed, StatementRefused
from buckram.streams.namespace import Namespace


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

        def slow(leadership: int) -> None:
            held.set()
            assert go.wait(20)
            begin(leadership)

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
