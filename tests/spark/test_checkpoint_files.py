"""Checkpoints, state and files of Spark on gateways: what Spark expects, restarts, gateways that die, tokens."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import pkcs12
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException, UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from tests.e2e.conftest import buckram
from tests.serve.webhdfs.driver import drive
from tests.serve.webhdfs.expectations import EXPECTATIONS, CheckpointFiles
from tests.serve.webhdfs.gateway_process import GatewayProcess
from tests.serve.webhdfs.wire import Wire
from tests.spark.reading import numbered, write
from tests.spark.test_streaming import source
from tests.support.polling import wait_until

from buckram.runtime.net.security.certificate_authority import Authority
from buckram.spark import configure
from buckram.spark.relay.hadoop_settings import gateways, settings
from buckram.spark.relay.server import relay_to
from buckram.spark.relay.trust_store import PASSWORD
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
DEADLINE_S = 90
CUTS, CUT_EVERY = 12, 12_000
"""So often connections of a gateway end, each time after so many bytes that are sent there."""


@pytest.fixture(scope="module")
def gateway(sqlite_cluster: ThreadedCluster) -> Iterator[GatewayProcess]:
    with GatewayProcess(sqlite_cluster.uri) as running:
        yield running


@pytest.fixture
def place(gateway: GatewayProcess) -> str:
    """A directory on the gateway for this test alone."""
    return f"{gateway.root}/default/files-{os.urandom(4).hex()}"


@contextmanager
def configured(spark: SparkSession, chosen: dict[str, str]) -> Iterator[None]:
    """The session's Hadoop settings, for paths that nobody used before."""
    conf = spark._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    names = {name.removeprefix("spark.hadoop."): value for name, value in chosen.items() if "hadoop" in name}
    for name, value in names.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            conf.unset(name)


@pytest.mark.share(6)
@pytest.mark.parametrize("where", ["local", "gateway", "gateway, fewer requests"])
@pytest.mark.parametrize("expectation", EXPECTATIONS, ids=lambda one: one.__name__)
def test_spark_finds_what_it_expects(
    spark: SparkSession,
    place: str,
    tmp_path: Path,
    where: str,
    expectation: Callable[[CheckpointFiles], None],
) -> None:
    root = tmp_path.as_uri() if where == "local" else place
    files = CheckpointFiles(spark, root, "FileSystemBasedCheckpointFileManager" if "fewer" in where else "")
    files.manager.mkdirs(files.path(""))
    expectation(files)


@pytest.mark.share(6)
def test_a_gateway_at_an_address_of_ipv6(spark: SparkSession, sqlite_cluster: ThreadedCluster) -> None:
    with GatewayProcess(sqlite_cluster.uri, "--host", "::1") as six:
        assert six.root.startswith("webhdfs://[::1]:")
        files = CheckpointFiles(spark, f"{six.root}/default/six-{os.urandom(4).hex()}")
        files.write("a", b"hello")
        assert files.read("a") == b"hello"


def test_a_builder_is_configured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BUCKRAM_TOKEN", raising=False)
    uri, retries = "webhdfs://10.0.0.7:8080,10.0.0.8:8080/", "spark.hadoop.dfs.http.client.retry.policy.enabled"
    credential = "spark.hadoop.dfs.webhdfs.oauth2.credential"
    builder = SparkSession.Builder()
    assert configure(builder, uri) is builder
    assert (builder._options[retries], credential in builder._options) == ("true", False)
    ca = Authority(tmp_path / "authority").certificate
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    driver = "spark.driver.extraJavaOptions"
    with_options = configure(builder.config(driver, "-Xss2m"), "swebhdfs://10.0.0.7:8443/", tls_ca=str(ca))._options
    assert re.fullmatch(rf"-Xss2m -Djavax\.net\.ssl\.trustStore={tmp_path}/.*", with_options[driver])
    several = "swebhdfs://10.0.0.7:8443,10.0.0.8:8443/"
    monkeypatch.setenv("BUCKRAM_CA", str(ca))
    relayed = configure(SparkSession.Builder(), several)._options
    assert relayed["spark.hadoop.dfs.ha.namenodes.buckram"] == "relay,g1,g2"
    assert "spark.hadoop.dfs.namenode.https-address.buckram.relay" in relayed
    (store,) = re.findall(r"trustStore=(\S+)", relayed[driver])
    trusted = pkcs12.load_pkcs12(Path(store).read_bytes(), PASSWORD.encode()).additional_certs
    names = {one.certificate.subject.rfc4514_string() for one in trusted}
    assert names == {"CN=Buckram private authority", "CN=relay of Buckram"}
    assert Path(store).parent.stat().st_mode & 0o055, "executors of others read it"
    monkeypatch.delenv("BUCKRAM_CA")
    given = configure(SparkSession.Builder(), uri, token="a.b.c")._options
    assert given[credential] == "a.b.c"
    assert re.search(given["spark.redaction.regex"], credential)
    monkeypatch.setenv("BUCKRAM_TOKEN", "d.e.f")
    inherited = configure(SparkSession.Builder(), uri)._options
    assert [name for name, value in inherited.items() if value == "d.e.f"] == ["spark.executorEnv.BUCKRAM_TOKEN"]
    assert inherited[credential] == "${env.BUCKRAM_TOKEN}"
    old = settings(uri, fewer_requests=True, spark_version=(4, 0))["spark.sql.streaming.checkpointFileManagerClass"]
    assert old.endswith("streaming.FileSystemBasedCheckpointFileManager")


