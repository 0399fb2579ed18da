"""Batch reads of streams in a real Spark session."""

from __future__ import annotations

import json

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.spark.reading import numbered, readable, write

from buckram import sync
from buckram.errors import InvalidArgument, NoSuchNamespace
from buckram.spark import views
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark


def load(spark: SparkSession, uri: str, stream: str, **options: object) -> DataFrame:
    return spark.read.format("buckram").options(metadata=uri, **options).load(stream)


def test_a_stream_as_a_data_frame(spark: SparkSession, any_cluster: ThreadedCluster, stream: str) -> None:
    keys = [b"k%d" % (n % 3) for n in range(400)]
    write(any_cluster.uri, stream, numbered(200), numbered(200, 200), keys=keys[:200])
    with sync.connect(any_cluster.uri) as client, client.namespace().writer(stream) as writer:
        writer.append_many(numbered(100, 400), headers=[{"a": b"b"}] * 100)
        readable(any_cluster.uri, stream, 500)
        frame = load(spark, any_cluster.uri, stream, minPartitions=5, includeHeaders=True)
        assert [(column.name, column.dataType.simpleString()) for column in frame.schema.fields] == [
            ("key", "binary"), ("value", "binary"), ("stream", "string"), ("offset", "bigint"),
            ("timestamp", "timestamp"), ("append_time", "timestamp"),
            ("headers", "array<struct<key:string,value:binary>>"),
        ]  # fmt: skip
        assert frame.rdd.getNumPartitions() >= 5
        writer.append(b"too late")
    found = frame.orderBy("offset").collect()
    writer_seen = [bytes(row.value) for row in found]
    # This action is planned anew, so it has the records that were written meanwhile.
    assert writer_seen[:500] == numbered(500)
    assert [row.offset for row in found] == list(range(len(found)))
    assert {row.stream for row in found} == {stream}
    assert [(h.key, bytes(h.value)) for h in found[450].headers] == [("a", b"b")]
    counts = frame.where("key is not null").groupBy(f.col("key").cast("string")).count().orderBy("key").collect()
    assert [row["count"] for row in counts] == [134, 134, 132]


def test_sql_views_and_narrow_schemas(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(20))
    view = f"v{abs(hash(stream))}"
    spark.sql(f"CREATE TEMPORARY VIEW {view} USING buckram OPTIONS (metadata '{cluster.uri}', subscribe '{stream}')")
    assert spark.sql(f"SELECT sum(CAST(CAST(value AS string) AS int)) AS s FROM {view}").first()["s"] == 190  # type: ignore[index]
    narrow = spark.read.schema("value binary, offset long").format("buckram").options(metadata=cluster.uri).load(stream)
    assert [(bytes(row.value), row.offset) for row in narrow.collect()] == [(b"%d" % n, n) for n in range(20)]


def test_views_of_a_namespace_are_read_anew(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    space = f"views-{abs(hash(stream))}"
    with sync.connect(cluster.uri) as client:
        client.namespaces.create(space)
        ns = client.namespace(space)
        ns.create("or-ders")
        ns.create("other")
        ns.create_database("main")
        made = views(spark, cluster.uri, space, prefix="v_")
        assert made == {"v_or-ders": f"{space}/or-ders", "v_other": f"{space}/other"}
        for count in (0, 3, 5):
            with ns.writer("or-ders") as writer:
                writer.append_many(numbered(count))
            query = "SELECT count(*) AS n, max(stream) AS s FROM `v_or-ders`"
            (row,) = spark.sql(query).collect()
            assert (row.n, row.s) == ({0: 0, 3: 3, 5: 8}[count], made["v_or-ders"] if count else None)
            assert spark.sql("SELECT * FROM `v_or-ders` WHERE offset < 2").count() == min(count, 2)
        assert views(spark, cluster.uri, space, pattern="oth.*") == {"other": f"{space}/other"}
    with pytest.raises(InvalidArgument, match="regular expression"):
        views(spark, cluster.uri, space, pattern="(")
    with pytest.raises(NoSuchNamespace):
        views(spark, cluster.uri, "no-such-namespace")


def test_a_table_of_the_catalog(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, stream, numbered(20))
    table, options = f"t{abs(hash(stream))}", f"(metadata = '{cluster.uri}', subscribe = '{stream}')"
    spark.sql(f"CREATE TABLE {table} (`offset` BIGINT, value BINARY) USING buckram COMMENT 'orders'")
    try:
        assert spark.table(table).columns == ["offset", "value"]
        # Spark does not pass a table's options to the source.
        with pytest.raises(AnalysisException, match=r'"metadata" is missing.*WITH \('):
            spark.table(table).count()
        assert spark.sql(f"SELECT * FROM {table} WITH {options} WHERE offset < 5").count() == 5
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_bounds_and_several_streams(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    write(cluster.uri, f"{stream}-a", numbered(20))
    write(cluster.uri, f"{stream}-b", numbered(20))
    reader = spark.read.format("buckram").option("metadata", cluster.uri)
    reader = reader.option("subscribePattern", f"{stream.removeprefix('default/')}-[ab]")
    frame = reader.option("startingOffsets", json.dumps({f"{stream}-a": 15})).load()
    counts = {row.stream: row["count"] for row in frame.groupBy("stream").count().collect()}
    assert counts == {f"{stream}-a": 5, f"{stream}-b": 20}


def test_a_frame_keeps_its_rows_after_a_filter_on_it(
    spark: SparkSession, cluster: ThreadedCluster, stream: str
) -> None:
    """PySpark reuses the first plan, so a filter that was pushed down would apply to later queries, too."""
    write(cluster.uri, stream, numbered(1020))
    session = spark.newSession()
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    frame = load(session, cluster.uri, stream)
    assert frame.where("offset >= 150 AND offset < 160").count() == 10
    assert frame.count() == 1020


def test_a_frame_is_a_snapshot(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    """PySpark reuses the first plan of a frame and of a view, as docs/tutorial/spark.md says."""
    write(cluster.uri, stream, numbered(10))
    frame = load(spark, cluster.uri, stream)
    assert frame.count() == 10
    write(cluster.uri, stream, numbered(5))
    assert (frame.count(), frame.where("offset >= 8").count()) == (10, 2)
    assert load(spark, cluster.uri, stream).count() == 15


def test_an_empty_stream_has_no_rows(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    with sync.connect(cluster.uri) as client:
        client.namespace().create(stream)
    assert load(spark, cluster.uri, stream).count() == 0


def test_errors_of_a_read_are_raised_once_at_planning(
    spark: SparkSession, cluster: ThreadedCluster, stream: str
) -> None:
    with pytest.raises(AnalysisException, match=f"{stream}: does not exist") as missing:
        load(spark, cluster.uri, stream).count()
    assert str(missing.value).count("File ") <= 2
    with pytest.raises(AnalysisException, match=r"unknown option 'startingofset'; known here: .*subscribePattern"):
        load(spark, cluster.uri, stream, startingOfset="latest")
    with pytest.raises(AnalysisException, match="nothing says what to read"):
        spark.read.format("buckram").option("metadata", cluster.uri).load()
    with pytest.raises(AnalysisException, match='"metadata" is missing'):
        spark.read.format("buckram").load(stream)
    write(cluster.uri, stream, numbered(3))
    with pytest.raises(PySparkException, match='"value" string: there are only key binary'):
        spark.read.schema("value string").format("buckram").options(metadata=cluster.uri).load(stream).count()
    with pytest.raises(AnalysisException, match="offset 9 is out of range"):
        load(spark, cluster.uri, stream, startingOffsets=json.dumps({stream: 9})).count()
