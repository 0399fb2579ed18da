"""One statement that makes all changes of a batch of writes to the SQLite file. Synchronous.

SQLite's write lock is taken when the first statement that changes something begins, and released when the transaction
is committed. Between two statements a thread may wait for the interpreter, and stopping the process there would block
all other writers. So the rows of a batch go into a view, in one `INSERT`, whose triggers change the tables, and SQLite
commits by itself at the end of it. `View` holds the snapshot that the batch was worked out from: SQLite refuses the
statement if somebody has changed the file since.

The view and its triggers are temporary: each connection has its own, and the file has nothing of them.

Not here: what is to change (`metadata/sqlite/changes.py`); when, and what follows (`metadata/sqlite/tree.py`).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final

from buckram.metadata.sqlite.changes import NEW_SESSION, Changes, Place, Row

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
