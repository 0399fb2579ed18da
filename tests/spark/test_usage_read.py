"""The table of usage: a row of each namespace and of each application, for administrators."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from buckram import sync
from buckram.errors import InvalidArgument
from buckram.spark.options import values
from buckram.spark.planning import reads_usage
from buckram.testing import ThreadedCluster


def usage(spark: SparkSession, cluster: ThreadedCluster) -> DataFrame:
    return spark.read.format("buckram").option("metadata", cluster.uri).option("table", "usage").load()


def test_a_row_of_each_namespace_and_application_with_its_quotas(spark: SparkSession, cluster: ThreadedCluster) -> None:
    with sync.connect(cluster.uri) as client:
        client.namespaces.create("used", ensemble="1/1/1")
        client.namespaces.set_quotas("used", ledgers=100)
        with client.create(ensemble="1/1/1", custom_metadata={"buckram.namespace": "used", "application": "till"}) as w:
            w.append_many([b"x" * 1000] * 20)
        rows = {(row["namespace"], row["application"]): row for row in usage(spark, cluster).collect()}
    whole, till = rows["used", None], rows["used", "till"]
    assert (whole["ledgers"], whole["streams"], whole["quotas"]) == (1, 0, {"ledgers": 100})
    assert whole["stored_bytes"] >= 20_000
    assert (till["stored_bytes"], till["ledgers"], till["quotas"]) == (20_000, None, None)
    narrow = StructType([StructField("stored_bytes", LongType()), StructField("namespace", StringType())])
    reader = spark.read.format("buckram").schema(narrow).option("metadata", cluster.uri).option("table", "usage")
    assert reader.load().where("namespace = 'used'").columns == ["stored_bytes", "namespace"]


def test_what_is_asked_for_besides_is_refused(spark: SparkSession, cluster: ThreadedCluster) -> None:
    given = {"metadata": cluster.uri, "table": "usage"}
    with pytest.raises(PySparkException, match='"subscribe" is for reading records'):
        spark.read.format("buckram").options(**given, subscribe="a").load()
    with pytest.raises(PySparkException, match="usage"):
        spark.read.format("buckram").options(**{**given, "table": "entries"}).load()
    with pytest.raises(InvalidArgument, match="for batch reads only"):
        values(given, "stream")
    with pytest.raises(InvalidArgument, match='"ledgers"'):
        reads_usage({"table": "usage", "ledgers": "all"})
    assert not reads_usage({"subscribe": "a"})
