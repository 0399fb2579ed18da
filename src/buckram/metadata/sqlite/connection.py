"""One connection to the SQLite file of a metadata store: opens it, makes changes durable, and checks that the file
still has its name.

Not here: keys and sessions (`metadata/sqlite/tree.py`); the file's format (`metadata/sqlite/database_file.py`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn, Protocol

from buckram.errors import MetadataError, MetadataUnavailable, StoreReplaced
from buckram.metadata.sqlite import database_file as sqlite_file

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
        self._log: sqlite_file.Log | None = None
        self._lacks_sync = False
        """True after a failed sync: what was committed is in the file, but may not be on the disk."""
        self._log_size = sqlite_file.LONG_LOG_BYTES
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
            db, file = sqlite_file.connect_known(self._path, self._busy_timeout_s, one_thread=self._one_thread)
            if self._file not in (None, file):
                db.close()
                self._file_is_another(file)
            try:
                self._log = sqlite_file.Log(self._path)
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
        found = sqlite_file.which(self._name)
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
            if not sqlite_file.is_whole(self._open()):
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
