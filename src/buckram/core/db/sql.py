"""Statements and their results, as callers see them; which PRAGMAs a replicated database executes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

SqlValue = None | int | float | str | bytes
"""What a column can hold."""
Parameters = Sequence[SqlValue] | Mapping[str, SqlValue]
"""Values for the placeholders of a statement: by position, or by name."""


class Statement(NamedTuple):
    """One SQL statement with the values of its placeholders."""

    sql: str
    parameters: Parameters = ()


@dataclass(slots=True)
class SqlResult:
    """What a statement gave."""

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
    """What is known of a statement without executing it."""

    columns: tuple[str, ...]
    """The names of the columns; empty for a statement without rows."""
    declared: tuple[str | None, ...]
    """For each column the type that the table declares; None for an expression."""
    parameters: tuple[str | None, ...]
    """The names of the placeholders, with their first character; None for `?`."""
    read_only: bool
    """Whether it changes nothing."""
    explain: bool
    """Whether it is an EXPLAIN."""


def counts_of(result: SqlResult) -> SqlResult:
    """A result without its rows."""
    return SqlResult(rows_affected=result.rows_affected, last_insert_rowid=result.last_insert_rowid)


def encode_counts(results: Sequence[SqlResult]) -> str:
    """What is kept of the results of a transaction under its token."""
    return json.dumps([[result.rows_affected, result.last_insert_rowid] for result in results], separators=(",", ":"))


def decode_counts(counts: str) -> list[SqlResult]:
    """The results for a repetition under the token: counts, and no rows."""
    return [SqlResult(rows_affected=affected, last_insert_rowid=rowid) for affected, rowid in json.loads(counts)]


_PLAIN_PRAGMAS = frozenset(
    (
        "application_id",
        "auto_vacuum",
        "collation_list",
        "compile_options",
        "data_version",
        "database_list",
        "defer_foreign_keys",
        "encoding",
        "foreign_key_check",
        "foreign_key_list",
        "freelist_count",
        "function_list",
        "incremental_vacuum",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "legacy_alter_table",
        "module_list",
        "optimize",
        "page_count",
        "pragma_list",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
        "user_version",
    )
)
_READ_PRAGMAS = frozenset(
    (
        "busy_timeout",
        "cache_size",
        "case_sensitive_like",
        "cell_size_check",
        "foreign_keys",
        "journal_mode",
        "locking_mode",
        "max_page_count",
        "page_size",
        "query_only",
        "read_uncommitted",
        "recursive_triggers",
        "schema_version",
        "secure_delete",
        "synchronous",
        "temp_store",
        "wal_autocheckpoint",
    )
)
_SAME: dict[str, frozenset[str]] = {
    "foreign_keys": frozenset(("1", "on", "true", "yes")),
    "journal_mode": frozenset(("wal",)),
    "encoding": frozenset(("utf-8", "utf8")),
}
"""Values that say what holds already."""


def pragma_refusal(name: str, value: str | None) -> str:
    """Why a PRAGMA is not executed; empty if it is."""
    name = name.lower()
    if name in _PLAIN_PRAGMAS or (name in _READ_PRAGMAS and value is None):
        return ""
    if value is not None and value.strip("'\"").lower() in _SAME.get(name, ()):
        return ""
    if name in _READ_PRAGMAS:
        return f"PRAGMA {name} = {value}: a replicated database has its own setting, which can only be read"
    return f"PRAGMA {name}: a replicated database does not execute it"


__all__ = [
    "Described",
    "Parameters",
    "SqlResult",
    "SqlValue",
    "Statement",
    "counts_of",
    "decode_counts",
    "encode_counts",
    "pragma_refusal",
]
