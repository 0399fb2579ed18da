"""`buckram cluster` as a child process on a real ZooKeeper, and what the commands say about bad input there."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from tests.e2e.conftest import buckram

from buckram.core.ledgers.metadata import created
from buckram.errors import AccessRefused
from buckram.launch.zookeeper_server import ZooKeeperServer
from buckram.metadata.uri import ZOOKEEPER_AUTH, open_store
from buckram.metadata.zookeeper.kazoo_session import KazooSession

pytestmark = pytest.mark.share(10, "clusters")

_roots = itertools.count()


class Root:
    """A root of its own for each test."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self.hosts, self.path = server.address, f"/root-{next(_roots)}"
        self.uri = f"zk://{self.hosts}{self.path}"

    def put(self, name: str, value: bytes) -> None:
        async def write() -> None:
            session = KazooSession(self.hosts)
            await session.create(f"{self.path}/{name}", value, parents=True)
            await session.close()

        asyncio.run(write())


@pytest.fixture
def root(zookeeper_server: ZooKeeperServer) -> Root:
    return Root(zookeeper_server)


def test_a_cluster_is_created_once(root: Root) -> None:
    first = buckram("cluster", "init", "--json", uri=root.uri)
    assert (first.code, first.json["created"], first.json["manager"]) == (0, True, "hierarchical")
    again = buckram("cluster", "init", "--json", uri=root.uri)
    assert (again.code, again.json["created"]) == (0, False)
    assert again.json["instance_id"] == first.json["instance_id"]
    assert "was there already" in buckram("cluster", "init", uri=root.uri).out
    other = buckram("cluster", "init", "--manager", "flat", uri=root.uri)
    assert other.code == 2
    assert f"{root.path}/LAYOUT says hierarchical" in other.err
    assert buckram("cluster", "check", uri=root.uri).code == 0


def test_a_cluster_is_checked_and_removed(root: Root) -> None:
    made = buckram("cluster", "init", "--manager", "longhierarchical", "--json", uri=root.uri)
    assert made.json["manager"] == "longhierarchical"
    root.put("000/0000/0000/0000/L0007", b"junk")
    found = buckram("cluster", "check", "--json", uri=root.uri)
    assert found.code == 1
    damaged = [problem for problem in found.json["problems"] if problem["what"] == "metadata-damaged"]
    assert [problem["node"] for problem in damaged] == [f"{root.path}/000/0000/0000/0000/L0007"]
    said = buckram("cluster", "check", uri=root.uri)
    assert "1 problem: 1 error" in said.out, "without bookies nobody has to audit"
    assert f"{root.path}/000/0000/0000/0000/L0007: ledger metadata begins with b'junk'" in said.out
    listed = buckram("ledger", "list", "--json", uri=root.uri)
    assert (listed.code, [ledger["state"] for ledger in listed.json["ledgers"]]) == (0, ["unreadable"])
    instance = made.json["instance_id"]
    for words, code in (
        ([], 2), (["--force"], 2), (["--instance-id", "x", "--yes"], 5), (["--instance-id", instance, "--yes"], 0),
        (["--force", "--yes"], 2),
    ):  # fmt: skip
        assert buckram("cluster", "nuke", *words, uri=root.uri).code == code, words


def test_bad_clusters_say_what_to_do(root: Root) -> None:
    never = buckram("ledger", "list", uri=root.uri)
    assert never.code == 2
    assert f"no cluster at {root.uri}" in never.err
    assert "buckram cluster init" in never.err
    root.put("mine", b"")
    foreign = buckram("cluster", "init", uri=root.uri)
    assert foreign.code == 5
    assert f"{root.path}/mine" in foreign.err
    root.put("LAYOUT", b"5\nx:1")
    newer = buckram("ledger", "list", uri=root.uri)
    assert newer.code == 1
    assert f"{root.path}/LAYOUT: layout format '5'" in newer.err
    assert "nothing was changed" in newer.err


def test_an_embedded_cluster_is_checked_and_not_nuked(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path}/m.db"
    assert buckram("cluster", "init", "--json", uri=uri).json["manager"] == "one folder"
    assert buckram("cluster", "init", "--manager", "flat", uri=uri).code == 2
    checked = buckram("cluster", "check", "--json", uri=uri).json
    assert checked["problems"] == []  # there are no bookies, so nothing can lack copies
    refused = buckram("cluster", "nuke", "--force", "--yes", uri=uri)
    assert refused.code == 2
    assert f"remove {tmp_path}/m.db" in refused.err


async def test_clients_without_the_credentials_of_a_cluster_are_refused(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's zkEnableSecurity."""
    monkeypatch.setenv(ZOOKEEPER_AUTH, "digest:buckram:secret")
    store, peer = await open_store(root.uri), await open_store(root.uri)
    await store.initialise()
    await store.create_ledger(await store.allocate_ledger_id(), created(1, 1, 1, ["b:1"]))
    assert await peer.list_ledgers() == [0]
    monkeypatch.delenv(ZOOKEEPER_AUTH)
    stranger = await open_store(root.uri)
    for attempt in (stranger.read_ledger(0), stranger.list_ledgers(), stranger.initialise()):
        with pytest.raises(AccessRefused, match=f"{root.path}.*credentials"):
            await attempt
    for session in (store, peer, stranger):
        await session.close()
