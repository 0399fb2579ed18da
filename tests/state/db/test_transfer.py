"""Copies of databases: backup, restore, fork at an earlier state, verify."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from tests.state.db.kit import check_equal, image_of
from tests.state.machine.test_snapshots import lose

from buckram.cluster import Client
from buckram.errors import (
    DatabaseExists,
    DatabaseNotEmpty,
    InvalidArgument,
    NoEarlierState,
    NoSuchDatabase,
    NotDatabase,
)
from buckram.namespace import Namespace
from buckram.state.db.database import Database
from buckram.state.db.table_engine.execution import Pending
from buckram.state.db.table_engine.wal_files import Image
from buckram.state.db.transfer import load
from buckram.state.machine.settings import MachineSettings


async def _filled(db: Database) -> None:
    await db.lead()
    await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
    await db.execute("INSERT INTO item (name) SELECT hex(randomblob(500)) FROM json_each('[1" + ",1" * 2999 + "]')")


async def test_a_backup_is_a_file_of_sqlite_and_comes_back(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    async with ns.database("main") as db:
        await _filled(db)
        assert await db.backup(path) == path.stat().st_size > 3_000_000
        assert path.read_bytes() == await image_of(db)
        assert not path.with_name(f"{path.name}.part").exists()
        await db.execute("DELETE FROM item")
    with pytest.raises(DatabaseExists):
        await ns.restore_database(str(path), "main")
    await ns.restore_database(str(path), "again")
    async with ns.database("again", create=False) as db, ns.database("again", stand=False) as follower:
        await db.lead()
        assert (await db.query("SELECT count(*) FROM item")).rows == [(3000,)]
        await db.execute("DELETE FROM item WHERE id > 10")
        image = await check_equal(db, [follower])
        assert len(image) == path.stat().st_size
    report = await ns.verify_database("again")
    assert report.faults == ()
    assert report.groups > 1


async def test_readers_from_before_see_the_tables_of_a_file_whose_schema_has_the_number_of_theirs(
    ns: Namespace, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(tmp_path / "two.db")) as file, file:
        file.execute("CREATE TABLE t (x)")
        file.execute("CREATE INDEX i ON t (x)")
        assert file.execute("PRAGMA schema_version").fetchall() == [(2,)]
    async with ns.database("new") as db, ns.database("new", stand=False) as follower:
        await db.lead()
        await db.execute("CREATE TABLE t (y)")
        await db.execute("DROP TABLE t")
        assert (await db.query("PRAGMA schema_version")).rows == [(2,)]
        assert (await follower.query("SELECT count(*) FROM sqlite_schema", at_most_s=0, consistency="stale")).rows == [
            (0,)
        ]
        await load(db, tmp_path / "two.db")
        assert (await db.query("SELECT count(*) FROM t")).rows == [(0,)]
        assert (await follower.query("SELECT count(*) FROM t", at_most_s=0, consistency="stale")).rows == [(0,)]
        await db.execute("INSERT INTO t (x) VALUES (1)")
        await check_equal(db, [follower])


async def test_a_file_fills_a_database_that_is_empty_and_one_that_is_cut_off_leaves_it_empty(
    ns: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "copy.db"

    async def cut_off(db: Database, loading: asyncio.Task[int], pending: Pending) -> None:
        if db.groups:
            loading.cancel()
            await asyncio.Event().wait()
        await type(db._committing).write(db._committing, pending)

    async with ns.database("main") as db:
        await _filled(db)
        await db.execute("INSERT INTO item (name) SELECT hex(randomblob(1900)) FROM item LIMIT 3600")
        await db.backup(path)
    async with ns.database("new") as db, ns.database("new", stand=False) as follower:
        await db.lead()
        loading = asyncio.ensure_future(load(db, path))
        monkeypatch.setattr(db._committing, "write", lambda pending: cut_off(db, loading, pending))
        with pytest.raises(asyncio.CancelledError):
            await loading
        monkeypatch.undo()
        assert db.groups == 1
        # It is an empty database like others, also on disk and for who follows.
        await check_equal(db, [follower])
        await db.execute("CREATE TABLE other (x)")
        await db.execute("INSERT INTO other VALUES (1)")
        with pytest.raises(DatabaseNotEmpty):
            await load(db, path)
        await db.execute("DROP TABLE other")
        assert await load(db, path) == path.stat().st_size
        assert (await db.query("SELECT count(*) FROM item")).rows == [(6000,)]
        await db.execute("DELETE FROM item WHERE id > 5990")
        await check_equal(db, [follower])
    with pytest.raises(DatabaseNotEmpty):
        await ns.load_database(str(path), "new")
    await ns.create_database("third")
    assert await ns.load_database(str(path), "third") == path.stat().st_size
    assert (await ns.verify_database("third")).faults == ()


async def test_files_with_other_pages_or_a_log_beside_them_are_restored(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA page_size = 1024")
        other.execute("PRAGMA journal_mode = WAL")
        other.execute("CREATE TABLE t (a)")
        other.execute("INSERT INTO t VALUES ('kept')")
        other.commit()
        assert path.with_name("other.db-wal").stat().st_size
        await ns.restore_database(str(path), "other")
    async with ns.database("other") as db:
        await db.lead()
        assert (await db.query("SELECT a FROM t")).rows == [("kept",)]
    path.write_bytes(b"not a database")
    with pytest.raises(InvalidArgument, match="no database"):
        await ns.restore_database(str(path), "bad")
    assert not await ns.exists("bad")


_CRASH = """
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA journal_mode = " + sys.argv[2])
db.execute("PRAGMA cache_size = 5")
db.execute("CREATE TABLE t (a, b)")
db.execute("BEGIN")
db.executemany("INSERT INTO t VALUES (?, hex(zeroblob(600)))", [(n,) for n in range(100)])
db.execute("COMMIT")
db.execute("BEGIN")
db.execute("UPDATE t SET a = -1, b = hex(randomblob(600))")
os._exit(1)
"""


@pytest.mark.parametrize("mode", ["DELETE", "PERSIST", "WAL"])
async def test_what_a_crash_left_beside_a_file_is_brought_to_its_end(ns: Namespace, tmp_path: Path, mode: str) -> None:
    """A hot journal is rolled back, and what was committed in a write-ahead log is read: as SQLite itself does."""
    path = tmp_path / "crashed.db"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _CRASH, str(path), mode)
    assert await process.wait() == 1
    beside = path.with_name(path.name + ("-wal" if mode == "WAL" else "-journal"))
    assert beside.stat().st_size > 0
    await ns.restore_database(str(path), "main")
    async with ns.database("main") as db:
        await db.lead()
        assert (await db.query("SELECT count(*), sum(a), max(length(b)) FROM t")).rows == [(100, 4950, 1200)]
    assert (await ns.verify_database("main")).faults == ()
    with sqlite3.connect(path) as left:  # The file is still a database with these rows.
        assert left.execute("SELECT count(*), sum(a) FROM t").fetchall() == [(100, 4950)]


async def test_a_file_that_somebody_writes_is_restored_as_it_was_committed(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (a)")
        other.execute("INSERT INTO t VALUES (1)")
        other.execute("BEGIN IMMEDIATE")
        other.execute("INSERT INTO t VALUES (2)")
        await ns.restore_database(str(path), "main")
        other.execute("COMMIT")
    async with ns.database("main") as db:
        await db.lead()
        assert (await db.query("SELECT a FROM t")).rows == [(1,)]


async def test_a_file_that_sqlite_cannot_read_is_refused(ns: Namespace, tmp_path: Path) -> None:
    path = tmp_path / "bad.db"
    with closing(sqlite3.connect(path)) as made:
        made.execute("CREATE TABLE t (a)")
    path.write_bytes(path.read_bytes()[:100] + bytes(4096 - 100))
    with pytest.raises(InvalidArgument, match=r"cannot be read as a database.*malformed"):
        await ns.restore_database(str(path), "bad")
    assert not await ns.exists("bad")


async def test_a_snapshot_with_other_pages_than_its_digest_is_passed_over_loudly(
    ns: Namespace, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger is whole, so that only the digest of the database can tell."""
    page = Image.page

    def wrong(self: Image, number: int) -> bytes:
        found = page(self, number)
        return found[:-1] + bytes([found[-1] ^ 1]) if number == 3 else found

    async with ns.database("main", settings=MachineSettings(snapshot_commands=1000)) as db:
        await _filled(db)
        good = await db.snapshot()
        await db.execute("DELETE FROM item WHERE id > 10")
        monkeypatch.setattr(Image, "page", wrong)
        bad = await db.snapshot()
        monkeypatch.setattr(Image, "page", page)
        await db.execute("DELETE FROM item WHERE id > 5")
        async with ns.database("main", stand=False) as follower:
            await check_equal(db, [follower])
            assert [error.offset for error in follower.damaged_snapshots] == [bad]
            assert "of digest" in str(follower.damaged_snapshots[0])
        assert "the one before is tried" in caplog.text
        (fault,) = (await ns.verify_database("main")).faults
        assert f"the snapshot at offset {bad}" in fault
        assert await ns.fork_database("main", "copy") >= bad > good
        async with ns.database("copy") as copy:
            await copy.lead()
            assert (await copy.query("SELECT count(*) FROM item")).rows == [(5,)]


