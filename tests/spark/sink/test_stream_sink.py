"""The sink in a real Spark session: the rows of a query are in the stream once, and bad input is one error."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from tests.spark.faults.kit import Lines, records, values

from buckram import sync
from buckram.core.streams.names import stream_name
from buckram.core.streams.records.batch import Record
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.share(4)


def write(frame: DataFrame, cluster: ThreadedCluster, stream: str, **options: Any) -> None:
    writer = frame.write.format("buckram").mode("append").option("metadata", cluster.uri)
    writer.options(**{"createStream": "true", **options}).save(stream)


def test_every_column_is_written_in_the_order_of_rows(
    spark: SparkSession, any_cluster: ThreadedCluster, stream: str
) -> None:
    frame = spark.range(0, 5000, 1, 4).select(
        F.when(F.col("id") % 7 > 0, F.concat(F.lit("v"), F.col("id"))).alias("value"),
        F.when(F.col("id") % 3 > 0, F.concat(F.lit("k"), F.col("id")).cast("binary")).alias("key"),
        F.timestamp_micros(F.col("id") * 1000 + 7).alias("timestamp"),
        F.when(F.col("id") % 5 > 0, F.array(F.struct(
            F.lit("from").alias("key"), F.col("id").cast("string").cast("binary").alias("value"),
        ))).alias("headers"),
    )  # fmt: skip
    write(frame, any_cluster, stream)
    found = records(any_cluster.uri, stream)
    assert [(r.offset, r.value, r.key, r.timestamp, r.headers) for r in found] == [
        (
            n, b"v%d" % n if n % 7 else None, b"k%d" % n if n % 3 else None, 1000 * n + 7,
            (("from", b"%d" % n),) if n % 5 else (),
        )
        for n in range(5000)
    ]  # fmt: skip
    with sync.connect(any_cluster.uri) as client:
        first = next(iter(client.namespace().segments(stream_name(stream).stream)))
        marks = client.metadata(first.ledger).custom_metadata
        assert marks["buckram.spark.partition"] == b"0"


def test_a_job_with_a_name_runs_once(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    frame = spark.range(100).select(F.col("id").cast("string").alias("value"))
    for _ in range(2):
        write(frame, cluster, stream, txnAppId="nightly", txnVersion=20261121)
    write(frame, cluster, stream, txnAppId="nightly", txnVersion=20261122)
    for _ in range(2):
        write(frame.limit(1), cluster, stream)
    assert len(values(cluster.uri, stream)) == 202


def test_micro_batches_to_a_stream(
    spark: SparkSession, any_cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    lines = Lines(tmp_path, files=3, rows=50)
    for _ in range(2):  # The second run finds nothing new.
        lines.run(spark, any_cluster.uri, stream)
    assert Counter(values(any_cluster.uri, stream)) == lines.expected
    lines.add(2)
    lines.run(spark, any_cluster.uri, stream)
    assert Counter(values(any_cluster.uri, stream)) == lines.expected
    with sync.connect(any_cluster.uri) as client:
        (done,) = client.namespace().info(stream_name(stream).stream).transactions.values()
    assert done.version == 4
    assert len(done.query) == 36


def test_batches_begin_while_a_bookie_is_away(spark: SparkSession, stream: str, tmp_path: Path) -> None:
    lines = Lines(tmp_path, files=2, rows=20)
    with ThreadedCluster(bookies=3) as own:
        with sync.connect(own.uri) as client:
            client.namespace().create(stream_name(stream).stream)
        own.stop(2)
        write(spark.range(40).select(F.col("id").cast("string").alias("value")), own, stream)
        lines.run(spark, own.uri, stream)
        assert Counter(values(own.uri, stream)) == lines.expected + Counter(b"%d" % n for n in range(40))
        with sync.connect(own.uri) as client:
            for segment in client.namespace().segments(stream_name(stream).stream):
                made = client.metadata(segment.ledger)
                assert (made.write_quorum, made.ack_quorum) == (3, 2)
                assert own.bookies[2] in made.fragments[0].ensemble


def test_a_table_of_the_catalog(spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path) -> None:
    lines = Lines(tmp_path, files=1, rows=20)
    with sync.connect(cluster.uri) as client:
        client.namespace().create(stream_name(stream).stream)
    spark.sql(f"CREATE TABLE sunk (value STRING) USING buckram OPTIONS (metadata '{cluster.uri}', stream '{stream}')")
    try:
        # Spark passes a streaming query's own options only, not those of the table.
        query = lines.frame(spark).writeStream.options(metadata=cluster.uri, stream=stream)
        query = query.option("checkpointLocation", str(lines.checkpoint)).trigger(availableNow=True)
        query.toTable("sunk").awaitTermination()
        spark.sql(f"INSERT INTO sunk WITH (metadata = '{cluster.uri}', stream = '{stream}') VALUES ('by SQL')")
        assert Counter(values(cluster.uri, stream)) == lines.expected + Counter([b"by SQL"])
    finally:
        spark.sql("DROP TABLE sunk")


def test_a_table_without_columns_is_refused_at_its_creation(
    spark: SparkSession, cluster: ThreadedCluster, stream: str
) -> None:
    """Spark does not pass a table's options to the source, so each use of the table would fail."""
    with sync.connect(cluster.uri) as client, client.namespace().writer(stream_name(stream).stream) as writer:
        writer.append(b"x")
    options = f"metadata '{cluster.uri}', subscribe '{stream}'"
    for made in (f"OPTIONS ({options})", f"TBLPROPERTIES ({options})", ""):
        with pytest.raises(PySparkException, match="does not tell a Python data source the options of a table"):
            spark.sql(f"CREATE TABLE never USING buckram {made}")
    assert not spark.catalog.tableExists("never")
    # Spark creates a table with columns without asking the source; each use has to name the stream.
    spark.sql(f"CREATE TABLE with_columns (value BINARY) USING buckram OPTIONS ({options})")
    try:
        with pytest.raises(PySparkException, match=r"those that follow its name: FROM orders WITH \(metadata"):
            spark.sql("SELECT * FROM with_columns").collect()
        rows = spark.sql(f"SELECT * FROM with_columns WITH (metadata '{cluster.uri}', subscribe '{stream}')").collect()
        assert [bytes(row.value) for row in rows] == [b"x"]
    finally:
        spark.sql("DROP TABLE with_columns")
    spark.sql(f"CREATE TEMPORARY VIEW seen USING buckram OPTIONS ({options})")
    assert spark.sql("SELECT * FROM seen").count() == 1
    spark.catalog.dropTempView("seen")


