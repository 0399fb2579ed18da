"""The store on ZooKeeper when others come in between: clusters made anew, newer incarnations, cancelled requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.support.zk_store_kit import Counted, Zk, ledger

from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import (
    AlreadyRegistered,
    ClusterNotInitialised,
    InvalidArgument,
    LedgerExists,
    MetadataUnavailable,
    NoSuchKey,
    ValueTooLarge,
    WrongCluster,
)
from buckram.metadata.zookeeper.store import ZooKeeperStore
from buckram.types import BookieAddress, BookieInfo
from simulator.engine.zookeeper import SimZkSession

INFO = BookieInfo("b:1", BookieAddress("h", 1))


def remove_cluster(zk: Zk) -> None:
    for path in sorted(zk.nodes(zk.root), reverse=True):
        zk.tree.delete(path, -1)
    zk.tree.delete(zk.root, -1)


async def expired(store: ZooKeeperStore) -> None:
    """The session of a store is lost, and the store knows."""
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    store.session.expire()  # type: ignore[attr-defined]  # the simulated one
    async with asyncio.timeout(5):
        await lost.wait()


async def test_bookie_neither_restores_a_removed_cluster_nor_joins_the_next() -> None:
    """It was away while its cluster was removed: what it keeps belongs to nothing that is there now."""
    zk = Zk()
    store = await zk.ready()
    await store.register(INFO, readonly=False)
    await expired(store)
    remove_cluster(zk)
    for readonly in (False, True):
        with pytest.raises(ClusterNotInitialised):
            await store.register(INFO, readonly=readonly)
    assert not any(path.startswith(zk.root) for path in zk.nodes())
    await zk.store(seed=9).initialise()
    with pytest.raises(WrongCluster, match="/ledgers/INSTANCEID is"):
        await store.register(INFO, readonly=False)
    assert (await zk.store().bookies()).writable == {}


def nodes_of_ids(zk: Zk) -> list[str]:
    return [path for path in zk.nodes() if "ID-" in path]


async def unknown_nodes(zk: Zk, store: ZooKeeperStore) -> list[str]:
    """Nodes of ids that are still there when the store has removed all that it knows of, as it does now and then."""
    await store.allocate_ledger_id()
    while store.tree._ids.pending:
        await store.allocate_ledger_id()
    return nodes_of_ids(zk)


async def test_a_cancelled_draw_leaves_no_node_behind() -> None:
    zk = Zk()
    store = await zk.ready()
    await store.create_ledger(await store.allocate_ledger_id(), ledger())
    for number in range(20):
        drawing = asyncio.create_task(store.allocate_ledger_id())
        for _ in range(number % 4):
            await asyncio.sleep(0)
        drawing.cancel()
        await asyncio.gather(drawing, return_exceptions=True)
    assert await unknown_nodes(zk, store) == []


async def test_a_cancelled_creation_leaves_no_node_behind() -> None:
    zk = Zk()
    store = await zk.ready()
    for number in range(1, 9):
        drawn = await store.allocate_ledger_id()
        creating = asyncio.create_task(store.create_ledger(drawn, ledger(number)))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        creating.cancel()
        await asyncio.gather(creating, return_exceptions=True)
    assert await unknown_nodes(zk, store) == []


async def test_a_record_that_is_refused_leaves_no_node_behind() -> None:
    zk = Zk()
    store = await zk.ready()
    big = replace(ledger(), custom_metadata={"x": b"x" * 600_000})
    with pytest.raises(ValueTooLarge):
        await store.create_ledger(await store.allocate_ledger_id(), big)
    assert await unknown_nodes(zk, store) == []


async def test_a_lost_answer_to_a_draw_leaves_a_node_until_the_next_one() -> None:
    zk = Zk()
    store = await zk.ready()
    await store.create_ledger(await store.allocate_ledger_id(), ledger())
    for when in ("after", "before", "after"):
        zk.server.lose_next(when, "client", "idgen")
        with pytest.raises(MetadataUnavailable):
            await store.allocate_ledger_id()
    others = zk.store("other")
    kept = await others.allocate_ledger_id()
    assert await unknown_nodes(zk, store) == [f"/ledgers/idgen/ID-{kept:010d}"], "another session's is left alone"
    count = Counted(store)
    await store.allocate_ledger_id()
    assert (count.reads, count.writes) == (0, 1), "it looks only after a lost answer"


class Between:
    """Runs `act` after the next answer to a `get` of `path`."""

    def __init__(self, store: ZooKeeperStore, path: str, act: Callable[[], None]) -> None:
        self._session = store.session
        self._get, self._path, self._act = store.session.get, path, act
        store.session.get = self  # type: ignore[method-assign]
        self.done = False

    async def __call__(self, path: str, watch: Callable[[], None] | None = None) -> object:
        found = await self._get(path, watch)
        if path == self._path and not self.done:
            self.done = True
            self._act()
            session: SimZkSession = self._session
            while session._connected and not session._server.tree.alive(session.session_id):  # noqa: ASYNC110 - it learns of it
                await asyncio.sleep(0)
        return found


@pytest.mark.parametrize("what", ["unregister", "switch", "refresh"])
async def test_the_registration_of_a_newer_incarnation_is_left_alone(what: str) -> None:
    """This process stood still between its look and its deletion, for longer than its session lived."""
    zk = Zk()
    store, newer = await zk.ready(), zk.store("newer")
    await store.register(INFO, readonly=False)
    node = "/ledgers/available/b:1"

    def replaced() -> None:
        zk.server.end_session(store.session.session_id)
        zk.tree.create(node, b"newer", newer.session.session_id, ephemeral=True)
        store.session.expire()  # type: ignore[attr-defined]  # and the process learns of it

    await newer.bookies()
    # The last look before the deletion: a switch looks at both nodes first.
    looks = {"unregister": 0, "switch": 1, "refresh": 1}[what]

    def arm() -> None:
        if looks:
            Between(store, node, replaced)
        else:
            replaced()

    Between(store, node, arm)
    moved = BookieInfo("b:1", BookieAddress("h", 2))
    try:
        if what == "unregister":
            await store.unregister("b:1")
        else:
            await store.register(moved if what == "refresh" else INFO, readonly=what == "switch")
    except (MetadataUnavailable, AlreadyRegistered, NoSuchKey):
        pass
    assert zk.nodes()[node] == b"newer"


async def test_ids_are_not_waited_for_when_somebody_took_them() -> None:
    zk = Zk()
    store = await zk.ready()
    for taken in range(3):
        await store.ledgers.create(taken, serialise(ledger(99)), chosen=False, fresh=())  # as Apache's clients do
    for _ in range(3):
        with pytest.raises(LedgerExists):
            await store.create_ledger(await store.allocate_ledger_id(), ledger(5))
    assert nodes_of_ids(zk) == []


async def test_a_version_that_cannot_be_is_refused() -> None:
    zk = Zk()
    store = await zk.ready()
    await store.create_ledger(1, ledger())
    with pytest.raises(InvalidArgument, match="version"):
        await store.delete_ledger(1, 2**31)
