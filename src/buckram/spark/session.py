"""A local Spark session with the settings that Buckram's performance is measured with.

`local_session` sets JAVA_HOME and the workers' interpreter before the JVM starts. A program may also use a session of
its own; docs/tutorial/spark.md says what to set.
"""

from __future__ import annotations

import os
import sys
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from buckram.launch.java import find_java
from buckram.spark.shared.pyspark_version import need_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The JVM and its Python workers use Unix sockets instead of TCP.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # A driver that is killed while Spark records its first batch leaves a temporary file. Spark 4.3 takes the file for
    # another query's and fails every later start with STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY. The check is not
    # needed, since the sink recognises batches of another query.
    "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
QUIET = (Path(__file__).parent / "log4j2.properties").as_uri()
FOREIGN_VARIABLES = ("SPARK_HOME", "PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")


def local_session(
    name: str = "buckram", *, cores: int = 2, memory: str = "1g", settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Start a session on `cores` cores with the source `buckram` registered, or return the present session.

    Raises ConfigError without PySpark 4.0 or Java 17.
    """
    need_pyspark()
    os.environ["JAVA_HOME"] = str(find_java().home)
    # Without this, workers run the `python3` of the PATH, which may not have this package.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    for variable in FOREIGN_VARIABLES:
        os.environ.pop(variable, None)

    from pyspark.sql import SparkSession

    # The second number allows retries; without it one lost Python worker ends the job.
    builder = SparkSession.builder.appName(name).master(f"local[{cores},3]")
    chosen = {
        **SETTINGS,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET}",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.warehouse.dir": os.path.join(tempfile.gettempdir(), f"buckram-warehouse-{os.getuid()}"),
        **(settings or {}),
    }
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    register(session)
    return session


def class_archive() -> Path:
    """Return the path for a class archive of this PySpark and Java, with which a JVM starts three seconds sooner.

    A JVM with -XX:ArchiveClassesAtExit writes the archive, and -XX:SharedArchiveFile uses it. It fits only this Java
    and these jars, so both are part of the name.
    """
    import pyspark

    java = find_java()
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    place = zlib.crc32(f"{java.home} {Path(pyspark.__file__).parent}".encode())
    return Path(cache) / "buckram" / f"spark-{pyspark.__version__}-java-{java.version}-{place:08x}.jsa"


def register(session: SparkSession) -> None:
    """Register the formats `buckram` and `buckram.db` with a session, and two listeners.

    One moves cursors past the last batch of a query, the other shows how far queries are behind to Prometheus.

    Reading and writing work without it if PySpark discovers the source; cursors then stay one batch behind. Raises
    ConfigError if PySpark is older than 4.0.
    """
    need_pyspark()
    from pyspark.errors import AnalysisException

    from buckram.spark.data_source import BuckramDataSource
    from buckram.spark.databases.data_source import DatabaseDataSource

    for source in (BuckramDataSource, DatabaseDataSource):
        try:
            with _whole_environment(session):
                session.dataSource.register(source)
        except AnalysisException as error:
            # PySpark 4.0 refuses to register a source that it has discovered by itself.
            if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                raise
    if session not in _followed:
        from buckram.spark.source.query_cursor import CursorListener
        from buckram.spark.source.query_lag import LagListener

        session.streams.addListener(CursorListener())
        session.streams.addListener(LagListener())
        _followed.add(session)


@contextmanager
def _whole_environment(session: SparkSession) -> Iterator[None]:
    """Give a data source registered inside all variables that Spark sets for the workers of streaming queries.

    Each query that starts sets them in one map of the data source, which is not safe between threads (Spark 4.0 to
    4.3): two queries that start together can leave it with a wrong size, and then every task of every query fails with
    OptionalDataException until the session ends. A variable that is there is only replaced, which is safe.
    """
    from pyspark.sql.utils import is_remote

    if is_remote():  # the map is at the server
        yield
        return
    environment = session.sparkContext.environment
    added = {name: value for name, value in _WORKER_VARIABLES.items() if name not in environment}
    environment.update(added)
    try:
        yield
    finally:
        for name in added:
            del environment[name]


_WORKER_VARIABLES = {
    "SPARK_LOCAL_DIRS": tempfile.gettempdir(),
    "SPARK_AUTH_SOCKET_TIMEOUT": "15",
    "SPARK_BUFFER_SIZE": "65536",
    "SPARK_PYTHON_RUNTIME": "PYTHON_WORKER",
}
"""Spark replaces the values, except the last one, which is its own."""

_followed: weakref.WeakSet[SparkSession] = weakref.WeakSet()
"""The sessions that have the listeners."""