def test_this_jvm_alone_knows_where_the_relay_is(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    both = ("10.0.0.7:8080", "10.0.0.9:8080")
    chosen = configure(SparkSession.Builder(), f"webhdfs://{','.join(both)}/", token="a.b.c")._options
    assert chosen["spark.hadoop.dfs.ha.namenodes.buckram"] == "relay,g1,g2"
    conf, java = spark._jsc.hadoopConfiguration(), spark._jvm.java.lang.System  # type: ignore[union-attr]
    ((name, elsewhere),) = [one for one in chosen.items() if one[0].startswith("spark.hadoop.buckram.relay.")]
    variable = elsewhere.removeprefix("${env.").partition(":")[0]
    with configured(spark, chosen):
        address, login = "dfs.namenode.http-address.buckram.relay", "dfs.webhdfs.oauth2.refresh.url"
        assert conf.get(address) == relay_to(both)
        assert conf.get(login) == f"http://{relay_to(both)}/webhdfs/oauth2/token"
        java.clearProperty(name.removeprefix("spark.hadoop."))
        assert conf.get(address) == both[0]
        # As in a JVM that was started with the variable.
        conf.set(name.removeprefix("spark.hadoop."), elsewhere.replace(variable, "PATH"))
        assert conf.get(address) == java.getenv("PATH")
    # The JVM is still to be started.
    monkeypatch.setenv(variable, "")
    monkeypatch.setattr(SparkContext, "_gateway", None)
    configure(SparkSession.Builder(), f"webhdfs://{','.join(both)}/")
    assert os.environ[variable] == relay_to(both)
    one, secure = "webhdfs://10.0.0.7:8080/", f"swebhdfs://{','.join(both)}/"
    monkeypatch.delenv("BUCKRAM_CA", raising=False)
    assert not [
        name for uri in (one, secure) for name in configure(SparkSession.Builder(), uri)._options if "relay" in name
    ]


def test_append_is_refused_with_the_reason(spark: SparkSession, place: str) -> None:
    files = CheckpointFiles(spark, place)
    files.write("file", b"x")
    with pytest.raises(UnsupportedOperationException, match="APPEND is not supported here: files are immutable"):
        files.fs.append(files.path("file"))


class Counting:
    """A query that counts the records of a stream, with everything at one place."""

    def __init__(self, spark: SparkSession, uri: str, stream: str, place: str) -> None:
        self.spark, self.uri, self.stream, self.place = spark, uri, stream, place

    def start(self, **options: object) -> StreamingQuery:
        frame = source(self.spark, self.uri, subscribe=self.stream, maxOffsetsPerTrigger=100, **options)
        counts = frame.groupBy((frame["offset"] % 7).alias("rest")).count()
        writer = counts.writeStream.outputMode("complete").foreachBatch(self._keep).trigger(availableNow=True)
        return writer.option("checkpointLocation", f"{self.place}/checkpoint").start()

    def _keep(self, rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(f"{self.place}/result")

    def run(self) -> dict[int, int]:
        assert self.start().awaitTermination(DEADLINE_S)
        return self.result()

    def result(self) -> dict[int, int]:
        return {row.rest: row["count"] for row in self.spark.read.parquet(f"{self.place}/result").collect()}


def counted(records: int) -> dict[int, int]:
    return {rest: len(range(rest, records, 7)) for rest in range(7)}


@pytest.mark.share(6)
@pytest.mark.parametrize("store", ["default", "rocksdb", "changelog"])
def test_a_query_goes_on_when_its_gateway_was_stopped_and_started(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, store: str
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    if store != "default":
        session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        session.conf.set(CHANGELOG, str(store == "changelog").lower())
    write(cluster.uri, stream, numbered(150))
    with GatewayProcess(cluster.uri) as gateway:
        query = Counting(session, cluster.uri, stream, f"{gateway.root}/default/{stream}")
        assert query.run() == counted(150)
        gateway.stop()
        write(cluster.uri, stream, numbered(150))
        gateway.start()
        assert query.run() == counted(300)
        shown = json.loads(buckram("checkpoint", "show", f"default/{stream}/checkpoint", "--json", uri=cluster.uri).out)
        assert (shown["batch"], shown["planned"]) == (3, 3)
        assert shown["offsets"][0][stream] == 300
        assert shown["state_bytes"] > 0


@pytest.mark.share(10, "drivers")
def test_a_driver_that_is_killed_goes_on_elsewhere(
    cluster: ThreadedCluster, gateway: GatewayProcess, stream: str, place: str, tmp_path: Path, oldest: Path
) -> None:
    """The first driver has the oldest PySpark, and the second the newest."""
    write(cluster.uri, stream, numbered(450))
    chosen = settings(f"{gateway.root}/") | {
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        CHANGELOG: "true",
    }
    work = {"uri": cluster.uri, "stream": stream, "root": place, "settings": chosen, "options": {}, "kill_at": 0}
    assert drive(work, tmp_path / "first", oldest)[0] == -signal.SIGKILL
    write(cluster.uri, stream, numbered(230))
    code, counts = drive({**work, "options": {"maxOffsetsPerTrigger": "100"}, "kill_at": -1}, tmp_path / "second")
    assert code == 0
    assert counts == {str(rest): count for rest, count in counted(680).items()}


@pytest.mark.share(10, "drivers")
def test_a_query_keeps_its_checkpoint_behind_tls_and_tokens(
    cluster: ThreadedCluster, stream: str, tmp_path: Path
) -> None:
    """With what `buckram spark-conf` prints, in a process whose JVM begins with it."""
    authority = Authority(tmp_path / "authority")
    pair = authority.bookie("gateway", ["localhost", "127.0.0.1"])
    made = buckram("token", "create", "--subject", "spark", "--role", "admin", "--json", uri=cluster.uri)
    write(cluster.uri, stream, numbered(150))
    shown = ["--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)]
    with GatewayProcess(cluster.uri, "--tokens", *shown) as gateway:
        assert gateway.root.startswith("swebhdfs://127.0.0.1:")
        trust = ["--tls-ca", str(authority.certificate), "--trust-store", str(tmp_path / "trust.p12")]
        chosen = json.loads(buckram("spark-conf", f"{gateway.root}/", "--token", *trust, "--json").out)["settings"]
        # The bookies of this cluster speak without TLS, so the processes have no token in their environment.
        credential = "spark.hadoop.dfs.webhdfs.oauth2.credential"
        assert chosen[credential] == "${env.BUCKRAM_TOKEN}"
        chosen[credential] = json.loads(made.out)["token"]
        place = f"{gateway.root}/default/{stream}"
        work = {"uri": cluster.uri, "stream": stream, "root": place, "kill_at": -1, "options": {}}
        code, counts = drive({**work, "settings": chosen}, tmp_path / "driver")
    assert code == 0
    assert counts == {str(rest): count for rest, count in counted(150).items()}


def test_tables_are_written_and_read(spark: SparkSession, place: str) -> None:
    frame = spark.range(1000).selectExpr("id", "id % 5 AS part")
    frame.write.partitionBy("part").parquet(f"{place}/table")
    frame.selectExpr("id + 1000 AS id", "part").write.mode("append").partitionBy("part").parquet(f"{place}/table")
    found = spark.read.parquet(f"{place}/table")
    assert (found.count(), found.where("part = 3").count()) == (2000, 400)
    frame.limit(10).write.mode("overwrite").parquet(f"{place}/table")
    assert spark.read.parquet(f"{place}/table").count() == 10


@pytest.mark.share(6)
def test_a_query_goes_on_with_the_gateway_that_is_left(
    spark: SparkSession, cluster: ThreadedCluster, stream: str
) -> None:
    write(cluster.uri, stream, numbered(100))
    with GatewayProcess(cluster.uri) as first, GatewayProcess(cluster.uri) as second:
        uri = f"webhdfs://{first.address},{second.address}/default/{stream}"
        with configured(spark, configure(SparkSession.Builder(), uri)._options):
            query = Counting(spark, cluster.uri, stream, gateways(uri).uri)
            assert query.run() == counted(100)
            for number, gateway in enumerate((first, second, first)):
                write(cluster.uri, stream, numbered(300))
                running = query.start()
                wait_until(lambda: len(running.recentProgress) > 0, "no batch ended")  # noqa: B023
                gateway.kill()
                assert running.awaitTermination(DEADLINE_S)
                assert query.result() == counted(100 + 300 * (number + 1))
                gateway.start()


@pytest.mark.share(10, "drivers")
async def test_no_batch_fails_with_a_gateway_behind_tls(
    cluster: ThreadedCluster, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections of the first gateway are cut in the middle again and again, and then it is killed: the query, which
    is never started again, counts each record once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    authority, cuts = Authority(tmp_path / "authority"), list[int]()
    pair = authority.bookie("gateway", ["localhost", "127.0.0.1"])
    shown = ("--tokens", "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    made = buckram("token", "create", "--subject", "spark", "--role", "admin", "--json", uri=cluster.uri)
    write(cluster.uri, stream, numbered(300))
    with GatewayProcess(cluster.uri, *shown) as first, GatewayProcess(cluster.uri, *shown) as second:
        async with Wire(first.address) as one, Wire(second.address) as other:

            def cut() -> None:
                cuts.append(other.there)
                if len(cuts) < CUTS:
                    one.after_sent(CUT_EVERY, cut)
                else:
                    first.kill()

            one.after_sent(CUT_EVERY, cut)
            uri = f"swebhdfs://{one.address},{other.address}/default/{stream}"
            work = {
                "uri": cluster.uri,
                "stream": stream,
                "root": gateways(uri).uri,
                "gateways": uri,
                "tls_ca": str(authority.certificate),
                "token": json.loads(made.out)["token"],
                "settings": {},
                "options": {"maxOffsetsPerTrigger": "60"},
                "kill_at": -1,
            }
            code, counts = await asyncio.to_thread(drive, work, tmp_path / "driver")
            assert (len(cuts), other.there > cuts[-1]) == (CUTS, True), "the first gateway was not killed meanwhile"
    assert code == 0
    assert counts == {str(rest): count for rest, count in counted(300).items()}


@pytest.mark.share(6)
def test_of_two_drivers_with_one_checkpoint_one_is_refused(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, place: str
) -> None:
    write(cluster.uri, stream, numbered(100))
    query = Counting(spark, cluster.uri, stream, place)
    query.run()
    # Another driver planned and did the next batch meanwhile.
    files = CheckpointFiles(spark, f"{place}/checkpoint")
    write(cluster.uri, stream, numbered(100))

    def other(rows: DataFrame, batch: int) -> None:
        files.write("commits/1", b'v1\n{"nextBatchWatermarkMs":0}')

    query._keep = other  # type: ignore[method-assign]
    with pytest.raises(StreamingQueryException, match=r"(?i)concurrent|multiple streaming queries"):
        query.start().awaitTermination(DEADLINE_S)


@pytest.mark.share(6)
def test_a_gateway_with_tokens_wants_one(spark: SparkSession, sqlite_cluster: ThreadedCluster, stream: str) -> None:
    made = buckram("token", "create", "--subject", "spark", "--role", "admin", "--json", uri=sqlite_cluster.uri)
    token = json.loads(made.out)["token"]
    with GatewayProcess(sqlite_cluster.uri, "--tokens") as gateway:
        place = f"{gateway.root}/default/{stream}"
        with pytest.raises(Py4JJavaError, match=r"AccessControlException.*asks for a token of the cluster"):
            spark.range(10).write.parquet(place)
    with GatewayProcess(sqlite_cluster.uri, "--tokens") as gateway:
        place = f"{gateway.root}/default/{stream}"
        with configured(spark, settings(f"{gateway.root}/", token=token)):
            spark.range(10).write.parquet(place)
            assert spark.read.parquet(place).count() == 10
