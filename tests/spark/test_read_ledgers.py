"""Batch reads of ledgers in a real Spark session."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession

import buckram.sync
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark


def write(uri: str, payloads: list[bytes], *, close: bool = True, **options: str) -> int:
    with buckram.sync.connect(uri) as client:
        writer = client.create(**options)
        if payloads:
            writer.append_many(payloads)
        ledger: int = writer.ledger_id
        if close:
            writer.close()
        else:
            with client.open(ledger) as reader:
                next(iter(reader.tail(len(payloads) - 1)))
        return ledger


def load(spark: SparkSession, uri: str, ledgers: object, **options: str) -> DataFrame:
    reader = spark.read.format("buckram").option("metadata", uri).option("ledgers", str(ledgers))
    for key, value in options.items():
        reader = reader.option(key, value)
    return reader.load()


def rows(frame: DataFrame) -> list[tuple[int, int, bytes]]:
    return sorted((row.ledger, row.entry, bytes(row.value)) for row in frame.collect())


def test_every_entry_is_read_once_with_its_bytes(spark: SparkSession, cluster: ThreadedCluster) -> None:
    payloads = [b"", b"\x00\xff", *(b"entry %d " % n * (n % 50) for n in range(5_000))]
    first, second = write(cluster.uri, payloads), write(cluster.uri, payloads[:10])
    frame = load(spark, cluster.uri, f"{first},{second}", maxPartitionBytes="100000")
    assert [(f.name, f.dataType.simpleString()) for f in frame.schema.fields] == [
        ("ledger", "bigint"), ("entry", "bigint"), ("value", "binary"),
    ]  # fmt: skip
    assert frame.rdd.getNumPartitions() > 3
    expected = [(first, n, p) for n, p in enumerate(payloads)] + [(second, n, p) for n, p in enumerate(payloads[:10])]
    assert rows(frame) == sorted(expected)


def test_part_of_a_ledger_and_one_column(spark: SparkSession, cluster: ThreadedCluster) -> None:
    ledger = write(cluster.uri, [b"%d" % n for n in range(20)])
    frame = load(spark, cluster.uri, ledger, firstEntry="5", lastEntry="7")
    assert rows(frame) == [(ledger, n, b"%d" % n) for n in (5, 6, 7)]
    reader = spark.read.format("buckram").schema("value binary").option("metadata", cluster.uri)
    values = reader.option("ledger", str(ledger)).load()
    assert values.columns == ["value"]
    assert values.count() == 20


def test_an_empty_ledger_has_no_rows(spark: SparkSession, cluster: ThreadedCluster) -> None:
    assert load(spark, cluster.uri, write(cluster.uri, [])).count() == 0


def test_an_open_ledger_is_read_and_not_fenced(spark: SparkSession, cluster: ThreadedCluster) -> None:
    with buckram.sync.connect(cluster.uri) as client, client.create() as writer:
        writer.append_many([b"a", b"b"])
        with client.open(writer.ledger_id) as reader:
            next(iter(reader.tail(1)))
        found = rows(load(spark, cluster.uri, writer.ledger_id))
        assert found == [(writer.ledger_id, 0, b"a"), (writer.ledger_id, 1, b"b")]
        writer.append(b"still alive")


def test_all_ledgers_are_read_without_one_bookie(spark: SparkSession, cluster: ThreadedCluster) -> None:
    ledger = write(cluster.uri, [b"%d" % n for n in range(1_000)])
    cluster.kill(0)
    try:
        assert load(spark, cluster.uri, ledger).count() == 1_000
    finally:
        cluster.restart(0)


def test_pyspark_finds_the_source_by_its_name(spark: SparkSession, cluster: ThreadedCluster) -> None:
    """In a session where the source was not registered, PySpark finds the module pyspark_buckram."""
    ledger = write(cluster.uri, [b"x"])
    fresh = spark.newSession()
    frame = fresh.read.format("buckram").option("metadata", cluster.uri).option("ledgers", str(ledger)).load()
    assert rows(frame) == [(ledger, 0, b"x")]


def test_errors_reach_the_user(spark: SparkSession, cluster: ThreadedCluster) -> None:
    with pytest.raises(PySparkException, match="does not exist"):
        load(spark, cluster.uri, 10**9).count()
    ledger = write(cluster.uri, [b"x"], password="right")
    with pytest.raises(AnalysisException, match="wrong password") as refused:  # The driver raises it while it plans.
        load(spark, cluster.uri, ledger, password="wrong").count()
    assert str(refused.value).count("File ") <= 2
    assert load(spark, cluster.uri, ledger, password="right").count() == 1
    with pytest.raises(PySparkException, match="unknown option 'nonsense'"):
        load(spark, cluster.uri, "all", nonsense="1").count()
    with pytest.raises(PySparkException, match='"key" string: there are only ledger bigint'):
        spark.read.schema("key string").format("buckram").options(metadata=cluster.uri, ledger="1").load().count()
