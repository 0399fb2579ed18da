"""`buckram checkpoint` and `buckram spark-conf` as operators and scripts use them."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buckram import sync
from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.runtime.net.security.certificate_authority import Authority
from buckram.testing import ThreadedCluster

Run = Callable[..., str]
ABOUT = '{"batchWatermarkMs":0,"batchTimestampMs":1764100000000,"conf":{"spark.sql.shuffle.partitions":"2"}}'


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as cluster:
        with sync.connect(cluster.uri) as client:
            client.namespaces.create("shop")
            with client.objects("shop") as objects:
                for number in range(3):
                    offsets = f'v1\n{ABOUT}\n{{"shop/orders":{number}}}\n-\nnot json'
                    objects.put(f"queries/orders/offsets/{number}", offsets.encode())
                objects.put("queries/orders/offsets/.3.0c1d.tmp", b"")
                objects.put("queries/orders/commits/1", b"v1\n{}")
                objects.put("queries/orders/metadata", b'{"id":"6d9b"}')
                objects.put("queries/orders/state/0/0/1.delta", b"x" * 100)
                objects.put("queries/fresh/metadata", b'{"id":"77aa"}')
                objects.mkdirs("queries/fresh/offsets")
                objects.put("data/metadata", b"a file of another kind")
        yield cluster.uri


@pytest.fixture
def run(uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setenv("BUCKRAM_METADATA", uri)
    monkeypatch.delenv("BUCKRAM_TOKEN", raising=False)

    def run(*words: object, code: Exit = Exit.OK, out: bool = False) -> str:
        assert in_process([*map(str, words)]) == code, capfd.readouterr().err
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return said.out + said.err if out else said.out if code is Exit.OK else said.err

    return run


def test_checkpoints_are_found_and_described(run: Run) -> None:
    rows = [json.loads(line) for line in run("checkpoint", "list", "shop", "--json").splitlines()]
    assert [row["checkpoint"] for row in rows] == ["shop/queries/fresh", "shop/queries/orders"]
    assert (rows[0]["query"], rows[0]["batch"], rows[0]["planned"], rows[0]["offsets"]) == ("77aa", None, None, [])
    shown = json.loads(run("checkpoint", "show", "shop/queries/orders", "--json"))
    assert shown.pop("age_s") >= rows[1].pop("age_s")
    assert shown == rows[1]
    assert (shown["query"], shown["batch"], shown["planned"]) == ("6d9b", 1, 2)
    assert shown["offsets"] == [{"shop/orders": 2}, None, "not json"]
    assert shown["settings"] == {"spark.sql.shuffle.partitions": "2"}
    assert (shown["state_bytes"], shown["state_files"], shown["files"]) == (100, 1, 7)
    assert 0 <= rows[0]["age_s"] < 300
    text = run("checkpoint", "show", "shop/queries/orders")
    assert "batch 1 is done, 2 was begun" in text
    assert "state of 100 bytes in 1 file" in text
    assert "shop/queries/orders" in run("checkpoint", "list", "shop/queries/orders")
    assert "6d9b" not in run("checkpoint", "list", "shop/data")


def test_what_is_no_checkpoint_is_said(run: Run) -> None:
    message = run("checkpoint", "show", "shop/none", code=Exit.NOT_FOUND)
    assert "shop/none: is no checkpoint" in message
    assert "needs NAMESPACE/NAME" in run("checkpoint", "show", "shop", code=Exit.USAGE)
    assert "none" in run("checkpoint", "list", "none", code=Exit.NOT_FOUND)


def test_old_checkpoints_go_and_others_stay(uri: str, run: Run) -> None:
    with sync.connect(uri) as client, client.objects("shop") as objects:
        objects.put("old/a/metadata", b'{"id":"1"}')
        objects.put("old/a/offsets/0", b"v1\n{}\n-")
        objects.put("old/data", b"1")
    assert "--older 0: needs more than 0 s" in run("checkpoint", "expire", "shop", "--older", 0, code=Exit.USAGE)
    assert "add --yes" in run("checkpoint", "expire", "shop/old", "--older", "1us", code=Exit.USAGE)
    kept = json.loads(run("checkpoint", "expire", "shop/old", "--older", "1h", "--yes", "--json"))
    assert (kept["expired"], kept["kept"]) == ([], 1)
    said = json.loads(run("checkpoint", "expire", "shop/old", "--older", "1us", "--dry-run", "--json"))
    assert (said["expired"], said["dry_run"]) == (["shop/old/a"], True)
    done = json.loads(run("checkpoint", "expire", "shop/old", "--older", "1us", "--yes", "--json"))
    assert (done["expired"], done["bytes"], done["kept"]) == (["shop/old/a"], 17, 0)
    with sync.connect(uri) as client, client.objects("shop") as objects:
        assert [one.name for one in objects.list(prefix="old/")] == ["old/data"]


def test_spark_conf_prints_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = run("spark-conf", "webhdfs://10.0.0.7:8080/default/orders")
    lines = dict(line.split(maxsplit=1) for line in text.splitlines() if not line.startswith("#"))
    assert lines["spark.hadoop.dfs.http.client.retry.policy.enabled"] == "true"
    assert not any("oauth2" in name or "nameservices" in name for name in lines)
    monkeypatch.setenv("BUCKRAM_TOKEN", "a.secret.token")
    found = json.loads(run("spark-conf", "webhdfs://a:1,b:2/default/orders", "--fewer-requests", "--json"))
    assert found["uri"] == "webhdfs://buckram/default/orders"
    assert found["settings"]["spark.hadoop.dfs.namenode.http-address.buckram.g2"] == "b:2"
    assert found["settings"]["spark.hadoop.dfs.webhdfs.oauth2.credential"] == "${env.BUCKRAM_TOKEN}"
    assert "a.secret.token" not in json.dumps(found)
    assert "checkpointing.FileSystemBased" in json.dumps(found)


def test_spark_conf_makes_a_trust_store(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ca, store = Authority(tmp_path / "authority").certificate, tmp_path / "trust.p12"
    found = json.loads(run("spark-conf", "swebhdfs://a:1/", "--tls-ca", str(ca), "--trust-store", str(store), "--json"))
    assert f"trustStore={store} " in found["settings"]["spark.executor.extraJavaOptions"]
    assert store.stat().st_size > 0
    monkeypatch.setenv("BUCKRAM_CA", str(ca))
    inherited = json.loads(run("spark-conf", "swebhdfs://a:1/", "--trust-store", str(store), "--json"))
    assert inherited["settings"] == found["settings"]
    assert "trustStore" not in run("spark-conf", "webhdfs://a:1/")
    monkeypatch.delenv("BUCKRAM_CA")
    text = run("spark-conf", "webhdfs://a:1/", "--tls-ca", str(ca), code=Exit.USAGE)
    assert "certificates are of use with swebhdfs:// only" in text
    assert "give both" in run("spark-conf", "swebhdfs://a:1/", "--trust-store", str(store), code=Exit.USAGE)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("http://a:1/", "needs webhdfs://HOST:PORT/"),
        ("webhdfs://a/", "needs HOST:PORT"),
        ("webhdfs://a:0/", "needs HOST:PORT"),
        ("webhdfs://a:1,/", "needs HOST:PORT"),
        ("webhdfs://" + ",".join(f"a:{n}" for n in range(1, 30)), "29 gateways, the limit is 16"),
    ],
)
def test_spark_conf_refuses_what_is_no_gateway(run: Run, given: str, why: str) -> None:
    assert why in run("spark-conf", given, code=Exit.USAGE)


ABOUT_STORES = {"operatorInfo": {}, "stateStoreInfo": [{"storeName": "default", "numPartitions": 2}]}


def whole_checkpoint(objects: sync.Objects, path: str) -> None:
    """Three batches of a query with state in two partitions, one in deltas and one in snapshots of RocksDB."""
    objects.put(f"{path}/metadata", b'{"id":"old"}')
    for number in range(3):
        uids = f'"uids": {{"shop/{path}": "u"}}'
        began = f', "began": {{"shop/{path}": 0, {uids}}}' if number == 0 else ""
        line = f'{{"shop/{path}": {10 * number + 10}, {uids}{began}}}'
        objects.put(f"{path}/offsets/{number}", f"v1\n{ABOUT}\n{line}\n-".encode())
        objects.put(f"{path}/commits/{number}", b'v1\n{"nextBatchWatermarkMs":0}')
        objects.put(f"{path}/state/0/0/{number + 1}.delta", b"d")
        made = io.BytesIO()
        with zipfile.ZipFile(made, "w") as archive:
            part = {"localSstName": "1.sst", "dfsSstName": f"1-{number}.sst", "sizeBytes": 3}
            archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": [part], "numKeys": 1}))
        objects.put(f"{path}/state/0/1/{number + 1}.zip", made.getvalue())
        objects.put(f"{path}/state/0/1/SSTs/1-{number}.sst", b"sst")
    objects.put(f"{path}/state/0/0/2.snapshot", b"s")
    objects.put(f"{path}/state/0/_metadata/metadata", b"v1\n" + json.dumps(ABOUT_STORES).encode())
    objects.put(f"{path}/offsets/.9.tmp", b"")


def test_a_whole_checkpoint_is_whole_and_what_is_missing_is_named(uri: str, run: Run) -> None:
    with sync.connect(uri) as client, client.objects("shop") as objects:
        whole_checkpoint(objects, "whole")
        found = json.loads(run("checkpoint", "verify", "shop/whole", "--json"))
        assert (found["whole"], found["batch"], found["stores"], found["problems"]) == (True, 2, 2, [])
        assert found["files"] == 1 + 1 + 1 + 2 + 2
        assert "whole; batch 2 is done" in run("checkpoint", "verify", "shop/whole")
        for name, said in (
            ("metadata", None),
            ("offsets/2", "offsets/2: is missing, and batch 2 was done"),
            ("offsets/1", "offsets/1: is missing, with files before and after it"),
            ("commits/1", "commits/1: is missing"),
            ("state/0/0/3.delta", "state/0/0/3.delta: is missing, and the state of version 3"),
            ("state/0/1/3.zip", "state/0/1/3.zip: is missing"),
            ("state/0/1/SSTs/1-2.sst", "state/0/1/SSTs/1-2.sst: is missing, and state/0/1/3.zip needs it"),
        ):
            objects.rename(f"whole/{name}", "aside")
            message = run("checkpoint", "verify", "shop/whole", code=Exit.FAILED if said else Exit.NOT_FOUND, out=True)
            assert (said or "is no checkpoint") in message
            objects.rename("aside", f"whole/{name}")
        objects.put("whole/state/0/1/SSTs/1-2.sst", b"other")
        message = run("checkpoint", "verify", "shop/whole", code=Exit.FAILED, out=True)
        assert "1-2.sst: has 5 bytes, and state/0/1/3.zip says 3" in message
        objects.put("whole/state/0/1/SSTs/1-2.sst", b"sst")
        objects.put("whole/state/0/_metadata/metadata", b'v1\n{"stateStoreInfo": [7]}')
        message = run("checkpoint", "verify", "shop/whole", code=Exit.FAILED, out=True)
        assert "_metadata/metadata: does not say which state stores there are" in message
        for name in ("state/0/1/1.zip", "state/0/1/2.zip", "state/0/1/3.zip", "offsets/3"):
            objects.put(f"whole/{name}", b"nonsense")
        message = run("checkpoint", "verify", "shop/whole", code=Exit.FAILED, out=True)
        assert "3.zip: is no snapshot of RocksDB" in message
        assert "offsets/3: begins with 'nonsense'" in message


def test_a_fork_is_as_of_its_batch_with_forks_of_the_streams(uri: str, run: Run) -> None:
    with sync.connect(uri) as client, client.objects("shop") as objects:
        ns = client.namespace("shop")
        with ns.writer("trunk") as writer:
            writer.append_many([b"x"] * 40)
        whole_checkpoint(objects, "trunk")
        uid = ns.info("trunk").uid
        for number in range(3):
            text = objects.get(f"trunk/offsets/{number}").decode().replace('"u"', f'"{uid}"')
            objects.put(f"trunk/offsets/{number}", text.encode())
        made = json.loads(run("checkpoint", "fork", "shop/trunk", "shop/new/v2", "--batch", 1, "--streams", "--json"))
        assert (made["batch"], made["streams"], made["offsets"]) == (
            1,
            {"shop/trunk": "shop/trunk-v2"},
            {"shop/trunk-v2": 20},
        )
        names = [info.name for info in objects.list(prefix="new/", limit=1000)]
        assert [name for name in names if "offsets" in name or "3." in name] == ["new/v2/offsets/0", "new/v2/offsets/1"]
        fork = ns.info("trunk-v2")
        lines = objects.get("new/v2/offsets/0").decode().splitlines()
        where = {"shop/trunk-v2": 10, "uids": {"shop/trunk-v2": fork.uid}}
        assert json.loads(lines[2]) == where | {"began": where | {"shop/trunk-v2": 0}}
        assert (lines[:2], lines[3]) == (["v1", ABOUT], "-")
        assert json.loads(objects.get("new/v2/metadata"))["id"] == made["query"] != "old"
        assert fork.end == 20
        assert json.loads(run("checkpoint", "verify", "shop/new/v2", "--json"))["whole"]
        plain = json.loads(run("checkpoint", "fork", "shop/trunk", "shop/plain", "--json"))
        assert (plain["batch"], plain["streams"]) == (2, {})
        assert objects.get("plain/offsets/2") == objects.get("trunk/offsets/2")
        behind = f'\n{{"shop/trunk": 25, "uids": {{"shop/trunk": "{uid}"}}}}'  # another source of the query
        objects.put("trunk/offsets/2", objects.get("trunk/offsets/2") + behind.encode())
        both = json.loads(run("checkpoint", "fork", "shop/trunk", "shop/both", "--streams", "--json"))
        assert both["offsets"] == {"shop/trunk-both": 30}
        again = ["--streams", "--stream", "shop/trunk=shop/trunk-v2"]
        assert "batch 1" in run("checkpoint", "fork", "shop/trunk", "shop/third", "--batch", 1, *again)
        with ns.writer("trunk-v2") as writer:
            writer.append(b"own")
        for words, code, said in (
            (("shop/trunk", "shop/plain"), Exit.REFUSED, "is there already"),
            (("shop/trunk", "shop/x", "--batch", 1, *again), Exit.REFUSED, "exists already"),
            (("shop/trunk", "shop/x", "--batch", 7), Exit.USAGE, "batch 7 was not done"),
            (("shop/trunk", "shop/x", *again[1:]), Exit.USAGE, "add --streams"),
            (("shop/trunk", "shop/x", "--streams", "--stream", "shop/y=shop/z"), Exit.USAGE, "does not read stream"),
            (("shop/trunk", "default/x"), Exit.USAGE, "namespace of its source"),
            (("shop/queries/fresh", "shop/x"), Exit.USAGE, "no batch was done"),
            (("shop/nothing", "shop/x"), Exit.NOT_FOUND, "is no checkpoint"),
        ):
            assert said in run("checkpoint", "fork", *words, code=code)
        assert [info.name for info in objects.list(prefix="x", limit=10)] == []
        assert [info.name for info in objects.list(prefix=".", limit=10)] == []
