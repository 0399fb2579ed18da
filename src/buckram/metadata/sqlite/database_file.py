"""The SQLite file of a cluster and connections to it: format version, tables, and how a commit becomes durable.

WAL: readers never wait for writers, and a process that is killed at any moment leaves a file that the next one opens as
if nothing had been going on. SQLite would sync the log of a commit while nobody else can write (synchronous=FULL). Here
a writer syncs it right after the commit, and a reader of others' commits before it passes on what it has read (`Log`).
SQLite itself syncs the log before a checkpoint copies from it (synchronous=NORMAL). A connection also checks that the
file still has its name.

Not here: keys and sessions (`metadata/sqlite/tree.py`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, Protocol
from urllib.parse import quote

from buckram.errors import ClusterNotInitialised, MetadataError, MetadataUnavailable, StoreReplaced
from buckram.metadata.sqlite import changes as sqlite_changes
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
        sqlite_changes.prepare(db)
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


Moment = tuple[sqlite3.Connection, int]
"""State of the file as a connection sees it: the connection, and its number for that state (`seen_version`)."""


class Near(Protocol):
    """Another connection, whose reads are told if they are durable (`metadata/sqlite/durable_reads.py`)."""

    def moment(self) -> Moment | None: ...
    def is_durable(self, moment: Moment | None) -> None: ...


class SqliteConnection:
    """A connection. A commit is visible to all when it is made, and durable when the log was synced after it.

    The writer syncs before it reports the commit (`_sync`), and a reader before it passes on what it has read
    (`make_durable`), unless a mark beside the file says that somebody has (`metadata/sqlite/durable_mark.py`).
    """

    def __init__(self, path: Path, busy_timeout_s: float, *, one_thread: bool = True) -> None:
        """`one_thread`: False if several threads use it, one at a time."""
        self._path, self._busy_timeout_s, self._one_thread = path, busy_timeout_s, one_thread
        self._name = os.fspath(path)
        self.near: Near | None = None
        """Connection that is told what the syncs of this one have made durable."""
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._replaced = ""
        self._log: Log | None = None
        self._lacks_sync = False
        """True after a failed sync: what was committed is in the file, but may not be on the disk."""
        self._log_size = LONG_LOG_BYTES
        """Length of the log when it was last copied, bytes; a longer one is copied again: SQLite never shortens a log
        in use.
        """
        self._data_version = self._durable_version = -1

    @property
    def path(self) -> Path:
        return self._path

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            if self._replaced:
                raise StoreReplaced(self._replaced)
            db, file = connect_known(self._path, self._busy_timeout_s, one_thread=self._one_thread)
            if self._file not in (None, file):
                db.close()
                self._file_is_another(file)
            try:
                self._log = Log(self._path)
                if self._lacks_sync:
                    self._empty_log(db)
            except BaseException:
                db.close()
                self._close_log()
                raise
            self._db, self._file = db, file
        return self._db

    def _empty_log(self, db: sqlite3.Connection) -> None:
        """Copy the log into the file and truncate it, because the system forgets pages whose sync has failed.

        Raises MetadataUnavailable if the file is too busy.
        """
        busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise MetadataUnavailable(f"{self._path}: a change did not reach the disk, and it is too busy to repeat it")
        self._lacks_sync = False

    def _empty_long_log(self) -> None:
        """Copy a long log into the file, as far as that is possible at once, without waiting for other processes."""
        assert self._log is not None
        size = self._log.size()
        if size > self._log_size:
            self._log_size = size
            self._open().execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    def _sync(self) -> None:
        """Make durable what was committed. A failure leaves the last changes in doubt."""
        assert self._log is not None
        try:
            self._log.sync()
        except OSError:
            self._lacks_sync = True
            self._disconnect()
            raise

    def _settle(self) -> None:
        """Make a commit durable, in the file that has the name."""
        near = self.near
        seen = None if near is None else near.moment()  # before the sync begins, or it may not cover all of this
        self._sync()
        self.check_file()  # if it was just replaced, the commit is in a file without a name
        if near is not None:
            near.is_durable(seen)
        self._empty_long_log()

    def make_durable(self) -> None:
        """Make durable what was read: it may be passed on then, as a loss of power does not undo it."""
        with self._translated():
            if self._db is None:
                return
            version = self.seen_version()
            if version != self._durable_version:
                assert self._log is not None
                if self._lacks_sync or not self._log.is_durable():
                    self._sync()
                self._durable_version = version

    def make_all_durable(self) -> None:
        """Make durable what anybody has committed, also if nothing of it was read through this connection."""
        with self._translated():
            self._open()
            self.make_durable()

    def progress(self) -> int:
        """Return a number that changes when others complete a change; -1 if that cannot be seen."""
        try:
            return -1 if self._db is None else self.seen_version()
        except sqlite3.Error:
            return -1

    def seen_version(self) -> int:
        """Return a number that changes with each commit of others."""
        return int(self._open().execute("PRAGMA data_version").fetchone()[0])

    def moment(self) -> Moment:
        """Return the state that is seen now; it is the same as long as nobody else commits anything."""
        return self._open(), self.seen_version()

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def check_file(self) -> None:
        """Check, with one stat, that the open file still is the one with that name.

        Raises StoreReplaced, from then on for good.
        """
        if self._replaced:
            raise StoreReplaced(self._replaced)
        if self._db is None:
            return
        found = which(self._name)
        if found != self._file:
            self._file_is_another(found)

    def _file_is_another(self, found: tuple[int, int] | None) -> NoReturn:
        """Disconnect and raise StoreReplaced: a change to a file without a name would never be read again."""
        what = "was deleted or moved away" if found is None else "was replaced by another file"
        self._replaced = (
            f"{self._path} {what} while it was in use: nothing more is read from it or written to it. Put the right "
            "file back, or `buckram cluster restore` a backup, and connect again"
        )
        self._lost()
        self._disconnect()
        raise StoreReplaced(self._replaced)

    def _lost(self) -> None:
        """Drop whatever depended on the open file; called when it is no longer the one with the name."""

    def reopen(self) -> None:
        """Go on with the file that now has the name."""
        if self._replaced:
            self._replaced, self._file = "", None
        with self._translated():
            if not is_whole(self._open()):
                raise MetadataError(f"{self._path}: its pages do not fit together: restore it from a backup")

    def _disconnect(self) -> None:
        self._data_version = self._durable_version = -1
        self._close_log()
        if self._db is not None:
            self._db.close()
            self._db = None

    def _close_log(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.close()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.ProgrammingError, sqlite3.IntegrityError):
            raise  # a bug of ours
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise MetadataError(f"{self._path}: {error}: name another file or restore it from a copy") from error
            if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                self._disconnect()  # the next call tries with a new connection
            raise MetadataUnavailable(f"{self._path}: {error}") from error
        except OSError as error:
            raise MetadataUnavailable(f"{self._path}: {error}") from error
