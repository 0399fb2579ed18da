"""A database file that is deleted or replaced while it is open: nobody goes on in the one without a name."""

# ruff: noqa: ASYNC240 - looking at small files between two steps of a test

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.support.polling import until
from tests.support.sqlite_kit import DEADLINE_S, FILE, opened

from buckram.errors import ClusterNotInitialised, KeyExists, StoreReplaced
from buckram.metadata.sqlite.changes import Changes
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.metadata.tree.key_grammar import ABSENT
from buckram.types import Create, KeyValue


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


def copy_of(path: Path, name: str) -> Path:
    """A copy as sqlite3's own backup makes it."""
    copy = path.with_name(name)
    with sqlite3.connect(path) as source, sqlite3.connect(copy) as target:
        source.backup(target)
    target.close()
    source.close()
    return copy


def put_in_place(copy: Path, path: Path) -> None:
    os.replace(copy, path)
    for rest in ("-wal", "-shm"):
        path.with_name(path.name + rest).unlink(missing_ok=True)


def operations(keys: SqliteKeys) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: keys.get("/a"),
        lambda: keys.children("/"),
        lambda: keys.set("/a", b"2", 1),
        lambda: keys.create("/b", b""),
        lambda: keys.delete("/a", 1),
        lambda: keys.multi([Create("/c", b"")]),
        keys.prepare,
    ]


async def test_a_deleted_file_is_not_gone_on_with(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"")
        await keys.set("/a", b"1", 0)
        path.unlink()
        for operation in operations(keys):
            with pytest.raises(StoreReplaced, match=r"deleted or moved away.*buckram cluster restore"):
                await operation()
        assert not path.exists(), "and nobody makes an empty one in its place"


async def test_file_replaced_by_an_older_copy_is_noticed_before_a_write(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"")
        older = copy_of(path, "older.db")
        await keys.set("/a", b"1", 0)
        put_in_place(older, path)
        for operation in operations(keys):
            with pytest.raises(StoreReplaced, match="replaced by another file"):
                await operation()
    async with opened(path) as keys:
        assert (await keys.get("/a")).version == 0, "the new file is as it was put there"


async def test_an_idle_store_notices_within_seconds_and_its_session_is_lost(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        lost = asyncio.Event()
        keys.on_session_lost(lost.set)
        await keys.create("/mine", b"", ephemeral=True)
        path.unlink()
        async with asyncio.timeout(DEADLINE_S):
            await lost.wait()


async def test_a_store_without_a_session_looks_too(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"")
        changed = asyncio.Event()
        await keys.get("/a", changed.set)
        path.unlink()
        async with asyncio.timeout(DEADLINE_S):
            await changed.wait()
        with pytest.raises(StoreReplaced):
            await keys.get("/a")


async def test_commit_into_a_file_that_is_replaced_is_not_reported_as_done(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        tree = keys._worker.tree
        real = tree._commit

        def replaced_meanwhile(db: sqlite3.Connection, changes: Changes) -> None:
            path.unlink()
            real(db, changes)

        tree._commit = replaced_meanwhile  # type: ignore[method-assign]
        with pytest.raises(StoreReplaced):
            await keys.create("/a", b"")


async def test_reopening_goes_on_with_what_has_the_name(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"")
        older = copy_of(path, "older.db")
        await keys.create("/b", b"")
        await keys.create("/mine", b"", ephemeral=True)
        put_in_place(older, path)
        with pytest.raises(StoreReplaced):
            await keys.get("/b")
        await keys.reopen()
        assert await keys.children("/") == ["a"]
        await keys.create("/mine", b"", ephemeral=True)
        with pytest.raises(KeyExists):
            await keys.create("/mine", b"", ephemeral=True)


async def test_reopening_where_there_is_nothing_says_so_and_can_be_tried_again(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"")
        kept = copy_of(path, "kept.db")
        path.unlink()
        with pytest.raises(StoreReplaced):
            await keys.get("/a")
        with pytest.raises(ClusterNotInitialised):
            await keys.reopen()
        put_in_place(kept, path)
        await keys.reopen()
        assert (await keys.get("/a")).version == 0


async def test_reads_without_a_thread_do_not_go_on_with_a_file_that_has_gone(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"old")
        older = copy_of(path, "older.db")
        await keys.set("/a", b"new", 0)
        await until(lambda: keys.peek(["/a"])[0] is not None, "the loop may tell what is on the disk")
        assert keys.peek(["/a", "/b"]) == [KeyValue(b"new", 1), ABSENT]
        put_in_place(older, path)
        assert keys.peek(["/a"]) == [None]
        with pytest.raises(StoreReplaced):
            await keys.get("/a")
        assert keys.peek(["/a"]) == [None]
        await keys.reopen()
        await until(lambda: keys.peek(["/a"])[0] is not None, "the loop may tell what is on the disk")
        assert keys.peek(["/a"]) == [KeyValue(b"old", 0)]
    assert keys.peek(["/a"]) == [None]
