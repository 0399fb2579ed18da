"""The changes of a batch of writes to the rows of an SQLite tree, worked out before anything is locked, and the one
statement that makes them all. Synchronous.

The rows that the writes meet are read through `Rows` as of one moment; the results of earlier writes of the same batch
replace them. A write that fails takes nothing along: each job is all or nothing by itself.

SQLite's write lock is taken when the first statement that changes something begins, and released when the transaction
is committed. Between two statements a thread may wait for the interpreter, and stopping the process there would block
all other writers. So the rows of a batch go into a view, in one `INSERT`, whose triggers change the tables, and SQLite
commits by itself at the end of it. `View` holds the snapshot that the batch was worked out from: SQLite refuses the
statement if somebody has changed the file since. The view and its triggers are temporary: each connection has its own,
and the file has nothing of them.

Not here: when this is done, and what follows (`metadata/sqlite/tree.py`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, Protocol

from buckram.errors import (
    BuckramError,
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MetadataError,
    NoSuchKey,
    VersionConflict,
)
from buckram.metadata.tree.key_grammar import split
from buckram.types import CheckVersion, Create, Delete, KeyOp, SetValue

Place = tuple[str, str]
"""Place of a row: (parent, name)."""
WatchKey = tuple[str, str]
"""Place of a watch: ("value", key) or ("children", parent)."""
ROOT: Place = ("", "")
NEW_SESSION = 0
"""Placeholder for the session that begins with this batch; SQLite counts from 1."""


def watch_keys(parent: str, name: str) -> tuple[WatchKey, WatchKey]:
    """Return the watches that fire when a key is made or deleted."""
    return ("value", f"{parent if parent != '/' else ''}/{name}"), ("children", parent)


def places_of(jobs: Iterable[Sequence[KeyOp]]) -> Iterator[Place]:
    """Yield the places of the rows that the changes of these jobs meet at least."""
    for ops in jobs:
        for op in ops:
            yield (place := split(op.key))
            if isinstance(op, Create | Delete):
                yield ROOT if place[0] == "/" else split(place[0])


class Row(NamedTuple):
    """A row. `identity` 0: the row is new. `value` None: it stays as it is in the file."""

    identity: int
    version: int
    child_changes: int
    session: int | None
    value: bytes | None = None


class Rows(Protocol):
    """The file as of one moment."""

    def row(self, place: Place) -> Row | None: ...
    def children_of(self, parent: str) -> Generator[tuple[str, int | None]]:
        """Yield names and sessions of the rows below a key."""
        ...

    def keys_of(self, session: int) -> list[Place]: ...
    def is_live(self, session: int) -> bool:
        """Return whether this session goes on. Called once for each session that a batch meets."""
        ...


class Changes:
    """Changes of one batch. `own`: the writer's session; NEW_SESSION while there is none."""

    def __init__(self, rows: Rows, own: int) -> None:
        self._file, self._own = rows, own
        self._before: dict[Place, Row | None] = {}
        self._now: dict[Place, Row | None] = {}
        self._names: dict[str, dict[str, None]] = {}
        """Names of the rows that were looked at, by parent."""
        self._live: dict[int, bool] = {}
        self._undo: list[tuple[Place, Row | None]] = []
        self.ended: dict[int, None] = {}
        """Sessions that were found dead, whose rows are removed."""
        self.touched: dict[WatchKey, None] = {}

    def run(self, jobs: Iterable[Sequence[KeyOp]]) -> list[list[int] | BuckramError]:
        """Return the versions of each job, or the reason why it cannot be done."""
        return [self._job(ops) for ops in jobs]

    def end_dead(self, sessions: Iterable[int]) -> None:
        """End those of the sessions that are dead."""
        for session in sessions:
            self._is_live(session)

    def end(self, session: int) -> None:
        """Remove a session and its keys."""
        self._live[session] = False
        self.ended[session] = None
        for place in self._file.keys_of(session):
            if (row := self._load(place)) is not None and row.session == session:
                self._remove(place)

    @property
    def begins_session(self) -> bool:
        return any(row is not None and row.session == NEW_SESSION for row in self._now.values())

    def rows(self) -> tuple[list[int], list[Row], list[tuple[Place, Row]]]:
        """Return the identities of rows that are removed, the rows that stay, but not as they are, and new rows.

        The place of a row that is removed may be taken by a new one.
        """
        deleted: list[int] = []
        changed: list[Row] = []
        made: list[tuple[Place, Row]] = []
        for place, old in self._before.items():
            row = self._now[place]
            if old is not None and (row is None or not row.identity):
                deleted.append(old.identity)
            if row is None:
                continue
            if not row.identity:
                made.append((place, row))
            elif row is not old and row != old:
                changed.append(row)
        return deleted, changed, made

    # One job

    def _job(self, ops: Sequence[KeyOp]) -> list[int] | BuckramError:
        self._undo, touched, self.touched = [], self.touched, {}
        try:
            versions = [self._apply(op) for op in ops]
        except (MetadataError, InvalidArgument) as error:
            for place, row in reversed(self._undo):
                self._now[place] = row
            self.touched = touched
            # A dead session stays ended, even if the job that met it failed.
            for session in self.ended:
                self.end(session)
            return error
        touched.update(self.touched)
        self.touched = touched
        return versions

    def _apply(self, op: KeyOp) -> int:
        if isinstance(op, Create):
            return self._create(op)
        place = split(op.key)
        row = self._row(place)
        if row is None:
            raise NoSuchKey(op.key)
        if row.version != op.version:
            raise VersionConflict(op.key, op.version)
        if isinstance(op, CheckVersion):
            return op.version
        if isinstance(op, SetValue):
            self._put(place, Row(row.identity, row.version + 1, row.child_changes, row.session, op.value))
            self.touched["value", op.key] = None
            return op.version + 1
        if self._has_children(op.key):
            raise KeyNotEmpty(op.key)
        self._remove(place)
        return op.version

    def _create(self, op: Create) -> int:
        place = split(op.key)
        if self._row(place) is not None:
            raise KeyExists(op.key)
        missing: list[Place] = []
        parent = place[0]
        while parent != "/":
            above = split(parent)
            owner = self._row(above)
            if owner is not None:
                if owner.session is not None:
                    raise InvalidArgument(f"key {op.key}: {parent} is bound to a session and cannot have children")
                break
            missing.append(above)
            parent = above[0]
        for above in reversed(missing):
            self._insert(above, b"", None)
        self._insert(place, op.value, self._own if op.ephemeral else None)
        return 0

    # Rows

    def _load(self, place: Place) -> Row | None:
        """Return the row as it is now, those of dead sessions included."""
        if place in self._now:
            return self._now[place]
        row = self._before[place] = self._now[place] = self._file.row(place)
        self._names.setdefault(place[0], {})[place[1]] = None
        return row

    def _row(self, place: Place) -> Row | None:
        row = self._load(place)
        if row is not None and row.session is not None and not self._is_live(row.session):
            row = self._now[place]  # its session ended just now, and it with that
        return row

    def _is_live(self, session: int | None) -> bool:
        if session is None or session == self._own:
            return True
        if session not in self._live:
            self._live[session] = self._file.is_live(session)
            if not self._live[session]:
                self.end(session)
        return self._live[session]

    def _has_children(self, key: str) -> bool:
        for name in list(self._names.get(key, ())):
            if self._row((key, name)) is not None:
                return True
        with closing(self._file.children_of(key)) as rows:
            return any((key, name) not in self._now and self._is_live(session) for name, session in rows)

    def _put(self, place: Place, row: Row | None) -> None:
        self._undo.append((place, self._now[place]))  # which was looked at before
        self._now[place] = row

    def _insert(self, place: Place, value: bytes, session: int | None) -> None:
        self._put(place, Row(0, 0, 0, session, value))
        self._children_changed(place)

    def _remove(self, place: Place) -> None:
        self._put(place, None)
        self._children_changed(place)

    def _children_changed(self, place: Place) -> None:
        parent, name = place
        above = ROOT if parent == "/" else split(parent)
        row = self._load(above)
        if row is not None:
            self._put(above, Row(row.identity, row.version, row.child_changes + 1, row.session, row.value))
        self._touch(parent, name)

    def _touch(self, parent: str, name: str) -> None:
        for place in watch_keys(parent, name):
            self.touched[place] = None


