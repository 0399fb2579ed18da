"""Streaming reads in a real Spark session: batches, restarts, replays, cursors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.spark.reading import numbered, write
from tests.support.polling import wait_until

from buckram import sync
from buckram.spark import lag, register
from buckram.spark.source.query_lag import reported
from buckram.testing import ThreadedCluster

pytestmark = [pytest.mark.spark, pytest.mark.share(4)]
DEADLINE_S = 60


def source(spark: SparkSession, uri: str, **options: object) -> DataFrame:
    defaults = {"startingOffsets": "earliest", "metadata": uri}
    return spark.readStream.format("buckram").options(**{**defaults, **options}).load()


class Pipeline:
    """A query into Parquet files, which Spark writes exactly once per batch."""

    def __init__(self, spark: SparkSession, folder: Path, uri: str, **options: object) -> None:
        self.spark, self.uri, self.options = spark, uri, options
        self.out, self.checkpoint = folder / "out", folder / "checkpoint"

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = source(self.spark, self.uri, **self.options).selectExpr("stream", "offset", "cast(value as string) v")
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"availableNow": True})).start(str(self.out))

    def run(self, **trigger: Any) -> StreamingQuery:
        query = self.start(**trigger)
        assert query.awaitTermination(DEADLINE_S)
        return query

    def offsets(self) -> list[int]:
        return sorted(row.offset for row in self.spark.read.parquet(str(self.out)).collect())

    def batches(self) -> list[dict[str, Any]]:
        """Return the end of each batch, as the checkpoint has it."""
        numbers = sorted(int(file.name) for file in (self.checkpoint / "offsets").iterdir() if file.name.isdigit())
        files = [self.checkpoint / "offsets" / str(number) for number in numbers]
        return [json.loads(file.read_text().splitlines()[2]) for file in files]


def test_a_query_restarts_and_repeats_its_last_batch(
    spark: SparkSession, any_cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    write(any_cluster.uri, stream, numbered(250), numbered(250))
    pipeline = Pipeline(
        spark, tmp_path, any_cluster.uri, subscribe=stream, maxOffsetsPerTrigger=200, minPartitions=3, cursor="lag"
    )
    query = pipeline.run()
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [200, 200, 100]
    assert pipeline.offsets() == list(range(500))
    assert [end[stream] for end in pipeline.batches()] == [200, 400, 500]
    latest = query.recentProgress[0].sources[0].latestOffset
    assert json.loads(str(latest))[stream] == 500
    assert reported([latest])[stream]["records"] == 300
    assert lag(query) == {stream: {"records": 0, "bytes": 0, "seconds": 0.0}}

    # Without its commit file the last batch looks as if the driver had died before it was recorded.
    (tmp_path / "checkpoint" / "commits" / "2").unlink()
    (tmp_path / "checkpoint" / "commits" / ".2.crc").unlink(missing_ok=True)
    write(any_cluster.uri, stream, numbered(100, 500))
    pipeline.run()
    assert pipeline.offsets() == list(range(600))
    assert [end[stream] for end in pipeline.batches()] == [200, 400, 500, 600]

    # Spark never commits the last batch to its source; the listener gets it.
    with sync.connect(any_cluster.uri) as client:
        ns = client.namespace()
        wait_until(lambda: [(c.name, c.offset, c.lag) for c in ns.cursors(stream)] == [("lag", 600, 0)], "the cursor")


def test_a_query_starts_after_its_first_driver_was_killed_at_once(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    """Spark's temporary file of the first batch must not prevent later starts."""
    write(cluster.uri, stream, numbered(5))
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.95698a05-e02a-4d05-88da-a7106f03a131.tmp").write_text("v1\n")
    source = spark.readStream.format("buckram").options(metadata=cluster.uri, startingOffsets="earliest").load(stream)
    query = source.select("value").writeStream.format("buckram").trigger(availableNow=True)
    query = query.options(metadata=cluster.uri, createStream=True, checkpointLocation=str(tmp_path / "checkpoint"))
    query.start(f"{stream}-copy").awaitTermination()
    with sync.connect(cluster.uri) as client:
        assert client.namespace().info(f"{stream}-copy".partition("/")[2]).end == 5


