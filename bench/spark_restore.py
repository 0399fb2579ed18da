"""Time to restore the state of a query after a restart: from a gateway, and from a directory.

A query drops duplicates of records of 1 KB of noise, so its state is as large as its input, and no file of it is much
smaller. It is started again three times, with a few new records: the first batch's extra time over a later one is the
reading of state. `state_file_mb` is the size of that state. Run as a program, because a JVM stays in its process:
`python -m bench.spark_restore URI FOLDER PORT`.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.gateway import running
from bench.harness import cluster, last_json
from bench.spark_checkpoint import STORES
from buckram import sync

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Figures = dict[str, Any]
MIB = 1024 * 1024
STATE_BYTES = int(float(os.environ.get("BENCH_STATE_MIB", "1024")) * MIB)
SIZE = 1024
FEW, LATER, RESTARTS = 100, 4, 3


def run() -> Figures:
    """Start bookies and a gateway, and measure in a child process."""
    with cluster() as bench, running(bench) as (port, _):
        return last_json([sys.executable, "-m", "bench.spark_restore", bench.uri, str(bench.folder), str(port)])


def main() -> None:
    uri, folder, port = sys.argv[1:]
    from buckram.spark import local_session
    from buckram.spark.relay.hadoop_settings import settings

    root = f"webhdfs://127.0.0.1:{port}"
    spark = local_session("bench", memory="3g", settings=settings(f"{root}/"))
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STORES["rocksdb"])
    figures: Figures = {}
    try:
        with sync.connect(uri) as client:
            client.namespace().create("noise")
            write(client, STATE_BYTES // SIZE)
            places = {"local": f"{folder}/state", "gateway": f"{root}/default/state"}
            for where in places.values():
                batches_ms(spark, uri, where)
            size = sum(path.stat().st_size for path in Path(places["local"], "state").rglob("*") if path.is_file())
            times: dict[str, list[float]] = {place: [] for place in places}
            for _ in range(RESTARTS):
                write(client, FEW * LATER)
                for place, where in places.items():
                    first, *later = batches_ms(spark, uri, where, FEW)
                    times[place].append(first - statistics.median(later))
        figures["state_file_mb"] = round(size / 1e6, 1)
        for place, took in times.items():
            figures[f"{place}_restore_ms"] = round(statistics.median(took))
            figures[f"{place}_restore_mb_per_s"] = round(size / 1e3 / statistics.median(took), 1)
    finally:
        spark.stop()
    print(json.dumps(figures))


def write(client: sync.Client, records: int) -> None:
    with client.namespace().writer("noise") as writer:
        for begin in range(0, records, 1000):
            noise = os.urandom(min(1000, records - begin) * SIZE)
            writer.append_many([noise[at : at + SIZE] for at in range(0, len(noise), SIZE)])


def batches_ms(spark: SparkSession, uri: str, checkpoint: str, most: int | None = None) -> list[float]:
    """Return the time of each batch of a run that ends when there is nothing left, with `most` records in each."""
    source = spark.readStream.format("buckram").options(metadata=uri, startingOffsets="earliest")
    if most is not None:
        source = source.option("maxOffsetsPerTrigger", most)
    query = source.load("noise").select("value").dropDuplicates().writeStream.format("noop").outputMode("append")
    started = query.trigger(availableNow=True).option("checkpointLocation", checkpoint).start()
    started.awaitTermination()
    return [one.durationMs["addBatch"] for one in started.recentProgress if one.numInputRows]


if __name__ == "__main__":
    main()
