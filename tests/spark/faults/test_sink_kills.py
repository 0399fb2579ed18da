"""Drivers that are killed with their JVM, a driver that is stopped and resumed, and speculation on two hosts.

These tests are slow, because each driver is a process of its own, so a share of them runs each time and many rounds in
`make soak` (`rounds.py`).
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.spark.faults.chaos import wait_for
from tests.spark.faults.driver import Driver
from tests.spark.faults.kit import Lines, leftovers, named_by, values
from tests.spark.faults.standalone import Standalone
from tests.support.soak import stores

from buckram.testing import ThreadedCluster

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.share(10, "drivers")]
KILLED = -9


def finish(driver: Driver) -> None:
    with driver:
        assert driver.wait() == 0, driver.last_words()


@pytest.mark.parametrize("any_cluster", stores("zk"), indirect=True)
@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        pytest.param("die-before:0", [(0, 0)], id="before it"),
        pytest.param("die-after:0", [(1, 0)], id="before Spark records it"),
        pytest.param("die-after:2", [(3, 2)], id="at the last batch"),
        pytest.param(
            "die-before:0,die-after:0,die-after:2", [(0, 0), (1, 0), (3, 2)], id="all", marks=pytest.mark.soak
        ),
    ],
)
def test_a_driver_is_killed_around_the_publishing(
    any_cluster: ThreadedCluster, stream: str, tmp_path: Path, faults: str, expected: list[tuple[int, int]]
) -> None:
    lines = Lines(tmp_path, files=3, rows=100)
    published = []
    for _ in faults.split(","):
        with Driver(lines, any_cluster.uri, stream, faults) as driver:
            assert driver.wait() == KILLED, driver.last_words()
        committed = [path for path in (lines.checkpoint / "commits").glob("*") if path.name.isdigit()]
        published.append((len(values(any_cluster.uri, stream)) // 100, len(committed)))
    assert published == expected
    finish(Driver(lines, any_cluster.uri, stream, faults))
    assert Counter(values(any_cluster.uri, stream)) == lines.expected
    assert leftovers(any_cluster.uri, stream)[1] == 0


@pytest.mark.parametrize("any_cluster", stores("zk"), indirect=True)
def test_a_driver_of_many_streams_is_killed_around_the_publishing(
    any_cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    """Whenever it dies, all streams have the same batches."""
    lines = Lines(tmp_path, files=2, rows=100)
    faults, options = "die-after:0,die-before:1", {"byStream": "true"}
    for _ in faults.split(","):
        with Driver(lines, any_cluster.uri, stream, faults, options=options) as driver:
            assert driver.wait() == KILLED, driver.last_words()
        found = Counter(value for name in named_by(stream) for value in values(any_cluster.uri, name))
        assert found == Counter(b"0.%d" % row for row in range(100))
    finish(Driver(lines, any_cluster.uri, stream, faults, options=options))
    found = Counter(value for name in named_by(stream) for value in values(any_cluster.uri, name))
    assert found == lines.expected
    assert [leftovers(any_cluster.uri, name)[1] for name in named_by(stream)] == [0] * 5


@pytest.mark.parametrize("any_cluster", stores("sqlite"), indirect=True)
def test_a_driver_that_wakes_up_late_publishes_nothing_twice(
    any_cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    """A driver is stopped before it publishes its second batch and resumes after another one used its checkpoint."""
    lines = Lines(tmp_path, files=3, rows=100)
    with Driver(lines, any_cluster.uri, stream, "hold:1") as zombie:
        wait_for(zombie.marks / "held")
        assert len(values(any_cluster.uri, stream)) == 100
        finish(Driver(lines, any_cluster.uri, stream))
        assert Counter(values(any_cluster.uri, stream)) == lines.expected
        (zombie.marks / "go").touch()
        assert zombie.wait() != 0  # It finds that another driver has written its checkpoint.
        assert "older than version 2" in zombie.last_words() or "CONCURRENT" in zombie.last_words()
    assert Counter(values(any_cluster.uri, stream)) == lines.expected
    assert leftovers(any_cluster.uri, stream)[1] == 0


def test_speculation_and_a_lost_executor_on_two_hosts(
    sqlite_cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    lines = Lines(tmp_path, files=2, rows=100)
    settings = {
        "spark.executor.cores": "1", "spark.executor.memory": "512m", "spark.cores.max": "2",
        "spark.executorEnv.PYTHONPATH": str(Path(__file__).parents[3]),
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        # Spark starts speculative copies when half of the tasks are done, whatever the progress of the others.
        "spark.speculation": "true", "spark.speculation.quantile": "0.5", "spark.speculation.multiplier": "1.1",
        "spark.speculation.interval": "50ms", "spark.speculation.efficiency.enabled": "false",
    }  # fmt: skip
    with Standalone(tmp_path / "spark", ["127.0.0.2", "127.0.0.3"]) as spark:
        faults = "slow:0:1,kill-executor:1:0"
        finish(Driver(lines, sqlite_cluster.uri, stream, faults, spark.url, settings))
    assert {path.name for path in (tmp_path / "marks").iterdir()} >= {"slow.0.1", "kill-executor.1.0"}
    assert Counter(values(sqlite_cluster.uri, stream)) == lines.expected
    before, after = leftovers(sqlite_cluster.uri, stream)
    assert before >= 2  # The slow attempt and the killed one have left ledgers.
    assert after == 0
