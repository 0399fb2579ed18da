"""Streams with a schema: typed columns are read and written, versions stand side by side, misfits are named."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType
from tests.spark.reading import rows

from buckram import sync
from buckram.errors import InvalidArgument, SchemaMismatch
from buckram.spark.data_source import BuckramDataSource
from buckram.spark.shared.typed_values import ValueWriter
from buckram.testing import ThreadedCluster

pytest.importorskip("fastavro")
pytestmark = pytest.mark.spark

FIRST = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "who", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": "int"}},
    ],
}
SECOND = {
    **FIRST,
    "fields": [
        {"name": "id", "type": "long"},
        *FIRST["fields"][1:],
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
AT = datetime.datetime(2026, 11, 26, 12, 0, 0, 5, tzinfo=datetime.UTC)


def order(number: int, **more: Any) -> dict[str, Any]:
    found = {"id": number, "who": "ann", "at": AT, "price": Decimal("1.50"), "tags": ["a"], "more": {"x": number}}
    return {**found, **more}


@pytest.fixture
def typed(cluster: ThreadedCluster, stream: str) -> str:
    """A stream with three records of the first version, one without a value, and two of the second."""
    name = stream.partition("/")[2]
    with sync.connect(cluster.uri) as client:
        ns = client.namespace()
        ns.create(name)
        assert ns.schema(name) is None
        assert ns.set_schema(name, json.dumps(FIRST)) == 1
        one = ns.schema(name)
        assert one is not None
        with ns.writer(name) as writer:
            writer.append_many([one.encode(order(n)) for n in range(3)])
            writer.append(None, key=b"gone")
            assert ns.set_schema(name, json.dumps(SECOND)) == 2
            two = ns.schema(name)
            assert two is not None
            writer.append_many([two.encode(order(n, note="n")) for n in (3, 4)])
        kept = [record.value for record in ns.read(name) if record.value is not None]
        assert [two.version_of(value) for value in kept] == [1, 1, 1, 2, 2]
        assert two.decode(kept[0]) == order(0, note=None)
        with pytest.raises(InvalidArgument, match="may not follow version 2: field id was long and would be int"):
            ns.set_schema(name, json.dumps(FIRST))
        with pytest.raises(InvalidArgument, match=r"property schema\.1"):
            ns.set_properties(name, {"schema.1": None})
        assert list(ns.info(name).properties) == ["schema.1", "schema.2"]
    return stream


def source(uri: str, **options: str) -> BuckramDataSource:
    return BuckramDataSource({"metadata": uri, **options})


def test_a_frame_has_the_fields_as_columns(spark: SparkSession, cluster: ThreadedCluster, typed: str) -> None:
    frame = spark.read.format("buckram").option("metadata", cluster.uri).load(typed)
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,who:string,at:timestamp,price:decimal(9,2),tags:array<string>,more:map<string,int>,"
        "note:string>"
    )
    found = frame.where("value IS NOT NULL").select("offset", "value.*").orderBy("offset").collect()
    assert [(row.offset, row.id, row.note) for row in found] == [
        (0, 0, None), (1, 1, None), (2, 2, None), (4, 3, "n"), (5, 4, "n"),
    ]  # fmt: skip
    first = found[0].asDict()
    assert (first["price"], first["tags"], first["more"]) == (Decimal("1.50"), ["a"], {"x": 0})
    assert frame.where("value IS NULL").first()["offset"] == 3
    raw = spark.read.format("buckram").options(metadata=cluster.uri, values="bytes").load(typed)
    assert raw.schema["value"].dataType.simpleString() == "binary"
    assert raw.count() == 6


def test_a_stream_of_frames_is_written_with_the_schema(
    spark: SparkSession, cluster: ThreadedCluster, typed: str, tmp_path: Path
) -> None:
    copy = f"{typed}-copy"
    with sync.connect(cluster.uri) as client:
        name = copy.partition("/")[2]
        client.namespace().create(name)
        client.namespace().set_schema(name, json.dumps(SECOND))
    frame = spark.readStream.format("buckram").options(metadata=cluster.uri, startingOffsets="earliest").load(typed)
    query = frame.select("key", "value").writeStream.format("buckram").trigger(availableNow=True)
    query = query.options(metadata=cluster.uri, checkpointLocation=str(tmp_path / "checkpoint"))
    query.start(copy).awaitTermination()
    for file in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / file).unlink()  # The batch comes again, and is compared.
    query.start(copy).awaitTermination()
    with sync.connect(cluster.uri) as client:
        ns = client.namespace()
        codec = ns.schema(name)
        assert codec is not None
        values = [record.value for record in ns.read(name)]
        assert [value and codec.decode(value)["id"] for value in values] == [0, 1, 2, None, 3, 4]
        assert {codec.version_of(value) for value in values if value} == {1}


def read(uri: str, stream: str, **fields: DataType) -> list[Any]:
    value = StructType([StructField(name, kind) for name, kind in fields.items()])
    wanted = StructType([StructField("offset", LongType()), StructField("value", value)])
    reader = source(uri, path=stream).reader(wanted)
    return [row["value"] for row in rows(reader)]


def test_fields_can_be_chosen_and_what_does_not_fit_is_named(cluster: ThreadedCluster, typed: str) -> None:
    assert read(cluster.uri, typed, id=LongType(), absent=StringType())[-1] == {"id": 4, "absent": None}
    with pytest.raises(InvalidArgument, match=r"the values from offset 0 on do not fit .*; ask for the types"):
        read(cluster.uri, typed, who=IntegerType())
    with sync.connect(cluster.uri) as client, client.namespace().writer(typed.partition("/")[2]) as writer:
        writer.append(b"plain")
    with pytest.raises(SchemaMismatch, match=r"the value at offset 6 is no Avro record: .*values=bytes"):
        read(cluster.uri, typed, id=LongType())


def test_bytes_of_another_schema_and_broken_ones_are_named(cluster: ThreadedCluster, stream: str) -> None:
    name = stream.partition("/")[2]
    with sync.connect(cluster.uri) as client:
        ns = client.namespace()
        ns.create(name)
        ns.set_schema(name, json.dumps(FIRST))
        codec = ns.schema(name)
        assert codec is not None
        with pytest.raises(SchemaMismatch, match=r"field who is 7, which is no string or null .*change the record"):
            codec.encode(order(1, who=7))
        with pytest.raises(SchemaMismatch, match="field id"):
            codec.encode({})
        value = codec.encode(order(1))
        for broken, why in ((value[:-3], "no record of version 1"), (b"\xc3\x01" + bytes(20), "fingerprint 00000")):
            with pytest.raises(SchemaMismatch, match=f"the value at offset 9 .*{why}"):
                codec.decode(broken, 9)


def test_what_a_sink_gets_is_checked(spark: SparkSession, cluster: ThreadedCluster, typed: str) -> None:
    def write(value: str, **options: str) -> None:
        frame = spark.range(2).selectExpr(f"{value} AS value")
        frame.write.format("buckram").mode("append").options(metadata=cluster.uri, **options).save(typed)

    for value, why in (
        ("named_struct('id', id, 'other', 1)", "field other of column value is not in version 2 of its schema"),
        ("named_struct('id', cast(id AS string))", "field id of column value is string, its schema needs bigint"),
        ("named_struct('who', 'x')", "field id of column value is missing"),
        ("'text'", "begins with b'text'"),
    ):
        with pytest.raises(Exception, match=why):
            write(value)
    with sync.connect(cluster.uri) as client:
        assert client.namespace().info(typed.partition("/")[2]).end == 6


def test_rows_are_checked_without_spark() -> None:
    plain = pa.record_batch({"value": pa.array([{"id": 1}])})
    with pytest.raises(InvalidArgument, match="has no schema; `buckram stream set"):
        ValueWriter("a/b", None).encoded(plain)
    text = pa.record_batch({"value": pa.array([b"x"])})
    assert ValueWriter("a/b", None).encoded(text) is text


def test_typed_values_are_refused_where_there_is_no_one_schema(cluster: ThreadedCluster, typed: str) -> None:
    with pytest.raises(InvalidArgument, match='"values" = "typed": name the streams'):
        source(cluster.uri, subscribePattern=".*", values="typed").schema()
    with sync.connect(cluster.uri) as client:
        client.namespace().create(f"{typed.partition('/')[2]}-plain")
    with pytest.raises(InvalidArgument, match="has no schema"):
        source(cluster.uri, subscribe=f"{typed},{typed}-plain", values="typed").schema()
    assert "value binary" in source(cluster.uri, subscribe=f"{typed},{typed}-plain").schema()
    assert "value binary" in source(cluster.uri, subscribePattern=".*").schema()
    assert "`id`:bigint,`who`:string,`at`:timestamp_ltz,`price`" in source(cluster.uri, subscribe=typed).schema()
