"""A micro-batch in a real Spark session is one trace: its tasks, the ledgers that they read and write, the commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from tests.spark.reading import numbered, write
from tests.support.collector import Collector, collecting
from tests.support.polling import wait_until

from buckram import sync
from buckram.core.streams.names import stream_name
from buckram.spark import register
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark


@pytest.fixture
def collector(spark: SparkSession) -> Iterator[Collector]:
    """One that the session's Python processes are told of meanwhile."""
    environment = spark.sparkContext.environment
    with collecting() as running:
        told = {"BUCKRAM_TELEMETRY_ENDPOINT": running.url, "BUCKRAM_TELEMETRY_TRACE_SHARE": "1"}
        environment.update(told)
        register(spark)
        try:
            yield running
        finally:
            for name in told:
                del environment[name]
            register(spark)


def test_a_micro_batch_is_a_trace_from_the_query_to_its_ledgers(
    spark: SparkSession, cluster: ThreadedCluster, collector: Collector, stream: str, tmp_path: Path
) -> None:
    write(cluster.uri, stream, numbered(100))
    source = spark.readStream.format("buckram").options(metadata=cluster.uri, startingOffsets="earliest").load(stream)
    copy = source.select("value").writeStream.format("buckram").trigger(availableNow=True)
    copy = copy.options(metadata=cluster.uri, createStream=True, smallPartBytes=1)
    copy.option("checkpointLocation", str(tmp_path / "checkpoint")).start(f"{stream}-copy").awaitTermination()
    wait_until(lambda: bool(collector.named("buckram.append")), "the appends of a task were not sent")
    wait_until(lambda: bool(collector.named("buckram.spark.batch")), "the batch was not sent")

    (batch,) = collector.named("buckram.spark.batch")
    assert (batch.parent, batch.error, batch.service) == ("", "", "buckram-spark")
    assert (batch.notes["buckram.spark.batch"], batch.notes["buckram.stream"]) == (0, f"{stream}-copy")
    assert len(batch.notes["buckram.spark.query"]) == 36
    (reading,), (writing,) = collector.named("buckram.spark.read"), collector.named("buckram.spark.write")
    (commit,) = collector.named("buckram.spark.commit")
    assert {one.parent for one in (reading, writing, commit)} == {batch.id}
    appends = [one for one in collector.named("buckram.append") if one.parent == writing.id]
    with sync.connect(cluster.uri) as client:
        ns = client.namespace()
        came_from, went_to = (
            {segment.ledger for segment in ns.segments(stream_name(name).stream)} for name in (stream, f"{stream}-copy")
        )
    (ledger,) = collector.named("buckram.read")
    assert (ledger.parent, ledger.notes["buckram.ledger"] in came_from) == (reading.id, True)
    assert appends
    assert {one.notes["buckram.ledger"] for one in appends} <= went_to
    sent = {one.parent for one in collector.named("buckram.bookie")}
    assert {one.id for one in appends} <= sent
    assert {one.trace for one in (reading, writing, commit, ledger, *appends)} == {batch.trace}
    assert {one.error for one in collector.steps} == {""}
