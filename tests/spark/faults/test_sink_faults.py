"""Faults of tasks, workers and commits while a query writes: each row is in the stream exactly once.

Each row of the table is a query of several batches, on SQLite and on ZooKeeper, all in one session.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from tests.spark.faults.chaos import ChaosSource
from tests.spark.faults.kit import Lines, leftovers, named_by, segments, values

from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.share(8)

FILES, ROWS = 3, 150


@pytest.fixture
def chaotic(spark: SparkSession) -> SparkSession:
    spark.dataSource.register(ChaosSource)
    return spark


def run(session: SparkSession, uri: str, stream: str, faults: str, *queries: Lines, **options: str) -> int:
    """Run queries side by side and restart those that fail, as an operator would; returns the number of restarts."""
    starts, left = 0, list(queries)
    while left:
        starts += len(left)
        assert starts < 12, "a query does not get through"
        running = []
        for lines in left:
            marks = lines.directory / "marks"
            marks.mkdir(exist_ok=True)
            chaotic_options = {**options, "faults": faults, "marks": str(marks), "source": "buckram_chaos"}
            running.append((lines, lines.start(session, uri, stream, **chaotic_options)))
        left = [lines for lines, query in running if not ends_well(query)]
    return starts - len(queries)


def ends_well(query: StreamingQuery) -> bool:
    try:
        query.awaitTermination()
    except StreamingQueryException:
        return False
    return True


def struck(lines: Lines) -> set[str]:
    return {mark.name for mark in (lines.directory / "marks").iterdir()}


@pytest.mark.parametrize(
    ("faults", "restarts", "left"),
    [
        pytest.param("raise-early:0:1,raise-late:1:2,raise-late:2:0", 0, 2, id="tasks raise"),
        pytest.param("kill-early:0:0,kill-late:1:1,kill-early:2:2", 0, 3, id="workers killed"),
        pytest.param("commit-before:0,commit-after:1,commit-before:2", 3, None, id="commits raise"),
        pytest.param("lost-reply:0,lost-reply:1,lost-reply:2", 0, 0, id="replies lost"),
        pytest.param("raise-late:0:1,lost-reply:0,commit-after:0,kill-late:1:0,commit-before:1", 2, None, id="all"),
    ],
)
def test_each_row_once(
    chaotic: SparkSession, any_cluster: ThreadedCluster, stream: str, tmp_path: Path, faults: str, restarts: int,
    left: int | None,
) -> None:  # fmt: skip
    lines = Lines(tmp_path, files=FILES, rows=ROWS)
    assert run(chaotic, any_cluster.uri, stream, faults, lines) == restarts
    assert struck(lines) == {fault.replace(":", ".") for fault in faults.split(",")}
    assert Counter(values(any_cluster.uri, stream)) == lines.expected
    before, after = leftovers(any_cluster.uri, stream)
    assert after == 0
    assert left is None or before == left
    assert Counter(values(any_cluster.uri, stream)) == lines.expected


@pytest.mark.parametrize(
    ("faults", "restarts", "left"),
    [
        pytest.param("raise-late:0:1,kill-late:1:2,raise-early:2:0", 0, 0, id="tasks"),
        pytest.param("driver-open:0,driver-sealed:1,driver-open:2", 3, None, id="the driver's ledger"),
        pytest.param("commit-before:0,lost-reply:0,commit-after:1,lost-reply:2,driver-sealed:2", 3, None, id="all"),
    ],
)
def test_each_row_once_of_small_parts(
    chaotic: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path, faults: str, restarts: int,
    left: int | None,
) -> None:  # fmt: skip
    """Rows travel in messages: dead tasks leave nothing, and the janitor deletes the driver's unpublished ledgers."""
    lines = Lines(tmp_path, files=FILES, rows=ROWS)
    assert run(chaotic, cluster.uri, stream, faults, lines, smallPartBytes="32k") == restarts
    assert struck(lines) == {fault.replace(":", ".") for fault in faults.split(",")}
    assert Counter(values(cluster.uri, stream)) == lines.expected
    assert segments(cluster.uri, stream) == FILES
    before, after = leftovers(cluster.uri, stream)
    assert after == 0
    assert left is None or before == left


@pytest.mark.parametrize("small", ["1", "32k"], ids=["ledgers", "messages"])
def test_each_row_once_in_many_streams(
    chaotic: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path, small: str
) -> None:
    lines = Lines(tmp_path, files=FILES, rows=ROWS)
    faults = "raise-late:0:1,lost-reply:0,commit-after:0,kill-late:1:0,commit-before:1,lost-reply:2"
    assert run(chaotic, cluster.uri, stream, faults, lines, smallPartBytes=small, byStream="true") == 2
    assert struck(lines) == {fault.replace(":", ".") for fault in faults.split(",")}
    found = {name: Counter(values(cluster.uri, name)) for name in named_by(stream)}
    assert sum(found.values(), Counter()) == lines.expected
    assert all(len(rows) > ROWS // 10 for rows in found.values())
    for name in found:
        assert leftovers(cluster.uri, name)[1] == 0


def test_a_repeated_last_batch_writes_nothing(
    chaotic: SparkSession, any_cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    lines = Lines(tmp_path, files=FILES, rows=ROWS)
    lines.run(chaotic, any_cluster.uri, stream)
    for name in (f"{FILES - 1}", f".{FILES - 1}.crc"):
        (lines.checkpoint / "commits" / name).unlink(missing_ok=True)
    lines.add(1)
    lines.run(chaotic, any_cluster.uri, stream)
    assert (lines.checkpoint / "commits" / f"{FILES}").exists()
    assert Counter(values(any_cluster.uri, stream)) == lines.expected
    assert leftovers(any_cluster.uri, stream) == (0, 0)


@pytest.mark.parametrize("name", [{}, {"txnAppId": "orders"}], ids=["unnamed", "named"])
def test_a_deleted_checkpoint_is_an_error_that_names_the_option(
    chaotic: SparkSession, cluster: ThreadedCluster, stream: str, tmp_path: Path, name: dict[str, str]
) -> None:
    lines = Lines(tmp_path, files=2, rows=ROWS)
    lines.run(chaotic, cluster.uri, stream, **name)
    shutil.rmtree(lines.checkpoint)
    for _ in range(2):
        with pytest.raises(PySparkException, match=r"the checkpoint was reset.*onCheckpointReset=newEpoch") as failed:
            lines.run(chaotic, cluster.uri, stream, **name)
        assert "txnAppId" in str(failed.value)
        assert Counter(values(cluster.uri, stream)) == lines.expected
    assert leftovers(cluster.uri, stream) == (0, 0)
    lines.run(chaotic, cluster.uri, stream, onCheckpointReset="newEpoch", **name)
    assert Counter(values(cluster.uri, stream)) == lines.expected + lines.expected  # newEpoch writes all rows again.
    lines.add(1)
    lines.run(chaotic, cluster.uri, stream, **name)
    assert len(values(cluster.uri, stream)) == 5 * ROWS


def test_two_queries_into_one_stream(
    chaotic: SparkSession, any_cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    both = [Lines(tmp_path / name, files=FILES, rows=ROWS) for name in ("a", "b")]
    run(chaotic, any_cluster.uri, stream, "raise-late:1:0,commit-after:2", *both)
    assert Counter(values(any_cluster.uri, stream)) == both[0].expected + both[1].expected
    assert leftovers(any_cluster.uri, stream)[1] == 0
