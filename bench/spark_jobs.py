"""Speed of the scrub job: bytes read per second, and per second of CPU of Spark, its workers and the bookies together.

Run as a program, because a JVM stays in its process: `python -m bench.spark_jobs URI PID...`.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from bench.harness import cluster, last_json
from bench.spark_read import MB, TIMES, cpu, fill

Figures = dict[str, Any]


def scrub() -> Figures:
    """Start bookies, fill them, and measure in a child process."""
    with cluster() as bench:
        fill(bench)
        return last_json([sys.executable, "-m", "bench.spark_jobs", bench.uri, *map(str, bench.pids)])


def main() -> None:
    uri, *rest = sys.argv[1:]
    from buckram import jobs
    from buckram.spark import local_session

    pids = [int(pid) for pid in rest]
    spark = local_session("bench", memory="2g")
    spark.sparkContext.setLogLevel("OFF")
    best: Figures = {}
    try:
        for _ in range(max(2, TIMES // 2)):  # the first pays for starting workers and compiling
            before, began = cpu(pids), time.perf_counter()
            found = jobs.scrub(spark, uri)
            seconds, spent = time.perf_counter() - began, cpu(pids) - before
            assert found.healthy, found.bad or found.unknown
            rates = {"mb_per_s": round(found.bytes / seconds / MB), "mb_per_cpu_s": round(found.bytes / spent / MB)}
            best = {name: max(rate, best.get(name, 0)) for name, rate in rates.items()}
    finally:
        spark.stop()
    print(json.dumps({**best, "replicas": found.replicas, "megabytes": found.bytes // MB}))


if __name__ == "__main__":
    main()
