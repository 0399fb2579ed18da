"""Speed of Spark's reads: a stream from real bookies, digests checked, beside a Parquet file of the same rows; both
warm.

Run as a program, because a JVM stays in its process: `python -m bench.spark_read scan|stream URI FOLDER`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from bench.harness import Bench, cluster, last_json
from bench.machine import cpu_seconds, stat_fields
from buckram import sync

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Figures = dict[str, Any]
MB = 1_000_000
MEGABYTES = int(os.environ.get("BENCH_SPARK_MB", "600"))
SIZES = (100, 1000)
TIMES = int(os.environ.get("BENCH_SPARK_TIMES", "7"))
TINY_BATCHES = 40
BATCH = 20_000


def fill(bench: Bench) -> None:
    """Write the streams s100 and s1000, with MEGABYTES of values each."""
    with sync.connect(bench.uri) as client:
        ns = client.namespace()
        for size in SIZES:
            ns.create(f"s{size}", ensemble="3/3/2", roll_bytes=128 * 1024 * 1024)
            noise = os.urandom(size * BATCH)
            values = [noise[at : at + size] for at in range(0, len(noise), size)]
            with ns.writer(f"s{size}") as writer:
                for _ in range(MEGABYTES * MB // len(noise)):
                    writer.append_many(values)


def run(what: str) -> Figures:
    """Start bookies, fill them, and measure in a child process."""
    with cluster() as bench:
        fill(bench)
        return last_json([sys.executable, "-m", "bench.spark_read", what, bench.uri, str(bench.folder),
                          *map(str, bench.pids)])  # fmt: skip


# -- in the child -----------------------------------------------------------------------------------------


def main() -> None:
    what, uri, folder, *pids = sys.argv[1:]
    from buckram.spark import local_session

    spark = local_session("bench", memory="4g")
    spark.sparkContext.setLogLevel("OFF")
    try:
        measured = (scan if what == "scan" else stream)(spark, uri, folder, [int(pid) for pid in pids])
    finally:
        spark.stop()
    print(json.dumps(measured))


def scan(spark: SparkSession, uri: str, folder: str, pids: list[int]) -> Figures:
    figures: Figures = {}
    for size in SIZES:
        count = MEGABYTES * MB // size // BATCH * BATCH
        place = f"{folder}/s{size}.parquet"
        load(spark, uri, size).write.option("compression", "none").parquet(place)
        kinds: dict[str, Callable[[], DataFrame]] = {
            "parquet": lambda place=place: spark.read.parquet(place),  # type: ignore[misc]
            "stream": lambda size=size: load(spark, uri, size),  # type: ignore[misc]
            # As from bookies of other machines.
            "sockets": lambda size=size: load(spark, uri, size, localReads="false"),  # type: ignore[misc]
        }
        best: dict[str, float] = {}
        spent: dict[str, float] = {}
        # In turns, so that what else the machine does hits both alike.
        for _ in range(TIMES):
            for kind, frame in kinds.items():
                before, began = cpu(pids), time.perf_counter()
                frame().write.format("noop").mode("overwrite").save()
                seconds, used = time.perf_counter() - began, cpu(pids) - before
                best[kind] = min(best.get(kind, seconds), seconds)
                spent[kind] = min(spent.get(kind, used), used)
        for kind, seconds in best.items():
            figures[f"{kind}_mb_per_s_{size}"] = round(count * size / seconds / MB)
            figures[f"{kind}_records_per_s_{size}"] = round(count / seconds)
            figures[f"{kind}_mb_per_cpu_s_{size}"] = round(count * size / spent[kind] / MB)
        figures[f"of_parquet_{size}"] = round(best["parquet"] / best["stream"], 2)
        figures[f"sockets_of_parquet_{size}"] = round(best["parquet"] / best["sockets"], 2)
        shutil.rmtree(place)
    return figures


def stream(spark: SparkSession, uri: str, folder: str, pids: list[int]) -> Figures:
    size = SIZES[0]
    count = MEGABYTES * MB // size // BATCH * BATCH
    frame = spark.readStream.format("buckram").options(metadata=uri, startingOffsets="earliest")
    seconds = []
    for attempt in range(max(2, TIMES // 2)):
        writer = frame.load(f"s{size}").writeStream.format("noop").trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint-{attempt}")
        seconds.append(timed(lambda writer=writer: writer.start().awaitTermination()))  # type: ignore[misc]
    tiny = frame.option("maxOffsetsPerTrigger", 10).option(
        "startingOffsets", json.dumps({f"default/s{size}": count - 10 * TINY_BATCHES})
    )
    small = tiny.load(f"s{size}").writeStream.format("noop").trigger(availableNow=True)
    query = small.option("checkpointLocation", f"{folder}/checkpoint-tiny").start()
    query.awaitTermination()
    batches = [progress.batchDuration for progress in query.recentProgress if progress.numInputRows]
    return {
        "available_now_records_per_s": round(count / min(seconds)),
        "micro_batch_ms": round(statistics.median(batches)),
        "micro_batches": len(batches),
    }


def load(spark: SparkSession, uri: str, size: int, **options: str) -> DataFrame:
    return spark.read.format("buckram").options(metadata=uri, **options).load(f"s{size}")


def cpu(pids: Sequence[int]) -> float:
    """Return CPU seconds so far of these bookies and of all that Spark started: the JVM and its Python workers."""
    parents, family = {}, {os.getpid()}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                parents[int(entry)] = int(stat_fields(int(entry))[1])
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    total = 0.0
    for pid in (*family, *pids):
        with contextlib.suppress(OSError):
            total += cpu_seconds(pid)
    return total


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