def test_a_running_query_picks_up_records_and_streams(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    write(cluster.uri, f"{stream}-1", numbered(10))
    pattern = stream.removeprefix("default/") + "-.*"
    pipeline = Pipeline(spark, tmp_path, cluster.uri, subscribePattern=pattern, startingOffsets="latest")
    query = pipeline.start(processingTime="0 seconds")
    try:
        wait_until(lambda: query.lastProgress is not None, "the first progress")
        with sync.connect(cluster.uri) as client, client.namespace().writer(f"{stream}-1") as writer:
            writer.append_many(numbered(5, 10))
            write(cluster.uri, f"{stream}-2", numbered(7))

            def read() -> int:
                query.processAllAvailable()
                return len(pipeline.offsets())

            wait_until(lambda: read() == 12, "five records of the old stream and seven of the new one")
    finally:
        query.stop()
    found = spark.read.parquet(str(pipeline.out)).groupBy("stream").count().collect()
    assert {row.stream: row["count"] for row in found} == {f"{stream}-1": 5, f"{stream}-2": 7}


def test_a_query_that_starts_adds_nothing_to_what_all_queries_share(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    """Two queries that add to one map at a time leave it broken, and then no task of the session can be read."""

    def shared() -> set[str]:
        java: Any = spark._jsparkSession
        source = java.sessionState().dataSourceManager().lookupDataSource("buckram")
        return set(source.dataSourceCls().envVars())

    before = dict(spark.sparkContext.environment)
    register(spark)
    known = shared()
    write(cluster.uri, stream, numbered(10))
    Pipeline(spark, tmp_path, cluster.uri, subscribe=stream).run()
    assert shared() == known
    assert spark.sparkContext.environment == before


def test_limits_by_bytes_and_once(spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path) -> None:
    write(cluster.uri, stream, [b"x" * 1000] * 100)
    pipeline = Pipeline(spark, tmp_path, cluster.uri, subscribe=stream, maxBytesPerTrigger="40k")
    query = pipeline.run()
    assert len([p for p in query.recentProgress if p.numInputRows]) == 3
    assert pipeline.offsets() == list(range(100))
    once = Pipeline(spark, tmp_path / "once", cluster.uri, subscribe=stream, maxBytesPerTrigger="40k")
    assert [p.numInputRows for p in once.run(once=True).recentProgress] == [100]


def test_lost_records_fail_the_query_and_the_error_says_what_to_do(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    write(cluster.uri, stream, numbered(20), numbered(20))
    pipeline = Pipeline(spark, tmp_path, cluster.uri, subscribe=stream, maxOffsetsPerTrigger=10)
    first = pipeline.start(processingTime="1 hour")
    wait_until(lambda: bool(first.recentProgress), "the first batch")
    first.stop()
    with sync.connect(cluster.uri) as client:
        client.namespace().truncate(stream, before=25)
    with pytest.raises(StreamingQueryException, match=r"offset 10 is wanted.*earliest is now 25.*failOnDataLoss"):
        pipeline.run()
    pipeline.options["failOnDataLoss"] = "false"
    pipeline.run()
    assert pipeline.offsets() == [*range(10), *range(25, 40)]


def test_a_missing_stream_ends_the_query_at_once(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    pipeline = Pipeline(spark, tmp_path, cluster.uri, subscribe=stream)
    with pytest.raises(StreamingQueryException, match=f"{stream}: does not exist"):
        pipeline.run()


def test_an_option_for_batch_reads_is_one_plain_error(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    write(cluster.uri, stream, numbered(3))
    pipeline = Pipeline(spark, tmp_path, cluster.uri, subscribe=stream, endingOffsets="latest")
    with pytest.raises(StreamingQueryException, match='"endingOffsets" is for batch reads only') as refused:
        pipeline.run()
    assert "UnboundLocalError" not in str(refused.value)


def test_state_over_a_stream(spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path) -> None:
    """The query has event-time windows on the records' timestamps."""
    hour = 3_600_000_000
    times = [1_700_000_000_000_000 // hour * hour + n * hour // 2 for n in range(8)]
    write(cluster.uri, stream, numbered(8), timestamps=times)
    windows = source(spark, cluster.uri, subscribe=stream).groupBy("stream", _hour()).count()
    name = f"windows{abs(hash(stream))}"
    query = (
        windows.writeStream.format("memory").queryName(name).outputMode("complete")
        .option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(DEADLINE_S)
    assert sorted(row["count"] for row in spark.sql(f"SELECT * FROM {name}").collect()) == [2, 2, 2, 2]


def _hour() -> Any:
    from pyspark.sql import functions as f

    return f.window("timestamp", "1 hour")
