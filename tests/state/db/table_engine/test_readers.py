"""Reading threads: what is asked in one turn, slow statements beside quick ones, the end."""

from __future__ import annotations

import asyncio

import pytest

from buckram.core.db.sql import SqlResult
from buckram.errors import SqlError, StatementRefused, TransactionExpired
from buckram.namespace import Namespace
from buckram.state.db.database import Database
from buckram.state.db.settings import DatabaseLimits

SLOW = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
"""It never ends by itself."""
SLOW_OF_A_STATE = f"{SLOW}, item"
"""Neither does it, and it reads the state of the database."""


async def _filled(ns: Namespace, **limits: float) -> Database:
    database = await ns.database("main", limits=DatabaseLimits(**limits))  # type: ignore[arg-type]
    await database.lead()
    await database.batch(
        ["CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)", "INSERT INTO item (name) VALUES ('a')"]
    )
    return database


async def _read(database: Database, sql: str, *values: int) -> SqlResult:
    return await database.query(sql, values, consistency="stale")


async def test_slow_statements_hold_up_neither_those_before_nor_those_behind(ns: Namespace) -> None:
    async with await _filled(ns, query_s=3.0) as database:
        before = [asyncio.ensure_future(_read(database, "SELECT ?", number)) for number in range(10)]
        slow = asyncio.ensure_future(_read(database, SLOW))
        await asyncio.sleep(0)
        behind = [asyncio.ensure_future(_read(database, "SELECT ?", number)) for number in range(200)]
        found = [(await one).rows[0][0] for one in (*before, *behind)]
        assert found == [*range(10), *range(200)]
        assert not slow.done()
        with pytest.raises(TransactionExpired):
            await slow


async def test_reads_of_one_turn_are_answered_each_for_itself(ns: Namespace) -> None:
    async with await _filled(ns) as database:
        given = [_read(database, f"SELECT {number}" if number % 3 else "SELECT nothing") for number in range(300)]
        for number, result in enumerate(await asyncio.gather(*given, return_exceptions=True)):
            if number % 3:
                assert isinstance(result, SqlResult)
                assert result.rows == [(number,)]
            else:
                assert isinstance(result, SqlError)


async def test_a_read_knows_its_columns_with_and_without_rows(ns: Namespace) -> None:
    async with await _filled(ns) as database:
        for where in ("id = 1", "id = 2"):
            result = await _read(database, f"SELECT id, name, 1 AS one FROM item WHERE {where};")
            assert result.columns == ("id", "name", "one")
            assert result.declared == ("INTEGER", "TEXT", None)
            assert len(result.rows) == (where == "id = 1")
        await database.execute("ALTER TABLE item RENAME COLUMN name TO title")
        assert (await _read(database, "SELECT * FROM item")).columns == ("id", "title")
        with pytest.raises(StatementRefused, match="more than one statement"):
            await _read(database, "SELECT 1; SELECT 2")


async def test_what_was_asked_before_the_end_is_answered(ns: Namespace) -> None:
    database = await _filled(ns)
    asked = [asyncio.ensure_future(_read(database, "SELECT count(*) FROM item")) for _ in range(50)]
    await asyncio.sleep(0)
    await database.aclose()
    assert [result.rows for result in await asyncio.gather(*asked)] == [[(1,)]] * 50


async def test_a_read_after_a_write_sees_it_beside_slow_statements(ns: Namespace) -> None:
    """A thread that took a state before a slow statement does not answer from it what was asked after the write."""
    async with await _filled(ns, query_s=0.5) as database:
        slow = [asyncio.ensure_future(_read(database, SLOW_OF_A_STATE))]
        before = [asyncio.ensure_future(_read(database, "SELECT count(*) FROM item")) for _ in range(9)]
        assert [(await one).rows for one in before] == [[(1,)]] * 9  # The second thread helped.
        await database.execute("INSERT INTO item (name) VALUES ('b')")
        slow.append(asyncio.ensure_future(_read(database, SLOW_OF_A_STATE)))
        await asyncio.sleep(0)
        count, after = "SELECT count(*) FROM item", database.applied
        behind = [
            *(database.execute(count) for _ in range(5)),
            *(database.query(count, consistency="stale", after=after) for _ in range(5)),
            *(database.query(count, consistency="stale", at_most_s=0.0) for _ in range(5)),
        ]
        assert [result.rows for result in await asyncio.gather(*behind)] == [[(2,)]] * 15
        for one in slow:
            with pytest.raises(TransactionExpired):
                await one
