"""A table as a sink in a Spark session: a checkpoint that went back, was deleted, or is not named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.reading import numbered, write
from tests.spark.test_db import execute, query

from buckram.testing import ThreadedCluster

pytest.importorskip("apsw")
pytestmark = [pytest.mark.spark, pytest.mark.share(4)]


def test_no_row_of_a_batch_is_skipped_and_none_comes_twice(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    database, checkpoint = f"{stream[-9:].strip('-/')}-d", tmp_path / "checkpoint"
    execute(cluster, database, "CREATE TABLE item (value TEXT)")

    def run(**options: str) -> None:
        frame = spark.readStream.format("buckram").options(metadata=cluster.uri, startingOffsets="earliest")
        rows = frame.load(f"{stream}-in").selectExpr("cast(value AS string) AS value").writeStream
        given = {"metadata": cluster.uri, "dbtable": "item", **options}
        rows.format("buckram.db").options(**given).trigger(availableNow=True).start(
            f"default/{database}"
        ).awaitTermination()

    def there() -> tuple[int, int]:
        ((rows, distinct),) = query(cluster, database, "SELECT count(*), count(DISTINCT value) FROM item")
        return rows, distinct

    named = {"checkpointLocation": str(checkpoint)}
    write(cluster.uri, f"{stream}-in", numbered(100))
    run(**named)
    shutil.copytree(checkpoint, tmp_path / "older")
    write(cluster.uri, f"{stream}-in", [b"next %d" % n for n in range(10)])
    run(**named)
    run(**named)
    assert there() == (110, 110)
    # The checkpoint goes back by one batch, which then has other rows.
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "older", checkpoint)
    write(cluster.uri, f"{stream}-in", [b"last %d" % n for n in range(10)])
    with pytest.raises(Exception, match="was published with 10 rows and now has 20"):
        run(**named)
    shutil.rmtree(checkpoint)
    with pytest.raises(Exception, match="the checkpoint was reset"):
        run(**named)
    assert there() == (110, 110)
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "elsewhere"))
    try:
        with pytest.raises(Exception, match='neither "checkpointLocation" nor "txnAppId"'):
            run()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert there() == (110, 110)
