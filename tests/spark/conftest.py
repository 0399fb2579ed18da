"""Shared by the Spark tests: one session for the whole run, and clusters on SQLite and on ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from buckram.errors import ConfigError
from buckram.java import find_java
from buckram.spark.clients import close_connections
from buckram.spark.session import QUIET, class_archive, local_session
from buckram.testing import ThreadedCluster
from buckram.zookeeper_server import ZooKeeperServer

# For a quick start, not for speed: one compiler tier, one collector thread.
JAVA_OPTIONS = f"-Dlog4j2.configurationFile={QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    # A query whose checkpoint is on a RAM disk or not: nobody waits for its files here.
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.sql.streaming.minBatchesToRetain": "10",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session on two cores with retries, the data source `buckram` registered. It is not stopped by tests."""
    try:
        find_java()
    except ConfigError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    archive = class_archive()
    java = JAVA_OPTIONS
    if archive.exists():
        java += f" -XX:SharedArchiveFile={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    settings = {
        **SETTINGS,
        "spark.driver.extraJavaOptions": java,
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
    }
    session = local_session("buckram-tests", settings=settings)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def sqlite_cluster() -> Iterator[ThreadedCluster]:
    """Three bookies for the whole run; a test takes streams of its own and leaves every bookie running."""
    with ThreadedCluster(bookies=3) as running:
        yield running


@pytest.fixture(scope="session")
def zk_cluster(zookeeper_server: ZooKeeperServer) -> Iterator[ThreadedCluster]:
    """The same on a real ZooKeeper."""
    # A root of its own: other folders' tests make the same cluster of these fixtures.
    root = f"/spark-tests-{os.urandom(4).hex()}/ledgers"
    with ThreadedCluster(bookies=3, metadata=f"zk://{zookeeper_server.address}{root}") as running:
        yield running
        # What listeners opened in this process would look for its server for a while.
        close_connections()


@pytest.fixture
def cluster(sqlite_cluster: ThreadedCluster) -> ThreadedCluster:
    """What most tests take."""
    return sqlite_cluster


@pytest.fixture(params=["sqlite", "zk"])
def any_cluster(request: pytest.FixtureRequest) -> ThreadedCluster:
    """The test runs once on each metadata store."""
    running = request.getfixturevalue(f"{request.param}_cluster")
    assert isinstance(running, ThreadedCluster)
    return running


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    """A stream name of this test's own; nothing is made."""
    plain = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"default/{plain[:80]}-{os.urandom(4).hex()}"
