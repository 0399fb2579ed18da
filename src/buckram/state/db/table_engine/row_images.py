"""RowImages: what the leader's writing connection does to rows, noted by SQLite's pre-update hook until the commit.

A statement that fails, a savepoint that is rolled back and a transaction that is rolled back leave nothing here. The
hook only notes; names of columns are looked up when the statement has ended. All of it is in the engine's thread. Not
here: the bytes (`core/db/changes.py`), transactions (`state/db/table_engine/execution.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import apsw

from buckram.core.db.changes import DELETE, INSERT, UPDATE, Noted, Row, RowChange, SchemaChange, TableShape, joined
from buckram.core.db.sql import SqlResult, Statement
from buckram.core.streams.records.codecs import Codec
from buckram.errors import StatementRefused, TransactionTooLarge
from buckram.state.db.table_engine.statements import Executor, first_word, is_vacuum

_SCHEMA_WORDS = frozenset(("CREATE", "ALTER", "DROP"))
_SAVEPOINT_WORDS = frozenset(("SAVEPOINT", "ROLLBACK", "RELEASE"))
_OPERATIONS = {"INSERT": INSERT, "UPDATE": UPDATE, "DELETE": DELETE}
_ROW_BYTES = 64
"""Overhead of a row in bytes, beside its texts and blobs."""
_VIRTUAL, _STORED = 2, 3
"""Values of `hidden` in PRAGMA table_xinfo for generated columns."""
_ROWID_NAMES = ("rowid", "_rowid_", "oid")


class Mark(NamedTuple):
    """A point in the noted changes to roll back to."""

    changes: int
    savepoints: int
    size: int


class _Shape(NamedTuple):
    table: TableShape | None
    """The shape of the table; None for a shadow table, which only stores a virtual one."""
    places: tuple[int, ...]
    """Positions of the noted columns among all columns of the table."""


class _Seen(NamedTuple):
    """A change as the pre-update hook reports it."""

    operation: int
    table: str
    rowid: int
    moved_to: int
    old: tuple[Any, ...] | None
    new: tuple[Any, ...] | None


class RowImages:
    """The changes of the open transaction. `limit`: their maximum size in bytes."""

    def __init__(self, database: str, limit: int) -> None:
        self._database, self._limit = database, limit
        self._changes: list[Noted] = []
        self._seen: list[_Seen] = []
        """Changes that the hook has reported of the running statement."""
        self._savepoints: list[tuple[str, Mark]] = []
        """Savepoints that callers have opened: names and marks."""
        self._size = 0
        self._failure: StatementRefused | TransactionTooLarge | None = None
        self._shapes: dict[str, _Shape] = {}
        self._version = -1
        """Version of the schema from which the shapes were read; -1 if unknown."""
        self._checked = False
        """True once the version of the schema was compared in this transaction."""
        self._numbers = count()
        self.spoiled = False
        """True if SQLite changed rows that are not noted: the transaction must be rolled back."""

    def watch(self, connection: apsw.Connection) -> None:
        """Note the row changes of this connection from now on."""
        connection.preupdate_hook(self._on_row)
        self._forget_shapes()

    def _forget_shapes(self) -> None:
        self._shapes.clear()
        self._version, self._checked = -1, False

    def begin(self) -> None:
        """Forget the changes of the transaction before: a new one begins."""
        self._changes.clear()
        self._savepoints.clear()
        self._size, self._checked, self.spoiled = 0, False, False

    def mark(self) -> Mark:
        """Return a mark of the present point."""
        return Mark(len(self._changes), len(self._savepoints), self._size)

    def end_unit(self, mark: Mark, *, rolled_back: bool) -> None:
        """End a unit that began at the mark: keep its changes with the earlier ones, or drop them if `rolled_back`."""
        del self._savepoints[mark.savepoints :]
        if rolled_back:
            self._roll_back(mark)
            self.spoiled = False

    def _roll_back(self, mark: Mark) -> None:
        del self._changes[mark.changes :]
        self._size = mark.size
        self._forget_shapes()

    def with_changes(self, group: bytes, zstd: Codec) -> bytes:
        """Return the group that is about to be committed, with the noted changes added."""
        return joined(self._changes, group, zstd) if self._changes else group

    # -- one statement ------------------------------------------------------------------------------------

    def execute(self, executor: Executor, statement: Statement) -> SqlResult:
        """Execute a statement and note what it does. Raises as the executor does; StatementRefused for what cannot be
        noted and TransactionTooLarge, after which this is `spoiled`."""
        connection = executor.connection
        before = connection.total_changes()
        self._seen.clear()
        self._failure = None
        try:
            result = self._execute(executor, statement)
        except Exception:
            # Most that fail are undone. INSERT OR FAIL keeps what it did, and so does one whose result is too large.
            # What triggers did is counted in both cases.
            if connection.total_changes() != before and connection.in_transaction and self._is_kept(executor):
                self._settle(executor)
            self._seen.clear()
            raise
        self._settle(executor)
        return result

    def _execute(self, executor: Executor, statement: Statement) -> SqlResult:
        word = first_word(statement.sql)
        if word in _SAVEPOINT_WORDS:
            return self._execute_savepoint(executor, statement)
        if word in _SCHEMA_WORDS:
            return self._execute_schema(executor, statement)
        if is_vacuum(statement.sql):
            self._changes.append(SchemaChange("VACUUM"))
        return executor.execute(statement)

    def _execute_savepoint(self, executor: Executor, statement: Statement) -> SqlResult:
        """Execute a savepoint statement. SQLite tells its authorizer the name when it compiles a new statement."""
        connection, heard = executor.connection, list[tuple[str, str]]()
        authorize = connection.authorizer
        assert authorize is not None

        def hear(action: int, one: str | None, two: str | None, three: str | None, four: str | None) -> int:
            if action == apsw.SQLITE_SAVEPOINT:
                heard.append((one or "", (two or "").lower()))
            return authorize(action, one, two, three, four)

        mark = self.mark()
        connection.authorizer = hear
        try:
            result = executor.execute(statement._replace(sql=f"/*{next(self._numbers)}*/ {statement.sql}"))
        finally:
            connection.authorizer = authorize
        for kind, name in heard[-1:]:
            if kind == "BEGIN":
                self._savepoints.append((name, mark))
                continue
            at = max(at for at, (known, _) in enumerate(self._savepoints) if known == name)
            if kind == "ROLLBACK":
                self._roll_back(self._savepoints[at][1])
                at += 1
            del self._savepoints[at:]
        return result

    def _execute_schema(self, executor: Executor, statement: Statement) -> SqlResult:
        version, tables = _version(executor), _tables(executor)
        result = executor.execute(statement)
        if _version(executor) == version:
            return result
        self._note(SchemaChange(statement.sql), len(statement.sql))
        self._forget_shapes()
        computed = executor.inside(_COMPUTED)
        if computed:
            self._failure = StatementRefused(
                self._database,
                f"column {computed[0][1]} of table {computed[0][0]}: with change data capture there are no VIRTUAL "
                "generated columns; make it STORED",
            )
        for name in sorted(_tables(executor) - tables):
            self._note_table(executor, name)
        return result

    def _note_table(self, executor: Executor, name: str) -> None:
        """Note the rows of a new table: if it was made from a query, the hook does not report them."""
        shape = self._shape(executor, name)
        if shape.table is None or not shape.table.has_rowid or not (handle := _handle(shape.table)):
            return
        for row in executor.inside(f"SELECT {handle[0]}, * FROM {_quoted(name)}"):
            self._note(RowChange(INSERT, shape.table, row[0], row[0], None, row[1:]), _size(row))

    def _settle(self, executor: Executor) -> None:
        """Add the reported changes of the statement that has ended to those of the transaction."""
        for one in self._seen:
            shape = self._shape(executor, one.table)
            if shape.table is not None:
                old, new = _picked(one.old, shape.places), _picked(one.new, shape.places)
                self._changes.append(RowChange(one.operation, shape.table, one.rowid, one.moved_to, old, new))
        self._seen.clear()
        if self._failure is not None:
            self.spoiled = True
            raise self._failure

    def _is_kept(self, executor: Executor) -> bool:
        """Return whether the changes of the failed statement were kept; one row that it left changed shows it."""
        if self._failure is not None:
            return True
        found, left = dict[tuple[str, tuple[Any, ...]], Row | None](), dict[tuple[str, tuple[Any, ...]], Row | None]()
        for one in self._seen:
            for row, rowid, state in ((one.old, one.rowid, found), (one.new, one.moved_to, left)):
                shape = self._shape(executor, one.table)
                if row is None or shape.table is None or not _handle(shape.table):
                    continue
                values = _picked(row, shape.places)
                key = one.table, (rowid,) if shape.table.has_rowid else _key_of(shape.table, values or ())
                if state is found:
                    found.setdefault(key, values)
                    left[key] = None
                else:
                    found.setdefault(key, None)
                    left[key] = values
        changed = ((key, row) for key, row in left.items() if row != found[key])
        return all(self._row(executor, table, key) == row for (table, key), row in islice(changed, 1))

    def _row(self, executor: Executor, name: str, key: tuple[Any, ...]) -> Row | None:
        """Return the present row of a table under this key; None if there is none."""
        table = self._shape(executor, name).table
        assert table is not None
        columns, where = ", ".join(map(_quoted, table.columns)), " AND ".join(f"{one} IS ?" for one in _handle(table))
        rows = executor.inside(f"SELECT {columns} FROM {_quoted(name)} WHERE {where}", key)
        return rows[0] if rows else None

    def _shape(self, executor: Executor, name: str) -> _Shape:
        if not self._checked:
            version = _version(executor)
            if version != self._version:
                self._shapes.clear()
            self._version, self._checked = version, True
        found = self._shapes.get(name)
        if found is None:
            found = self._shapes[name] = _look_up(executor, name)
        return found

    def _note(self, one: Noted, size: int) -> None:
        self._count(size)
        if self._failure is None:
            self._changes.append(one)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > self._limit and self._failure is None:
            self._failure = TransactionTooLarge(self._database, self._limit)

    # -- while SQLite writes ------------------------------------------------------------------------------

    def _on_row(self, update: apsw.PreUpdate) -> None:
        """Note a change before SQLite writes the row. Errors are kept: raised here they would follow the statement."""
        if self._failure is not None or update.database_name != "main":
            return
        try:
            old, new = update.old, update.new
        except (apsw.Error, UnicodeDecodeError) as error:
            self._failure = StatementRefused(
                self._database,
                f"a row of table {update.table_name} cannot be had for change data capture ({error}): texts need to be "
                "UTF-8; keep other bytes as BLOB",
            )
            return
        self._count(_size(old or ()) + _size(new or ()))
        if self._failure is None:
            operation = _OPERATIONS[update.op]
            self._seen.append(_Seen(operation, update.table_name, update.rowid, update.rowid_new, old, new))


_COMPUTED = (
    "SELECT m.name, p.name FROM sqlite_schema m, pragma_table_xinfo(m.name) p"
    f" WHERE m.type = 'table' AND p.hidden = {_VIRTUAL} LIMIT 1"
)


def _size(row: Sequence[Any]) -> int:
    return _ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes))


def _picked(row: tuple[Any, ...] | None, places: tuple[int, ...]) -> Row | None:
    return None if row is None else tuple(row[place] for place in places)


def _handle(table: TableShape) -> list[str]:
    """Return the columns by which a row is found; none if other columns have taken all names of its row id."""
    if not table.has_rowid:
        return [*map(_quoted, table.key)]
    named = {column.lower() for column in table.columns}
    return [one for one in _ROWID_NAMES if one not in named][:1]


def _key_of(table: TableShape, row: Row) -> Row:
    return tuple(row[table.columns.index(column)] for column in table.key)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _version(executor: Executor) -> int:
    return int(executor.inside("PRAGMA schema_version")[0][0])


def _tables(executor: Executor) -> set[str]:
    return {str(row[0]) for row in executor.inside("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def _look_up(executor: Executor, name: str) -> _Shape:
    found = [row for row in executor.inside(f"PRAGMA main.table_list({_quoted(name)})") if row[0] == "main"]
    kind, without_rowid = (str(found[0][2]), bool(found[0][4])) if found else ("", False)
    if kind != "table":
        return _Shape(None, ())
    columns = executor.inside(f"PRAGMA main.table_xinfo({_quoted(name)})")
    places = tuple(place for place, column in enumerate(columns) if column[6] not in (_VIRTUAL, _STORED))
    key = tuple(str(column[1]) for column in sorted(columns, key=lambda one: int(one[5])) if column[5])
    return _Shape(TableShape(name, tuple(str(columns[place][1]) for place in places), key, not without_rowid), places)
