"""The functions of a connection: which statements ask for one, and with which argument."""

from __future__ import annotations

from typing import Any

import pytest

from buckram.core.db.sql_text import argument_of, own_call


@pytest.mark.parametrize(
    ("sql", "parameters", "name", "value", "label"),
    [
        ("SELECT buckram_token('a''b')", (), "buckram_token", "a'b", "buckram_token"),
        ("select\n buckram_TOKEN ( ? ) AS t ;", ("a",), "buckram_token", "a", "t"),
        ("SELECT buckram_token(?1)", ("a",), "buckram_token", "a", "buckram_token"),
        ("SELECT buckram_token(:one)", {"one": "a"}, "buckram_token", "a", "buckram_token"),
        ("SELECT buckram_token(@one)", {"two": "a"}, "buckram_token", None, "buckram_token"),
        ("SELECT buckram_token(?)", ("a", "b"), "buckram_token", None, "buckram_token"),
        ("SELECT buckram_after(1200)", (), "buckram_after", 1200, "buckram_after"),
        ("SELECT buckram_offset()", (), "buckram_offset", None, "buckram_offset"),
    ],
)
def test_a_call(sql: str, parameters: Any, name: str, value: Any, label: str) -> None:
    call = own_call(sql)
    assert call is not None
    assert (call.name, argument_of(call, parameters), call.label) == (name, value, label)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "SELECT buckram_outcome('a')",
        "SELECT buckram_token('a'), 1",
        "SELECT buckram_token('a') FROM t",
        "SELECT 'buckram_token(1)'",
        "INSERT INTO t SELECT buckram_token('a')",
        f"SELECT buckram_token('{'a' * 1000}')",
    ],
)
def test_everything_else_is_for_sqlite(sql: str) -> None:
    assert own_call(sql) is None
