"""A client of Spark Connect: it reads, follows and writes streams through a server that has the package."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.spark.reading import numbered, write
from tests.support.polling import wait_until

from buckram import sync
from buckram.errors import ConfigError
from buckram.launch.java import find_java
from buckram.testing import ThreadedCluster

pytestmark = [pytest.mark.spark, pytest.mark.share(10, "drivers")]
PACKAGES = ("grpc", "grpc_status", "zstandard", "pandas")

CLIENT = """
import json, sys
from pyspark.sql import SparkSession
from buckram import sync
from buckram.jobs import import_kafka
from buckram.spark import configure, lag, register, views
from buckram.spark.session import SETTINGS

uri, stream, folder = sys.argv[1:]
settings = {
    **SETTINGS,
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.warehouse.dir": folder + "/warehouse",
}
builder = SparkSession.builder.remote("local[2]")
for name, value in settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
found = {"session": type(spark).__module__}
read = lambda **options: spark.read.format("buckram").options(metadata=uri, **options)
found["batch"] = sorted(row.offset for row in read(subscribe=stream, minPartitions=3).load().collect())
register(spark)  # It was found by its name before.
found["pushed"] = read().load(stream).where("offset >= 40").count()


def run():
    source = spark.readStream.format("buckram").options(
        metadata=uri, startingOffsets="earliest", maxOffsetsPerTrigger=30, cursor="connect"
    ).load(stream)
    query = source.select("value", "key").writeStream.format("buckram").trigger(availableNow=True).options(
        metadata=uri, createStream=True, checkpointLocation=folder + "/checkpoint"
    ).start(stream + "-copy")
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows], lag(query)


found["rows"], late = run()
found["late"] = late[stream]["records"]
found["copied"] = read().load(stream + "-copy").count()
read().load(stream).select("value").limit(7).write.format("buckram").options(
    metadata=uri, txnAppId="job", txnVersion=1
).mode("append").save(stream)
read().load(stream).select("value").limit(7).write.format("buckram").options(
    metadata=uri, txnAppId="job", txnVersion=1
).mode("append").save(stream)
found["again"], _ = run()
found["copied again"] = read().load(stream + "-copy").count()
name = stream.partition("/")[2]
views(spark, uri, pattern=name, prefix="v_")
found["view"] = spark.sql(f"SELECT count(*) FROM `v_{name}`").first()[0]
for what, call in {
    "missing": lambda: read().load("default/absent").count(),
    "configure": lambda: configure(SparkSession.builder.remote("sc://nowhere"), "webhdfs://127.0.0.1:1/"),
    "kafka": lambda: import_kafka(spark, uri, "kafka://127.0.0.1:9/orders", stream),
}.items():
    try:
        found[what] = str(call())
    except Exception as error:
        found[what] = f"{type(error).__name__}: {error}"
print(json.dumps(found), flush=True)
spark.stop()
"""


def test_a_client_of_spark_connect_reads_follows_and_writes(
    cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    try:
        java = find_java()
    except ConfigError as error:
        missing.append(str(error))
    if missing:
        if os.environ.get("CI"):
            pytest.fail(f"needs {', '.join(missing)}")
        pytest.skip(f"needs {', '.join(missing)}")
    write(cluster.uri, stream, numbered(30), numbered(20))
    # The variable of Spark's own tests makes the server listen on a free port.
    environment = {**os.environ, "SPARK_TESTING": "1", "JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", CLIENT, cluster.uri, stream, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert "does not exist" in found.pop("missing")
    assert "buckram spark-conf" in found.pop("configure")
    assert "Spark Connect" in found.pop("kafka")
    assert found == {
        "session": "pyspark.sql.connect.session", "batch": list(range(50)), "pushed": 10, "rows": [30, 20], "late": 0,
        "copied": 50, "again": [7], "copied again": 57, "view": 57,
    }  # fmt: skip
    # The listener of the client moves the cursor past the last batch, which Spark never commits to its source.
    with sync.connect(cluster.uri) as client:
        ns, name = client.namespace(), stream.partition("/")[2]
        wait_until(lambda: [one.offset for one in ns.cursors(name)] == [57], "the cursor did not follow", 30)
