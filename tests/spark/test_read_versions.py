"""The supported versions of PySpark: a few tests on the oldest one, and the errors for older ones and for none.

All other tests run on the newest version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.spark.conftest import OLDEST_PACKAGES
from tests.spark.reading import numbered, write

from buckram.spark.shared.pyspark_version import NEWEST, OLDEST
from buckram.testing import ThreadedCluster

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, sys
import pyspark
from buckram.spark import local_session

uri, stream, folder = sys.argv[1:]
spark = local_session("oldest")
read = lambda **options: spark.read.format("buckram").options(metadata=uri, **options)
found = {"version": pyspark.__version__}
found["batch"] = sorted(row.offset for row in read(subscribe=stream, minPartitions=3).load().collect())
found["columns"] = read(includeHeaders="true").load(stream).columns
found["narrow"] = read().schema("value binary").load(stream).count()

def run(**options):
    frame = spark.readStream.format("buckram").options(metadata=uri, startingOffsets="earliest", **options).load(stream)
    query = frame.writeStream.format("parquet").option("checkpointLocation", folder + "/checkpoint").trigger(
        availableNow=True).start(folder + "/out")
    query.awaitTermination()
    return sorted(row.offset for row in spark.read.parquet(folder + "/out").collect())

found["first"] = run()
read().load(stream).select("value").write.format("buckram").options(metadata=uri).mode("append").save(stream)
found["written"] = read().load(stream).count()
found["again"] = run()
try:
    run(maxOffsetsPerTrigger="5")
except Exception as error:
    found["limit"] = str(error)
print(json.dumps(found))
"""


def python(code: str, *arguments: str, path: Path | str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(path)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


@pytest.mark.share(10, "drivers")
@pytest.mark.spark
def test_the_oldest_pyspark_reads_and_writes(
    oldest: Path, cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    write(cluster.uri, stream, numbered(30), numbered(20))
    done = python(SCRIPT, cluster.uri, stream, str(tmp_path), path=oldest)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("version") == OLDEST_PACKAGES[0].partition("==")[2]
    assert "need PySpark 4.2 or newer" in found.pop("limit")
    assert found.pop("columns")[-1] == "headers"
    assert found == {
        "batch": list(range(50)), "narrow": 50, "first": list(range(50)), "written": 100, "again": list(range(100)),
    }  # fmt: skip


def test_the_package_names_the_tested_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pinned = [word for word in project["optional-dependencies"]["spark"] if word.startswith("pyspark")]
    assert any("{}.{}".format(*NEWEST) in word for word in pinned)
    assert OLDEST_PACKAGES[0] == "pyspark=={}.{}.0".format(*OLDEST)


def test_an_older_pyspark_is_refused_with_a_message(tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '3.5.4'\n")
    done = python("from buckram.spark import local_session; local_session()", path=tmp_path)
    said = "buckram.spark needs PySpark 4.0 or newer, here is 3.5.4: pip install 'buckram[spark]'"
    assert done.stderr.splitlines()[-1] == f"buckram.errors.ConfigError: {said}"
    done = python("from buckram.spark import register; register(None)", path=tmp_path)
    assert "needs PySpark 4.0 or newer, here is 3.5.4" in done.stderr


def test_without_pyspark_the_message_says_how_to_get_it() -> None:
    code = "import sys; sys.modules['pyspark'] = None\nfrom buckram.spark import register; register(None)"
    said = "of which there is none here, and needs the extra spark: pip install 'buckram[spark]'"
    assert said in python(code).stderr.splitlines()[-1]
