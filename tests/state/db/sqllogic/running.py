"""One script through the log and on SQLite alone: results, errors and what was changed are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import apsw
from tests.state.db.sqllogic.records import Record, hashed, written

from buckram.errors import SqlError, StatementRefused
from buckram.state.db.database import Database


@dataclass
class Found:
    """What a script gave. `differences` are those from SQLite; `unexpected` those of SQLite from the script."""

    statements: int = 0
    queries: int = 0
    errors: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Reasons, by how many statements they hold for."""
    differences: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        self.statements += other.statements
        self.queries += other.queries
        self.errors += other.errors
        self.refused += other.refused
        self.differences += other.differences
        self.unexpected += other.unexpected


async def run(name: str, script: Iterable[Record], database: Database) -> Found:
    """Run a script on an empty database that leads."""
    found, labels = Found(), dict[str, str]()
    with closing(apsw.Connection(":memory:")) as plain:
        for record in script:
            where = f"{name}:{record.line}: {record.sql!r}"
            try:
                ours = await _asked(database, record.sql)
            except StatementRefused as error:
                found.refused[str(error).partition(": ")[2].partition(":")[0]] += 1
                continue
            theirs = _asked_plain(plain, record.sql)
            if ours != theirs:
                found.differences.append(f"{where}: {str(ours)[:300]}, SQLite: {str(theirs)[:300]}")
            if record.types:
                found.queries += 1
                _compare_with_script(record, theirs, where, labels, plain, found)
            else:
                found.statements += 1
                found.errors += isinstance(theirs, str)
                if record.error is not isinstance(theirs, str):
                    found.unexpected.append(f"{where}: {theirs}")
        for table in (
            one for (one,) in plain.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        ):
            sql = f'SELECT * FROM "{table}"'  # names of a schema
            if await _asked(database, sql) != _asked_plain(plain, sql):
                found.differences.append(f"{name}: table {table} differs at the end")
    return found


async def _asked(database: Database, sql: str) -> Any:
    """The rows with columns, or the text of an error."""
    try:
        result = await database.execute(sql)
    except SqlError as error:
        return error.message
    return result.columns if result.rows else (), result.rows


def _asked_plain(plain: apsw.Connection, sql: str) -> Any:
    columns: tuple[str, ...] = ()
    try:
        cursor = plain.execute(sql)
        with suppress(apsw.ExecutionCompleteError):  # There are no rows.
            columns = tuple(column[0] for column in cursor.get_description())
        rows = cursor.fetchall()
    except apsw.Error as error:
        return str(error)
    return columns if rows else (), rows


def _compare_with_script(
    record: Record, theirs: Any, where: str, labels: dict[str, str], plain: apsw.Connection, found: Found
) -> None:
    if isinstance(theirs, str):
        if record.values != ():
            found.unexpected.append(f"{where}: {theirs}")
        return

    def written_by(expression: str, value: Any) -> Any:
        return plain.execute(f"SELECT {expression}", (value,)).fetchone()[0]

    values = written(record.types, record.sort, theirs[1], written_by)
    digest = hashed(values)
    if record.values is not None and tuple(values) != record.values and (digest,) != record.values:
        found.unexpected.append(f"{where}: {values[:10]}, {digest}, the script has {record.values[:10]}")
    if record.label and labels.setdefault(record.label, digest) != digest:
        found.unexpected.append(f"{where}: {digest}, another query of {record.label}: {labels[record.label]}")


__all__ = ["Found", "run"]
