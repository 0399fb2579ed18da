"""Which PRAGMAs are executed, and what is kept of results."""

from __future__ import annotations

import pytest

from buckram.core.db.sql import SqlResult, decode_counts, encode_counts, pragma_refusal


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
    ],
)
def test_pragmas(name: str, value: str | None, refused: bool) -> None:
    assert bool(pragma_refusal(name, value)) == refused


def test_counts_are_kept_without_rows() -> None:
    results = [SqlResult(("a",), (None,), [(1,)], 3, 17), SqlResult()]
    assert decode_counts(encode_counts(results)) == [SqlResult(rows_affected=3, last_insert_rowid=17), SqlResult()]
