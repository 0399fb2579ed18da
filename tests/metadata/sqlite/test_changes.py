"""SQLite's write lock is held within one statement, and never from one statement to the next."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.sqlite_kit import FILE

from buckram.errors import KeyExists, MetadataError, NoSuchKey, VersionConflict
from buckram.metadata.sqlite import changes as sqlite_changes
from buckram.metadata.sqlite import database_file as sqlite_connection
from buckram.metadata.sqlite import database_file as sqlite_file
from buckram.metadata.sqlite.changes import ROOT
from buckram.metadata.sqlite.file_locks import SessionLock
from buckram.metadata.sqlite.tree import Busy, SqliteTree
from buckram.types import CheckVersion, Create, Delete, KeyOp, SetValue


@contextmanager
def a_tree(path: Path) -> Iterator[SqliteTree]:
    tree = SqliteTree(path, 5.0)
    tree.prepare()
    try:
        yield tree
    finally:
        tree.close()


def written(tree: SqliteTree, *ops: KeyOp) -> list[int]:
    (found,) = tree.write([ops])
    assert isinstance(found, list), found
    return found


def somebody_else_can_write(probe: sqlite3.Connection) -> bool:
    try:
        probe.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    probe.execute("ROLLBACK")
    return True


def locked_at(tree: SqliteTree, path: Path, change: Callable[[], object]) -> tuple[list[str], list[str]]:
    """What ran with the lock held before it began, and all that ran."""
    held: list[str] = []
    ran: list[str] = []
    with closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as probe:

        def begins(statement: str) -> None:
            if statement.startswith("-- ") or statement in ran[-1:]:
                return  # a trigger
            ran.append(statement)
            if not somebody_else_can_write(probe):
                held.append(statement)

        db = tree._open()
        db.set_trace_callback(begins)
        change()
        db.set_trace_callback(None)
        assert somebody_else_can_write(probe)
    return held, ran


ALONE = "UPDATE OR ROLLBACK keys"
"""What sets one key and does nothing else."""
EVERYTHING: dict[str, Sequence[KeyOp]] = {
    "create": (Create("/a/b/c", b"1"),),
    "ephemeral": (Create("/live/me", b"", ephemeral=True),),
    "set": (SetValue("/old", b"new", 0),),
    "delete": (Delete("/old", 0),),
    "multi": (Create("/a", b""), SetValue("/old", b"new", 0), CheckVersion("/kept", 0), Delete("/kept", 0)),
    "many": tuple(Create(f"/many/{number}", b"x") for number in range(100)),
}


@pytest.mark.parametrize("what", EVERYTHING)
def test_the_lock_is_not_held_from_one_statement_to_the_next(tmp_path: Path, what: str) -> None:
    path = tmp_path / FILE
    with a_tree(path) as tree:
        written(tree, Create("/old", b""), Create("/kept", b""))
        held, ran = locked_at(tree, path, lambda: written(tree, *EVERYTHING[what]))
        assert sum(statement.startswith((sqlite_changes.COMMIT, ALONE)) for statement in ran) == 1, ran
        assert held == []
        assert not any(statement.startswith(("BEGIN", "COMMIT")) for statement in ran)


def test_the_look_at_the_lock_would_see_it(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with a_tree(path) as tree:
        ops = [Create(f"/many/{number}", b"x") for number in range(3 * sqlite_changes.MAX_ROWS)]
        held, _ = locked_at(tree, path, lambda: tree.write([ops]))
        assert sum(statement.startswith(sqlite_changes.COMMIT) for statement in held) == 3
        assert held[-1] == "COMMIT"
        names = tree.children("/many", "", 10_000)[0]
        assert sorted(names, key=int) == [str(number) for number in range(3 * sqlite_changes.MAX_ROWS)]


def test_more_than_one_statement_takes_is_done_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with a_tree(path) as tree:
        ops = [Create(f"/many/{number}", b"x") for number in range(2 * sqlite_changes.MAX_ROWS)]
        db = tree._open()
        # The last row of all cannot be made.
        db.execute(
            "CREATE TEMP TRIGGER refuse BEFORE INSERT ON main.keys WHEN NEW.name = '1' AND NEW.parent = '/last' "
            "BEGIN SELECT RAISE(ABORT, 'refused'); END"
        )
        with pytest.raises((MetadataError, sqlite3.IntegrityError)):
            tree.write([[*ops, Create("/last/1", b"")]])
        assert tree.children("/", "", 10)[0] == []
        written(tree, Create("/after", b""))
        assert tree.children("/", "", 10)[0] == ["after"]


@pytest.mark.parametrize("times", [1, 10])
def test_what_was_worked_out_from_an_older_state_is_not_written(tmp_path: Path, times: int) -> None:
    """Somebody changes the value while the new one is being worked out: once, and more often than is tried again
    without the lock."""
    path = tmp_path / FILE
    with a_tree(path) as tree, closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as other:
        written(tree, Create("/counter", b"0"))
        left, real = [times], tree._commit

        def late(*args: object) -> bool:
            if left[0]:
                left[0] -= 1
                with suppress(sqlite3.OperationalError):
                    other.execute("UPDATE keys SET value=x'39', version=version+1 WHERE name='counter'")
            return real(*args)  # type: ignore[arg-type]

        tree._commit = late  # type: ignore[method-assign]
        (found,) = tree.write([[SetValue("/counter", b"1", 0), Create("/made", b"")]])
        assert isinstance(found, VersionConflict)
        kept = tree.get("/counter")[0]
        assert kept is not None
        assert (kept.value, kept.version >= 1) == (b"9", True)


def test_a_key_that_is_set_alone_is_of_the_version_that_was_read_and_of_no_session(tmp_path: Path) -> None:
    with a_tree(tmp_path / FILE) as tree, a_tree(tmp_path / FILE) as other:
        written(tree, Create("/counter", b"0"))
        assert written(tree, SetValue("/counter", b"1", 0)) == [1]
        (found,) = tree.write([[SetValue("/counter", b"2", 0)]])
        assert isinstance(found, VersionConflict)
        (found,) = tree.write([[SetValue("/nothing", b"2", 0)]])
        assert isinstance(found, NoSuchKey)
        kept = other.get("/counter")[0]
        assert kept is not None
        assert (kept.value, kept.version) == (b"1", 1)
        written(other, Create("/live", b"", ephemeral=True))
        assert other._lock is not None
        other._lock.release()  # its process has ended
        (found,) = tree.write([[SetValue("/live", b"2", 0)]])
        assert isinstance(found, NoSuchKey)


def test_a_key_that_is_set_alone_waits_for_nobody(tmp_path: Path) -> None:
    with a_tree(tmp_path / FILE) as tree, closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as other:
        written(tree, Create("/counter", b"0"))
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(Busy):  # it stands in line with all others
            tree.write([[SetValue("/counter", b"1", 0)]])
        assert time.monotonic() - began < 3.0  # a lock is waited for for 5 s
        other.execute("ROLLBACK")
        assert written(tree, SetValue("/counter", b"1", 0)) == [1]


def test_a_count_of_children_alone_leaves_value_and_version(tmp_path: Path) -> None:
    with a_tree(tmp_path / FILE) as tree:
        written(tree, Create("/a", b"kept"))
        before = tree.token(("children", "/a"))
        written(tree, Create("/a/b", b""))
        kept = tree.get("/a")[0]
        assert kept is not None
        assert (kept.value, kept.version) == (b"kept", 0)
        assert tree.token(("children", "/a")) != before
        written(tree, SetValue("/a", b"", 0), Create("/a/c", b""))
        kept = tree.get("/a")[0]
        assert kept is not None
        assert (kept.value, kept.version) == (b"", 1)


def test_a_session_that_begins_takes_no_number_of_another_that_does(tmp_path: Path) -> None:
    """Whoever was stopped between the lock of his session and its row keeps nobody from beginning one."""
    path = tmp_path / FILE
    with a_tree(path) as tree:
        stopped = SessionLock(path.with_name(path.name + ".sessions"), 1)
        written(tree, Create("/live/me", b"", ephemeral=True))
        assert tree._session == 2
        stopped.release()
        with a_tree(path) as other:
            written(other, Create("/live/you", b"", ephemeral=True))
            assert other._session == 3
            assert other.children("/live", "", 10)[0] == ["me", "you"]


def test_the_log_is_copied_into_the_file_outside_of_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "LONG_LOG_BYTES", 50_000)
    path = tmp_path / FILE
    with a_tree(path) as tree:
        statements: list[str] = []
        tree._open().set_trace_callback(statements.append)
        longest = 0
        for number in range(120):
            written(tree, Create(f"/many/{number}", b"x"))
            longest = max(longest, path.with_name(f"{FILE}-wal").stat().st_size)
        copied = [text for text in statements if "wal_checkpoint" in text]
        assert longest < 200_000, "about 4 pages a change"
        assert 3 <= len(copied) <= 40, "neither never nor each time"
        assert tree._open().execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_another_process_reads_what_one_statement_committed(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with a_tree(path) as tree:
        written(tree, Create("/a/b", b"1"), Create("/c", b"2"))
        code = f"import sqlite3; print(sqlite3.connect({str(path)!r}).execute('SELECT count(*) FROM keys').fetchone())"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert found.stdout.strip() == "(4,)"
        assert sqlite_connection.SqliteConnection(path, 1.0).progress() == -1


def test_a_view_has_the_rows_that_were_asked_for_and_stays_open(tmp_path: Path) -> None:
    path = tmp_path / FILE
    with a_tree(path) as tree, closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as other:
        written(tree, Create("/a/b", b"1"), Create("/c", b"2"))
        written(tree, SetValue("/c", b"3", 0))
        db = tree._open()
        for places in ([], [("/", "c")], [("/", "c"), ("/", "none"), ("/a", "b"), ROOT, ("/", "c")]):
            view = sqlite_changes.View(db, places)
            assert view.rows == {place: tree.row(place) for place in places}
            assert db.execute("SELECT version FROM keys WHERE name='c'").fetchone() == (1,)
            other.execute("UPDATE keys SET child_changes = child_changes + 1 WHERE name='c'")
            with pytest.raises(sqlite3.OperationalError, match="locked"):  # by a state that is not the newest
                db.execute(sqlite_changes.SET_ALONE, (b"4", "/", "c", 1))
            view.close()
        many = [("/", f"n{number}") for number in range(3 * sqlite_changes.MOST_PLACES)]
        view = sqlite_changes.View(db, many)
        assert list(view.rows) == many[: sqlite_changes.MOST_PLACES]
        view.close()


def test_what_a_view_had_read_does_not_count_for_what_is_tried_after_it(tmp_path: Path) -> None:
    """Others are quicker each time, and at last make the same key; the next attempt holds the lock."""
    path = tmp_path / FILE
    with a_tree(path) as tree, closing(sqlite3.connect(path, isolation_level=None, timeout=0.0)) as other:
        written(tree, Create("/counter", b"0"))
        theirs = ["UPDATE keys SET version=version+1 WHERE name='counter'"] * 3
        theirs.append("INSERT INTO keys (parent, name, value) VALUES ('/', 'made', x'')")
        real = tree._commit

        def late(*args: object) -> bool:
            if theirs:
                other.execute(theirs.pop(0))
            return real(*args)  # type: ignore[arg-type]

        tree._commit = late  # type: ignore[method-assign]
        (found,) = tree.write([[Create("/made", b"")]])
        assert isinstance(found, KeyExists)
        assert theirs == []


def test_a_file_of_the_root_alone_gives_a_view_as_well(tmp_path: Path) -> None:
    with a_tree(tmp_path / FILE) as tree:
        view = sqlite_changes.View(tree._open(), [("/", "a")])
        assert view.rows == {("/", "a"): None}
        view.close()
        written(tree, Create("/a", b""))
