"""Local files that somebody deletes, as those who empty temporary folders do: a replica makes them anew and goes on."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.state.db.kit import check_equal
from tests.support.polling import until

from buckram.errors import DatabaseFailed, ReplicaStopped
from buckram.namespace import Namespace


@pytest.mark.parametrize("lost", ["all of it", "main.db", "main.db-wal", "main.db-shm"])
async def test_deleted_files_are_made_anew_on_a_leader_and_on_a_follower(
    ns: Namespace, tmp_path: Path, lost: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    async with (
        ns.database("main", directory=str(place)) as db,
        ns.database("main", stand=False, directory=str(place)) as follower,
    ):
        await db.lead()
        await db.execute("CREATE TABLE t (x INTEGER PRIMARY KEY, y)")
        await db.batch([("INSERT INTO t (y) VALUES (hex(randomblob(900)))", ())] * 50)
        await follower.query("SELECT count(*) FROM t", consistency="stale", after=db.applied)
        reading = await db.begin()
        assert (await reading.execute("SELECT count(*) FROM t")).rows == [(50,)]
        before = [replica._engine.files for replica in (db, follower)]
        if lost == "all of it":
            shutil.rmtree(place)
        else:
            for files in before:
                Path(files.path).with_name(lost).unlink()
        # Nothing is lost and nobody hears of it, in whatever order the parts of the replicas find out.
        counts = []
        for number in range(3):
            await db.execute("INSERT INTO t (y) VALUES (?)", (number,))
            counts.append((await db.execute("SELECT count(*) FROM t")).rows[0][0])
            newest = await follower.query("SELECT count(*) FROM t", consistency="stale", after=db.applied)
            counts.append(newest.rows[0][0])
            fresh = await db.begin()  # a connection of its own
            counts.append((await fresh.execute("SELECT count(*) FROM t")).rows[0][0])
            await fresh.rollback()
        assert counts == [51, 51, 51, 52, 52, 52, 53, 53, 53]
        await until(lambda: before[0] is not db._engine.files and before[1] is not follower._engine.files)
        assert (await reading.execute("SELECT count(*) FROM t")).rows == [(50,)]
        await reading.rollback()
        assert db.role == "leader"
        await db.backup(tmp_path / "copy.db")
        with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
            assert copy.execute("SELECT count(*) FROM t").fetchall() == [(53,)]
        await db.execute("DELETE FROM t WHERE x < 10")
        await check_equal(db, [follower])
    assert list(place.iterdir()) == []


async def test_an_open_transaction_ends_before_the_files_are_made_anew(ns: Namespace, tmp_path: Path) -> None:
    async with ns.database("main", directory=str(tmp_path)) as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x)")
        async with db.transaction("immediate") as transaction:
            await transaction.execute("INSERT INTO t VALUES (1)")
            shutil.rmtree(Path(db._engine.files.path).parent)
            read = asyncio.ensure_future(db.query("SELECT x FROM t"))
            db._engine._look()
            await db._engine.run(lambda: None)
            await transaction.execute("INSERT INTO t VALUES (2)")
        assert (await read).rows in ([], [(1,), (2,)])
        assert (await db.query("SELECT x FROM t")).rows == [(1,), (2,)]


async def test_files_that_cannot_be_made_anew_end_the_leadership(ns: Namespace, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    async with ns.database("main", directory=str(place)) as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x)")
        shutil.rmtree(place)
        place.write_text("a file")
        await until(lambda: db.role == "stopped")
        with pytest.raises((DatabaseFailed, ReplicaStopped), match="cannot be made anew"):
            await db.query("SELECT x FROM t", consistency="stale")
        async with ns.database("main") as other:
            async with asyncio.timeout(10):
                await other.lead()
            assert (await other.query("SELECT x FROM t")).rows == []
