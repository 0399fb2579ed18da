"""SqliteKeys beyond the contract: files, busy neighbours, commits."""

# ruff: noqa: ASYNC240 - looking at small files between two steps of a test

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.support.sqlite_kit import FILE, opened

from buckram.errors import (
    ClusterNotInitialised,
    InvalidArgument,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
)
from buckram.metadata.sqlite import database_file as sqlite_file
from buckram.metadata.sqlite import file_locks
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.types import Create


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


async def test_a_neighbour_that_holds_the_lock_is_waited_for_and_then_reported(path: Path) -> None:
    async with opened(path, busy_timeout_s=0.05) as keys, opened(path) as patient:
        await keys.prepare()
        await keys.create("/a", b"")
        neighbour = sqlite3.connect(path, isolation_level=None)
        neighbour.execute("BEGIN IMMEDIATE")
        with pytest.raises(MetadataUnavailable, match=r"has been changing it for 0\.05 s"):
            await keys.set("/a", b"1", 0)
        assert (await keys.get("/a")).version == 0, "readers do not wait for writers"
        waiting = asyncio.create_task(patient.set("/a", b"2", 0))
        assert (await keys.get("/a")).version == 0
        neighbour.execute("ROLLBACK")
        assert await waiting == 1
        neighbour.close()


async def test_a_file_that_is_missing_empty_foreign_or_newer(path: Path) -> None:
    async with opened(path) as keys:
        with pytest.raises(ClusterNotInitialised, match="buckram up"):
            await keys.get("/a")
        path.touch()
        with pytest.raises(ClusterNotInitialised):
            await keys.create("/a", b"")
        await keys.prepare()
        await keys.create("/a", b"")
    for statement, named in (
        ("PRAGMA user_version=2", "version 2.*upgrade"),
        ("PRAGMA application_id=1", "not one of"),
    ):
        file = sqlite3.connect(path)
        file.execute(statement)
        file.close()
        async with opened(path) as keys:
            for attempt in (keys.get("/a"), keys.prepare()):
                with pytest.raises(MetadataError, match=named) as error:
                    await attempt
                assert not error.value.retryable
    path.write_bytes(b"these are not the bytes of a database, however long one looks at them" * 99)
    async with opened(path) as keys:
        with pytest.raises(MetadataError, match="not a database") as error:
            await keys.get("/a")
        assert not error.value.retryable


async def test_a_foreign_database_is_left_alone(path: Path) -> None:
    file = sqlite3.connect(path)
    file.execute("CREATE TABLE theirs (x)")
    file.close()
    before = path.read_bytes()
    async with opened(path) as keys:
        with pytest.raises(MetadataError, match="not one of Buckram's"):
            await keys.prepare()
    assert path.read_bytes() == before


