"""A checkpoint with its streams is forked, and a query goes on with the forks; a check finds what is missing."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.serve.webhdfs.gateway_process import GatewayProcess
from tests.spark.reading import numbered, write
from tests.spark.test_checkpoint_files import CHANGELOG, ROCKSDB, Counting, counted

from buckram import sync
from buckram.cli.app import run
from buckram.errors import NamespaceExists
from buckram.testing import ThreadedCluster

pytestmark = pytest.mark.spark


@pytest.mark.share(4)
@pytest.mark.parametrize("store", ["default", "changelog"])
def test_a_query_goes_on_with_forks(
    spark: SparkSession, cluster: ThreadedCluster, stream: str, store: str, capfd: pytest.CaptureFixture[str]
) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "2")
    if store != "default":
        session.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        session.conf.set(CHANGELOG, str(store == "changelog").lower())

    def said(*words: object, code: int = 0) -> dict[str, Any]:
        assert run(["checkpoint", *map(str, words), "--json", "--metadata", cluster.uri]) == code
        found: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
        return found

    folder = stream.partition("/")[2]
    place = f"default/{folder}/checkpoint"
    write(cluster.uri, stream, numbered(250))
    with GatewayProcess(cluster.uri) as gateway:
        root = f"{gateway.root}/default/{folder}"
        old = Counting(session, cluster.uri, stream, root)
        assert old.run() == counted(250)
        assert said("verify", place)["whole"]
        write(cluster.uri, stream, numbered(100))
        made = said("fork", place, f"default/{folder}/new/checkpoint", "--batch", 1, "--streams")
        fork = f"{stream}-checkpoint"
        assert (made["streams"], made["offsets"], made["batch"]) == ({stream: fork}, {fork: 200}, 1)
        assert said("verify", made["checkpoint"])["whole"]
        write(cluster.uri, fork, numbered(40))
        new = Counting(session, cluster.uri, fork, f"{root}/new")
        assert new.run() == counted(240)
        assert old.run() == counted(350)
        found = said("verify", made["checkpoint"])
        assert (found["whole"], found["batch"], found["stores"]) == (True, 2, 2)
        assert found["query"] != said("show", place)["query"]
    with sync.connect(cluster.uri) as client, client.objects("default") as objects:
        base = f"{folder}/new/checkpoint/"
        names = [info.name for info in objects.list(prefix=base, limit=1000)]
        for wanted in ("offsets/2", "commits/1", "state/0/1/3"):
            name = next(n for n in names if n.removeprefix(base).startswith(wanted))
            objects.rename(name, f"{folder}/kept")
            lost = said("verify", made["checkpoint"], code=1)
            assert any(name.removeprefix(base) in problem for problem in lost["problems"]), lost
            objects.rename(f"{folder}/kept", name)
        assert said("verify", made["checkpoint"])["whole"]


@pytest.mark.share(4)
def test_a_forked_query_begins_in_a_sink_of_its_own(spark: SparkSession, cluster: ThreadedCluster, stream: str) -> None:
    folder, copy = stream.partition("/")[2], f"{stream}-copy"
    write(cluster.uri, stream, numbered(200))
    with GatewayProcess(cluster.uri) as gateway, sync.connect(cluster.uri) as client:
        ns = client.namespace()

        def run_query(source: str, target: str, name: str) -> None:
            options = {"metadata": cluster.uri, "startingOffsets": "earliest", "maxOffsetsPerTrigger": 100}
            rows = spark.readStream.format("buckram").options(**options).load(source).select("key", "value")
            query = rows.writeStream.format("buckram").trigger(availableNow=True)
            query = query.options(
                metadata=cluster.uri,
                createStream=True,
                txnAppId=f"copy of {folder}",
                checkpointLocation=f"{gateway.root}/default/{folder}/{name}",
            )
            query.start(target).awaitTermination()

        def values(name: str) -> list[bytes | None]:
            return [record.value for record in ns.read(name)]

        run_query(stream, copy, "one")
        words = ["checkpoint", "fork", f"default/{folder}/one", f"default/{folder}/two", "--batch", "0", "--streams"]
        assert run([*words, "--metadata", cluster.uri]) == 0
        fork = f"{stream}-two"
        write(cluster.uri, fork, numbered(30))
        with pytest.raises(StreamingQueryException, match="the checkpoint was reset"):
            run_query(fork, copy, "two")  # the source's own stream: its batches would be there twice
        assert values(copy) == values(stream)
        ns.fork_stream(copy, f"{copy}-late")  # it has batch 1 of the source as well
        with pytest.raises(StreamingQueryException, match="the checkpoint was reset"):
            run_query(fork, f"{copy}-late", "two")
        ns.fork_stream(copy, f"{copy}-two", offset=100)
        run_query(fork, f"{copy}-two", "two")
        assert values(f"{copy}-two") == values(fork)
        write(cluster.uri, fork, numbered(5))
        run_query(fork, f"{copy}-two", "two")
        assert values(f"{copy}-two") == values(fork)
        assert ns.info(f"{copy}-two").end == 135


def test_streams_of_other_namespaces_are_forked_by_name_only(
    cluster: ThreadedCluster, stream: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Whoever may write in the checkpoint's namespace writes its log of offsets; the command has more rights."""
    own = stream.partition("/")[2]
    hidden = f"hidden/{own}"
    with sync.connect(cluster.uri) as client:
        with suppress(NamespaceExists):
            client.namespaces.create("hidden")
        uids = {}
        for name in (hidden, stream):
            space, _, bare = name.partition("/")
            with client.namespace(space).writer(bare) as writer:
                writer.append_many([b"secret"] * 3)
            uids[name] = client.namespace(space).info(bare).uid
        offset = json.dumps({hidden: 2, stream: 2, "uids": uids})
        files = {"metadata": '{"id": "q"}', "offsets/0": f"v1\n{{}}\n{offset}", "commits/0": "v1\n{}"}
        with client.objects("default") as objects:
            for name, text in files.items():
                objects.put(f"{own}/ckpt/{name}", text.encode())

        def fork(new: str, *more: str) -> int:
            words = ["checkpoint", "fork", f"default/{own}/ckpt", f"default/{own}/{new}", "--streams", *more]
            return run([*words, "--metadata", cluster.uri])

        assert fork("one") != 0
        assert f"--stream {hidden}={hidden}-one" in capfd.readouterr().err
        with client.objects("default") as objects:
            assert not objects.list(prefix=f"{own}/one")
        names = {name for space in ("hidden", "default") for name in client.namespace(space).list() if own in name}
        assert names == {own}, "no stream was forked"
        assert fork("two", "--stream", f"{hidden}={hidden}-given") == 0
        found = client.namespace("hidden").info(f"{own}-given").fork
        assert found is not None
        assert found.uid == uids[hidden]