def test_for_each_batch(spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path) -> None:
    lines = Lines(tmp_path, files=2, rows=20)

    def both(frame: DataFrame, batch: int) -> None:
        for _ in range(2):  # A repeated batch would do the same.
            write(frame, cluster, stream, txnAppId="each", txnVersion=batch)

    query = lines.frame(spark).writeStream.foreachBatch(both).option("checkpointLocation", str(lines.checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    assert Counter(values(cluster.uri, stream)) == lines.expected


def test_only_append_mode_is_accepted(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    lines = Lines(tmp_path, files=2, rows=20)
    counts = lines.frame(spark).groupBy(F.length("value").alias("n")).count()
    rows = counts.select(F.concat_ws(":", "n", "count").alias("value"))
    for mode, said in (("complete", r'outputMode\("complete"\)'), ("update", "does not support Update mode")):
        with pytest.raises(PySparkException, match=said):
            lines.run(spark, cluster.uri, stream, frame=rows, mode=mode)
    assert values(cluster.uri, stream) == []


def test_errors_of_the_sink_are_raised_once_at_planning(
    spark: SparkSession, cluster: ThreadedCluster, stream: str
) -> None:
    frame = spark.range(3).select(F.col("id").cast("string").alias("value"))
    writer = frame.write.format("buckram").mode("append").option("metadata", cluster.uri)
    with pytest.raises(PySparkException, match='"createStream"') as refused:
        writer.save(stream)
    assert str(refused.value).count("File ") <= 2
    with pytest.raises(PySparkException, match=r'mode\("append"\)'):
        frame.write.format("buckram").mode("overwrite").options(metadata=cluster.uri).save(stream)
    with pytest.raises(PySparkException, match="unknown option 'compression'"):
        writer.option("compression", "x").save(stream)
    with pytest.raises(PySparkException, match='column "id"'):
        write(spark.range(3).withColumn("value", F.lit("x")), cluster, stream)
    write(frame, cluster, stream)
    with sync.connect(cluster.uri) as client:
        live = client.namespace().writer(stream_name(stream).stream, name="alice")
        with pytest.raises(PySparkException, match="'alice'"):
            write(frame, cluster, stream)
        live.close()
    large = spark.range(1).select(F.expr("repeat('x', 5000000)").alias("value"))
    with pytest.raises(PySparkException, match="5000000 bytes is over the limit of 4194304"):
        write(large, cluster, stream)
    assert len(values(cluster.uri, stream)) == 3


def test_a_streaming_query_fails_with_the_reason(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    lines = Lines(tmp_path, files=1, rows=5)
    with pytest.raises(PySparkException, match='"createStream"'):
        lines.run(spark, cluster.uri, stream, createStream="false")
    with sync.connect(cluster.uri) as client:
        live = client.namespace().writer(stream_name(stream).stream, name="alice")
        with pytest.raises((PySparkException, StreamingQueryException), match="'alice'"):
            lines.run(spark, cluster.uri, stream)
        live.close()
    lines.run(spark, cluster.uri, stream)
    assert Counter(values(cluster.uri, stream)) == lines.expected


def test_times_without_zone_keep_their_instant(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    when = datetime(2026, 11, 21, 9, 46, 22, 123456, tzinfo=UTC)
    write(spark.createDataFrame([("x", when)], "value string, timestamp timestamp"), cluster, stream)
    (record,) = records(cluster.uri, stream)
    assert isinstance(record, Record)
    assert record.timestamp == int(when.timestamp()) * 1_000_000 + 123456