@pytest.mark.parametrize("before", ["user_version", "application_id", "sqlite_master"])
async def test_another_process_may_create_the_tables_while_we_look(
    path: Path, before: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what it wrote seen, and half not, is no reason to refuse the file."""
    ahead = sqlite3.connect(path)
    ahead.execute("PRAGMA journal_mode=WAL")  # so that the other one waits for no reader
    ahead.close()
    real, others = sqlite3.connect, []

    def at(statement: str) -> None:
        if before in statement and not others:
            others.append(before)
            sqlite_file.prepare(path, 5.0)

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db = real(*args, **kwargs)
        db.set_trace_callback(at)
        return db

    monkeypatch.setattr(sqlite3, "connect", traced)
    sqlite_file.prepare(path, 5.0)
    assert others == [before]
    async with opened(path) as keys:
        assert await keys.create("/a", b"") == 0


async def test_a_relative_path_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="absolute"):
        SqliteKeys("metadata.db")


async def test_commits_are_synced_by_whoever_made_or_read_them(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite syncs the log before a checkpoint (NORMAL); the rest is here, outside its lock."""
    synced: list[bool] = []

    def sync(fd: int) -> None:
        probe = sqlite3.connect(path, isolation_level=None, timeout=0.0)
        probe.execute("BEGIN IMMEDIATE")  # would be refused while somebody else can write nothing
        probe.close()
        synced.append(Path(f"/proc/self/fd/{fd}").readlink().name == f"{FILE}-wal")

    async with opened(path) as keys, opened(path) as other:
        await keys.prepare()
        await other.children("/")
        monkeypatch.setattr(sqlite_file, "sync_data", sync)
        await keys.create("/a", b"")
        assert synced
        count = len(synced)
        assert await other.get("/a")
        with pytest.raises(NoSuchKey):
            await other.set("/b", b"", 0)
        assert len(synced) == count, "what one has synced needs no sync of another (test_durable_mark.py)"
        assert all(synced)
        database = other._worker.tree._db

        def modes() -> list[object]:
            assert database is not None
            return [database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]

        assert await other._call(modes) == ["wal", 1]


async def test_a_change_whose_sync_fails_is_in_doubt_and_nothing_goes_on_until_it_is_written_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(path, busy_timeout_s=0.2) as keys:
        await keys.prepare()
        await keys.create("/a", b"")
        await keys.get("/a")
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM keys").fetchone()
        with monkeypatch.context() as patch:

            def fails(fd: int) -> None:
                raise OSError(5, "Input/output error")

            patch.setattr(sqlite_file, "sync_data", fails)
            with pytest.raises(MetadataUnavailable, match="Input/output error"):
                await keys.set("/a", b"1", 0)
        with pytest.raises(MetadataUnavailable, match="did not reach the disk"):
            await keys.get("/a")
        reader.close()
        assert (await keys.get("/a")).value == b"1"
        assert path.with_name(f"{FILE}-wal").stat().st_size == 0, "all of it is in the file itself"


async def test_writes_that_wait_together_share_a_commit(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/first", b"")

        def commits() -> int:
            return path.with_name("metadata.db-wal").stat().st_size

        before = commits()
        results = await asyncio.gather(
            *(keys.create(f"/n/{number}", b"") for number in range(100)),
            keys.create("/first", b""),
            return_exceptions=True,
        )
        assert results[:100] == [0] * 100
        assert type(results[100]).__name__ == "KeyExists", "one that fails does not spoil the others"
        assert commits() - before < 100 * 4096


async def test_too_many_waiting_operations_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.metadata.sqlite.keys._MAX_WAITING", 5)
    async with opened(path) as keys:
        await keys.prepare()
        results = await asyncio.gather(*(keys.children("/") for _ in range(10)), return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["list"] * 5 + ["MetadataUnavailable"] * 5
        assert await keys.children("/") == []


async def test_an_idle_store_wakes_up_once_a_second_and_only_for_its_file(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        assert keys._worker._pause() is None, "nothing is open"
        await keys.create("/a", b"")
        assert keys._worker._pause() == 1.0
        await keys.get("/a", lambda: None)
        assert keys._worker._pause() == 0.05
        await keys.create("/buckram/streams/x", b"")
        for version in range(2):
            await keys.get("/buckram/streams/x", lambda: None)
            assert keys._worker._pause() == 0.01
            await keys.set("/buckram/streams/x", b"", version)
            assert keys._worker._pause() == 0.05
        await keys.set("/a", b"", 0)
        assert keys._worker._pause() == 1.0
        await keys.create("/e", b"", ephemeral=True)
        assert keys._worker._pause() == 1.0


async def test_a_failed_multi_does_not_lose_the_session_that_it_began(path: Path) -> None:
    async with opened(path) as keys, opened(path) as other:
        await keys.prepare()
        await keys.create("/taken", b"")
        results = await asyncio.gather(
            keys.multi([Create("/e", b"", ephemeral=True), Create("/taken", b"")]),
            keys.create("/live", b"", ephemeral=True),
            return_exceptions=True,
        )
        assert [type(result).__name__ for result in results] == ["KeyExists", "int"]
        await other.create("/sweep", b"")
        assert (await other.get("/live")).version == 0


def test_session_locks(tmp_path: Path) -> None:
    assert not file_locks.alive(tmp_path, 1)
    lock = file_locks.SessionLock(tmp_path, 1)
    assert file_locks.alive(tmp_path, 1)
    assert file_locks.alive(tmp_path, 1), "looking does not take it"
    assert lock.intact()
    with pytest.raises(OSError, match="unavailable"):
        file_locks.SessionLock(tmp_path, 1)
    (tmp_path / "1").unlink()
    assert not lock.intact()
    assert not file_locks.alive(tmp_path, 1)
    lock.release()
    lock.release()
    (tmp_path / "2").touch()
    assert not file_locks.alive(tmp_path, 2)
    file_locks.forget(tmp_path, 2)
    file_locks.forget(tmp_path, 2)
    assert list(tmp_path.iterdir()) == []


async def test_a_directory_in_the_place_of_the_file_is_no_passing_trouble(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="is a directory: name the database file") as caught:
        async with opened(tmp_path) as keys:
            await keys.get("/a")
    assert not caught.value.retryable
