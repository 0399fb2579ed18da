"""Tables of what a cluster knows of itself: usage, ledgers, and of streams their segments, cursors and transactions."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tests.spark.reading import numbered, write
from tests.support.polling import wait_until

from buckram import sync
from buckram.errors import InvalidArgument
from buckram.spark.shared.options import CLUSTER_TABLES, STREAM_TABLES, values
from buckram.spark.source.cluster_tables import TABLES
from buckram.spark.source.planning import streams_of_table, table_asked_for
from buckram.testing import ThreadedCluster


def table(spark: SparkSession, cluster: ThreadedCluster, name: str, **options: str) -> DataFrame:
    reader = spark.read.format("buckram").option("metadata", cluster.uri).option("table", name)
    return reader.options(**options).load()


def test_a_row_of_each_namespace_and_application_with_its_quotas(spark: SparkSession, cluster: ThreadedCluster) -> None:
    with sync.connect(cluster.uri) as client:
        client.namespaces.create("used", ensemble="1/1/1")
        client.namespaces.set_quotas("used", ledgers=100)
        with client.create(ensemble="1/1/1", custom_metadata={"buckram.namespace": "used", "application": "till"}) as w:
            w.append_many([b"x" * 1000] * 20)

        def usage() -> dict[tuple[str, str | None], Row]:
            found = table(spark, cluster, "usage").collect()
            return {(row["namespace"], row["application"]): row for row in found}

        # Bookies count what they hold from time to time.
        wait_until(lambda: usage()["used", None]["stored_bytes"] >= 20_000, "the bookies have not counted it")
        rows = usage()
        kept = table(spark, cluster, "ledgers").where(f"ledger = {w.ledger_id}").collect()
    whole, till = rows["used", None], rows["used", "till"]
    assert (whole["ledgers"], whole["streams"], whole["quotas"]) == (1, 0, {"ledgers": 100})
    assert whole["stored_bytes"] >= 20_000
    assert (till["stored_bytes"], till["ledgers"], till["quotas"]) == (20_000, None, None)
    narrow = StructType([StructField("stored_bytes", LongType()), StructField("namespace", StringType())])
    reader = spark.read.format("buckram").schema(narrow).option("metadata", cluster.uri).option("table", "usage")
    assert reader.load().where("namespace = 'used'").columns == ["stored_bytes", "namespace"]
    (ledger,) = kept
    assert (ledger["state"], ledger["entries"], ledger["bytes"], ledger["ensemble_size"]) == ("closed", 20, 20_000, 1)
    assert (ledger["namespace"], ledger["application"], ledger["stream"]) == ("used", "till", None)
    assert (len(ledger["bookies"]), ledger["away"], ledger["error"]) == (1, [], None)
    assert ledger["created"] is not None


def test_segments_cursors_and_transactions_of_streams(
    spark: SparkSession, cluster: ThreadedCluster, stream: str
) -> None:
    write(cluster.uri, stream, numbered(30))
    frame = spark.createDataFrame([(b"one",), (b"two",)], "value binary")
    writing = frame.write.format("buckram").option("metadata", cluster.uri).mode("append")
    writing.options(txnAppId="nightly", txnVersion="7").save(stream)
    with sync.connect(cluster.uri) as client:
        space, _, name = stream.rpartition("/")
        client.namespace(space or "default").move_cursor(name, "billing", 10)
    full = stream if "/" in stream else f"default/{stream}"
    first, *others = table(spark, cluster, "segments", subscribe=stream).orderBy("number").collect()
    assert (first["stream"], first["first_offset"], first["records"], first["state"]) == (full, 0, 30, "sealed")
    assert first["tier"] == "bookies"
    assert first["first_append"] <= first["last_append"]
    assert sum(row["records"] for row in others) == 2
    (cursor,) = table(spark, cluster, "cursors", subscribe=stream).collect()
    assert (cursor["stream"], cursor["cursor"], cursor["offset"], cursor["lag"]) == (full, "billing", 10, 22)
    (done,) = table(spark, cluster, "transactions", subscribe=stream).collect()
    assert (done["application"], done["version"], done["first_offset"], done["next_offset"]) == ("nightly", 7, 30, 32)
    everything = table(spark, cluster, "segments").where(f"stream = '{full}'")
    assert everything.count() == 1 + len(others)
    with pytest.raises(PySparkException, match="no-such-stream"):
        table(spark, cluster, "segments", subscribe="no-such-stream").collect()


def test_what_is_asked_for_besides_is_refused(spark: SparkSession, cluster: ThreadedCluster) -> None:
    given = {"metadata": cluster.uri, "table": "usage"}
    with pytest.raises(PySparkException, match='"subscribe" is for reading records'):
        spark.read.format("buckram").options(**given, subscribe="a").load()
    with pytest.raises(PySparkException, match="usage or ledgers or segments"):
        spark.read.format("buckram").options(**{**given, "table": "entries"}).load()
    with pytest.raises(InvalidArgument, match="for batch reads only"):
        values(given, "stream")
    with pytest.raises(InvalidArgument, match='"ledgers"'):
        table_asked_for({**given, "ledgers": "all"})
    with pytest.raises(InvalidArgument, match="give one of them"):
        table_asked_for({**given, "table": "cursors", "subscribe": "a", "path": "b"})
    assert table_asked_for({"metadata": cluster.uri, "subscribe": "a"}) is None
    assert streams_of_table(given, "ledgers") is None
    assert set(TABLES) == {*CLUSTER_TABLES, *STREAM_TABLES}
