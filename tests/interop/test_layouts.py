"""Apache's client and ours below one root, for each ledger manager: ids, paths, lists, deletions, folders left."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import Java, outcome
from tests.interop.clusters import PASSWORD, Cluster

from buckram.cluster import connect
from buckram.errors import LedgerIdUsed
from buckram.metadata.uri import open_store
from buckram.metadata.zookeeper.kazoo_session import KazooSession
from buckram.metadata.zookeeper.ledger_managers import MANAGERS, Manager, serialise_layout
from buckram.metadata.zookeeper.store import ZooKeeperStore

pytestmark = pytest.mark.share(5)

BOUNDARY = (0, 9_999, 10_000, 2**31 - 2, 2**31 - 1, 2**32, 1234567890123456789, 2**63 - 1)
EXPLICIT = {
    "hierarchical": BOUNDARY, "longhierarchical": BOUNDARY,
    "flat": (0, 9_999, 2**31 - 2), "legacyhierarchical": (0, 9_999, 10_000, 2**31 - 2),
}  # fmt: skip
every_manager = pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS)
SMALL = {"e": 1, "qw": 1, "qa": 1}


@pytest.fixture
def cluster(
    zookeeper: str, workdir: Path, java: Java, manager: Manager, request: pytest.FixtureRequest
) -> Iterator[Cluster]:
    """One bookie of ours. Apache makes the clusters that its tools can ask for."""
    name = f"{request.function.__name__}-{manager.name}"
    asked = manager.name if manager.name != "legacyhierarchical" else "null"
    made = Cluster(f"zk+{asked}://{zookeeper}/{name}", workdir / name)
    try:
        if asked == "null":
            made.init_with_ours()
            asyncio.run(set_layout(zookeeper, f"/{name}/LAYOUT", manager))
        else:
            made.init_with_apache(java)
        made.add(ours=1)
        yield made
    finally:
        made.close()


async def set_layout(hosts: str, node: str, manager: Manager) -> None:
    session = KazooSession(hosts)
    await session.set(node, serialise_layout(manager), 0)
    await session.close()


async def tree(store: ZooKeeperStore) -> list[str]:
    """All nodes of ledgers and their folders."""
    found: list[str] = []

    async def go(path: str) -> None:
        for name in await store.session.children(path):
            if path != store.root or name[:2] in ("L0", "L2") or name.isdigit():
                found.append(f"{path}/{name}"[len(store.root) + 1 :])
                await go(f"{path}/{name}")

    await go(store.root)
    return sorted(found)


@every_manager
async def test_both_clients_share_the_ledgers_below_one_root(java: Java, cluster: Cluster, manager: Manager) -> None:
    async def ask(step: str, **args: object) -> Any:
        return await outcome(java.start(f"Handles.{step}", uri=cluster.uri, **args))

    store = await open_store(cluster.uri)
    assert isinstance(store, ZooKeeperStore)
    async with connect(cluster.uri) as client:
        made: dict[int, str] = {}
        for _ in range(3):
            theirs = await ask("create", **SMALL)
            await ask("closeWriter", writer=theirs["writer"])
            async with client.create(ensemble="1/1/1", password=PASSWORD) as writer:
                await writer.append(b"x")
            made |= {theirs["ledger"]: "theirs", writer.ledger_id: "ours"}
        assert len(made) == 6
        for number, ledger_id in enumerate(EXPLICIT[manager.name]):
            if ledger_id in made:
                continue
            if number % 2:
                theirs = await ask("create", ledger=ledger_id, **SMALL)
                await ask("closeWriter", writer=theirs["writer"])
            else:
                try:
                    async with client.create(ensemble="1/1/1", password=PASSWORD, ledger_id=ledger_id):
                        pass
                except LedgerIdUsed:
                    # Folders beside the ledgers count, too, where the ids are drawn in the root itself.
                    assert not manager.id_folder
                    assert ledger_id < max(made)
                    continue
            made[ledger_id] = "theirs" if number % 2 else "ours"
        assert await store.list_ledgers() == sorted(await ask("list")) == sorted(made)
        assert [path for path in await tree(store) if "/L" in f"/{path}"] == sorted(map(manager.path, made))
        for ledger_id, maker in made.items():  # each is read and deleted by the other
            if maker == "ours":
                assert (await ask("metadata", ledger=ledger_id))["state"] == "CLOSED"
                await ask("delete", ledger=ledger_id)
            else:
                assert (await client.metadata(ledger_id)).closed
                await client.delete(ledger_id, password=PASSWORD)
        assert await store.list_ledgers() == await ask("list") == []
        left = await tree(store)
        assert left == [] or not manager.removes_parents
        assert not [path for path in left if "L" in path]
    assert not [name for name in await store.session.children(store.root) if name.startswith("ID-")]
    await store.close()


@pytest.mark.parametrize("manager", [MANAGERS["hierarchical"]], ids=["hierarchical"])
async def test_ids_beyond_31_bits_are_drawn_from_the_same_counters(
    java: Java, cluster: Cluster, manager: Manager
) -> None:
    store = await open_store(cluster.uri)
    assert isinstance(store, ZooKeeperStore)
    await store.session.create(f"{store.root}/idgen-long", world_open=True)
    async with connect(cluster.uri) as client:
        drawn: list[int] = []
        for _ in range(3):
            made = await outcome(java.start("Handles.create", uri=cluster.uri, client="late", **SMALL))
            async with client.create(ensemble="1/1/1") as writer:
                drawn += [made["ledger"], writer.ledger_id]
        assert drawn == [(1 << 32) + number for number in range(6)]
        listed = await outcome(java.start("Handles.list", uri=cluster.uri, client="late"))
        assert await store.list_ledgers() == sorted(listed) == drawn
    await store.close()
