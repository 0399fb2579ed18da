"""The store on ZooKeeper: what a ledger costs, and where ids come from. Server: simulated."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.zk_store_kit import Counted, Zk, ledger

from buckram.core.ledgers.metadata import closed
from buckram.core.ledgers.metadata_codec import serialise
from buckram.errors import (
    LedgerExists,
    LedgerIdsExhausted,
    MetadataUnavailable,
)
from buckram.metadata.zookeeper.ledger_ids import LedgerIds
from buckram.metadata.zookeeper.ledger_managers import (
    FLAT,
    HIERARCHICAL,
    LEGACY_HIERARCHICAL,
    LONG_HIERARCHICAL,
    Manager,
    serialise_layout,
)
from buckram.metadata.zookeeper.store import ZooKeeperStore

INSTANCE = "0c9a2e4e-5a2f-4d0e-9a3b-0d6d5b6a7c81"


async def with_layout(manager: Manager) -> Zk:
    zk = Zk()
    zk.put("/ledgers/LAYOUT", serialise_layout(manager))
    zk.put("/ledgers/INSTANCEID", INSTANCE.encode())
    return zk


# Counting


async def test_a_ledgers_life_costs_no_more_than_with_apaches_client() -> None:
    """Apache's: draw an id (make and delete a node), make the ledger; close: one set. No reads. Here the id's node is
    deleted by the request that makes the ledger."""
    zk = Zk()
    store = await zk.ready()
    for _ in range(2):  # what is found out once, and the first ledger's folders
        await store.create_ledger(await store.allocate_ledger_id(), ledger())
    count = Counted(store)
    ledger_id = await store.allocate_ledger_id()
    made = await store.create_ledger(ledger_id, ledger())
    assert (count.reads, count.writes) == (0, 2)
    await store.write_ledger(ledger_id, closed(made.metadata, 0, 1), made.version)
    assert (count.reads, count.writes) == (0, 3)
    assert not [path for path in zk.nodes() if "ID-" in path]


async def made_by_apache(store: ZooKeeperStore, ledger_id: int) -> None:
    """A ledger whose id nobody wrote down as chosen."""
    await store.ledgers.create(ledger_id, serialise(ledger(1)), chosen=False, fresh=())


async def test_the_first_ledger_of_a_folder_makes_the_folder_too() -> None:
    zk = Zk()
    store = await zk.ready()
    await made_by_apache(store, 5)
    count = Counted(store)
    await made_by_apache(store, 20_000)  # fails, makes 00/0002, and again
    assert (count.reads, count.writes) == (0, 3)
    await made_by_apache(store, 12 * 10**8)  # fails, so does 12/0000, makes 12 and 12/0000, and again
    assert (count.reads, count.writes) == (0, 3 + 5)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_creation_with_a_drawn_id_whose_reply_is_lost(when: str) -> None:
    zk = Zk()
    store = await zk.ready()
    for _ in range(2):
        await store.create_ledger(await store.allocate_ledger_id(), ledger())
    drawn = await store.allocate_ledger_id()
    zk.server.lose_next(when, "client", f"L{drawn:04d}")
    with pytest.raises(MetadataUnavailable):
        await store.create_ledger(drawn, ledger())
    assert (await store.create_ledger(drawn, ledger())).version == 0
    await store.create_ledger(await store.allocate_ledger_id(), ledger())
    assert await store.list_ledgers() == [0, 1, 2, 3]
    assert not [path for path in zk.nodes() if "ID-" in path]


async def test_an_id_drawn_by_a_session_that_is_gone() -> None:
    zk = Zk()
    store = await zk.ready()
    drawn = await store.allocate_ledger_id()
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    store.session.expire()  # type: ignore[attr-defined]  # the simulated one
    async with asyncio.timeout(5):
        await lost.wait()
    assert (await store.create_ledger(drawn, ledger())).version == 0


async def test_a_drawn_id_that_is_taken() -> None:
    zk = Zk()
    store = await zk.ready()
    await made_by_apache(store, 0)
    with pytest.raises(LedgerExists):
        await store.create_ledger(await store.allocate_ledger_id(), ledger(2))
    assert not [path for path in zk.nodes() if "ID-" in path]


async def test_ids_that_nothing_was_made_with_leave_few_nodes_behind() -> None:
    zk = Zk()
    store = await zk.ready()
    for _ in range(250):
        await store.allocate_ledger_id()
    assert len([path for path in zk.nodes() if "ID-" in path]) <= 101
    await store.close()
    assert not [path for path in zk.nodes() if "ID-" in path]


# Ids


async def draw(ids: LedgerIds, count: int, manager: Manager = HIERARCHICAL) -> list[int]:
    return [await ids.draw(manager) for _ in range(count)]


def high(number: int, low: int) -> int:
    return number << 32 | low


async def test_ids_run_over_into_63_bits() -> None:
    zk = await with_layout(HIERARCHICAL)
    ids = LedgerIds(zk.session(), "/ledgers", "zk://x", limit=4)
    assert await draw(ids, 6) == [0, 1, 2, 3, high(1, 0), high(1, 1)]
    assert "/ledgers/idgen-long/HOB-0000000001" in zk.nodes()
    other = LedgerIds(zk.session(), "/ledgers", "zk://x", limit=4)
    assert await draw(other, 1, LONG_HIERARCHICAL) == [high(1, 2)], "idgen-long tells everybody"
    assert await draw(ids, 3) == [high(1, 3), high(2, 0), high(2, 1)]
    assert await draw(other, 3) == [high(2, 2), high(2, 3), high(3, 0)]
    with pytest.raises(LedgerIdsExhausted, match="/ledgers/idgen-long"):
        await draw(ids, 9)


async def test_old_high_halves_are_tidied_away_and_not_made_again() -> None:
    zk = await with_layout(HIERARCHICAL)
    for number in (2, 3, 4, 5):
        zk.put(f"/ledgers/idgen-long/HOB-{number:010d}")
    zk.put("/ledgers/idgen-long/HOB-x")
    ids = LedgerIds(zk.session(), "/ledgers", "zk://x")
    assert await draw(ids, 1) == [high(5, 0)]
    left = [path for path in zk.nodes("/ledgers/idgen-long") if "ID-" not in path]
    assert left == [f"/ledgers/idgen-long/HOB-{name}" for name in ("0000000003", "0000000004", "0000000005", "x")]
    late = LedgerIds(zk.session(), "/ledgers", "zk://x")
    late._long, late._high = True, 2  # a process that looked long ago
    assert await draw(late, 1) == [high(5, 1)]
    assert "/ledgers/idgen-long/HOB-0000000002" not in zk.nodes()


@pytest.mark.parametrize("number", [2**31 - 1, -(2**31), -1])
async def test_a_counter_beyond_31_bits(number: int) -> None:
    zk = await with_layout(HIERARCHICAL)
    zk.put("/ledgers/idgen")
    zk.tree.set_sequence("/ledgers/idgen", number)
    assert await draw(LedgerIds(zk.session(), "/ledgers", "zk://x"), 1) == [high(1, 0)]


@pytest.mark.parametrize(("manager", "folder"), [(FLAT, "/ledgers"), (LEGACY_HIERARCHICAL, "/ledgers/idgen")])
async def test_managers_with_31_bits_run_out(manager: Manager, folder: str) -> None:
    zk = await with_layout(manager)
    zk.put(folder)
    zk.tree.set_sequence(folder, 2**31 - 2)
    store = zk.store()
    assert await store.allocate_ledger_id() == 2**31 - 2
    with pytest.raises(LedgerIdsExhausted, match=f"{folder}: .*{manager.name}"):
        await store.allocate_ledger_id()
    assert "/ledgers/idgen-long" not in zk.nodes()
