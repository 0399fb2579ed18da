"""Fixtures of the Spark tests: one session for the whole run, and clusters on SQLite and on ZooKeeper."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from buckram.errors import ConfigError
from buckram.launch.java import find_java
from buckram.launch.zookeeper_server import ZooKeeperServer
from buckram.spark.session import QUIET, class_archive, local_session
from buckram.spark.shared.clients import close_connections
from buckram.testing import ThreadedCluster

# One compiler tier and one collector thread make the JVM start quickly; its speed does not matter here.
JAVA_OPTIONS = f"-Dlog4j2.configurationFile={QUIET} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.python.worker.faulthandler.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    # The tests do not wait for checkpoint files to be synced.
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.sql.streaming.minBatchesToRetain": "10",
}

OLDEST_PACKAGES = ("pyspark==4.0.0", "py4j==0.10.9.9")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session on two cores with retries and the data source `buckram`. Tests do not stop it."""
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
    """Three bookies for the whole run; each test uses streams of its own and leaves every bookie running."""
    with ThreadedCluster(bookies=3) as running:
        yield running


@pytest.fixture(scope="session")
def zk_cluster(zookeeper_server: ZooKeeperServer) -> Iterator[ThreadedCluster]:
    """Three bookies on a real ZooKeeper, for the whole run."""
    # The root is unique, because tests of other folders make clusters with the same fixtures.
    root = f"/spark-tests-{os.urandom(4).hex()}/ledgers"
    with ThreadedCluster(bookies=3, metadata=f"zk://{zookeeper_server.address}{root}") as running:
        yield running
        # Clients that listeners opened in this process would try to reach its server for a while.
        close_connections()


@pytest.fixture
def cluster(sqlite_cluster: ThreadedCluster) -> ThreadedCluster:
    """The cluster on SQLite, which most tests use."""
    return sqlite_cluster


@pytest.fixture(params=["sqlite", "zk"])
def any_cluster(request: pytest.FixtureRequest) -> ThreadedCluster:
    """A cluster on each metadata store in turn."""
    running = request.getfixturevalue(f"{request.param}_cluster")
    assert isinstance(running, ThreadedCluster)
    return running


@pytest.fixture
def stream(request: pytest.FixtureRequest) -> str:
    """A stream name for this test alone; the stream is not created."""
    plain = "".join(c if c.isalnum() else "-" for c in request.node.name)
    return f"default/{plain[:80]}-{os.urandom(4).hex()}"


@pytest.fixture(scope="session")
def oldest() -> Path:
    """A folder with the oldest PySpark, fetched once per machine. Without a network tests are skipped, except in CI."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "buckram"
    folder = cache / OLDEST_PACKAGES[0].replace("==", "-")
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=cache, prefix="pyspark-draft-"))
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(draft), *OLDEST_PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(draft)
            if os.environ.get("CI"):
                pytest.fail(done.stderr)
            pytest.skip(f"{OLDEST_PACKAGES[0]} cannot be installed: {done.stderr[-300:]}")
        try:
            draft.rename(folder)
        except OSError:  # Another run has made the folder meanwhile.
            shutil.rmtree(draft)
    return folder
