"""What a schema lets pass, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from buckram.serve.gateway.shared import schema

SHAPE = schema.record(
    "note",
    name=schema.TEXT,
    count={**schema.COUNT, "maximum": 9},
    kind=schema.one_of("a", "b"),
    rows=schema.array(schema.WHOLE),
    note=schema.or_null(schema.TEXT),
)
GOOD: dict[str, Any] = {"name": "n", "count": 9, "kind": "a", "rows": [1], "note": None}


def test_what_fits_passes() -> None:
    assert schema.fault(GOOD, SHAPE) == ""
    assert schema.fault({name: value for name, value in GOOD.items() if name != "note"}, SHAPE) == ""
    assert schema.fault({**GOOD, "x": 1}, {**SHAPE, "additionalProperties": True}) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": 1}, "the body.name is 1: needs string"),
        ({"count": 10}, "the body.count is 10: needs a number from 0 up to 9"),
        ({"count": -1}, "the body.count is -1"),
        ({"count": True}, "the body.count is True: needs integer"),
        ({"count": 1.5}, "the body.count is 1.5: needs integer"),
        ({"kind": "c"}, "the body.kind is 'c': needs one of a, b"),
        ({"rows": [1, "x"]}, "the body.rows[1] is 'x': needs integer"),
        ({"note": 5}, "the body.note is 5: needs string or null"),
        ({"other": 1}, "the body has an unknown field 'other'; known: name, count, kind, rows, note"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], said: str) -> None:
    assert said in schema.fault({**GOOD, **change}, SHAPE)


def test_what_is_missing_is_named() -> None:
    assert schema.fault({}, SHAPE) == "the body has no name: give it"
    assert schema.fault([], SHAPE) == "the body is []: needs object"
    assert schema.fault({"a": 1}, schema.mapping(schema.TEXT)) == "the body.a is 1: needs string"
