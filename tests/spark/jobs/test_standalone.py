"""A pipeline of two queries and all jobs on a standalone cluster whose two workers have addresses of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from examples import spark_pipeline
from tests.spark.faults.standalone import Standalone

from buckram import sync
from buckram.testing import ThreadedCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]
ROOT = Path(__file__).parents[3]


@pytest.mark.share(4, "pipelines")
def test_a_pipeline_and_jobs_on_two_workers(tmp_path: Path) -> None:
    with ThreadedCluster(bookies=3) as own, Standalone(tmp_path / "spark", ["127.0.0.2", "127.0.0.3"]) as spark:
        spark_pipeline.store(own.uri, [b"%s,%d" % ((b"ann", b"bob")[n % 2], n) for n in range(800)])
        command = [sys.executable, "-m", "tests.spark.jobs.on_standalone", spark.url, own.uri, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr[-4000:]
        said = json.loads(done.stdout.splitlines()[-1])
        expected = [[name, 400, 1.25 * sum(range(first, 800, 2))] for first, name in enumerate(("ann", "bob"))]
        assert said["total"] == expected
        assert said["same"]
        assert (said["problems"], said["bad"]) == ([], [])
        assert said["made"] >= 2
        assert said["replicas"] > 0
        assert set(said["orphans"]) == {"in progress"}  # Ledgers that compaction replaced are kept for an hour.
        with sync.connect(own.uri) as client:
            for stream in (spark_pipeline.ORDERS, spark_pipeline.PAID):
                assert [record.offset for record in client.namespace().read(stream)] == list(range(800))
    workers = [log.read_text(errors="replace") for log in (tmp_path / "spark").glob("127.0.0.*.log")]
    assert len(workers) == 2
    assert all("Launching executor" in text or "Asked to launch executor" in text for text in workers)
