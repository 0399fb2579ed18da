"""Spark on a cluster with TLS, tokens and grants, and on encrypted streams; secrets show nowhere."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col
from tests.e2e.conftest import Up, buckram

from buckram.config import TlsConfig
from buckram.spark.shared.clients import close_connections
from buckram.spark.shared.cluster_uri import ClusterUri, cluster_uri
from buckram.testing import ThreadedCluster

VALUES = [b"%d" % number for number in range(500)]


class Place:
    """A secure cluster, and the options that let a query in."""

    def __init__(self, running: Up) -> None:
        client = running.ready["client"]
        self.token, self.uri = str(client["token"]), str(running.ready["service"])
        self.options = {"metadata": self.uri, "token": self.token, "tls.ca": str(client["ca"])}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    # Else Spark's workers, which are processes of the bookies' own user, would need no token.
    settings = {"BUCKRAM_AUTH_UNIX_ADMIN": "0"}
    running = Up(tmp_path_factory.mktemp("secure") / "data", "--bookies", 3, "--secure", env=settings)
    try:
        yield Place(running)
    finally:
        close_connections()
        running.stop()


def written(spark: SparkSession, options: dict[str, str], stream: str) -> None:
    rows = spark.createDataFrame([(value,) for value in VALUES], "value binary")
    rows.coalesce(2).write.format("buckram").options(**options).option("createStream", "true").mode("append").save(
        stream
    )


def read(spark: SparkSession, options: dict[str, str], stream: str) -> DataFrame:
    return spark.read.format("buckram").options(**options).load(stream)


@pytest.mark.share(10, "drivers")
def test_executors_enter_with_tls_and_a_token_and_nothing_shows_it(
    spark: SparkSession, place: Place, stream: str, capfd: pytest.CaptureFixture[str]
) -> None:
    written(spark, place.options, stream)
    frame = read(spark, {**place.options, "minPartitions": "3"}, stream)
    assert sorted(bytes(row.value) for row in frame.select("value").collect()) == sorted(VALUES)
    frame.where(col("offset") > 3).explain(extended=True)
    shown = capfd.readouterr()
    plans = frame._jdf.queryExecution().toString()
    status = json.dumps([str(one) for one in spark.sparkContext.statusTracker().getJobIdsForGroup(None)])
    assert all(place.token not in text for text in (shown.out, shown.err, plans, status))
    assert "buckram" in shown.out


def test_a_streaming_query_leaves_no_token_in_its_checkpoint(
    spark: SparkSession, place: Place, stream: str, tmp_path: Path
) -> None:
    written(spark, place.options, stream)
    source = spark.readStream.format("buckram").options(**place.options).option("startingOffsets", "earliest")
    query = (
        source.option("cursor", "spark")
        .load(stream)
        .writeStream.format("memory")
        .queryName("secured")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    assert spark.sql("SELECT count(*) FROM secured").first()[0] == len(VALUES)
    files = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not any(place.token.encode() in text for text in files)


@pytest.mark.parametrize("missing", ["token", "tls.ca"])
def test_without_a_part_of_it_there_is_an_error_that_shows_nothing(
    spark: SparkSession, place: Place, stream: str, missing: str
) -> None:
    options = {name: value for name, value in place.options.items() if name != missing}
    with pytest.raises(PySparkException) as error:
        read(spark, options, stream).collect()
    assert place.token not in str(error.value)


def test_what_was_not_granted_is_refused(spark: SparkSession, place: Place) -> None:
    with pytest.raises(PySparkException, match="may not"):
        read(spark, place.options, "shop/orders").collect()


def test_the_way_in_travels_with_the_uri_and_is_no_part_of_its_text() -> None:
    given = {"token": "secret-token", "tls.ca": "/ca.pem", "tls.certificate": None, "tls.key": None, "tokenFile": None}
    uri = cluster_uri("buckram+tls://h/", given, {})
    assert (uri, uri.token, uri.tls) == ("buckram+tls://h/", "secret-token", TlsConfig("required", "/ca.pem"))
    again = pickle.loads(pickle.dumps(uri))
    assert (again, again.token, again.tls, again.secured) == (uri, uri.token, uri.tls, True)
    assert "secret" not in f"{uri} {uri!r} {json.dumps({'cluster': uri})}"
    environment = {"BUCKRAM_TOKEN": "of-the-driver", "BUCKRAM_CA": "/other.pem"}
    found = cluster_uri("sqlite:///a", {}, environment)
    assert (found.token, found.tls.ca, found.tls.mode) == ("of-the-driver", "/other.pem", "required")
    assert not ClusterUri("sqlite:///a").secured


def test_a_file_may_hold_the_token(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    assert cluster_uri("sqlite:///a", {"tokenFile": str(tmp_path / "token")}, {}).token == "from-a-file"


def test_encrypted_streams_are_read_and_written_by_executors(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = buckram("key", "create", tmp_path / "sealed.keys", "--json", uri=cluster.uri)
    assert made.code == 0, made.err
    monkeypatch.setenv("BUCKRAM_ENCRYPTION_KEYS", str(tmp_path / "{namespace}.keys"))
    close_connections()
    created = buckram("namespace", "create", "sealed", "--json", uri=cluster.uri)
    assert created.code == 0, created.err
    options = {"metadata": cluster.uri}
    written(spark, options, "sealed/orders")
    found = read(spark, {**options, "minPartitions": "3"}, "sealed/orders").select("value").collect()
    assert sorted(bytes(row.value) for row in found) == sorted(VALUES)
    close_connections()
