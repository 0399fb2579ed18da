"""The tree of keys in an SQLite file that several processes share: SQL, sessions and their expiry. Synchronous.

Each thread needs its own object.

Not here: the file's format (`metadata/sqlite_file.py`); threads, futures and watches (`metadata/sqlite.py`).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from buckram.errors import (
    BuckramError,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MetadataError,
    MetadataUnavailable,
    NoSuchKey,
    StoreReplaced,
    VersionConflict,
)
from buckram.metadata import session_lock, sqlite_file
from buckram.metadata.keys import split
from buckram.metadata.session_lock import SessionLock
from buckram.seams import MAX_PAGE_BYTES
from buckram.types import CheckVersion, Create, KeyOp, KeyValue, SetValue

TRY_S = 0.1
"""How long one attempt to begin a change waits for other processes. In between there may be reads to do."""


class Busy(MetadataUnavailable):
    """Another process is changing the file: nothing was done, and can be tried again."""


_LASTING_KEY = "SELECT value, version FROM keys WHERE parent=? AND name=? AND session IS NULL"
WatchKey = tuple[str, str]
"""("value", key) or ("children", parent): what a watch can be set on."""
Token = tuple[int, int] | None
"""State of a place: row id (never used again) and a counter; None if the key is absent."""


class SqliteTree:
    """One connection, and at most one session. Every public method raises only MetadataError and InvalidArgument."""

    def __init__(self, path: Path, busy_timeout_s: float) -> None:
        self._path = path
        self._sessions_dir = path.with_name(path.name + ".sessions")
        self._busy_timeout_s = busy_timeout_s
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._replaced = ""
        self._lock: SessionLock | None = None
        self._new_lock: SessionLock | None = None
        self._seen_dead: dict[int, None] = {}
        self._data_version = -1
        self._polled_sessions: list[int] = []
        self._polled_own = True
        """Whether the file had our session, and which others, when it was last changed by somebody else."""
        self.touched: dict[WatchKey, None] = {}
        self.session_lost = False

    @property
    def path(self) -> Path:
        return self._path

    def prepare(self) -> None:
        """Create the file and its tables where they are missing."""
        with self._translated():
            self.check_file()
            self._sessions_dir.parent.mkdir(parents=True, exist_ok=True)
            self._sessions_dir.mkdir(exist_ok=True)
            sqlite_file.prepare(self._path, self._busy_timeout_s)

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            if self._replaced:
                raise StoreReplaced(self._replaced)
            db, file = sqlite_file.connect_known(self._path, self._busy_timeout_s)
            if self._file not in (None, file):
                db.close()
                self._file_is_another(file)
            self._db, self._file = db, file
        return self._db

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
        self.session_lost = True
        self._drop_session()
        self._disconnect()
        raise StoreReplaced(self._replaced)

    def reopen(self) -> None:
        """Go on with what has the name now."""
        if self._replaced:
            self._replaced, self._file = "", None
        with self._translated():
            if not sqlite_file.is_whole(self._open()):
                raise MetadataError(f"{self._path}: its pages do not fit together: restore it from a backup")

    def close(self) -> None:
        """End the session and the connection."""
        if self._lock is not None:
            session = self._lock.session
            # Not being able to write now is no reason to keep the session: without its lock it is dead anyhow.
            with contextlib.suppress(MetadataError):
                self._write_all(lambda: self._end_session(session), self._busy_timeout_s)
            self._drop_session()
        self._disconnect()

    def _disconnect(self) -> None:
        self._data_version = -1
        if self._db is not None:
            self._db.close()
            self._db = None

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

    # Reading

    def get(self, key: str) -> tuple[KeyValue | None, Token]:
        """The value, None if absent, and the state to compare with later."""
        with self._translated():
            self.check_file()
            row = (
                self._open()
                .execute("SELECT id, version, session, value FROM keys WHERE parent=? AND name=?", split(key))
                .fetchone()
            )
            if row is None or not self._is_live(row[2]):
                return None, None
            return KeyValue(row[3], row[1], row[2] is not None and row[2] == self._session), (row[0], row[1])

    def lasting_keys(self, keys: Sequence[str]) -> list[KeyValue | None]:
        """Return what keys hold that are bound to no session, as of one moment; None for any other, for none, and for
        those behind MAX_PAGE_BYTES of values."""
        found: list[KeyValue | None] = []
        room = MAX_PAGE_BYTES
        with self._translated():
            self.check_file()
            db = self._open()
            db.execute("BEGIN")  # one lock for all
            try:
                for key in keys:
                    row = db.execute(_LASTING_KEY, split(key)).fetchone() if room > 0 else None
                    found.append(None if row is None else KeyValue(row[0], row[1], False))
                    room -= 0 if row is None else len(row[0])
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")
        return found

    def children(self, parent: str, after: str, limit: int) -> tuple[list[str], Token]:
        with self._translated():
            self.check_file()
            token = self.token(("children", parent))  # first, so that a change in between shows
            return [row[0] for row in self._rows("name", parent, after, limit)], token

    def children_with_values(self, parent: str, after: str, limit: int) -> list[tuple[str, KeyValue]]:
        """Return children as of one moment, at most as many as have MAX_PAGE_BYTES of values."""
        with self._translated():
            self.check_file()
            found: list[tuple[str, KeyValue]] = []
            size, own = 0, self._session
            with contextlib.closing(self._rows("name, value, version, session", parent, after, limit)) as rows:
                for name, value, version, session in rows:
                    found.append((name, KeyValue(value, version, session is not None and session == own)))
                    size += len(value)
                    if size >= MAX_PAGE_BYTES:
                        break
            return found

    def _rows(self, columns: str, parent: str, after: str, limit: int) -> sqlite3.Cursor:
        """Children behind `after` in order, without those of sessions that ended."""
        dead = [session for session in self._foreign_sessions() if not self._is_live(session)]
        marks = ",".join("?" * len(dead))
        return self._open().execute(
            f"SELECT {columns} FROM keys WHERE parent=? AND name>? "
            f"AND (session IS NULL OR session NOT IN ({marks})) ORDER BY name LIMIT ?",
            (parent, after, *dead, limit),
        )

    def lasting(self) -> list[tuple[str, int, bytes]]:
        """Every key that is bound to no session, with version and value, as of one moment."""
        with self._translated():
            self.check_file()
            rows = (
                self._open()
                .execute(
                    "SELECT parent, name, version, value FROM keys WHERE session IS NULL AND name <> '' "
                    "ORDER BY parent, name"
                )
                .fetchall()
            )
            return [(f"{row[0] if row[0] != '/' else ''}/{row[1]}", row[2], row[3]) for row in rows]

    def token(self, place: WatchKey) -> Token:
        kind, key = place
        where = ("", "") if key == "/" else split(key)
        row = (
            self._open()
            .execute("SELECT id, version, child_changes, session FROM keys WHERE parent=? AND name=?", where)
            .fetchone()
        )
        if row is None or not self._is_live(row[3]):
            return None
        return row[0], row[1] if kind == "value" else row[2]

    @property
    def _session(self) -> int | None:
        return None if self._lock is None else self._lock.session

    def _is_live(self, session: int | None) -> bool:
        return session is None or session == self._session or session_lock.alive(self._sessions_dir, session)

    def _foreign_sessions(self) -> list[int]:
        rows = self._open().execute("SELECT id FROM sessions ORDER BY id").fetchall()
        return [row[0] for row in rows if row[0] != self._session]

    def poll(self, watched: Mapping[WatchKey, Token], *, liveness: bool = True) -> None:
        """Add to `touched` what others changed of `watched` and, with `liveness`, what the end of sessions changed.

        A look without `liveness` comes a hundred times a second: each call that gives up the interpreter's lock counts.
        """
        with self._translated():
            if liveness:
                self.check_file()
            version = self._open().execute("PRAGMA data_version").fetchone()[0]
            if version != self._data_version:
                for place, token in watched.items():
                    if self.token(place) != token:
                        self.touched[place] = None
                self._polled_sessions = self._foreign_sessions()
                self._polled_own = self._is_own_known()
                self._data_version = version
            if not liveness:
                return
            self._notice_lost_session(self._polled_own)
            dead = [session for session in self._polled_sessions if not self._is_live(session)]
            for session in dead:
                if session not in self._seen_dead:
                    for parent, name in self._keys_of(session):
                        self._touch(parent, name)
            self._seen_dead = dict.fromkeys(dead)

    # Writing

    def write(self, jobs: Sequence[Sequence[KeyOp]]) -> list[list[int] | BuckramError]:
        """Each job is all or nothing by itself; one commit covers all. A failed commit raises: fate unknown. Busy: not
        begun."""
        results: list[list[int] | BuckramError] = []
        self._write_all(lambda: results.extend(self._run_job(ops) for ops in jobs))
        return results

    def _begin(self, db: sqlite3.Connection, wait_s: float) -> None:
        """What is left to do from here on is short, and waits for nobody."""
        db.execute(f"PRAGMA busy_timeout={int(wait_s * 1000)}")
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                raise Busy(f"{self._path}: {error}") from error
            raise
        finally:
            db.execute(f"PRAGMA busy_timeout={int(self._busy_timeout_s * 1000)}")

    def _write_all(self, body: Callable[[], None], wait_s: float = TRY_S) -> None:
        with self._translated():
            self.check_file()
            db = self._open()
            dead: list[int] = []
            self._begin(db, wait_s)
            try:
                self._notice_lost_session(self._is_own_known())
                dead = [session for session in self._foreign_sessions() if not self._is_live(session)]
                for session in dead:
                    self._end_session(session)
                body()
                self.check_file()
                db.execute("COMMIT")
            except BaseException:
                self._abandon(db)
                raise
            self.check_file()  # or it was replaced just now, and what is reported as done is in no file that has a name
            if self._new_lock is not None:
                self._lock, self._new_lock = self._new_lock, None
            for session in dead:
                session_lock.forget(self._sessions_dir, session)

    def _abandon(self, db: sqlite3.Connection) -> None:
        self.touched.clear()
        self._forget_new_lock()
        if self._db is not None and db.in_transaction:  # it was closed when the file was replaced
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")

    def _forget_new_lock(self) -> None:
        if self._new_lock is not None:
            # Before the rollback: after it another process may get the same session id, and with it the same file.
            self._new_lock.release()
            self._new_lock = None

    def _run_job(self, ops: Sequence[KeyOp]) -> list[int] | BuckramError:
        db = self._open()
        if any(isinstance(op, Create) and op.ephemeral for op in ops):
            self._own_session()  # outside the savepoint, so that a job that fails does not take its row back
        touched, self.touched = self.touched, {}
        db.execute("SAVEPOINT job")
        try:
            versions = [self._apply(op) for op in ops]
        except (MetadataError, InvalidArgument) as error:
            db.execute("ROLLBACK TO job")
            return error
        else:
            touched.update(self.touched)
            return versions
        finally:
            self.touched = touched
            db.execute("RELEASE job")

    def _apply(self, op: KeyOp) -> int:
        if isinstance(op, Create):
            return self._create(op)
        db = self._open()
        parent, name = split(op.key)
        row = db.execute("SELECT id, version FROM keys WHERE parent=? AND name=?", (parent, name)).fetchone()
        if row is None:
            raise NoSuchKey(op.key)
        identity, version = row
        if version != op.version:
            raise VersionConflict(op.key, op.version)
        if isinstance(op, CheckVersion):
            return op.version
        if isinstance(op, SetValue):
            db.execute("UPDATE keys SET value=?, version=version+1 WHERE id=?", (op.value, identity))
            self.touched["value", op.key] = None
            return op.version + 1
        if db.execute("SELECT 1 FROM keys WHERE parent=? LIMIT 1", (op.key,)).fetchone():
            raise KeyNotEmpty(op.key)
        self._remove(parent, name)
        return op.version

    def _create(self, op: Create) -> int:
        parent, name = split(op.key)
        if self._exists(parent, name):
            raise KeyExists(op.key)
        missing: list[WatchKey] = []
        while parent != "/" and not self._exists(*split(parent)):
            missing.append(split(parent))
            parent = missing[-1][0]
        if parent != "/":
            owner = self._open().execute("SELECT session FROM keys WHERE parent=? AND name=?", split(parent)).fetchone()
            if owner[0] is not None:
                raise InvalidArgument(f"key {op.key}: {parent} is bound to a session and cannot have children")
        for place in reversed(missing):
            self._insert(*place, b"", None)
        self._insert(*split(op.key), op.value, self._own_session() if op.ephemeral else None)
        return 0

    def _exists(self, parent: str, name: str) -> bool:
        row = self._open().execute("SELECT 1 FROM keys WHERE parent=? AND name=?", (parent, name)).fetchone()
        return row is not None

    def _insert(self, parent: str, name: str, value: bytes, session: int | None) -> None:
        self._open().execute(
            "INSERT INTO keys (parent, name, value, session) VALUES (?,?,?,?)", (parent, name, value, session)
        )
        self._children_changed(parent, name)

    def _remove(self, parent: str, name: str) -> None:
        self._open().execute("DELETE FROM keys WHERE parent=? AND name=?", (parent, name))
        self._children_changed(parent, name)

    def _children_changed(self, parent: str, name: str) -> None:
        where = ("", "") if parent == "/" else split(parent)
        self._open().execute("UPDATE keys SET child_changes=child_changes+1 WHERE parent=? AND name=?", where)
        self._touch(parent, name)

    def _touch(self, parent: str, name: str) -> None:
        self.touched["value", f"{parent if parent != '/' else ''}/{name}"] = None
        self.touched["children", parent] = None

    # Sessions

    def _own_session(self) -> int:
        """This connection's session, begun where needed: the lock is held before anybody can see the row."""
        lock = self._lock or self._new_lock
        if lock is None:
            row = self._open().execute("INSERT INTO sessions (pid) VALUES (?)", (os.getpid(),))
            assert row.lastrowid is not None
            self._sessions_dir.mkdir(exist_ok=True)
            lock = self._new_lock = SessionLock(self._sessions_dir, row.lastrowid)
        return lock.session

    def _keys_of(self, session: int) -> list[WatchKey]:
        return self._open().execute("SELECT parent, name FROM keys WHERE session=? ORDER BY id", (session,)).fetchall()

    def _end_session(self, session: int) -> None:
        for parent, name in self._keys_of(session):
            self._remove(parent, name)
        self._open().execute("DELETE FROM sessions WHERE id=?", (session,))

    def _is_own_known(self) -> bool:
        """Whether the file still has our session, where there is one."""
        if self._lock is None:
            return True
        row = self._open().execute("SELECT 1 FROM sessions WHERE id=?", (self._lock.session,)).fetchone()
        return row is not None

    def _notice_lost_session(self, known: bool) -> None:
        """Somebody removed our session's row or file: others took us for dead, so we are."""
        if self._lock is not None and not (known and self._lock.intact()):
            self._drop_session()
            self.session_lost = True

    def _drop_session(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