MAX_ROWS: Final = 256
"""Maximum rows of one statement. More take several, in a transaction that is not as short."""
_DELETE, _COUNT, _CHANGE, _MAKE, _BEGIN, _END = range(6)
_PUTS = (_COUNT, _CHANGE, _MAKE)
_CHANGES = (
    "PRAGMA temp_store=MEMORY",
    "CREATE TEMP VIEW changes (what, id, parent, name, value, version, child_changes, session) AS "
    "SELECT 0, 0, '', '', x'', 0, 0, 0",
    *(
        f"CREATE TEMP TRIGGER changes_{what} INSTEAD OF INSERT ON changes WHEN NEW.what = {what} BEGIN {statement}; END"
        for what, statement in (
            (_DELETE, "DELETE FROM keys WHERE id = NEW.id"),
            (_COUNT, "UPDATE keys SET child_changes = NEW.child_changes WHERE id = NEW.id"),
            (
                _CHANGE,
                "UPDATE keys SET value = NEW.value, version = NEW.version, child_changes = NEW.child_changes "
                "WHERE id = NEW.id",
            ),
            (
                _MAKE,
                "INSERT INTO keys (parent, name, value, version, child_changes, session) "
                "VALUES (NEW.parent, NEW.name, NEW.value, NEW.version, NEW.child_changes, NEW.session)",
            ),
            (_BEGIN, "INSERT INTO sessions (id, pid) VALUES (NEW.session, NEW.id)"),
            (_END, "DELETE FROM sessions WHERE id = NEW.session"),
        )
    ),
)
COMMIT: Final = "INSERT OR ROLLBACK INTO "
"""Begin of the statement, with ROLLBACK: otherwise SQLite would copy each changed page to undo the statement alone."""
_PUT: Final = (
    "keys (id, parent, name, value, version, child_changes, session) VALUES ",
    " ON CONFLICT (id) DO UPDATE SET value = CASE excluded.version WHEN version THEN value ELSE excluded.value END, "
    "version = excluded.version, child_changes = excluded.child_changes",
)
"""Statement that makes and changes keys, which is all that most batches do, without triggers in less time. A writer
that changes a value increments its version.
"""
SET_ALONE: Final = (
    "UPDATE OR ROLLBACK keys SET value = ?, version = version + 1 "
    "WHERE parent = ? AND name = ? AND version = ? AND session IS NULL"
)
VIEW: Final = "SELECT (SELECT max(id) FROM keys), (SELECT sum(seq) FROM sqlite_sequence), 0, NULL, '', '' FROM keys"
"""Query for what most changes need, so that it is in memory when the lock is held. The root always exists, and
only the first row is ever read.
"""
ROW: Final = "SELECT id, version, child_changes, session, parent, name FROM keys WHERE parent = ? AND name = ?"
_LAST: Final = "SELECT 0, 0, 0, NULL, '', ''"
"""Row behind those that were asked for; no row of the file has this id."""
MOST_PLACES: Final = 40
"""Maximum number of rows that are asked for along with a view."""
ChangeRow = tuple[int, int, str, str, bytes | None, int, int, int | None]


