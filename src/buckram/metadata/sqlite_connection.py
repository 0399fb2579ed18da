"""One connection to the SQLite file of a metadata store: opening it, what is durable, and whether it still is the file
with that name.

Not here: keys and sessions (`metadata/sqlite_tree.py`); the file's format (`metadata/sqlite_file.py`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from buckram.errors import MetadataError, MetadataUnavailable, StoreReplaced
from buckram.metadata import sqlite_file


class SqliteConnection:
    """A commit is visible to all when it is made, and durable when somebody has synced the log after it: whoever made
    it does so before he says so (`_sync`), and whoever read it before he tells of it (`make_durable`)."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self._path, self._busy_timeout_s = path, busy_timeout_s
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._replaced = ""
        self._log: sqlite_file.Log | None = None
        self._lacks_sync = False
        """A sync failed: what was committed is in the file, but may not be on the disk."""
        self._log_size = sqlite_file.LONG_LOG_BYTES
        """What is longer was not copied into the file when this looked last: SQLite never shortens a log in use."""
        self._data_version = self._durable_version = -1

    @property
    def path(self) -> Path:
        return self._path

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            if self._replaced:
                raise StoreReplaced(self._replaced)
            db, file = sqlite_file.connect_known(self._path, self._busy_timeout_s)
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
        """Write what is in the log once more, elsewhere: the system forgets pages whose sync has failed."""
        busy = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise MetadataUnavailable(f"{self._path}: a change did not reach the disk, and it is too busy to repeat it")
        self._lacks_sync = False

    def _empty_long_log(self) -> None:
        """Copy a long log into the file, where that is possible at once. Nobody waits for it, but for whom it is."""
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
        """After a commit: make it durable, in the file that has the name."""
        self._sync()
        self.check_file()  # or it was replaced just now, and what is reported as done is in no file that has a name
        self._empty_long_log()

    def make_durable(self) -> None:
        """What was read may be told from here on: nobody finds it undone after a loss of power."""
        with self._translated():
            if self._db is None:
                return
            version = self.seen_version()
            if version != self._durable_version:
                self._sync()
                self._durable_version = version

    def progress(self) -> int:
        """A number that changes when others get something done; -1 where that cannot be seen."""
        try:
            return -1 if self._db is None else self.seen_version()
        except sqlite3.Error:
            return -1

    def seen_version(self) -> int:
        """A number that is another one after each commit of others."""
        return int(self._open().execute("PRAGMA data_version").fetchone()[0])

    @property
    def is_open(self) -> bool:
        return self._db is not None

    def check_file(self) -> None:
        """StoreReplaced, for good, unless the open file still is the one with that name. One stat."""
        if self._replaced:
            raise StoreReplaced(self._replaced)
        if self._db is None:
            return
        found = sqlite_file.which(self._path)
        if found != self._file:
            self._file_is_another(found)

    def _file_is_another(self, found: tuple[int, int] | None) -> NoReturn:
        """Whatever the file without a name is told, nobody will ever read again."""
        what = "was deleted or moved away" if found is None else "was replaced by another file"
        self._replaced = (
            f"{self._path} {what} while it was in use: nothing more is read from it or written to it. Put the right "
            "file back, or `buckram cluster restore` a backup, and connect again"
        )
        self._lost()
        self._disconnect()
        raise StoreReplaced(self._replaced)

    def _lost(self) -> None:
        """Called when the open file is no longer the one with the name: whatever depended on it is gone."""

    def reopen(self) -> None:
        """Go on with what has the name now."""
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
