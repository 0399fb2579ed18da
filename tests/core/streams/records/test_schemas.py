"""Schemas of streams: parsing, fingerprints, Spark's types, and which version may follow which."""

from __future__ import annotations

import json
from typing import Any

import pytest

from buckram.core.streams.records.schemas import (
    MARK,
    MAX_BYTES,
    MAX_VERSIONS,
    RecordSchemas,
    canonical,
    check_no_schema,
    fingerprint,
    parse,
    with_schema,
)
from buckram.errors import InvalidArgument

NULL_INT = {"name": "n", "type": ["null", "int"], "default": None}


def record(*fields: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": list(fields), **more})


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


@pytest.mark.parametrize(
    ("kind", "ddl"),
    [
        ("boolean", "boolean"),
        ("int", "int"),
        ("long", "bigint"),
        ("float", "float"),
        ("double", "double"),
        ("bytes", "binary"),
        ("string", "string"),
        (["null", "long"], "bigint"),
        ({"type": "int", "logicalType": "date"}, "date"),
        ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp_ltz"),
        ({"type": "string", "logicalType": "uuid"}, "string"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "decimal(9,2)"),
        ({"type": "array", "items": "string"}, "array<string>"),
        ({"type": "map", "values": ["null", "int"]}, "map<string,int>"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "string"),
        ({"type": "fixed", "name": "F", "size": 4}, "binary"),
        ({"type": "record", "name": "R", "fields": [field("x", "int")]}, "struct<`x`:int>"),
    ],
)
def test_types_are_those_of_spark(kind: Any, ddl: str) -> None:
    assert parse(record(field("f", kind))).ddl == f"struct<`f`:{ddl}>"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is Avro's JSON"),
        ('"int"', "that of a record, not of int"),
        (record(), "fields, a list that is not empty"),
        (record(field("f", "number")), "type 'number' is unknown; there are boolean"),
        (record(field("f", ["int", "string"])), "a union is of null and one type"),
        (record(field("a b", "int")), "needs a name of letters"),
        (record(field("a", "int"), field("A", "int")), "field A comes twice"),
        (record(field("f", "Order")), "contains itself"),
        (record(field("f", {"type": "enum", "name": "E", "symbols": []})), "needs symbols"),
        (record(field("f", {"type": "fixed", "name": "F", "size": 0})), "a size of at least 1"),
        (record(field("f", {"type": "bytes", "logicalType": "decimal", "precision": 40})), "up to 38"),
        (record(field("f", 7)), "'7' is no type"),
        (record(field("f", "int"), doc="x" * MAX_BYTES), f"the limit is {MAX_BYTES}"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why.replace("(", r"\(")):
        parse(text)


def test_deep_schemas_are_refused() -> None:
    kind: Any = "int"
    for _ in range(40):
        kind = {"type": "array", "items": kind}
    with pytest.raises(InvalidArgument, match="types within types, the limit is 16"):
        parse(record(field("f", kind)))


def test_fingerprints_are_avros() -> None:
    # Of the specification: the fingerprint of "int" is 7275d51a3f395c8f, here with the lowest byte first.
    assert fingerprint('"int"') == bytes.fromhex("8f5c393f1ad57572")
    text = (
        '{"namespace": "a.b", "type": "record", "name": "R", "doc": "d", "fields": ['
        '{"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["X"]}, "default": "X"},'
        '{"name": "f", "type": ["null", "E"]}, {"name": "g", "type": {"type": "long", "logicalType": "date"}}]}'
    )
    assert canonical(json.loads(text), "") == (
        '{"name":"a.b.R","type":"record","fields":[{"name":"e","type":{"name":"a.b.E","type":"enum","symbols":["X"]}},'
        '{"name":"f","type":["null","a.b.E"]},{"name":"g","type":"long"}]}'
    )
    fastavro = pytest.importorskip("fastavro.schema")
    expected = fastavro.fingerprint(fastavro.to_parsing_canonical_form(json.loads(text)), "CRC-64-AVRO")
    assert fingerprint(text).hex() == expected


WAS = (
    field("i", "int"),
    field("s", ["null", "string"]),
    field("r", {"type": "record", "name": "R", "fields": [field("x", "float")]}),
)


@pytest.mark.parametrize(
    "fields",
    [
        (*WAS, NULL_INT),
        (field("i", "long"), *WAS[1:]),
        (field("i", "double"), *WAS[1:]),
        (field("i", ["null", "int"]), *WAS[1:]),
        (WAS[1], WAS[0], WAS[2]),
        (*WAS[:2], field("r", {"type": "record", "name": "R", "fields": [field("x", "double"), NULL_INT]})),
    ],
)
def test_a_version_that_only_adds_or_widens_may_follow(fields: Any) -> None:
    first = with_schema("s", {"owner": "me"}, record(*WAS))
    both = with_schema("s", first, record(*fields))
    assert list(both) == ["owner", "schema.1", "schema.2"]
    assert with_schema("s", both, record(*fields)) == both, "it is the newest one already"
    found = RecordSchemas.of(both)
    assert found is not None
    assert found.version == 2
    assert [found.version_of(head + b"more") for head in found.heads] == [1, 2]
    assert found.version_of(MARK + b"12345678") is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (WAS[1:], "field i would be gone"),
        ((field("i", "float"), *WAS[1:]), "field i was int and would be float"),
        ((field("i", "string"), *WAS[1:]), "field i was int and would be string"),
        ((WAS[0], field("s", "string"), WAS[2]), "field s may be null in it and not any more"),
        ((*WAS, field("n", "int", default=0)), "field n is new and has no null"),
        ((*WAS, field("n", ["null", "int"])), "field n is new and has no null"),
        (
            (*WAS[:2], field("r", {"type": "record", "name": "R", "fields": [field("y", "int")]})),
            "field r.x would be gone",
        ),
        ((*WAS[:2], field("r", {"type": "record", "name": "Q", "fields": [field("x", "float")]})), "was named R"),
    ],
)
def test_a_version_that_removes_or_narrows_is_refused(fields: Any, why: str) -> None:
    first = with_schema("s", {}, record(*WAS))
    with pytest.raises(InvalidArgument, match=f"may not follow version 1: .*{why}"):
        with_schema("s", first, record(*fields))


