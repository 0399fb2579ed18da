"""Cost of a micro-batch's checkpoint: on a gateway, with each of Spark's file managers, and in a directory.

Run as a program, because a JVM stays in its process: `python -m bench.spark_checkpoint URI FOLDER PORT`.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING, Any

from bench.gateway import running
from bench.harness import cluster, last_json
from buckram import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Figures = dict[str, Any]
BATCHES, WARM_UP, RECORDS = 100, 50, 100
STORES = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}


def run() -> Figures:
    """Start bookies and a gateway, and measure in a child process."""
    with cluster() as bench, running(bench) as (port, _):
        command = [sys.executable, "-m", "bench.spark_checkpoint", bench.uri, str(bench.folder), str(port)]
        return last_json(command)


def main() -> None:
    uri, folder, port = sys.argv[1:]
    from buckram.spark import local_session
    from buckram.spark.relay.hadoop_settings import settings

    root = f"webhdfs://127.0.0.1:{port}"
    fewer = settings(f"{root}/", fewer_requests=True)
    name = "spark.sql.streaming.checkpointFileManagerClass"
    spark = local_session("bench", memory="2g", settings=settings(f"{root}/"))
    spark.sparkContext.setLogLevel("OFF")
    figures: Figures = {}
    try:
        with sync.connect(uri) as client:
            client.namespace().create("numbers")
            with client.namespace().writer("numbers") as writer:
                for number in range(BATCHES):
                    writer.append_many([b"%d" % number] * RECORDS)
        for store, provider in STORES.items():
            spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
            for place, where in (("local", f"{folder}/{store}"), ("gateway", f"{root}/default/{store}")):
                figures[f"{place}_{store}_ms"] = micro_batch_ms(spark, uri, where)
            spark.conf.set(name, fewer[name])
            figures[f"gateway_fewer_requests_{store}_ms"] = micro_batch_ms(spark, uri, f"{root}/default/{store}-fewer")
            spark.conf.unset(name)
            figures[f"{store}_times_local"] = round(figures[f"gateway_{store}_ms"] / figures[f"local_{store}_ms"], 2)
    finally:
        spark.stop()
    print(json.dumps(figures))


def micro_batch_ms(spark: SparkSession, uri: str, checkpoint: str) -> float:
    """Return the median of a batch of 100 records that are counted in two partitions, once the JVM is warm."""
    frame = spark.readStream.format("buckram").options(
        metadata=uri, startingOffsets="earliest", maxOffsetsPerTrigger=RECORDS
    )
    counts = frame.load("numbers").groupBy("value").count()
    query = counts.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
    started = query.option("checkpointLocation", checkpoint).start()
    started.awaitTermination()
    times = [one.durationMs["triggerExecution"] for one in started.recentProgress if one.numInputRows]
    return round(statistics.median(times[WARM_UP:]), 1)


if __name__ == "__main__":
    main()
