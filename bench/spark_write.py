"""Speed of Spark's writes into a stream: 1 KB rows as a batch job, with one and with three replicas, and a streaming
query's sink beside its scan.

Run as a program, because a JVM stays in its process: `python -m bench.spark_write URI FOLDER PID...`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from bench.harness import cluster, last_json
from bench.spark_read import BATCH, MB, MEGABYTES, TIMES, cpu, timed
from buckram import sync

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

Figures = dict[str, Any]
SIZE, SMALL = 1000, 100
REPLICAS = {"e1": "1/1/1", "e3": "3/3/2"}


def run() -> Figures:
    """Start bookies and measure in a child process."""
    with cluster() as bench:
        command = [sys.executable, "-m", "bench.spark_write", bench.uri, str(bench.folder), *map(str, bench.pids)]
        return last_json(command)


def main() -> None:
    uri, folder, *rest = sys.argv[1:]
    from buckram.spark import local_session

    pids = [int(pid) for pid in rest]
    spark = local_session("bench", memory="4g")
    spark.sparkContext.setLogLevel("OFF")
    try:
        figures = {**batch(spark, uri, folder, pids), **streaming(spark, uri, folder)}
    finally:
        spark.stop()
    print(json.dumps(figures))


def batch(spark: SparkSession, uri: str, folder: str, pids: Sequence[int]) -> Figures:
    """Measure writes from Parquet files of random values, which are read meanwhile; `noop_mb_per_s` is that reading
    alone."""
    count = MEGABYTES * MB // SIZE
    place = f"{folder}/rows.parquet"
    # 63 hashes of 16 bytes are not worth compressing, like most of what is kept in a log.
    parts = ", ".join(f"unhex(md5(concat(id, '/', {n})))" for n in range(63))
    made = spark.range(count).selectExpr(f"substring(concat({parts}), 1, {SIZE}) AS value")
    made.repartition(4).write.option("compression", "none").parquet(place)
    figures: Figures = {}
    with sync.connect(uri) as client:
        ns = client.namespace()
        for _ in range(max(2, TIMES // 2)):
            best(figures, "noop_mb_per_s", rate(count * SIZE, lambda: nothing(spark.read.parquet(place))))
            for name, ensemble in REPLICAS.items():
                ns.create(name, ensemble=ensemble, roll_bytes=128 * 1024 * 1024)
                before = cpu(pids)
                frame = spark.read.parquet(place)
                best(figures, f"{name}_mb_per_s", rate(count * SIZE, lambda: save(frame, uri, name)))  # noqa: B023
                best(figures, f"{name}_mb_per_cpu_s", count * SIZE / (cpu(pids) - before) / MB)
                assert ns.info(name).end == count
                ns.delete(name)
    return {name: round(figure) for name, figure in figures.items()}


def streaming(spark: SparkSession, uri: str, folder: str) -> Figures:
    """A stream of 100 B records, all of it in one run of a query: into nothing, and into another stream."""
    count = MEGABYTES * MB // SMALL // BATCH * BATCH
    figures: Figures = {}
    with sync.connect(uri) as client:
        ns = client.namespace()
        ns.create("from", roll_bytes=128 * 1024 * 1024)
        with ns.writer("from") as writer:
            for _ in range(count // BATCH):
                writer.append_many([b"%0100d" % n for n in range(BATCH)])
        frame = spark.readStream.format("buckram").options(metadata=uri, startingOffsets="earliest").load("from")
        for attempt in range(max(2, TIMES // 2)):
            ns.create(f"to-{attempt}", ensemble="1/1/1")
            for name in ("noop", "buckram"):
                writing = frame.select("value").writeStream.format(name).trigger(availableNow=True)
                writing = writing.option("checkpointLocation", f"{folder}/{name}-{attempt}").option("metadata", uri)
                place = f"to-{attempt}" if name == "buckram" else None
                seconds = timed(lambda: writing.start(place).awaitTermination())  # noqa: B023
                best(figures, f"available_now_{name}_records_per_s", count / seconds)
            assert ns.info(f"to-{attempt}").end == count
    return {name.replace("buckram", "sink"): round(figure) for name, figure in figures.items()}


def save(frame: DataFrame, uri: str, stream: str) -> None:
    frame.write.format("buckram").mode("append").option("metadata", uri).save(stream)


def nothing(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def rate(size: int, work: Any) -> float:
    """Megabytes in a second."""
    began = time.perf_counter()
    work()
    return size / (time.perf_counter() - began) / MB


def best(figures: Figures, name: str, found: float) -> None:
    figures[name] = max(found, figures.get(name, 0))


if __name__ == "__main__":
    main()
