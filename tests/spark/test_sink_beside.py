"""A sink beside a live writer: rows stand between the writer's records, each once, and the writer goes on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.reading import numbered, write

from buckram import sync
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark


def test_a_query_writes_into_a_stream_that_a_writer_goes_on_with(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    write(cluster.uri, f"{stream}-in", numbered(300))
    name = stream.partition("/")[2]
    with sync.connect(cluster.uri) as client:
        ns, over, mine = client.namespace(), threading.Event(), []
        with ns.writer(name) as writer:
            mine.append(writer.append(b"w0"))

            def keep_on() -> None:
                while not over.is_set():
                    mine.append(writer.append(b"w%d" % len(mine)))

            thread = threading.Thread(target=keep_on)
            thread.start()
            try:
                frame = spark.readStream.format("buckram").options(
                    metadata=cluster.uri, startingOffsets="earliest", maxOffsetsPerTrigger=100
                )
                query = frame.load(f"{stream}-in").select("value").writeStream.format("buckram")
                query = query.trigger(availableNow=True).options(
                    metadata=cluster.uri, besideWriter=True, checkpointLocation=str(tmp_path / "checkpoint")
                )
                query.start(stream).awaitTermination()
                for file in ("2", ".2.crc"):
                    (tmp_path / "checkpoint" / "commits" / file).unlink()
                query.start(stream).awaitTermination()
            finally:
                over.set()
                thread.join()
        found = [bytes(record.value or b"") for record in ns.read(name)]
    assert [found[at] for at in mine] == [b"w%d" % n for n in range(len(mine))]
    assert sorted(value for value in found if not value.startswith(b"w")) == sorted(numbered(300))
    assert len(found) == len(mine) + 300


def test_without_the_option_the_writer_is_named(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    with sync.connect(cluster.uri) as client, client.namespace().writer(stream.partition("/")[2], name="alice"):
        frame = spark.range(3).selectExpr("cast(id AS string) AS value").write.format("buckram").mode("append")
        with pytest.raises(Exception, match=r"'alice' .*besideWriter"):
            frame.options(metadata=cluster.uri).save(stream)
        with pytest.raises(Exception, match="one ends a live writer, the other lets it go on"):
            frame.options(metadata=cluster.uri, besideWriter=True, sealLive=True).save(stream)
        frame.options(metadata=cluster.uri, besideWriter=True, sealLive=False).save(stream)
