"""Listing ledgers on ZooKeeper: order, pages, strays, and failures half-way, which never look like the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from tests.support.zk_store_kit import Counted, Zk, ledger

from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import AccessRefused, ClusterNotInitialised, MetadataUnavailable
from buckram.metadata.zookeeper.ledger_managers import (
    FLAT,
    HIERARCHICAL,
    LEGACY_HIERARCHICAL,
    MANAGERS,
    Manager,
    serialise_layout,
)
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.types import MAX_LEDGER_ID

every_manager = pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS)
STRAYS = ("tmp", "disableHealthCheck", "00x", "underreplication/ledgers/0000/urL0000000001", "idgen/ID-0000000009")


def cluster(manager: Manager, ids: list[int]) -> Zk:
    zk = Zk()
    zk.put("/ledgers/LAYOUT", serialise_layout(manager))
    zk.put("/ledgers/INSTANCEID", b"0c9a2e4e-5a2f-4d0e-9a3b-0d6d5b6a7c81")
    record = serialise(ledger())
    for ledger_id in ids:
        zk.put(f"/ledgers/{manager.path(ledger_id)}", record)
    return zk


async def pages(store: ZooKeeperStore, limit: int = 1000, after: int = -1, seen: list[int] | None = None) -> list[int]:
    seen = [] if seen is None else seen
    while page := await store.list_ledgers(after=seen[-1] if seen else after, limit=limit):
        assert len(page) <= limit
        seen += page
    return seen


def some_ids(manager: Manager, count: int, seed: int) -> list[int]:
    rng = random.Random(seed)
    top = 10**10 if manager is LEGACY_HIERARCHICAL else MAX_LEDGER_ID
    near = [rng.randrange(30_000) for _ in range(count)] + [2**31 - 1 + rng.randrange(-50, 50) for _ in range(9)]
    return sorted({*near, *(rng.randrange(top) for _ in range(count)), 0, top - 1})


@every_manager
@pytest.mark.parametrize("limit", [1, 7, 1000])
async def test_everything_in_order_among_strays(manager: Manager, limit: int) -> None:
    ids = some_ids(manager, 60, limit)
    zk = cluster(manager, ids)
    for stray in STRAYS:
        zk.put(f"/ledgers/{stray}")
    folder = manager.path(7).rpartition("/")[0]
    if folder:
        for name in ("L00", "L00001", "tmp3", "0003", "Lxxxx"):
            zk.put(f"/ledgers/{folder}/{name}", b"stray")
    store = zk.store()
    assert await pages(store, limit) == ids
    assert await pages(store, limit, after=ids[20]) == ids[21:]
    assert await pages(store, limit, after=ids[20] + 1) == [known for known in ids if known > ids[20] + 1]
    assert await store.list_ledgers(after=ids[-1]) == []
    strays = await store.ledgers.strays()
    assert "/ledgers/tmp" in strays
    assert "/ledgers/disableHealthCheck" not in strays
    assert not [path for path in strays if path.startswith(("/ledgers/idgen", "/ledgers/underreplication"))]


async def test_a_dense_cluster_is_read_once_not_once_a_page() -> None:
    zk = cluster(HIERARCHICAL, list(range(25_000)))
    store = zk.store()
    count = Counted(store)
    assert await pages(store, 500) == list(range(25_000))
    assert count.reads < 20
    assert count.writes == 0


async def test_an_unreadable_ledger_does_not_end_a_listing() -> None:
    zk = cluster(HIERARCHICAL, [1, 2, 3])
    zk.tree.set("/ledgers/00/0000/L0002", b"\xff", 0)
    zk.tree.refused["/ledgers/00/0000/L0003"] = None
    assert await pages(zk.store()) == [1, 2, 3]


async def test_what_this_session_changes_is_in_the_next_page() -> None:
    zk = cluster(HIERARCHICAL, [1, 2, 5, 6])
    store = zk.store()
    assert await store.list_ledgers(limit=2) == [1, 2]
    await store.create_ledger(3, ledger())
    await store.delete_ledger(5, 0)
    assert await store.list_ledgers(after=2) == [3, 6]


async def test_the_end_is_looked_at_again() -> None:
    zk = cluster(HIERARCHICAL, [1])
    store = zk.store()
    assert await store.list_ledgers() == [1]
    zk.put("/ledgers/00/0000/L0002", b"made by somebody else")
    assert await store.list_ledgers(after=1) == [2]


async def test_no_listing_goes_on_with_what_another_read_before_it_began() -> None:
    """Collection takes its own ledgers first: one that was made since must not be missing in the listing after that."""
    zk = cluster(HIERARCHICAL, [1, 2, 8])
    store = zk.store()
    assert await store.list_ledgers(limit=2) == [1, 2]  # somebody else's, who pauses here
    zk.put("/ledgers/00/0000/L0003", serialise(ledger()))
    assert await pages(store, limit=2) == [1, 2, 3, 8]

    reading, go_on = asyncio.Event(), asyncio.Event()
    children = store.session.children

    async def slowly(path: str) -> list[str]:
        names = await children(path)
        if path.endswith("/0000") and not reading.is_set():
            reading.set()
            await go_on.wait()
        return names

    store.session.children = slowly  # type: ignore[method-assign,assignment]
    other = asyncio.create_task(store.list_ledgers(limit=2))
    await reading.wait()  # that one has read the folder, and pauses only after the next has begun
    zk.put("/ledgers/00/0000/L0005", serialise(ledger()))
    assert await store.list_ledgers(limit=2) == [1, 2]
    go_on.set()
    assert await other == [1, 2]
    assert await pages(store, limit=2, after=2) == [3, 5, 8]


class Between:
    """Does something to the tree when the store has asked for a folder, before the answer."""

    def __init__(self, store: ZooKeeperStore, path: str, act: Callable[[], None]) -> None:
        self._sync, self._path, self._act = store.session.sync, path, act
        store.session.sync = self  # type: ignore[method-assign]

    async def __call__(self, path: str) -> None:
        await self._sync(path)
        if path == self._path:
            self._act()


async def test_a_folder_that_vanishes_half_way_is_empty() -> None:
    zk = cluster(HIERARCHICAL, [1, 20_000, 30_000])

    def vanish() -> None:
        zk.tree.delete("/ledgers/00/0002/L0000", -1)
        zk.tree.delete("/ledgers/00/0002", -1)

    store = zk.store()
    Between(store, "/ledgers/00/0002", vanish)
    assert await pages(store) == [1, 30_000]


@every_manager
async def test_a_root_that_vanishes_is_not_a_cluster_without_ledgers(manager: Manager) -> None:
    zk = cluster(manager, [5])
    store = zk.store()
    assert await store.list_ledgers() == [5]
    for path in sorted(zk.nodes("/ledgers"), reverse=True):
        zk.tree.delete(path, -1)
    for _ in range(2):
        with pytest.raises(ClusterNotInitialised):
            await store.list_ledgers()
        if zk.tree.peek("/ledgers") is not None:
            zk.tree.delete("/ledgers", -1)


async def test_a_root_that_vanishes_in_the_middle() -> None:
    zk = cluster(FLAT, [5])

    def vanish() -> None:
        for path in sorted(zk.nodes(), reverse=True):
            zk.tree.delete(path, -1)

    store = zk.store()
    Between(store, "/ledgers", vanish)
    with pytest.raises(ClusterNotInitialised):
        await store.list_ledgers()


@pytest.mark.parametrize("width", [1, 500])
async def test_a_folder_that_cannot_be_read_is_an_error(width: int) -> None:
    ids = list(range(0, 400_000, 5_000))
    zk = cluster(HIERARCHICAL, ids)
    zk.tree.refused["/ledgers/00/0020"] = None
    store = zk.store()
    seen: list[int] = []
    with pytest.raises(AccessRefused, match="/ledgers/00/0020"):
        await pages(store, width, seen=seen)
    assert seen == ids[: len(seen)]
    assert len(seen) <= 40
    del zk.tree.refused["/ledgers/00/0020"]
    assert seen + await pages(store, width, after=seen[-1] if seen else -1) == ids


async def test_a_store_that_goes_away_half_way_is_an_error() -> None:
    ids = list(range(0, 400_000, 5_000))
    zk = cluster(HIERARCHICAL, ids)
    zk.server.timeout_s = 0.05
    store = zk.store()
    first = await store.list_ledgers(limit=3)
    Between(store, "/ledgers/00/0010", lambda: setattr(zk.server, "down", True))
    with pytest.raises(MetadataUnavailable):
        await pages(store, 3, after=first[-1])
    zk.server.down = False
    store.session.sync = type(store.session).sync.__get__(store.session)  # type: ignore[method-assign]
    zk.server.timeout_s = 5.0
    assert first + await pages(store, 3, after=first[-1]) == ids


async def test_faults_never_shorten_a_listing() -> None:
    """Whatever is lost: a listing that ends without an error is complete."""
    ids = some_ids(HIERARCHICAL, 100, 3)
    zk = cluster(HIERARCHICAL, ids)
    zk.server.timeout_s = 0.05
    rng, failed = random.Random(8), 0
    for _ in range(60):
        store = zk.store()
        at = "/ledgers" + rng.choice(["", "/00", "/00/0000", "/00/0001", "/000", "/x"])
        Between(store, at, rng.choice([store.session.expire, lambda: setattr(zk.server, "down", True)]))  # type: ignore[attr-defined]
        try:
            assert await pages(store, rng.choice([5, 50, 1000])) == ids
        except MetadataUnavailable:
            failed += 1
        zk.server.down = False
        await store.close()
    assert 5 < failed < 60