async def test_a_fork_has_the_very_pages_of_its_source(ns: Namespace) -> None:
    await ns.create_database("main")
    digests = []
    for name in ("empty", "filled"):
        await ns.fork_database("main", name)
        reports = [await ns.verify_database(one) for one in ("main", name)]
        assert [report.faults for report in reports] == [(), ()]
        assert reports[0].digest == reports[1].digest
        digests.append(reports[0].digest)
        async with ns.database("main") as db, ns.database(name) as fork:
            for one in (db, fork):
                await one.lead()
                await one.execute(f"CREATE TABLE {name}_row (id INTEGER PRIMARY KEY)")
                assert (await one.query(f"SELECT count(*) FROM {name}_row")).rows == [(0,)]
    assert len(set(digests)) == 2


async def test_a_fork_has_the_state_of_a_moment(ns: Namespace, client: Client) -> None:
    async with ns.database("main", settings=MachineSettings(snapshot_commands=1000)) as db:
        await _filled(db)
        states = {}
        for number in range(6):
            await db.execute("UPDATE item SET name = ? WHERE id = 1", (str(number),))
            states[db.applied] = number
            if number == 2:
                await db.snapshot()
        for offset, number in states.items():
            name = f"fork{number}"
            assert await ns.fork_database("shop/main", name, offset=offset) == offset
            async with ns.database(name) as fork:
                await fork.lead()
                assert (await fork.query("SELECT name FROM item WHERE id = 1")).rows == [(str(number),)]
                await fork.execute("DELETE FROM item")
        moment = client.services.clocks.now()
        await db.execute("UPDATE item SET name = 'later' WHERE id = 1")
        await ns.fork_database("main", "moment", time=moment)
        async with ns.database("moment") as fork:
            await fork.lead()
            assert (await fork.query("SELECT name FROM item WHERE id = 1")).rows == [("5",)]
        with pytest.raises(NoEarlierState, match="from offset 0"):
            await ns.fork_database("main", "never", offset=10_000)
        assert (await db.query("SELECT name FROM item WHERE id = 1")).rows == [("later",)]
        await db.snapshot()
        await db.execute("DELETE FROM item")
        await db.snapshot()
        with pytest.raises(NoEarlierState):
            await ns.fork_database("main", "never", offset=2)
        assert (await ns.verify_database("main")).faults == ()


