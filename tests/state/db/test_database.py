"""Databases on a real cluster: writing, following, becoming the leader."""

from __future__ import annotations

import asyncio

import pytest

from buckram.errors import NotLeader, SqlError
from buckram.namespace import Namespace
from buckram.testing import Cluster


async def test_what_the_leader_commits_is_on_every_replica_and_survives_the_leader(
    three_bookies: Cluster, ns: Namespace
) -> None:
    async with three_bookies.client() as other, other.namespace("shop").database("main", announce="first") as first:
        await first.lead()
        await first.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT UNIQUE)")
        assert (await first.execute("INSERT INTO item (name) VALUES (?)", ("bolt",))).last_insert_rowid == 1
        async with ns.database("main") as second:
            rows = (await second.query("SELECT name FROM item", consistency="stale", at_most_s=0)).rows
            assert rows == [("bolt",)]
            await first.execute("INSERT INTO item (name) VALUES (:name)", {"name": "nut"})
            found = await second.query("SELECT * FROM item", consistency="stale", after=first.applied)
            assert found.columns == ("id", "name")
            assert found.rows == [(1, "bolt"), (2, "nut")]
            with pytest.raises(NotLeader, match="'first' leads it"):
                await second.execute("INSERT INTO item (name) VALUES ('x')")
            with pytest.raises(SqlError, match="UNIQUE"):
                await first.execute("INSERT INTO item (name) VALUES ('nut')")
            await first.aclose()
            async with asyncio.timeout(10):
                await second.lead()
            assert (await second.execute("INSERT INTO item (name) VALUES ('cog')")).last_insert_rowid == 3
            assert (await second.execute("SELECT count(*) FROM item")).rows == [(3,)]
            assert (await second.execute("PRAGMA integrity_check")).rows == [("ok",)]
