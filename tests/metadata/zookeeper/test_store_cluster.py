"""Checking and removing whole clusters: on a simulated ZooKeeper, and checking on an embedded store."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.support.zk_store_kit import Zk, ledger

from buckram.core.cluster.cookie import Cookie, serialise_cookie
from buckram.core.ledgers.metadata import closed
from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import ClusterNotInitialised, MetadataUnavailable, WrongCluster
from buckram.metadata.maintain.checkup import Checkup, examine
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.zookeeper.cluster import nuke_cluster
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.types import BookieAddress, BookieInfo, LedgerState


async def populate(store: TreeStore) -> None:
    """Two bookies, three ledgers; nothing is wrong."""
    instance = await store.instance_id()
    for number, readonly in ((1, False), (2, True)):
        name = f"b{number}"
        await store.write_cookie(name, serialise_cookie(Cookie(name, "d", "1\td", instance)), None)
        await store.register(BookieInfo(name, BookieAddress("h", number)), readonly=readonly)
    for ledger_id in (5, 6, 2**40):
        await store.create_ledger(ledger_id, ledger())
    await store.write_ledger(6, closed(ledger(), 1, 10), 0)


def wrong(found: Checkup) -> dict[str, str]:
    assert all(problem.state and problem.why for problem in found.problems)
    return {problem.where: problem.why for problem in found.problems}


async def test_a_cluster_in_order() -> None:
    zk = Zk()
    store = await zk.ready()
    await populate(store)
    before = zk.nodes()
    found = await examine(zk.store())
    assert wrong(found) == {}
    assert (found.manager, found.instance_id) == ("hierarchical", await store.instance_id())
    assert (found.writable, found.readonly, found.cookies) == (["b1"], ["b2"], ["b1", "b2"])
    assert found.ledgers == {LedgerState.OPEN: 2, LedgerState.IN_RECOVERY: 0, LedgerState.CLOSED: 1}
    assert zk.nodes() == before


async def test_everything_that_is_wrong_is_named() -> None:
    zk = Zk()
    store = await zk.ready()
    await populate(store)
    zk.put("/ledgers/cookies/b3", b"junk")
    zk.put("/ledgers/cookies/b4", serialise_cookie(Cookie("b9", "d", "1\td", "other")))
    zk.put("/ledgers/cookies/b 5")
    zk.put("/ledgers/available/b6", b"\xff\xff")
    zk.put("/ledgers/available/named")
    zk.put("/ledgers/available/h:3181")
    zk.put("/ledgers/available/readonly/b,7")
    zk.put("/ledgers/00/0000/L0009", b"junk")
    zk.put("/ledgers/00/0000/L0010", serialise(ledger()))
    zk.tree.refused["/ledgers/00/0000/L0010"] = None
    zk.put("/ledgers/00/0000/tmp")
    zk.put("/ledgers/mine")
    found = await examine(store)
    said = wrong(found)
    assert list(said) == [
        "/ledgers/cookies/b 5", "/ledgers/cookies/b3", "/ledgers/cookies/b4", "/ledgers/available/b6",
        "/ledgers/available/named", "/ledgers/available/readonly/b,7", "h:3181", "named",
        "/ledgers/00/0000/L0009", "/ledgers/00/0000/L0010", "/ledgers/mine", "/ledgers/00/0000/tmp",
    ]  # fmt: skip
    assert "instance id 'other'" in said["/ledgers/cookies/b4"]
    assert "begins with b'junk'" in said["/ledgers/00/0000/L0009"]
    assert found.unreadable == 2
    assert sum(found.ledgers.values()) == 3


async def test_a_layout_that_is_not_known_is_a_problem_not_an_end() -> None:
    zk = Zk()
    zk.put("/ledgers/LAYOUT", b"7\nx:1")
    zk.put("/ledgers/INSTANCEID", b"i")
    found = await examine(zk.store())
    assert list(wrong(found)) == ["/ledgers/LAYOUT"]
    assert found.manager == ""


async def test_what_is_not_a_cluster_cannot_be_checked() -> None:
    with pytest.raises(ClusterNotInitialised):
        await examine(Zk().store())


async def test_a_store_that_goes_away_is_an_error_not_a_problem() -> None:
    zk = Zk()
    store = await zk.ready()
    await populate(store)
    zk.server.down, zk.server.timeout_s = True, 0.05
    with pytest.raises(MetadataUnavailable):
        await examine(store)


async def test_an_embedded_cluster(tmp_path: Path) -> None:
    store = TreeStore(SqliteKeys(tmp_path / "m.db"), "sqlite:x", random.Random(1))
    await store.initialise()
    await populate(store)
    assert wrong(await examine(store)) == {}
    await store.keys.create("/ledgers/all/x", b"")
    await store.keys.create("/ledgers/mine", b"")
    await store.keys.create(store.layout.ledger(9), b"junk")
    assert list(wrong(await examine(store))) == [store.layout.ledger(9), "/ledgers/mine", "/ledgers/all/x"]
    await store.close()


# Removing


async def stopped(zk: Zk) -> ZooKeeperStore:
    """A cluster with ledgers and keys of ours, whose bookies have stopped."""
    bookies = await zk.ready()
    await populate(bookies)
    for ledger_id in range(100, 1300):
        zk.put(bookies.layout.ledger(ledger_id), b"x")
    zk.put(f"{zk.root}/disableHealthCheck")
    zk.put(f"{zk.root}/underreplication/ledgers/0000/urL0000000001")
    await bookies.keys.create(f"{bookies.layout.own}/streams/a", b"")
    await bookies.close()
    return zk.store()


async def test_nuke_removes_everything_and_nothing_else() -> None:
    zk = Zk("/prod/ledgers")
    zk.put("/buckram/other/x")
    store = await stopped(zk)
    assert "/buckram/prod%2Fledgers/streams/a" in zk.nodes()
    before = len(zk.nodes())
    removed = await nuke_cluster(store.session, store.root, await store.instance_id())
    assert removed == before - len(zk.nodes())
    assert list(zk.nodes()) == ["/buckram", "/buckram/other", "/buckram/other/x", "/prod"]


@pytest.mark.parametrize("instance", [None, "", "0c9a2e4e-5a2f-4d0e-9a3b-0d6d5b6a7c81"])
async def test_nuke_needs_the_instance_id(instance: str | None) -> None:
    zk = Zk()
    store = await stopped(zk)
    before = zk.nodes()
    with pytest.raises(WrongCluster, match=r"/ledgers/INSTANCEID is .*nothing was changed"):
        await nuke_cluster(store.session, store.root, instance)
    assert zk.nodes() == before
    assert await nuke_cluster(store.session, store.root, instance, force=True) > 1200
    assert [path for path in zk.nodes() if path.startswith("/ledgers")] == []
    with pytest.raises(ClusterNotInitialised):
        await nuke_cluster(store.session, store.root, instance, force=True)


@pytest.mark.parametrize("node", ["/ledgers/available/b9", "/ledgers/available/readonly/b9"])
async def test_nuke_spares_a_cluster_with_live_bookies(node: str) -> None:
    zk = Zk()
    store = await stopped(zk)
    zk.put(node)
    before = zk.nodes()
    with pytest.raises(WrongCluster, match=r"1 bookies are registered \(b9\)"):
        await nuke_cluster(store.session, store.root, None, force=True)
    assert zk.nodes() == before


async def test_nuke_spares_foreign_nodes() -> None:
    zk = Zk()
    store = await stopped(zk)
    zk.put("/ledgers/mine/deep")
    before = zk.nodes()
    with pytest.raises(WrongCluster, match="/ledgers/mine"):
        await nuke_cluster(store.session, store.root, None, force=True)
    assert zk.nodes() == before


async def test_an_interrupted_nuke_can_be_repeated() -> None:
    zk = Zk()
    store = await stopped(zk)
    instance = await store.instance_id()
    zk.server.lose_next("before", "client", "/ledgers/underreplication")
    with pytest.raises(MetadataUnavailable):
        await nuke_cluster(store.session, store.root, instance)
    assert await store.instance_id() == instance
    await nuke_cluster(store.session, store.root, instance)
    assert [path for path in zk.nodes() if path.startswith("/ledgers")] == []
