"""Whether a mark beside the file says truly that what others have committed is durable."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from buckram.errors import MetadataUnavailable
from buckram.metadata.sqlite import database_file as sqlite_file
from buckram.metadata.sqlite import durable_mark
from buckram.metadata.sqlite.tree import SqliteTree
from buckram.types import Create, SetValue

FILE = "metadata.db"


class Syncs:
    """How often the log was synced. `during` is done in the middle of the next sync."""

    def __init__(self) -> None:
        self.count, self.during = 0, lambda: None

    def sync(self, fd: int) -> None:
        self.count += 1
        during, self.during = self.during, lambda: None
        during()


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> Syncs:
    found = Syncs()
    monkeypatch.setattr(sqlite_file, "sync_data", found.sync)
    return found


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., SqliteTree]]:
    """Open the store anew, as another process does."""
    trees: list[SqliteTree] = []

    def opened(path: Path = tmp_path / FILE) -> SqliteTree:
        if not path.exists():
            sqlite_file.prepare(path, 1.0)
        trees.append(SqliteTree(path, 0.2))
        return trees[-1]

    yield opened
    for tree in trees:
        tree.close()


def begun(make: Callable[..., SqliteTree]) -> tuple[SqliteTree, SqliteTree]:
    """A writer, and a reader of its key for which nothing is new."""
    writer, reader = make(), make()
    assert writer.write([[Create("/a", b"0")]]) == [[0]]
    reader.get("/a")
    reader.make_durable()
    return writer, reader


def set_by(path: Path, value: bytes) -> None:
    """By a program that commits and does not sync."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=1.0)) as db:
        db.execute("PRAGMA synchronous=OFF")
        db.execute("UPDATE keys SET value=?, version=version+1 WHERE name='a'", (value,))


def reads(reader: SqliteTree, value: bytes, syncs: Syncs) -> int:
    """The number of syncs before it may pass on what it has read."""
    before = syncs.count
    found, _ = reader.get("/a")
    assert found is not None
    assert found.value == value
    reader.make_durable()
    return syncs.count - before


def test_what_another_one_has_synced_is_durable(make: Callable[..., SqliteTree], syncs: Syncs) -> None:
    writer, reader = begun(make)
    for number in range(3):
        writer.write([[SetValue("/a", b"%d" % number, number)]])
        assert reads(reader, b"%d" % number, syncs) == 0
    assert reads(make(), b"2", syncs) == 0


def test_what_nobody_has_synced_is_not(make: Callable[..., SqliteTree], syncs: Syncs, tmp_path: Path) -> None:
    _, reader = begun(make)
    set_by(tmp_path / FILE, b"1")
    assert reads(reader, b"1", syncs) == 1
    assert reads(make(), b"1", syncs) == 0, "the reader's sync counts for others"


def test_a_commit_during_the_sync_is_not_marked(make: Callable[..., SqliteTree], syncs: Syncs, tmp_path: Path) -> None:
    writer, reader = begun(make)
    syncs.during = lambda: set_by(tmp_path / FILE, b"during")
    writer.write([[SetValue("/a", b"1", 0)]])
    assert reads(reader, b"during", syncs) == 1


def test_a_copy_of_all_files_is_not_durable(make: Callable[..., SqliteTree], syncs: Syncs, tmp_path: Path) -> None:
    writer, _ = begun(make)
    writer.write([[SetValue("/a", b"1", 0)]])
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tmp_path.glob(f"{FILE}*"):
        if file.is_file():
            shutil.copy(file, copy / file.name)
    assert reads(make(copy / FILE), b"1", syncs) == 1


def test_a_log_that_was_begun_anew_is_not_durable(
    make: Callable[..., SqliteTree], syncs: Syncs, tmp_path: Path
) -> None:
    writer, reader = begun(make)
    for number in range(3):
        writer.write([[SetValue("/a", bytes(10_000), number)]])
    with closing(sqlite3.connect(tmp_path / FILE, isolation_level=None, timeout=1.0)) as db:
        assert db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    set_by(tmp_path / FILE, b"1")
    assert reads(reader, b"1", syncs) == 1


def test_after_a_failed_sync_everybody_syncs_until_the_log_is_begun_anew(
    make: Callable[..., SqliteTree], syncs: Syncs
) -> None:
    writer, reader = begun(make)
    third, fourth = make(), make()
    assert reads(third, b"0", syncs) == reads(fourth, b"0", syncs) == 0

    def fails() -> None:
        raise OSError(5, "Input/output error")

    syncs.during = fails
    with pytest.raises(MetadataUnavailable, match="Input/output error"):
        writer.write([[SetValue("/a", b"lost", 0)]])
    assert reads(reader, b"lost", syncs) == 1
    assert reads(third, b"lost", syncs) == 1, "the system tells a failure to each file once, and forgets the pages"
    assert writer.write([[SetValue("/a", b"again", 1)]]) == [[2]]  # it has emptied the log first
    reads(fourth, b"again", syncs)
    assert reads(reader, b"again", syncs) == 0


@pytest.mark.parametrize("damage", [b"", b"?" * 128, bytes(3)])
def test_a_mark_that_was_damaged_or_removed_is_no_mark(
    make: Callable[..., SqliteTree], syncs: Syncs, tmp_path: Path, damage: bytes
) -> None:
    _, reader = begun(make)
    mark = tmp_path / f"{FILE}-durable"
    assert mark.stat().st_mode & 0o777 == 0o600
    set_by(tmp_path / FILE, b"1")
    with mark.open("r+b") as file:
        file.write(damage)
        file.truncate(len(damage))
    assert reads(reader, b"1", syncs) == 1
    assert reads(make(), b"1", syncs) == 0


def test_a_process_with_many_files_syncs_for_itself(
    make: Callable[..., SqliteTree], syncs: Syncs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_mark, "_MOST_OPEN", 0)
    writer, reader = begun(make)
    writer.write([[SetValue("/a", b"1", 0)]])
    assert reads(reader, b"1", syncs) == 1