async def test_names_of_other_things_are_refused(ns: Namespace) -> None:
    with pytest.raises(NoSuchDatabase):
        await ns.database("none", create=False)
    await ns.create("stream")
    await ns.create_machine_log("machine")
    for name in ("stream", "machine"):
        with pytest.raises((NotDatabase, InvalidArgument)):
            await ns.database(name)
        with pytest.raises(NotDatabase):
            await ns.verify_database(name)


async def test_a_snapshot_that_is_lost_is_passed_over_and_reported(ns: Namespace, client: Client) -> None:
    async with ns.database("main") as db:
        await _filled(db)
        await db.snapshot()
        await db.execute("DELETE FROM item WHERE id > 10")
        await db.snapshot()
        await db.execute("DELETE FROM item WHERE id > 5")
        head = (await ns.store.read(ns.log_name("main"))).head
        assert head.snapshots is not None
        await lose(client, head.snapshots[-1].ledger)
        async with ns.database("main", stand=False) as follower:
            await check_equal(db, [follower])
            assert [error.offset for error in follower.damaged_snapshots] == [head.snapshots[-1].offset]
        (fault,) = (await ns.verify_database("main")).faults
        assert f"the snapshot at offset {head.snapshots[-1].offset}" in fault
        await ns.fork_database("main", "copy")
        async with ns.database("copy") as copy:
            await copy.lead()
            assert (await copy.query("SELECT count(*) FROM item")).rows == [(5,)]


