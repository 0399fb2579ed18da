"""A Spark driver whose query counts records and keeps everything on a gateway: a process that kills itself.

`python -m tests.serve.webhdfs.driver JSON`. In batch `kill_at` it ends itself and its JVM as kill -9 does. Otherwise it
ends when all records are counted; its last line has the counts. `gateways`: it uses these, with `tls_ca` and `token`,
as `configure` sets it, and so through a relay.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[3]
WAIT_S = 240.0
if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def drive(work: dict[str, Any], folder: Path, pyspark: Path | None = None) -> tuple[int, dict[str, int]]:
    """Run the driver in a directory that holds nothing; its exit code, and the counts. `pyspark`: another version."""
    path = os.pathsep.join(str(one) for one in (pyspark, ROOT / "src", ROOT) if one is not None)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.serve.webhdfs.driver", json.dumps(work)],
        cwd=folder,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": path},
        timeout=WAIT_S,
    )
    lines = done.stdout.decode().splitlines()
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()[-4000:]
    return done.returncode, json.loads(lines[-1]) if lines and done.returncode == 0 else {}


def main() -> None:
    work = json.loads(sys.argv[1])
    from pyspark.sql import functions as f

    from buckram.spark import local_session

    chosen = work["settings"]
    if "gateways" in work:
        from pyspark.sql import SparkSession

        from buckram.spark import configure

        given = {name: work[name] for name in ("tls_ca", "token")}
        chosen = {**chosen, **configure(SparkSession.Builder(), work["gateways"], **given)._options}
    spark = local_session("driver", settings=chosen)
    process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]

    def keep(rows: DataFrame, batch: int) -> None:
        # The state of this batch is complete when its rows are, and the batch is not done before the end.
        rows.write.mode("overwrite").parquet(f"{work['root']}/result")
        if batch == work["kill_at"]:
            os.kill(process.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    frame = spark.readStream.format("buckram").options(
        metadata=work["uri"], startingOffsets="earliest", **work["options"]
    )
    counts = frame.load(work["stream"]).groupBy((f.col("offset") % 7).alias("rest")).count()
    query = counts.writeStream.outputMode("complete").foreachBatch(keep).trigger(availableNow=True)
    assert query.option("checkpointLocation", f"{work['root']}/checkpoint").start().awaitTermination(int(WAIT_S))
    result = spark.read.parquet(f"{work['root']}/result").collect()
    print(json.dumps({str(row.rest): row["count"] for row in result}))
    spark.stop()


if __name__ == "__main__":
    main()
