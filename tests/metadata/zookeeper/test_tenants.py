"""Clusters of different owners on one real ZooKeeper, each with credentials of its own (Apache's zkEnableSecurity)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from buckram.core.ledgers.metadata import created
from buckram.errors import AccessRefused, ConfigError
from buckram.launch.zookeeper_server import start_zookeeper
from buckram.metadata.uri import ZOOKEEPER_AUTH, open_store
from buckram.metadata.zookeeper.cluster import nuke_cluster
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.seams import MetadataStore
from buckram.types import BookieAddress, BookieInfo, Create


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[str]:
    """A server where nobody has been before."""
    try:
        server = start_zookeeper(tmp_path / "zk", sync=False)
    except ConfigError as error:
        pytest.skip(f"needs a real ZooKeeper: {error}")
    with server:
        yield server.address


async def opened(monkeypatch: pytest.MonkeyPatch, uri: str, credential: str) -> MetadataStore:
    monkeypatch.setenv(ZOOKEEPER_AUTH, credential)
    return await open_store(uri)


async def test_neighbours_do_not_keep_each_other_out(hosts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes first makes the node below which every cluster's own keys are."""
    owners = {"/a": "digest:alice:secret", "/b": "digest:bob:hidden", "/c": ""}
    stores = {root: await opened(monkeypatch, f"zk://{hosts}{root}", owner) for root, owner in owners.items()}
    for number, store in enumerate(stores.values()):
        assert isinstance(store, ZooKeeperStore)
        await store.initialise()
        await store.register(BookieInfo("b:1", BookieAddress("h", 1)), readonly=False)
        ledger = await store.allocate_ledger_id()
        await store.create_ledger(ledger, created(1, 1, 1, ["b:1"]))
        assert await store.list_ledgers() == [ledger]
        if number:
            await store.keys.create(f"{store.layout.own}/x/y", b"1")
        else:
            await store.keys.multi([Create(f"{store.layout.own}/x/y", b"1")])
        assert (await store.keys.get(f"{store.layout.own}/x/y")).value == b"1"
    spy = await opened(monkeypatch, f"zk://{hosts}/a", "digest:mallory:x")
    for attempt in (spy.keys.get("/buckram/a/x/y"), spy.keys.create("/buckram/a/z", b""), spy.list_ledgers()):
        with pytest.raises(AccessRefused, match="/a"):
            await attempt
    await spy.close()
    await stores["/b"].unregister("b:1")
    second = stores["/b"]
    assert isinstance(second, ZooKeeperStore)
    assert await nuke_cluster(second.session, "/b", await second.instance_id()) > 5
    for store in stores.values():
        await store.close()
