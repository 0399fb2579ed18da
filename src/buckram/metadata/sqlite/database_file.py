"""The SQLite file of a cluster: format version, tables, and how a commit becomes durable.

WAL: readers never wait for writers, and a process that is killed at any moment leaves a file that the next one opens as
if nothing had been going on. SQLite would sync the log of a commit while nobody else can write (synchronous=FULL). Here
a writer syncs it right after the commit, and a reader of others' commits before it passes on what it has read (`Log`).
SQLite itself syncs the log before a checkpoint copies from it (synchronous=NORMAL).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from pathlib import Path
from urllib.parse import quote

from buckram.errors import ClusterNotInitialised, MetadataError, StoreReplaced
from buckram.metadata.sqlite import commit_statement as sqlite_commit
from buckram.metadata.sqlite.durable_mark import DurableMark
from buckram.runtime.disk.syncing import sync_data, sync_directory

FORMAT_VERSION = 1
LONG_LOG_BYTES = 8 << 20
"""Length in bytes from which on the log is copied into the file. Whoever writes over a log from its beginning syncs its
first page while it holds the write lock, so it should not be done too often.
"""
_APPLICATION_ID = 0x42_4B_52_4D
# Row ids are never used again, so (id, version) tells a key that was deleted and created anew from the old one.
_SCHEMA = (
    "CREATE TABLE sessions (id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL)",
    """CREATE TABLE keys (
      id INTEGER PRIMARY KEY AUTOINCREMENT,
      parent TEXT NOT NULL,
      name TEXT NOT NULL,
      value BLOB NOT NULL,
      version INTEGER NOT NULL DEFAULT 0,
      child_changes INTEGER NOT NULL DEFAULT 0,
      session INTEGER,
      UNIQUE (parent, name)
    )""",
    "CREATE INDEX keys_of_sessions ON keys (session) WHERE session IS NOT NULL",
    "INSERT INTO keys (parent, name, value) VALUES ('', '', x'')",
)


class Log:
    """The write-ahead log of an open database. SQLite holds no lock on this file, so it may be opened a second time."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(f"{path}-wal", os.O_RDONLY | os.O_CLOEXEC)
        self._mark = DurableMark(path, self._fd)

    def sync(self) -> None:
        """Make durable what was committed, by any process. Raises OSError."""
        end = self._mark.end()  # before the sync, which may not cover what comes meanwhile
        try:
            sync_data(self._fd)
        except OSError:
            self._mark.failed(end)
            raise
        self._mark.synced(end)

    def is_durable(self) -> bool:
        """Return whether all that was committed until now was synced, by whomever."""
        return self._mark.covers(self._mark.end())

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        self._mark.close()
        os.close(self._fd)


def prepare(path: Path, busy_timeout_s: float) -> None:
    """Create the file and its tables if they are missing; several processes may do so at once."""
    _make_private(path)
    db = _open(path, "rwc", busy_timeout_s)
    try:
        if not _is_ours(path, db):
            db.execute("PRAGMA synchronous=FULL")
            _create_tables(path, db, busy_timeout_s)
    finally:
        db.close()
    for directory in (path.parent, path.parent.parent):
        sync_directory(directory)


def _make_private(path: Path) -> None:
    """Make the file for its owner only: whoever opens it may do everything. SQLite gives its log the same mode."""
    with contextlib.suppress(OSError):  # it exists, or SQLite's own error is better
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def connect(path: Path, busy_timeout_s: float, *, one_thread: bool = True) -> sqlite3.Connection:
    """Open the file that `prepare` made.

    Raises ClusterNotInitialised if it does not exist, MetadataError if it is foreign or newer.
    """
    if not path.exists():
        raise ClusterNotInitialised(f"sqlite://{path}")
    db = _open(path, "rw", busy_timeout_s, one_thread=one_thread)
    try:
        if not _is_ours(path, db):
            raise ClusterNotInitialised(f"sqlite://{path}")
        db.execute("PRAGMA wal_autocheckpoint=0")  # not inside a commit: `LONG_LOG_BYTES`
        sqlite_commit.prepare(db)
    except BaseException:
        db.close()
        raise
    return db


def which(path: Path | str) -> tuple[int, int] | None:
    """Return device and inode of the file with the name now; None if there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_nlink else None


def connect_known(
    path: Path, busy_timeout_s: float, *, one_thread: bool = True
) -> tuple[sqlite3.Connection, tuple[int, int]]:
    """Connect, and return which file that is: SQLite does not report which one it has opened."""
    for _ in range(10):
        before = which(path)
        db = connect(path, busy_timeout_s, one_thread=one_thread)
        if before is not None and before == which(path):
            return db, before
        db.close()  # it was replaced while it was being opened
    raise StoreReplaced(f"{path}: replaced again and again while it was being opened; let nothing write over it")


def is_whole(db: sqlite3.Connection) -> bool:
    """Return whether the pages fit together, which may not hold for a file that was put under another one's log."""
    return bool(db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok")


def _open(path: Path, mode: str, busy_timeout_s: float, *, one_thread: bool = True) -> sqlite3.Connection:
    if path.is_dir():
        raise MetadataError(f"{path} is a directory: name the database file, for example {path / 'metadata.db'}")
    place = f"file:{quote(str(path))}?mode={mode}"
    db = sqlite3.connect(place, uri=True, isolation_level=None, timeout=busy_timeout_s, check_same_thread=one_thread)
    db.execute("PRAGMA synchronous=NORMAL")
    db.execute("PRAGMA fullfsync=ON")  # counts on macOS, where fsync does not wait for the device
    return db


def _is_ours(path: Path, db: sqlite3.Connection) -> bool:
    """Return whether the file is a cluster's; False for an empty file."""
    version, application, filled = _marks(db)
    if application == _APPLICATION_ID and version == FORMAT_VERSION:
        return True
    if application == _APPLICATION_ID:
        raise MetadataError(f"{path} has format version {version}, this Buckram knows {FORMAT_VERSION}: upgrade")
    if application or version or filled:
        raise MetadataError(f"{path} is a database, but not one of Buckram's: name another file")
    return False


def _marks(db: sqlite3.Connection) -> tuple[int, int, bool]:
    """Return format version, application, and whether there is any table.

    Read as of one moment: another process may be creating the tables, and half of that would look foreign or newer.
    """
    db.execute("SAVEPOINT marks")
    try:
        version, application, tables = (
            db.execute(query).fetchone()[0]
            for query in ("PRAGMA user_version", "PRAGMA application_id", "SELECT count(*) FROM sqlite_master")
        )
        return version, application, tables > 0
    finally:
        if db.in_transaction:  # some errors have ended it
            db.execute("RELEASE marks")


def _create_tables(path: Path, db: sqlite3.Connection, busy_timeout_s: float) -> None:
    deadline = time.monotonic() + busy_timeout_s
    while True:  # SQLite's own busy handling does not cover this change of mode
        try:
            db.execute("PRAGMA journal_mode=WAL")
            break
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    db.execute("BEGIN IMMEDIATE")
    try:
        if not _is_ours(path, db):  # another process may have been first
            for statement in _SCHEMA:
                db.execute(statement)
            db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={FORMAT_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
