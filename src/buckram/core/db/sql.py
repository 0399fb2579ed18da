"""Statements and their results, as callers see them; which PRAGMAs a replicated database executes."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

SqlValue = None | int | float | str | bytes
"""Type of a value in a column."""
Parameters = Sequence[SqlValue] | Mapping[str, SqlValue]
"""Values for the placeholders of a statement: by position, or by name."""


class Statement(NamedTuple):
    """One SQL statement with the values of its placeholders."""

    sql: str
    parameters: Parameters = ()


@dataclass(slots=True)
class SqlResult:
    """Result of a statement."""

    # Not frozen: that would cost a read by key a twentieth of its time.

    columns: tuple[str, ...] = ()
    """The names of the columns; empty for a statement without rows."""
    declared: tuple[str | None, ...] = ()
    """For each column the type that the table declares; None for an expression."""
    rows: list[tuple[SqlValue, ...]] = field(default_factory=list)
    """All rows."""
    rows_affected: int = 0
    """The number of rows that an INSERT, UPDATE or DELETE changed, without those of triggers."""
    last_insert_rowid: int | None = None
    """The row id of the last row that was inserted; None if there was none."""


@dataclass(frozen=True, slots=True)
class Described:
    """Description of a statement, made without executing it."""

    columns: tuple[str, ...]
    """The names of the columns; empty for a statement without rows."""
    declared: tuple[str | None, ...]
    """For each column the type that the table declares; None for an expression."""
    parameters: tuple[str | None, ...]
    """The names of the placeholders, with their first character; None for `?`."""
    read_only: bool
    """True if the statement changes nothing."""
    explain: bool
    """True if the statement is an EXPLAIN."""


def counts_of(result: SqlResult) -> SqlResult:
    """Return a result without its rows."""
    return SqlResult(rows_affected=result.rows_affected, last_insert_rowid=result.last_insert_rowid)


def encode_counts(results: Sequence[SqlResult]) -> str:
    """Encode the counts of a transaction's results, which are kept under its token."""
    return json.dumps([[result.rows_affected, result.last_insert_rowid] for result in results], separators=(",", ":"))


def decode_counts(counts: str) -> list[SqlResult]:
    """Return the results for a repetition under the token: counts, and no rows."""
    return [SqlResult(rows_affected=affected, last_insert_rowid=rowid) for affected, rowid in json.loads(counts)]


class Scope(enum.Enum):
    """Effect of a PRAGMA and the duration of its setting. All callers share the connection that writes."""

    CALL = "answers a question, about its argument if it has one"
    READ = "tells a setting that the database chose itself"
    DATABASE = "changes the database, and is in the log"
    TRANSACTION = "is set for the transaction in which it stands, and ends with it"


def _all(scope: Scope, names: str) -> dict[str, Scope]:
    return dict.fromkeys(names.split(), scope)


PRAGMAS: Mapping[str, Scope] = {
    **_all(
        Scope.CALL,
        "collation_list compile_options data_version database_list foreign_key_check foreign_key_list freelist_count "
        "function_list index_info index_list index_xinfo integrity_check module_list page_count pragma_list "
        "quick_check table_info table_list table_xinfo",
    ),
    **_all(
        Scope.READ,
        "auto_vacuum busy_timeout cache_size case_sensitive_like cell_size_check encoding foreign_keys journal_mode "
        "locking_mode max_page_count page_size query_only read_uncommitted recursive_triggers schema_version "
        "secure_delete synchronous temp_store wal_autocheckpoint",
    ),
    **_all(Scope.DATABASE, "application_id incremental_vacuum optimize user_version"),
    **_all(Scope.TRANSACTION, "defer_foreign_keys legacy_alter_table"),
}
"""Every PRAGMA that is executed; all others are refused."""
GIVEN_BACK: Mapping[str, str] = {"legacy_alter_table": "0"}
"""Settings that SQLite keeps for a connection beyond the transaction, with the default of each."""
_YES, _NO = frozenset(("1", "on", "true", "yes")), frozenset(("0", "off", "false", "no"))
_SAME: dict[str, frozenset[str]] = {
    "foreign_keys": _YES,
    "journal_mode": frozenset(("wal",)),
    "encoding": frozenset(("utf-8", "utf8")),
    "legacy_alter_table": frozenset(("0", "off", "false", "no")),
}
"""Values that leave each setting as it already is."""
TEMPORARY = "temp"
"""Schema of the connection itself, which is in no log."""


def pragma_refusal(name: str, value: str | None, schema: str | None = None, *, in_transaction: bool = True) -> str:
    """Return why a PRAGMA is not executed; empty if it is. `value` None: it has no argument."""
    name = name.lower()
    scope = PRAGMAS.get(name)
    if scope is None:
        return f"PRAGMA {name}: a replicated database does not execute it"
    if (schema or "").lower() == TEMPORARY and scope is Scope.DATABASE:
        return f"PRAGMA {schema}.{name}: a replicated database has nothing in the schema temp"
    if value is None or scope in (Scope.CALL, Scope.DATABASE):
        return ""
    if value.strip("'\"").lower() in _SAME.get(name, ()):
        return ""
    if name == "foreign_keys":
        return (
            f"PRAGMA {name} = {value}: all clients share the connection that writes; set it on a connection "
            "(DB-API), or in a stream (Hrana), before BEGIN: it lasts until the next COMMIT or ROLLBACK there"
        )
    if scope is Scope.READ:
        return f"PRAGMA {name} = {value}: a replicated database has its own setting, which can only be read"
    if name in GIVEN_BACK and not in_transaction:
        return f"PRAGMA {name} = {value}: it ends with the transaction in which it is set; begin one first"
    return ""


_PRAGMA = re.compile(r"PRAGMA\s+(?:\w+\s*\.\s*)?(\w+)\s*(.?)", re.IGNORECASE | re.DOTALL)


_KEYS = re.compile(
    r"PRAGMA\s+(?:main\s*\.\s*)?foreign_keys\s*(?:(?:=\s*|\(\s*)['\"]?(\w+)['\"]?\s*\)?\s*)?;?\s*", re.IGNORECASE
)


def foreign_keys_asked(sql: str) -> Literal["read", "on", "off"] | None:
    """Return what a PRAGMA foreign_keys asks for, given its text without comments before it; None for any other
    statement.
    """
    found = _KEYS.fullmatch(sql)
    if found is None:
        return None
    value = (found[1] or "").lower()
    return "read" if not value else "on" if value in _YES else "off" if value in _NO else None


def pragma_only_reads(sql: str) -> bool:
    """Return whether a PRAGMA, given its text without comments before it, certainly changes nothing."""
    found = _PRAGMA.match(sql)
    scope = PRAGMAS.get(found[1].lower()) if found is not None else None
    if found is None or scope is None or found[1].lower() in ("defer_foreign_keys", "incremental_vacuum", "optimize"):
        return False
    return scope is Scope.CALL or found[2] not in ("=", "(")
