"""A leader that led before sees tables as others have left them."""

from __future__ import annotations

from buckram.namespace import Namespace


async def test_a_column_that_another_leader_added_is_known(ns: Namespace) -> None:
    async with ns.database("main") as one, ns.database("main", stand=False) as two:
        await one.lead()
        await one.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v)")
        await one.execute("INSERT INTO t VALUES (1, 1)")
        await two.lead(takeover=True)
        await two.execute("ALTER TABLE t ADD COLUMN w")
        await two.step_down()
        await one.lead()
        await one.execute("INSERT INTO t VALUES (2, 2, 3)")
        assert (await one.query("SELECT * FROM t")).rows == [(1, 1, None), (2, 2, 3)]
