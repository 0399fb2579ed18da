"""A copy of a database that is made of its changes alone, with plain SQLite."""

from __future__ import annotations

from typing import Any

import apsw

from buckram.core.db.changes import Change


class Copy:
    """Changes, one after the other, into an empty database. Triggers and foreign keys do nothing here."""

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_TRIGGER, 0)
        self.seen: list[Change] = []

    def apply(self, change: Change) -> None:
        self.seen.append(change)
        table = f'"{change.table}"'
        if change.operation == "schema":
            assert change.sql is not None
            self._schema(change.sql)
        elif change.operation == "insert":
            assert change.new is not None
            values = self._values(change, change.new)
            names = ", ".join(f'"{name}"' for name in values)
            places = ", ".join("?" * len(values))
            self.db.execute(f"INSERT INTO {table} ({names}) VALUES ({places})", (*values.values(),))
        elif change.operation == "delete":
            where, found = self._where(change)
            self.db.execute(f"DELETE FROM {table} WHERE {where}", found)
        else:
            assert change.new is not None
            where, found = self._where(change)
            values = self._values(change, change.new)
            assigned = ", ".join(f'"{name}" = ?' for name in values)
            self.db.execute(f"UPDATE {table} SET {assigned} WHERE {where}", (*values.values(), *found))
        assert change.operation == "schema" or self.db.changes() == 1, change

    def _schema(self, sql: str) -> None:
        before = self._tables()
        self.db.execute(sql).fetchall()
        for name in self._tables() - before:
            if " AS " in sql:
                self.db.execute(f'DELETE FROM "{name}"').fetchall()  # what the query gave comes as changes

    def _tables(self) -> set[str]:
        return {row[2] for row in self.db.execute("SELECT 0, 0, name FROM sqlite_schema WHERE type = 'table'")}

    @staticmethod
    def _values(change: Change, row: dict[str, Any]) -> dict[str, Any]:
        return row if change.new_rowid is None else {"rowid": change.new_rowid, **row}

    def _where(self, change: Change) -> tuple[str, tuple[Any, ...]]:
        assert change.old is not None
        key = {"rowid": change.rowid} if change.rowid is not None else change.key
        assert key
        known = {**key, **{name: value for name, value in change.old.items() if name not in key}}
        return " AND ".join(f'"{name}" IS ?' for name in known), tuple(known.values())


def rows(db: apsw.Connection, *, leave: str = "ft") -> dict[str, list[Any]]:
    """All rows of all tables, with their row ids where they have any; not those of virtual tables."""
    found: dict[str, list[Any]] = {}
    for name, wr in db.execute("SELECT name, wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table'"):
        if not name.startswith(("sqlite_", leave)):
            rowid = "" if wr else "rowid, "
            found[name] = sorted(map(repr, db.execute(f'SELECT {rowid}* FROM "{name}"')))
    return found
