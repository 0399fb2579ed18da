"""The tree of keys in an SQLite file that several processes share: SQL, sessions and their expiry. Synchronous.

Each thread needs its own object.

Not here: the connection (`metadata/sqlite/database_file.py`); threads, futures and watches (`metadata/sqlite/keys.py`).
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from buckram.errors import BuckramError, MetadataError, MetadataUnavailable
from buckram.metadata.sqlite import changes as sqlite_changes
from buckram.metadata.sqlite import database_file as sqlite_file
from buckram.metadata.sqlite import file_locks
from buckram.metadata.sqlite.changes import NEW_SESSION, Changes, Place, Row, WatchKey, places_of, watch_keys
from buckram.metadata.sqlite.database_file import Moment, SqliteConnection
from buckram.metadata.sqlite.file_locks import SessionLock, line_of, quick_turns
from buckram.metadata.tree.key_grammar import ABSENT, Absent, split
from buckram.runtime.disk.new_directory import removed_on_failure
from buckram.seams import MAX_PAGE_BYTES
from buckram.types import KeyOp, KeyValue, SetValue

T = TypeVar("T")
TRY_S = 0.1
"""Maximum wait of one attempt to begin a change, seconds; in between there may be reads to do."""
_UNLOCKED_TRIES = 4
_LOOKS_PER_WRITE = 8
"""Average number of other sessions that a write may look at to find those that ended."""
_LEAST_LOOKS = 64
"""Minimum number of sessions for a look, which costs a query even for few: it waits until so many may be looked at."""
_MAX_BEGINNING = 1000
"""Maximum number of sessions that may be beginning at once."""


class Busy(MetadataUnavailable):
    """Another process is changing the file: nothing was done, and it can be tried again."""


_PRESENT_KEY = "SELECT value, version, session FROM keys WHERE parent=? AND name=?"
_SESSION_KEYS = "SELECT session, parent, name FROM keys WHERE session IS NOT NULL ORDER BY session, id"
Token = tuple[int, int] | None
"""State of a place: row id (never used again) and a counter; None if the key is absent."""


def _is_busy(error: sqlite3.OperationalError) -> bool:
    return bool(getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY)


class SqliteTree(SqliteConnection):
    """One connection, and at most one session. Every public method raises only MetadataError and InvalidArgument."""

    def __init__(self, path: Path, busy_timeout_s: float, *, one_thread: bool = True) -> None:
        super().__init__(path, busy_timeout_s, one_thread=one_thread)
        self._sessions_dir = path.with_name(path.name + ".sessions")
        self._line = line_of(path)
        self._lock: SessionLock | None = None
        self._new_lock: SessionLock | None = None
        self._seen_dead: dict[int, None] = {}
        self._unswept = self._sessions_swept = 0
        self._crowded = False
        """True if the last attempt did not get the lock in time."""
        self._polled_keys: list[tuple[int, WatchKey, WatchKey]] = []
        self._keys_known = False
        self._polled_own = True
        """`_polled_own`: whether the file had our session when others last changed it; False means that the session was
        lost. `_polled_keys`: keys of others' sessions, as read since then if `_keys_known`.
        """
        self._viewed: dict[Place, Row | None] = {}
        """Rows that were read along with the present view."""
        self.touched: dict[WatchKey, None] = {}
        self.session_lost = False

    def prepare(self) -> None:
        """Create the file and its tables where they are missing."""
        with self._translated(), removed_on_failure(self._sessions_dir):
            self.check_file()
            self._sessions_dir.parent.mkdir(parents=True, exist_ok=True)
            self._sessions_dir.mkdir(exist_ok=True)
            sqlite_file.prepare(self._path, self._busy_timeout_s)

    def close(self) -> None:
        """End the session and the connection."""
        if self._lock is not None:
            session = self._lock.session
            # Not being able to write now is no reason to keep the session: without its lock it is dead anyhow.
            with contextlib.suppress(MetadataError):
                self._write_all(lambda changes: changes.end(session), self._busy_timeout_s)
            self._drop_session()
        self._disconnect()

    # Reading

    def get(self, key: str) -> tuple[KeyValue | None, Token]:
        """Return the value, None if absent, and the state to compare with later."""
        with self._translated():
            self.check_file()
            row = (
                self._open()
                .execute("SELECT id, version, session, value FROM keys WHERE parent=? AND name=?", split(key))
                .fetchone()
            )
            if row is None or not self.is_live(row[2]):
                return None, None
            return KeyValue(row[3], row[1], row[2] is not None and row[2] == self._session), (row[0], row[1])

    def lasting_keys(self, keys: Sequence[str]) -> tuple[list[KeyValue | Absent | None], Moment]:
        """Return what keys hold, as of one moment, and that moment, or one after it.

        None for a key that is bound to a session, and for those behind MAX_PAGE_BYTES of values.
        """
        with self._translated():
            self.check_file()
            db = self._open()
            if len(keys) == 1:  # one statement is of one moment
                return [self._lasting(db, keys[0])], self.moment()
            found: list[KeyValue | Absent | None] = []
            room = MAX_PAGE_BYTES
            db.execute("BEGIN")  # one lock for all
            try:
                for key in keys:
                    found.append(one := self._lasting(db, key) if room > 0 else None)
                    room -= len(one.value) if isinstance(one, KeyValue) else 0
                moment = self.moment()
            finally:
                if db.in_transaction:
                    db.execute("COMMIT")
        return found, moment

    def _lasting(self, db: sqlite3.Connection, key: str) -> KeyValue | Absent | None:
        row = db.execute(_PRESENT_KEY, split(key)).fetchone()
        if row is None:
            return ABSENT
        return KeyValue(row[0], row[1], False) if row[2] is None else None

    def children(self, parent: str, after: str, limit: int) -> tuple[list[str], Token]:
        with self._translated():
            self.check_file()
            token = self.token(("children", parent))  # first, so that a change in between shows
            return [row[0] for row in self._rows("name, session", parent, after, limit)], token

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

    def _rows(self, columns: str, parent: str, after: str, limit: int) -> Generator[tuple[Any, ...]]:
        """Yield children behind `after` in order, without those of sessions that ended.

        `columns` end with the session.
        """
        live: dict[int | None, bool] = {None: True}
        rows = self._open().execute(
            f"SELECT {columns} FROM keys WHERE parent=? AND name>? ORDER BY name", (parent, after)
        )
        with contextlib.closing(rows):
            for row in rows:
                session = row[-1]
                if session not in live:
                    live[session] = self.is_live(session)
                if live[session]:
                    yield row
                    limit -= 1
                    if limit <= 0:
                        return

    def lasting(self) -> list[tuple[str, int, bytes]]:
        """Return every key that is bound to no session, with version and value, as of one moment."""
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
        if row is None or not self.is_live(row[3]):
            return None
        return row[0], row[1] if kind == "value" else row[2]

    @property
    def _session(self) -> int | None:
        return None if self._lock is None else self._lock.session

    def _foreign_sessions(self) -> list[int]:
        rows = self._open().execute("SELECT id FROM sessions ORDER BY id").fetchall()
        return [row[0] for row in rows if row[0] != self._session]

    def poll(self, watched: Mapping[WatchKey, Token], *, liveness: bool = True) -> bool:
        """Add to `touched` what others changed of `watched` and, with `liveness`, what the end of sessions changed.

        A look without `liveness` comes a hundred times a second, so each call that gives up the interpreter's lock is
        expensive. Returns whether others have changed anything since the last look.
        """
        with self._translated():
            if liveness:
                self.check_file()
            version = self.seen_version()
            news = version != self._data_version
            if news:
                changed = [place for place, token in watched.items() if self.token(place) != token]
                self.touched |= dict.fromkeys(changed)
                self._keys_known = False
                self._polled_own = self._is_own_known()
                if changed:
                    self.make_durable()
                self._data_version = version
            if not liveness:
                return news
            self._notice_lost_session(self._polled_own)
            if watched:
                self._notice_dead(watched)
            return news

    def _notice_dead(self, watched: Mapping[WatchKey, Token]) -> None:
        """Touch what is watched and belongs to sessions that have ended since the last look. Other sessions do not
        matter here.
        """
        if not self._keys_known:
            rows, own = self._open().execute(_SESSION_KEYS).fetchall(), self._session
            self._polled_keys = [(row[0], *watch_keys(row[1], row[2])) for row in rows if row[0] != own]
            self._keys_known = True
        live: dict[int, bool] = {}
        for session, value, children in self._polled_keys:
            if session in self._seen_dead or not (value in watched or children in watched):
                continue
            if session not in live:
                live[session] = self.is_live(session)
            if not live[session]:
                self.touched[value] = self.touched[children] = None
        known = dict.fromkeys(session for session, _, _ in self._polled_keys)
        self._seen_dead = {
            session: None for session in known if session in self._seen_dead or not live.get(session, True)
        }

    # Writing

    def write(self, jobs: Sequence[Sequence[KeyOp]]) -> list[list[int] | BuckramError]:
        """Carry jobs out, each all or nothing by itself; one commit covers all.

        A failed commit raises: its outcome is unknown. Raises Busy if it was not begun.
        """
        if len(jobs) == 1 and len(jobs[0]) == 1 and isinstance(op := jobs[0][0], SetValue) and self._set_alone(op):
            return [[op.version + 1]]
        return self._write_all(lambda changes: changes.run(jobs), places=places_of(jobs))

    def _set_alone(self, op: SetValue) -> bool:
        """Set one key, as most writes do, by a statement that needs nothing worked out before it.

        Returns False if nothing was done; `_write_all` finds out why, or has sessions to look at.
        """
        self._unswept += 1
        if self._lock is not None or self._crowded or self._sweep_is_due():
            return False
        with self._translated():
            self.check_file()
            db = self._open()
            if not self._line.acquire(blocking=False):
                return False
            try:
                if not sqlite_changes.set_alone(db, split(op.key), op.version, op.value):
                    return False
            finally:
                self._line.release()
            self._settle()
        self.touched["value", op.key] = None
        return True

    def _write_all(self, body: Callable[[Changes], T], wait_s: float = TRY_S, places: Iterable[Place] = ()) -> T:
        """Work out the changes under no lock, and hold it for the one statement that makes them.

        Only if other processes were quicker each time, the lock is held from the beginning. `places`: those of rows
        that will be asked for.
        """
        with self._translated():
            db = self._open()  # which file it is is checked before anything is changed in it
            if not self._line.acquire(timeout=wait_s):
                raise Busy(f"{self._path}: other threads of this process are changing it")
            try:
                wanted = () if self._crowded else tuple(places)
                for _ in range(0 if self._crowded else _UNLOCKED_TRIES):
                    try:
                        return self._attempt(db, body, wanted)
                    except Busy:
                        continue
                self._crowded = True
                found = self._attempt(db, body, lock_within_s=wait_s)
                self._crowded = False
                return found
            finally:
                self._line.release()

    def _attempt(
        self,
        db: sqlite3.Connection,
        body: Callable[[Changes], T],
        places: Iterable[Place] = (),
        *,
        lock_within_s: float | None = None,
    ) -> T:
        view: sqlite_changes.View | None = None
        try:
            if lock_within_s is None:
                view = sqlite_changes.View(db, places)
                self._viewed = view.rows
            else:
                self._begin(db, lock_within_s)
            if self._lock is not None:
                self._notice_lost_session(self._is_own_known())
            changes = Changes(self, self._session or NEW_SESSION)
            self._sweep(changes)
            found = body(changes)
            if changes.begins_session:
                self._begin_session()
            changed = self._commit(db, changes)
        except BaseException as error:
            self._abandon(db)
            if isinstance(error, sqlite3.OperationalError) and _is_busy(error):
                raise Busy(f"{self._path}: {error}") from error
            raise
        finally:
            if view is not None:
                view.close()
                self._viewed = {}
        try:
            self._committed(changes, changed)
        except BaseException:
            self._forget_new_lock()  # the session is in doubt: end it instead of going on with it
            raise
        return found

    def _commit(self, db: sqlite3.Connection, changes: Changes) -> bool:
        """Return whether there was anything to change."""
        own = self._new_lock or self._lock
        rows = sqlite_changes.rows_of(changes, None if own is None else own.session)
        self.check_file()
        if len(rows) > sqlite_changes.MAX_ROWS or db.in_transaction:
            with quick_turns():  # more than one statement: everybody else waits
                sqlite_changes.commit(db, rows)
        elif rows:
            sqlite_changes.commit(db, rows)
        return bool(rows)

    def _committed(self, changes: Changes, changed: bool) -> None:
        if changed:
            self._settle()
        else:
            self.make_durable()
            self.check_file()
        self.touched |= changes.touched
        if self._new_lock is not None:
            self._lock, self._new_lock = self._new_lock, None
            self._polled_own = True  # what the last poll found was about a session before this one
        for session in changes.ended:
            file_locks.forget(self._sessions_dir, session)

    def _begin(self, db: sqlite3.Connection, lock_within_s: float) -> None:
        """Take a view of the file that stays the same until this has ended."""
        db.execute(f"PRAGMA busy_timeout={int(lock_within_s * 1000)}")
        try:
            db.execute("BEGIN IMMEDIATE")
        finally:
            db.execute(f"PRAGMA busy_timeout={int(self._busy_timeout_s * 1000)}")

    def _sweep(self, changes: Changes) -> None:
        """End sessions that are dead, if enough was written since the last look: looking at many sessions costs more
        than the write.

        Dead sessions that the batch itself meets are found anyway.
        """
        self._unswept += 1
        if self._sweep_is_due():
            sessions = self._foreign_sessions()
            self._unswept, self._sessions_swept = 0, len(sessions)
            changes.end_dead(sessions)

    def _sweep_is_due(self) -> bool:
        return self._unswept * _LOOKS_PER_WRITE >= max(self._sessions_swept, _LEAST_LOOKS)

    def _abandon(self, db: sqlite3.Connection) -> None:
        self._forget_new_lock()
        if self._db is not None and db.in_transaction:  # it was closed when the file was replaced
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")

    def _forget_new_lock(self) -> None:
        if self._new_lock is not None:
            # Before the rollback: after it another process may get the same session id, and with it the same file.
            self._new_lock.release()
            self._new_lock = None

    # As Rows: what a batch of changes asks for, as of the moment of its transaction

    def row(self, place: Place) -> Row | None:
        if place in self._viewed:
            return self._viewed[place]
        found = self._open().execute(sqlite_changes.ROW, place).fetchone()
        return None if found is None else Row(*found[:4])

    def children_of(self, parent: str) -> Generator[tuple[str, int | None]]:
        with contextlib.closing(
            self._open().execute("SELECT name, session FROM keys WHERE parent=?", (parent,))
        ) as rows:
            yield from rows

    def keys_of(self, session: int) -> list[Place]:
        return self._open().execute("SELECT parent, name FROM keys WHERE session=? ORDER BY id", (session,)).fetchall()

    def is_live(self, session: int | None) -> bool:
        return session is None or session == self._session or file_locks.alive(self._sessions_dir, session)

    # Sessions

    def _begin_session(self) -> None:
        """Take the lock of a session that the file gets with this batch, before anybody can see its row."""
        last = self._open().execute("SELECT max(seq) FROM sqlite_sequence WHERE name='sessions'").fetchone()[0] or 0
        self._sessions_dir.mkdir(exist_ok=True)
        for session in range(last + 1, last + 1 + _MAX_BEGINNING):
            # Others that begin have the same in mind; only one of them will find the file as it is now.
            with contextlib.suppress(BlockingIOError):
                lock = SessionLock(self._sessions_dir, session)
                if lock.intact():
                    self._new_lock = lock
                    return
                lock.release()
        raise Busy(f"{self._path}: {_MAX_BEGINNING} sessions begin at once")

    def _is_own_known(self) -> bool:
        """Return whether the file still has our session; True if there is none."""
        if self._lock is None:
            return True
        row = self._open().execute("SELECT 1 FROM sessions WHERE id=?", (self._lock.session,)).fetchone()
        return row is not None

    def _notice_lost_session(self, known: bool) -> None:
        """Note that our session's row or file was removed: other processes took it for dead, so it has ended."""
        if self._lock is not None and not (known and self._lock.intact()):
            self._drop_session()
            self.session_lost = True

    def _lost(self) -> None:
        self.session_lost = True
        self._drop_session()

    def _drop_session(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None
