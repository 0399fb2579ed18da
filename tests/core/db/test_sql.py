"""Which PRAGMAs are executed, and what is kept of results."""

from __future__ import annotations

import pytest

from buckram.core.db.sql import (
    GIVEN_BACK,
    PRAGMAS,
    Scope,
    SqlResult,
    decode_counts,
    encode_counts,
    pragma_only_reads,
    pragma_refusal,
)


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("table_info", "item", False),
        ("USER_VERSION", "7", False),
        ("journal_mode", None, False),
        ("journal_mode", "WAL", False),
        ("journal_mode", "delete", True),
        ("foreign_keys", "'on'", False),
        ("foreign_keys", "0", True),
        ("page_size", "8192", True),
        ("writable_schema", "1", True),
        ("wal_checkpoint", None, True),
        ("something_new", None, True),
        ("legacy_alter_table", "on", False),
        ("defer_foreign_keys", "1", False),
        ("auto_vacuum", "2", True),
        ("encoding", "'UTF-16'", True),
    ],
)
def test_pragmas(name: str, value: str | None, refused: bool) -> None:
    assert bool(pragma_refusal(name, value)) == refused
    assert pragma_refusal(name, value, "main") == pragma_refusal(name, value)


def test_the_schema_temp_is_looked_at_and_not_changed() -> None:
    assert not pragma_refusal("table_info", "item", "temp")  # as SQLAlchemy asks
    assert "schema temp" in pragma_refusal("user_version", "7", "TEMP")


def test_what_sqlite_keeps_beyond_a_transaction_is_set_in_one_only() -> None:
    for name, otherwise in GIVEN_BACK.items():
        assert PRAGMAS[name] is Scope.TRANSACTION
        assert "begin one first" in pragma_refusal(name, "1", in_transaction=False)
        assert not pragma_refusal(name, otherwise, in_transaction=False)
        assert not pragma_refusal(name, None, in_transaction=False)


@pytest.mark.parametrize(
    ("sql", "reads"),
    [
        ("PRAGMA table_info(item)", True),
        ("pragma main . user_version", True),
        ("PRAGMA user_version = 7", False),
        ("PRAGMA user_version(7)", False),
        ("PRAGMA legacy_alter_table(1)", False),
        ("PRAGMA defer_foreign_keys", False),
        ("PRAGMA optimize", False),
        ("PRAGMA incremental_vacuum(3)", False),
        ("PRAGMA something_new", False),
        ('PRAGMA "user_version"', False),
    ],
)
def test_which_pragmas_certainly_read_only(sql: str, reads: bool) -> None:
    assert pragma_only_reads(sql) == reads


def test_counts_are_kept_without_rows() -> None:
    results = [SqlResult(("a",), (None,), [(1,)], 3, 17), SqlResult()]
    assert decode_counts(encode_counts(results)) == [SqlResult(rows_affected=3, last_insert_rowid=17), SqlResult()]
