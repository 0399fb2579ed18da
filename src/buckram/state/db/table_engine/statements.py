"""Executing one statement on a connection of SQLite: what is refused, the result, and errors as Buckram's.

Not here: transactions around statements (`state/db/table_engine/engine.py`), reading connections
(`state/db/table_engine/readers.py`).
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import apsw
import apsw.ext

from buckram.core.db.sql import GIVEN_BACK, TEMPORARY, Described, SqlResult, Statement, pragma_refusal
from buckram.errors import (
    BuckramError,
    DatabaseBusy,
    InvalidArgument,
    NotLeader,
    ResultTooLarge,
    SqlError,
    StatementRefused,
    TransactionExpired,
)

_CREATIONS = frozenset(
    (
        apsw.SQLITE_CREATE_INDEX,
        apsw.SQLITE_CREATE_TABLE,
        apsw.SQLITE_CREATE_TEMP_INDEX,
        apsw.SQLITE_CREATE_TEMP_TABLE,
        apsw.SQLITE_CREATE_TEMP_TRIGGER,
        apsw.SQLITE_CREATE_TEMP_VIEW,
        apsw.SQLITE_CREATE_TRIGGER,
        apsw.SQLITE_CREATE_VIEW,
        apsw.SQLITE_CREATE_VTABLE,
        # A trigger of the schema temp on a table of another one is seen by the row of the schema's table alone.
        apsw.SQLITE_INSERT,
    )
)
_CHECKED = _CREATIONS | {
    apsw.SQLITE_ATTACH,
    apsw.SQLITE_DETACH,
    apsw.SQLITE_PRAGMA,
    apsw.SQLITE_TRANSACTION,
    apsw.SQLITE_SAVEPOINT,
    apsw.SQLITE_FUNCTION,
    apsw.SQLITE_READ,
}
_FILES = "database_list"
"""The PRAGMA that returns names of files; those are the server's and are hidden from clients."""
_WRITES = "pragma_optimize"
"""The only table that changes the database when it is read."""
_TELL_FILES = frozenset(("PRAGMA", "EXPLAIN"))
_INSERTS = frozenset(("INSERT", "REPLACE", "WITH"))
_CHANGES = frozenset(("INSERT", "REPLACE", "UPDATE", "DELETE"))
_CHANGED_AND_RETURNED = _CHANGES | {"WITH"}
_READS = frozenset(("SELECT", "VALUES", "EXPLAIN"))
_CHANGE_AFTER_WITH = re.compile(r"\b(?:INSERT|UPDATE|DELETE|REPLACE\s+INTO)\b", re.IGNORECASE)
OWN_NAMES = "buckram_"
"""Prefix of the names of the database's own savepoints."""
_VACUUM = re.compile(r"\s*vacuum(\s+main)?\s*;?\s*", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_STEPS = 20_000
_OWN = secrets.token_hex(8)
"""Random mark in the database's own statements: SQLite authorizes a prepared statement once, so a client's statement
must never have the same text."""
MOST_SQL_BYTES = 16 * 1024 * 1024
"""Maximum length of a statement's text in bytes; a longer one is refused."""
_ROW_BYTES = 56
"""Overhead of a row in bytes, besides its values."""
_LONG = (str, bytes)
_Shape = tuple[tuple[str, ...], tuple[str | None, ...]]
"""The names and the declared types of columns."""


class _Text(NamedTuple):
    """Properties of a statement as found in its text, without compiling it."""

    word: str
    """The first word in capitals."""
    single: bool
    """True if the text certainly has one statement only, and it returns no file names."""
    silent: bool
    """True if it is single, and certainly returns no columns."""
    reads: bool
    """True if it most probably only reads."""
    files: bool
    """True if its rows may have the names of files."""


_MOST_CACHED = 1000
_ENDS = " \t\r\n\f;"


class Guard:
    """Authorizer and deadline of clients' statements on one connection. It belongs to the connection's thread."""

    def __init__(
        self, connection: apsw.Connection, now: Callable[[], float], superseded: Callable[[], bool] | None = None
    ) -> None:
        self._now, self._is_superseded = now, superseded
        self.refusal = ""
        """Reason for which the last statement was refused; empty if it was not."""
        self.inside = False
        """True while the statement is one of the database's own."""
        self.deadline = 0.0
        """Time at which a running statement is stopped, by the monotonic clock; 0 for never."""
        self.overdue = self.superseded = False
        """Reason for which a running statement was stopped: its deadline, or that it can never be committed any more.
        """
        self.lent: set[str] = set()
        """Settings of the connection that a caller changed for the open transaction."""
        self._connection = connection
        connection.authorizer = self._authorize
        connection.set_progress_handler(self._progress, _STEPS)

    def _authorize(self, action: int, one: str | None, two: str | None, database: str | None, by: str | None) -> int:
        if action not in _CHECKED or self.inside:
            return apsw.SQLITE_OK
        if action == apsw.SQLITE_READ and two != "file" and (one or "").lower() != _WRITES:
            return apsw.SQLITE_OK
        refusal = ""
        if action in (apsw.SQLITE_ATTACH, apsw.SQLITE_DETACH):
            refusal = "ATTACH and DETACH: a replicated database stands alone; open the other one by its own name"
        elif action == apsw.SQLITE_READ:
            table = (one or "").lower()
            if table == _WRITES:
                refusal = f"{_WRITES}: reading it changes the database; execute PRAGMA optimize"
            elif table == f"pragma_{_FILES}":
                refusal = f"pragma_{_FILES}.file: files are the server's; PRAGMA {_FILES} has the names of schemas"
        elif action == apsw.SQLITE_PRAGMA:
            refusal = pragma_refusal(one or "", two, database, in_transaction=self._connection.in_transaction)
            if not refusal and two is not None and (one or "").lower() in GIVEN_BACK:
                self.lent.add((one or "").lower())
        elif action in _CREATIONS:
            if (database or "").lower() == TEMPORARY:
                refusal = (
                    "temporary tables, views, triggers and indexes, and whatever else would be in the schema temp: "
                )
                refusal += "all clients share the connection that writes, and temp is in no log; use WITH, or a table"
        elif action == apsw.SQLITE_TRANSACTION:
            refusal = f"{one}: transactions are begun and ended by begin(), commit() and rollback()"
        elif action == apsw.SQLITE_SAVEPOINT and (two or "").lower().startswith(OWN_NAMES):
            refusal = f"savepoint {two}: names that begin with {OWN_NAMES} are the database's own"
        elif action == apsw.SQLITE_FUNCTION and (two or "").lower() == "load_extension":
            refusal = "load_extension(): a replicated database loads no extensions for clients"
        if not refusal:
            return apsw.SQLITE_OK
        self.refusal = refusal
        return apsw.SQLITE_DENY

    def _progress(self) -> bool:
        self.overdue = self.deadline > 0.0 and self._now() > self.deadline
        self.superseded = self._is_superseded is not None and self._is_superseded()
        return self.overdue or self.superseded


class Executor:
    """One connection as the callers of a database use it. It belongs to one thread at a time."""

    def __init__(
        self,
        database: str,
        connection: apsw.Connection,
        result_bytes: int,
        limit_s: float,
        now: Callable[[], float] = time.monotonic,
        superseded: Callable[[], bool] | None = None,
        *,
        limit: str = "transaction_s",
    ) -> None:
        """`limit`: the name of the limit of time, `limit_s`, for errors."""
        self.connection = connection
        self.guard = Guard(connection, now, superseded)
        self.given_bytes = 0
        """Bytes of all rows since it was set to 0; more than `result_bytes` are refused."""
        self._database, self._result_bytes, self._limit_s, self._limit = database, result_bytes, limit_s, limit
        self.pinned = False
        self._described: dict[str, _Shape] = {}
        """Columns of statements that were executed since `pin`."""
        # A value, or a row of a table, that is longer could be written and never be read.
        connection.limit(apsw.SQLITE_LIMIT_LENGTH, min(result_bytes, 2**30))
        connection.limit(apsw.SQLITE_LIMIT_SQL_LENGTH, MOST_SQL_BYTES)
        connection.enable_load_extension(False)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
        connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)

    def inside(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """Execute a statement of the database's own, and return its rows."""
        self.guard.inside = True
        try:
            return self.connection.execute(f"{sql} /*{_OWN}*/", values).fetchall()
        finally:
            self.guard.inside = False

    def give_back(self) -> None:
        """Set again what the caller of a transaction that has ended had changed of the connection."""
        while self.guard.lent:
            name = self.guard.lent.pop()
            self.inside(f"PRAGMA {name} = {GIVEN_BACK[name]}")

    def execute(self, statement: Statement) -> SqlResult:
        """Execute one statement. Raises SqlError, StatementRefused, InvalidArgument, ResultTooLarge and whatever the
        writing of pages raises."""
        connection, guard, text = self.connection, self.guard, text_of(statement.sql)
        guard.refusal, guard.overdue, guard.superseded = "", False, False
        cursor = connection.cursor()
        seen: list[tuple[tuple[str, str | None], ...]] = []

        def trace(running: apsw.Cursor, sql: str, bindings: Any) -> bool:
            if seen:
                return True  # Nothing but a comment follows.
            if len(sql) != len(statement.sql) and after_comments(statement.sql[len(sql) :]):
                raise StatementRefused(
                    self._database, f"more than one statement in {_short(statement.sql)}: execute one at a time"
                )
            seen.append(running.get_description())
            return True

        if not text.silent:
            cursor.exec_trace = trace
        before = connection.total_changes()
        try:
            cursor.execute(statement.sql, statement.parameters or None)
            rows = self._rows(cursor)
            if text.files:
                rows = self._without_files(rows)
        except Exception as error:
            raise self.translated(error) from None
        finally:
            cursor.close(True)
        described = seen[0] if seen else ()
        changed = connection.total_changes() != before
        inserted = changed and text.word in _INSERTS
        columns, types = zip(*described, strict=True) if described else ((), ())
        return SqlResult(
            columns,
            types,
            rows,
            connection.changes() if changed else 0,
            (connection.last_insert_rowid() or None) if inserted else None,
        )

    def read(self, statement: Statement) -> SqlResult:
        """Execute one statement on a connection that only reads. Errors as of `execute`, in less time."""
        sql, parameters = statement
        shape = self._described.get(sql)
        if shape is None and not text_of(sql).single:
            return self.execute(statement)
        self.guard.refusal, self.guard.overdue = "", False
        cursor: apsw.Cursor | None = None
        try:
            cursor = self.connection.execute(sql, parameters or None)
            if shape is None:
                shape = self._shape(sql, cursor.get_description())
            return SqlResult(*shape, self._rows(cursor))
        except apsw.ExecutionCompleteError:
            return self.execute(statement)  # There are no rows, and it cannot be asked for its columns any more.
        except Exception as error:
            if cursor is not None:
                cursor.close(True)  # After its last row it has closed itself.
            raise self.translated(error) from None

    def _shape(self, sql: str, described: tuple[tuple[str, str | None], ...]) -> _Shape:
        shape = tuple(column[0] for column in described), tuple(column[1] for column in described)
        if self.pinned:
            self._described[sql] = shape
        return shape

    def pin(self) -> None:
        """Begin a transaction that only reads: statements have one state until `unpin`, and columns do not change."""
        self.inside("BEGIN")
        self.pinned = True

    def unpin(self) -> None:
        """End it, if it has not ended by itself."""
        self.pinned = False
        self._described.clear()
        self.give_back()
        if self.connection.in_transaction:
            self.inside("ROLLBACK")

    def _rows(self, cursor: apsw.Cursor) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = []
        size, room = 0, self._result_bytes - self.given_bytes
        for row in cursor:
            size += _ROW_BYTES
            for value in row:
                size += len(value) if type(value) in _LONG else 8
            if size > room:
                raise ResultTooLarge(self._database, self._result_bytes)
            rows.append(row)
        self.given_bytes += size
        return rows

    def _without_files(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Rows as of a database in memory, which has no file."""
        name = self.connection.filename
        return [tuple(one.replace(name, "") if isinstance(one, str) else one for one in row) for row in rows]

    def describe(self, sql: str) -> Described:
        """Describe a statement without executing it. Raises as `execute` does."""
        self.guard.refusal = ""
        try:
            found = apsw.ext.query_info(self.connection, sql)
        except Exception as error:
            raise self.translated(error) from None
        return Described(
            tuple(column[0] for column in found.description),
            tuple(column[1] for column in found.description),
            tuple(found.bindings_names),
            bool(found.is_readonly),
            bool(found.is_explain),
        )

    def translated(self, error: Exception) -> Exception:
        """Return an error of SQLite as one of Buckram's; others stay as they are."""
        name = self._database
        if isinstance(error, BuckramError):
            return error
        if self.guard.superseded and isinstance(error, apsw.InterruptError):
            return NotLeader(name, "")
        if self.guard.overdue and isinstance(error, apsw.InterruptError):
            return TransactionExpired(name, self._limit_s, self._limit)
        if self.guard.refusal and isinstance(error, apsw.AuthError):
            return StatementRefused(name, self.guard.refusal)
        if isinstance(error, apsw.BindingsError | TypeError | OverflowError | UnicodeEncodeError):
            return InvalidArgument(f"database {name}: the values of the placeholders do not fit: {error}")
        if isinstance(error, UnicodeDecodeError):
            return InvalidArgument(
                f"database {name}: a row has a text that is not UTF-8: read it with CAST(... AS BLOB)"
            )
        if isinstance(error, apsw.Error):
            extended = getattr(error, "extendedresult", 1)
            label = apsw.mapping_extended_result_codes.get(extended) or apsw.mapping_result_codes.get(extended)
            text = str(error)
            if isinstance(error, apsw.BusyError):
                return DatabaseBusy(name, text or "the database is busy", extended, str(label or "SQLITE_BUSY"))
            return SqlError(name, text, getattr(error, "result", 1), extended, str(label or "SQLITE_ERROR"))
        return error


def outcome_function(connection: apsw.Connection, ask: Callable[[str], str]) -> None:
    """Give a connection the SQL function buckram_outcome(token)."""

    def buckram_outcome(*values: Any) -> str:
        return ask(str(values[0]))

    connection.create_scalar_function("buckram_outcome", buckram_outcome, 1)


def statement(sql: str, parameters: Iterable[Any] | Mapping[str, Any] = ()) -> Statement:
    """Return a checked statement with its parameters. Raises InvalidArgument."""
    if not isinstance(sql, str):
        raise InvalidArgument(f"sql {sql!r}: a statement is a str")
    if type(parameters) is tuple:
        return Statement(sql, parameters)
    if isinstance(parameters, Mapping):
        return Statement(sql, dict(parameters))
    if isinstance(parameters, str | bytes):
        raise InvalidArgument(f"parameters {parameters!r}: needs a sequence of values, such as ({parameters!r},)")
    return Statement(sql, tuple(parameters))


def is_vacuum(sql: str) -> bool:
    """Return whether a text is VACUUM and nothing else."""
    return _VACUUM.fullmatch(sql) is not None


def probably_reads(sql: str) -> bool:
    """Return whether a statement, not a PRAGMA, most probably only reads; SQLite refuses it on a reader otherwise."""
    return text_of(sql).reads


def may_return_changes(sql: str) -> bool:
    """Return whether a statement may change rows and return some; SQLite returns the first one after all changes."""
    text = text_of(sql)
    return text.word in _CHANGED_AND_RETURNED and not text.silent


def after_comments(sql: str) -> str:
    """Return a text without the comments, spaces and semicolons at its beginning."""
    rest = sql.lstrip(_ENDS)
    while rest.startswith(("--", "/*")):
        end = rest.find("\n" if rest.startswith("--") else "*/")
        rest = "" if end < 0 else rest[end + (1 if rest.startswith("--") else 2) :].lstrip(_ENDS)
    return rest


def first_word(sql: str) -> str:
    """Return the first word of a statement in capitals, after any comments."""
    return text_of(sql).word


def text_of(sql: str) -> _Text:
    """Return what is found in a statement's text, without compiling it."""
    return _known_text(sql) if len(sql) <= _MOST_CACHED else _looked_at(sql)


def _looked_at(sql: str) -> _Text:
    found = _WORD.match(after_comments(sql))
    word, single = found[0].upper() if found is not None else "", ";" not in sql.rstrip(_ENDS)
    reads = word in _READS or (word == "WITH" and _CHANGE_AFTER_WITH.search(sql) is None)
    files = word in _TELL_FILES and _FILES in sql.lower()
    silent = single and word in _CHANGES and "RETURNING" not in sql.upper()
    return _Text(word, single and not files, silent, reads, files)


_known_text = lru_cache(500)(_looked_at)


def _short(sql: str) -> str:
    return repr(sql if len(sql) <= 60 else f"{sql[:57]}...")
