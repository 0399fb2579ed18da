"""What the loop reads by itself: at once what this process has changed, and from others only what has reached the
disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.polling import until
from tests.support.sqlite_kit import FILE, opened

from buckram.errors import MetadataUnavailable, NoSuchKey
from buckram.metadata.sqlite import database_file as sqlite_file
from buckram.metadata.sqlite import durable_reads as sqlite_near
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.metadata.tree.key_grammar import ABSENT, prompt_get
from buckram.types import KeyValue, SetValue

TOLD = "the loop may tell what is on the disk"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


@pytest.fixture
def other(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program, which commits and does not sync."""
    sqlite_file.prepare(path, 5.0)
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5.0)) as db:
        db.execute("PRAGMA synchronous=OFF")
        yield db


def set_by(other: sqlite3.Connection, value: bytes) -> None:
    other.execute("UPDATE keys SET value=?, version=version+1 WHERE name='a'", (value,))


async def begun(keys: SqliteKeys) -> None:
    """Have a key that the loop may tell."""
    await keys.prepare()
    await keys.create("/a", b"0")
    await until(lambda: keys.peek(["/a"])[0] is not None, TOLD)


async def test_what_this_process_has_changed_is_told_at_once(path: Path) -> None:
    async with opened(path) as keys:
        await begun(keys)
        assert await keys.set("/a", b"1", 0) == 1  # the shortest way of a change
        assert keys.peek(["/a"]) == [KeyValue(b"1", 1)]
        await keys.create("/b", b"2")
        assert keys.peek(["/b"]) == [KeyValue(b"2", 0)]
        await keys.multi([SetValue("/a", b"3", 1), SetValue("/b", b"4", 0)])
        assert keys.peek(["/a", "/b"]) == [KeyValue(b"3", 2), KeyValue(b"4", 1)]
        await keys.delete("/b", 1)
        assert keys.peek(["/b"]) == [ABSENT]


async def test_a_key_is_there_or_not_or_only_the_thread_knows(path: Path) -> None:
    async with opened(path) as keys, opened(path) as theirs:
        await begun(keys)
        await keys.create("/mine", b"", ephemeral=True)
        await theirs.create("/theirs", b"", ephemeral=True)
        await until(lambda: keys.peek(["/a"])[0] is not None, TOLD)
        assert keys.peek(["/mine", "/a", "/none", "/theirs"]) == [None, KeyValue(b"0", 0), ABSENT, None]
        assert [keys.peek([key])[0] for key in ("/mine", "/none", "/theirs")] == [None, ABSENT, None]


async def test_a_commit_of_others_is_told_after_a_sync(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bytes] = []
    async with opened(path) as keys:
        await begun(keys)
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:

            def sync(fd: int) -> None:
                synced.append(bytes(db.execute("SELECT value FROM keys WHERE name='a'").fetchone()[0]))

            monkeypatch.setattr(sqlite_file, "sync_data", sync)
            set_by(db, b"theirs")
            assert keys.peek(["/a"]) == [None]
            await until(lambda: keys.peek(["/a"])[0] is not None, TOLD)
            assert keys.peek(["/a"]) == [KeyValue(b"theirs", 1)]
            assert synced[-1] == b"theirs"


async def test_the_first_to_read_in_a_process_tells_nothing_before_a_sync(
    path: Path, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread has opened nothing yet."""
    other.execute("INSERT INTO keys (parent, name, value) VALUES ('/', 'a', x'30')")
    synced: list[int] = []
    monkeypatch.setattr(sqlite_file, "sync_data", synced.append)
    async with opened(path) as keys:
        assert keys.peek(["/a"]) == [None]
        await until(lambda: keys.peek(["/a"])[0] is not None, TOLD)
        assert synced


async def test_a_commit_of_others_during_a_sync_is_not_covered_by_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two commits, one before the sync of a change and one while it goes on, the change's own sync covers the
    first."""
    async with opened(path) as keys:
        await begun(keys)
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as db:
            left = [b"during"]

            def sync(fd: int) -> None:
                if left:
                    set_by(db, left.pop())

            monkeypatch.setattr(sqlite_file, "sync_data", sync)
            await keys.create("/b", b"")
            assert keys.peek(["/a"]) == [None]
            await until(lambda: keys.peek(["/a"])[0] is not None, TOLD)
            assert keys.peek(["/a"]) == [KeyValue(b"during", 1)]


async def test_a_change_whose_sync_has_failed_is_not_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(path, busy_timeout_s=0.2) as keys:
        await begun(keys)
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")  # in the way of writing the log again
            reader.execute("SELECT * FROM keys").fetchone()
            with monkeypatch.context() as patch:

                def fails(fd: int) -> None:
                    raise OSError(5, "Input/output error")

                patch.setattr(sqlite_file, "sync_data", fails)
                with pytest.raises(MetadataUnavailable, match="Input/output error"):
                    await keys.set("/a", b"1", 0)
            for _ in range(3):
                assert keys.peek(["/a"]) == [None]
                with pytest.raises(MetadataUnavailable, match="did not reach the disk"):
                    await keys.get("/a")
        await until(lambda: keys.peek(["/a"])[0] is not None, TOLD)
        assert keys.peek(["/a"]) == [KeyValue(b"1", 1)]


async def test_a_number_of_an_earlier_connection_says_nothing_of_the_next_one(
    path: Path, other: sqlite3.Connection
) -> None:
    async with opened(path) as keys:
        await begun(keys)
        durable = keys._near._durable
        assert durable is not None
        set_by(other, b"theirs")
        keys._near.close()
        assert keys.peek(["/a"]) == [None]
        now = keys._near.moment()
        assert now is not None
        keys._near._durable = durable[0], now[1]  # the same number
        assert keys.peek(["/a"]) == [None]


async def test_who_only_writes_is_looked_at_for_a_while_only(path: Path) -> None:
    async with opened(path) as keys:
        await begun(keys)
        looks: list[str] = []
        db = keys._near._tree._db
        assert db is not None
        db.set_trace_callback(looks.append)
        for number in range(3 * sqlite_near._COMMITS):
            await keys.create(f"/n/{number}", b"")
        assert 0 < len(looks) <= sqlite_near._COMMITS + 1
        await until(lambda: keys.peek(["/n/7"])[0] is not None, TOLD)


async def test_a_read_that_need_not_wait_does_not(path: Path, other: sqlite3.Connection) -> None:
    async with opened(path) as keys:
        await begun(keys)
        await keys.create("/mine", b"m", ephemeral=True)
        assert await prompt_get(keys, keys, "/a") == KeyValue(b"0", 0)
        assert await prompt_get(keys, keys, "/mine") == KeyValue(b"m", 0, True)
        assert await prompt_get(keys, None, "/a") == KeyValue(b"0", 0)
        set_by(other, b"theirs")
        assert await prompt_get(keys, keys, "/a") == KeyValue(b"theirs", 1)
        await keys.create("/b", b"")
        with pytest.raises(NoSuchKey) as missed:
            await prompt_get(keys, keys, "/none")
        assert missed.value.key == "/none"
