"""A disk that fills, of a leader and of a follower: a real file system of a few megabytes under their files."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.state.db.kit import check_equal
from tests.support.polling import until

from buckram.errors import DatabaseFailed, ReplicaStopped, SqlError
from buckram.namespace import Namespace
from buckram.state.db.database import Database
from buckram.state.db.table_engine import wal_files

_DISK_MB = 3
_ROW = "INSERT INTO item (data) VALUES (randomblob(20000))"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={_DISK_MB}m", "tmpfs", str(place)]
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def _fill(place: Path) -> Path:
    ballast = place / f"ballast-{os.urandom(4).hex()}"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 512):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return ballast


async def _write(db: Database, rows: int) -> int:
    """How many rows were committed before an error."""
    for number in range(rows):
        try:
            await db.execute(_ROW)
        except SqlError as error:
            if error.name not in ("SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_SHMSIZE"):
                raise
            return number
    return rows


async def _count(db: Database) -> object:
    return (await db.query("SELECT count(*) FROM item")).rows[0][0]


async def test_a_leader_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(ns: Namespace, small: Path) -> None:
    async with ns.database("main", directory=str(small)) as db, ns.database("main", stand=False) as follower:
        await db.lead()
        await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
        before = await _write(db, 3)
        ballast = _fill(small)
        groups = db.groups
        committed = before + await _write(db, 10)
        assert committed < before + 10
        assert db.groups - groups == committed - before  # What failed is not in the log.
        assert db.role == "leader"
        assert await _count(db) == committed
        transaction = await db.begin()
        await transaction.execute("INSERT INTO item (data) VALUES (randomblob(200000))")
        with pytest.raises(SqlError, match=r"FULL|IOERR"):
            await transaction.commit()
        assert not transaction.open
        async with asyncio.timeout(4):  # The turn was given back before its time was over.
            assert await _write(db, 1) == 0
        ballast.unlink()
        assert await _write(db, 5) == 5
        assert await _count(db) == committed + 5
        await check_equal(db, [follower])


async def test_a_follower_whose_disk_is_full_stops_and_begins_again_when_there_is_room(
    ns: Namespace, small: Path
) -> None:
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
        await _write(db, 3)
        async with ns.database("main", stand=False, directory=str(small)) as follower:
            await check_equal(db, [follower])
            ballast = _fill(small)
            await _write(db, 5)
            await until(lambda: follower.role == "stopped")
            with pytest.raises((DatabaseFailed, ReplicaStopped), match="No space left on device"):
                await follower.query("SELECT 1", consistency="stale")
        assert await _write(db, 2) == 2  # The others go on.
        more = _fill(small)
        with pytest.raises(DatabaseFailed, match=r"cannot be made.*(No space left|full)"):
            await ns.database("main", stand=False, directory=str(small))
        ballast.unlink()
        more.unlink()
        async with ns.database("main", stand=False, directory=str(small)) as follower:
            await check_equal(db, [follower])


async def test_an_index_that_has_no_room_is_an_error_and_not_the_end_of_the_process(
    ns: Namespace, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who writes into a mapping that the disk has no room for is killed."""
    monkeypatch.setattr(wal_files, "_CHECKPOINT_FRAMES", 100_000)
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, data BLOB)")
        async with ns.database("main", stand=False, directory=str(small)) as follower:
            await check_equal(db, [follower])
            files = follower._engine.files
            ballast = _fill(small)
            with pytest.raises(OSError, match="No space left"):
                files._grow(2)
            ballast.unlink()
            files._grow(2)
            await _write(db, 1)
            await check_equal(db, [follower])