def prepare(db: sqlite3.Connection) -> None:
    """Make the view in a connection."""
    for statement in _CHANGES:
        db.execute(statement)


@lru_cache(maxsize=MOST_PLACES + 1)
def _query(count: int) -> str:
    return " UNION ALL ".join([*[ROW] * count, _LAST, VIEW]) if count else VIEW


class View:
    """The file as of one moment, for all statements until it is closed.

    It does not stop others from changing the file. `rows`: the rows at the places that were asked for, at most
    MOST_PLACES, with None for those that do not exist.
    """

    def __init__(self, db: sqlite3.Connection, places: Iterable[Place] = ()) -> None:
        self.rows: dict[Place, Row | None] = dict.fromkeys(islice(places, MOST_PLACES))
        # A query with a row left to read: as long as it is open, SQLite stays in its transaction.
        self._rows = db.execute(_query(len(self.rows)), [part for place in self.rows for part in place])
        if self.rows:
            self._read()

    def _read(self) -> None:
        for identity, version, child_changes, session, parent, name in self._rows:
            if not identity:
                return
            self.rows[parent, name] = Row(identity, version, child_changes, session)

    def close(self) -> None:
        try:
            self._rows.close()
        except sqlite3.ProgrammingError:
            return  # the connection was closed, because the file was replaced


def set_alone(db: sqlite3.Connection, place: Place, version: int, value: bytes) -> bool:
    """Set one key that is bound to no session; return False if none has this version, or somebody else is changing the
    file.
    """
    view = View(db)  # for as long as it is open SQLite does not wait for a lock
    try:
        return db.execute(SET_ALONE, (value, *place, version)).rowcount == 1
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
            return False
        raise
    finally:
        view.close()


def rows_of(changes: Changes, session: int | None) -> list[ChangeRow]:
    """Return the rows to insert, in their order.

    `session` is the writer's, begun with this if the changes say so.
    """
    deleted, changed, made = changes.rows()
    rows: list[ChangeRow] = []
    if changes.begins_session:
        rows.append((_BEGIN, os.getpid(), "", "", None, 0, 0, session))
    rows += [(_DELETE, identity, "", "", None, 0, 0, None) for identity in deleted]
    for row in changed:
        what = _COUNT if row.value is None else _CHANGE
        rows.append((what, row.identity, "", "", row.value, row.version, row.child_changes, None))
    for (parent, name), row in made:
        of = session if row.session == NEW_SESSION else row.session
        rows.append((_MAKE, 0, parent, name, row.value, row.version, row.child_changes, of))
    rows += [(_END, 0, "", "", None, 0, 0, ended) for ended in changes.ended]
    return rows


def commit(db: sqlite3.Connection, rows: Sequence[ChangeRow]) -> None:
    """Change the file. On an error the caller rolls back an open transaction."""
    parts = [rows[start : start + MAX_ROWS] for start in range(0, len(rows), MAX_ROWS)]
    if len(parts) > 1 and not db.in_transaction:
        db.execute("BEGIN")
    for part in parts:
        db.execute(*_statement(part))
    if db.in_transaction:
        db.execute("COMMIT")


def _statement(rows: Sequence[ChangeRow]) -> tuple[str, list[object]]:
    values: list[object] = []
    for what, identity, parent, name, value, version, child_changes, session in rows:
        if what not in _PUTS:
            places = ",".join(["(?,?,?,?,?,?,?,?)"] * len(rows))
            return f"{COMMIT}changes VALUES {places}", [value for row in rows for value in row]
        values += (identity or None, parent, name, value or b"", version, child_changes, session)
    places = ",".join(["(?,?,?,?,?,?,?)"] * len(rows))
    return f"{COMMIT}{_PUT[0]}{places}{_PUT[1]}", values