def test_enums_decimals_and_lists_keep_what_they_had() -> None:
    def one(kind: Any) -> str:
        return record(field("f", kind))

    def decimal(precision: int, scale: int) -> Any:
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}

    def enum(*symbols: str) -> Any:
        return {"type": "enum", "name": "E", "symbols": symbols}

    for old, good, bad in (
        (enum("A", "B"), enum("A", "B", "C"), enum("B")),
        (decimal(5, 2), None, decimal(4, 2)),
        (decimal(5, 2), None, decimal(5, 3)),
        ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, {"type": "array", "items": "bytes"}),
    ):
        first = with_schema("s", {}, one(old))
        with pytest.raises(InvalidArgument, match="may not follow"):
            with_schema("s", first, one(bad))
        if good is not None:
            assert "schema.2" in with_schema("s", first, one(good))


def test_a_version_that_cannot_be_told_from_an_earlier_one_is_refused() -> None:
    first = with_schema("s", {}, record(*WAS))
    with pytest.raises(InvalidArgument, match="look like those of an earlier version"):
        with_schema("s", first, record(*WAS, doc="another text"))


def test_versions_are_bounded_and_no_properties_of_others() -> None:
    full = {f"schema.{n}": record(field("i", "int"), doc=str(n)) for n in range(1, MAX_VERSIONS + 1)}
    with pytest.raises(InvalidArgument, match="100 versions, which is the limit"):
        with_schema("s", full, record(field("i", "long")))
    with pytest.raises(InvalidArgument, match=r"property schema\.3 is a version of its schema"):
        check_no_schema("s", {"schema.3": "x"})
    check_no_schema("s", {"schema": "x", "schema.x": "y"})
    assert RecordSchemas.of({"owner": "me"}) is None