async def test_the_oldest_snapshot_is_lost_and_newer_ones_are_verified(ns: Namespace, client: Client) -> None:
    async with ns.database("main") as db:
        await _filled(db)
        await db.snapshot()
        await db.execute("DELETE FROM item WHERE id > 10")
        await db.snapshot()
        await db.execute("DELETE FROM item WHERE id > 5")
        head = (await ns.store.read(ns.log_name("main"))).head
        assert head.snapshots is not None
        assert head.earliest > 0
        await lose(client, head.snapshots[0].ledger)
        found = await ns.verify_database("main")
        (fault,) = found.faults
        assert str(head.snapshots[0].offset) in fault
        # A record is known to be there a moment after it was written.
        assert found.offset >= head.snapshots[-1].offset
        assert found.groups >= 3


async def test_backups_and_snapshots_of_a_busy_leader_are_states_that_were_committed(
    ns: Namespace, tmp_path: Path
) -> None:
    async with ns.database("bank", settings=MachineSettings(keep_snapshots=2)) as db:
        await db.lead()
        await db.execute("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)")
        await db.batch([("INSERT INTO account VALUES (?, 100)", (number,)) for number in range(20)])
        done = False

        async def pay(source: int) -> None:
            while not done:
                await db.batch(
                    [
                        ("UPDATE account SET balance = balance - 1 WHERE id = ?", (source,)),
                        ("UPDATE account SET balance = balance + 1 WHERE id = ?", ((source * 7 + 3) % 20,)),
                    ]
                )

        paying = [asyncio.create_task(pay(number)) for number in range(6)]
        try:
            for number in range(12):
                before = db.applied
                await db.backup(tmp_path / f"{number}.db")
                assert await db.snapshot() >= before
        finally:
            done = True
            await asyncio.gather(*paying)
        for number in range(12):
            with closing(sqlite3.connect(tmp_path / f"{number}.db")) as copy:
                assert copy.execute("SELECT count(*), sum(balance) FROM account").fetchall() == [(20, 2000)]
                assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_backup_has_what_was_acknowledged_a_moment_ago(ns: Namespace, tmp_path: Path) -> None:
    """Readers are told of it a moment later."""
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x)")
        for number in range(1, 4):
            await db.execute("INSERT INTO t VALUES (1)")
            path = tmp_path / f"{number}.db"
            offset, _ = await ns.backup_database("main", str(path))
            assert offset == db.applied
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("SELECT count(*) FROM t").fetchall() == [(number,)]
            assert (await ns.backup_database("main", str(path), offset=db.applied))[0] == db.applied
