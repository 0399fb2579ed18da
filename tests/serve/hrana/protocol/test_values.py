"""Values there and back, and arguments that are refused with the place where they stand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.serve.hrana.protocol.values import (
    Malformed,
    NotRepresentable,
    SqlValue,
    decode_value,
    encode_rows,
    encode_value,
)

VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
)


@given(VALUES)
def test_values_come_back_as_they_were(value: SqlValue) -> None:
    raw = json.loads(json.dumps(encode_value(value)))
    found = decode_value(raw, "x")
    assert found == value
    assert type(found) is type(value)


def test_the_forms_of_the_specification() -> None:
    rows = [(None, -1, 0.5, "é", b"\x00\xff")]
    assert encode_rows(rows) == [
        [
            {"type": "null"},
            {"type": "integer", "value": "-1"},
            {"type": "float", "value": 0.5},
            {"type": "text", "value": "é"},
            {"type": "blob", "base64": "AP8"},
        ]
    ]
    assert decode_value({"type": "blob", "base64": "AP8="}, "x") == b"\x00\xff"
    assert decode_value({"type": "integer", "value": 7}, "x") == 7
    assert decode_value({"type": "float", "value": 7}, "x") == 7.0


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    with pytest.raises(NotRepresentable, match="cast it to text"):
        encode_value(value)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (7, "needs an object"),
        ({}, "type None"),
        ({"type": "text"}, "none of null, integer"),
        ({"type": "text", "value": "\ud800"}, "half of a surrogate pair"),
        ({"type": "integer", "value": "1.5"}, "decimal digits"),
        ({"type": "integer", "value": "١"}, "decimal digits"),
        ({"type": "integer", "value": True}, "decimal digits"),
        ({"type": "integer", "value": str(2**63)}, "does not fit into 64 bits"),
        ({"type": "integer", "value": "9" * 5000}, "decimal digits"),
        ({"type": "float", "value": "1"}, "none of null"),
        ({"type": "float", "value": True}, "none of null"),
        ({"type": "blob", "base64": "?"}, "not base64"),
        ({"type": "blob", "base64": "A"}, "not base64"),
        ({"type": "blob", "base64": 7}, "none of null"),
    ],
)
def test_what_is_no_value_is_refused(raw: Any, reason: str) -> None:
    with pytest.raises(Malformed, match=f"args\\[3\\]: .*{reason}"):
        decode_value(raw, "args[3]")
