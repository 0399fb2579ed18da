"""The store on ZooKeeper: which nodes it makes, what it takes for a cluster, ids, lost replies. Server: simulated."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.support.zk_store_kit import Zk, ledger

from buckram.core.ledgers.metadata import closed
from buckram.core.placement.topology import Topology
from buckram.errors import (
    AccessRefused,
    ClusterNotInitialised,
    ConfigError,
    InvalidArgument,
    LedgerExists,
    MalformedRecord,
    MetadataUnavailable,
    NoSuchLedger,
    WrongCluster,
)
from buckram.metadata.records.topology import change_rack_map, read_topology
from buckram.metadata.zookeeper.ledger_managers import (
    FLAT,
    HIERARCHICAL,
    LEGACY_HIERARCHICAL,
    LONG_HIERARCHICAL,
    MANAGERS,
    Manager,
    serialise_layout,
)
from buckram.types import MAX_LEDGER_ID, BookieAddress, BookieInfo

INSTANCE = "0c9a2e4e-5a2f-4d0e-9a3b-0d6d5b6a7c81"
every_manager = pytest.mark.parametrize("manager", MANAGERS.values(), ids=MANAGERS)


async def with_layout(manager: Manager) -> Zk:
    zk = Zk()
    zk.put("/ledgers/LAYOUT", serialise_layout(manager))
    zk.put("/ledgers/INSTANCEID", INSTANCE.encode())
    return zk


# What is a cluster


@pytest.mark.parametrize("root", ["/ledgers", "/prod/bk/ledgers"])
async def test_a_new_cluster_has_the_nodes_of_apaches(root: str) -> None:
    zk = Zk(root)
    store = await zk.ready()
    instance = await store.instance_id()
    assert len(instance) == 36
    above = {"/prod": b"", "/prod/bk": b""} if root.startswith("/prod") else {}
    ours = [path for path in zk.nodes() if path.startswith("/buckram")]
    assert ours == ["/buckram", store.layout.own, store.layout.history]
    assert {path: value for path, value in zk.nodes().items() if path not in ours} == {
        **above,
        root: b"",
        f"{root}/INSTANCEID": instance.encode(),
        f"{root}/LAYOUT": b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1",
        f"{root}/available": b"",
        f"{root}/available/readonly": b"",
    }
    assert await zk.store(seed=9).initialise() == instance


async def test_opening_and_reading_make_nothing() -> None:
    zk = Zk()
    store = zk.store()
    for attempt in (
        store.instance_id(), store.allocate_ledger_id(), store.read_ledger(1), store.list_ledgers(),
        store.create_ledger(1, ledger()), store.delete_ledger(1, 0), store.bookies(), store.known_bookies(),
    ):  # fmt: skip
        with pytest.raises(ClusterNotInitialised, match="zk://sim:2181/ledgers"):
            await attempt
    assert zk.nodes() == {}


async def test_a_root_that_somebody_made_by_hand_is_used() -> None:
    zk = Zk()
    zk.put("/ledgers")
    store = await zk.ready()
    names = ("INSTANCEID", "LAYOUT", "available", "available/readonly")
    assert sorted(zk.nodes("/ledgers")) == [f"/ledgers/{name}" for name in names]
    await store.create_ledger(1, ledger())


@pytest.mark.parametrize(
    ("node", "named"), [("/ledgers/mine", "/ledgers/mine"), ("/ledgers/00/0000/L0001", "/ledgers/00")]
)
async def test_a_root_with_anything_in_it_is_not_made_a_cluster(node: str, named: str) -> None:
    zk = Zk()
    zk.put(node)
    before = zk.nodes()
    with pytest.raises(WrongCluster, match=f"{named}.*nothing was changed"):
        await zk.store().initialise()
    assert zk.nodes() == before


async def test_a_cluster_inside_another_ones_root_is_refused() -> None:
    zk = Zk()
    await zk.ready()
    inner = Zk("/ledgers/deep/inner")
    inner.server = zk.server
    with pytest.raises(WrongCluster, match="/ledgers is the root of another cluster"):
        await inner.store().initialise()


async def test_many_at_once_make_one_cluster() -> None:
    zk = Zk()
    made = await asyncio.gather(*(zk.store(f"p{seed}", seed=seed).initialise() for seed in range(8)))
    assert len(dict.fromkeys(made)) == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_reply_while_a_cluster_is_made(when: str) -> None:
    zk = Zk()
    zk.server.lose_next(when, "client", "INSTANCEID")
    store = zk.store()
    instance = await store.initialise()
    assert zk.nodes()["/ledgers/INSTANCEID"].decode() == instance


async def test_an_instance_id_without_layout_is_hierarchical() -> None:
    """Pulsar's set-up leaves it so, and Apache's initnewcluster when it is interrupted."""
    zk = Zk()
    zk.put("/ledgers/INSTANCEID", INSTANCE.encode())
    zk.put("/ledgers/available/readonly")
    zk.put("/ledgers/00/0000/L0005", b"x")
    store = zk.store()
    assert await store.initialise() == INSTANCE
    assert await store.list_ledgers() == [5]
    with pytest.raises(MalformedRecord, match="/ledgers/00/0000/L0005"):
        await store.read_ledger(5)
    assert "/ledgers/LAYOUT" not in zk.nodes()
    for attempt in (zk.store(manager=FLAT).list_ledgers(), zk.store(manager=FLAT).initialise()):
        with pytest.raises(ConfigError, match="/ledgers/LAYOUT is missing, which means hierarchical"):
            await attempt
    assert "/ledgers/LAYOUT" not in zk.nodes()
    await store.create_ledger(6, ledger())  # from now on nobody may choose another way
    assert zk.nodes()["/ledgers/LAYOUT"] == serialise_layout(HIERARCHICAL)


async def test_a_layout_that_a_peer_chooses_later_counts() -> None:
    zk = Zk()
    zk.put("/ledgers/INSTANCEID", INSTANCE.encode())
    store = zk.store()
    assert await store.list_ledgers() == []
    zk.put("/ledgers/LAYOUT", serialise_layout(LONG_HIERARCHICAL))
    await store.create_ledger(5, ledger())
    assert "/ledgers/000/0000/0000/0000/L0005" in zk.nodes()
    assert await store.list_ledgers() == [5]


async def test_a_half_made_cluster_without_ledgers_takes_the_manager_asked_for() -> None:
    zk = Zk()
    zk.put("/ledgers/INSTANCEID", INSTANCE.encode())
    store = zk.store(manager=LONG_HIERARCHICAL)
    assert await store.initialise() == INSTANCE
    assert zk.nodes()["/ledgers/LAYOUT"] == serialise_layout(LONG_HIERARCHICAL)


async def test_an_old_cluster_has_no_instance_id() -> None:
    zk = Zk()
    zk.put("/ledgers/LAYOUT", b"1\nflat:1")
    store = zk.store()
    assert await store.initialise() == await store.instance_id() == ""
    assert "/ledgers/INSTANCEID" not in zk.nodes()
    await store.create_ledger(12, ledger())
    assert "/ledgers/L0000000012" in zk.nodes()


async def test_the_uri_and_layout_must_agree() -> None:
    zk = await with_layout(FLAT)
    assert await zk.store(manager=FLAT).initialise() == INSTANCE
    other = zk.store(manager=HIERARCHICAL)
    for attempt in (other.initialise(), other.list_ledgers(), other.instance_id()):
        with pytest.raises(ConfigError, match="/ledgers/LAYOUT says flat"):
            await attempt


async def test_a_layout_from_the_future_is_left_alone() -> None:
    zk = Zk()
    zk.put("/ledgers/LAYOUT", b"9\nnew:1")
    before, store = zk.nodes(), zk.store()
    for attempt in (store.initialise(), store.create_ledger(1, ledger()), store.list_ledgers()):
        with pytest.raises(MalformedRecord, match="/ledgers/LAYOUT: layout format '9'"):
            await attempt
    assert zk.nodes() == before


async def test_an_access_list_that_refuses_names_its_node() -> None:
    zk = Zk()
    store = await zk.ready()
    await store.create_ledger(5, ledger())
    zk.tree.refused["/ledgers/00/0000/L0005"] = None
    with pytest.raises(AccessRefused, match="/ledgers/00/0000/L0005"):
        await store.read_ledger(5)
    assert await store.list_ledgers() == [5]


async def test_another_cluster_in_the_same_place_is_noticed() -> None:
    """Its ledgers are none of ours: a bookie that took the listing for its own cluster's would delete everything."""
    zk = Zk()
    store = await zk.ready()
    await store.list_ledgers()
    zk.tree.set("/ledgers/INSTANCEID", b"another", 0)
    for attempt in (store.list_ledgers(), store.instance_id()):
        with pytest.raises(WrongCluster, match="/ledgers/INSTANCEID is 'another'"):
            await attempt


# Ledgers


@every_manager
async def test_a_life_with_each_manager(manager: Manager) -> None:
    zk = await with_layout(manager)
    store = zk.store()
    first = await store.allocate_ledger_id()
    made = await store.create_ledger(first, ledger())
    assert zk.nodes()[f"/ledgers/{manager.path(first)}"]
    done = await store.write_ledger(first, closed(made.metadata, 3, 30), made.version)
    assert (await zk.store().read_ledger(first)).metadata == done.metadata
    assert await store.list_ledgers() == [first]
    await store.delete_ledger(first, done.version)
    assert await store.list_ledgers() == []
    with pytest.raises(NoSuchLedger):
        await store.read_ledger(first)


@every_manager
async def test_a_deletion_takes_empty_folders_along_where_apaches_does(manager: Manager) -> None:
    zk = await with_layout(manager)
    store = zk.store()
    for ledger_id in (5, 6, 70_000):
        await store.create_ledger(ledger_id, ledger())
    empty = {path for path, value in zk.nodes("/ledgers").items() if not value and path[9].isdigit()}
    for ledger_id in (5, 6, 70_000):
        await store.delete_ledger(ledger_id, 0)
    left = {path for path, value in zk.nodes("/ledgers").items() if not value and path[9].isdigit()}
    assert left == (set() if manager.removes_parents else empty)
    assert zk.tree.peek("/ledgers") is not None


async def test_ids_that_the_manager_cannot_keep() -> None:
    zk = await with_layout(LEGACY_HIERARCHICAL)
    with pytest.raises(InvalidArgument, match="legacyhierarchical"):
        await zk.store().create_ledger(10**10, ledger())
    with pytest.raises(NoSuchLedger):  # a bookie looks for whatever id somebody adds to
        await zk.store().read_ledger(10**10)
    zk = await with_layout(FLAT)
    await zk.store().create_ledger(MAX_LEDGER_ID, ledger())
    assert await zk.store().list_ledgers() == [MAX_LEDGER_ID]


async def test_makers_and_deleters_of_one_folder_meet() -> None:
    zk = Zk()
    stores = [await zk.ready() for _ in range(4)]

    async def churn(number: int) -> None:
        for round_ in range(30):
            ledger_id = number + 10 * round_
            await stores[number].create_ledger(ledger_id, ledger(round_ + 1))
            await stores[number].delete_ledger(ledger_id, 0)

    await asyncio.gather(*map(churn, range(4)))
    assert await stores[0].list_ledgers() == []
    assert not [path for path in zk.nodes("/ledgers") if path[9].isdigit()]


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_creation_whose_reply_is_lost_can_be_repeated(when: str) -> None:
    zk = Zk()
    store = await zk.ready()
    await store.create_ledger(4, ledger())
    zk.server.lose_next(when, "client", "L0005")
    with pytest.raises(MetadataUnavailable):
        await store.create_ledger(5, ledger())
    assert (await store.create_ledger(5, ledger())).version == 0
    with pytest.raises(LedgerExists):
        await store.create_ledger(5, ledger(8))


async def test_a_record_that_is_there_and_cannot_be_read_is_somebody_elses() -> None:
    zk = Zk()
    store = await zk.ready()
    zk.put("/ledgers/00/0000/L0005", b"what is this")
    with pytest.raises(LedgerExists):
        await store.create_ledger(5, ledger())


async def test_expired_session_ends_the_registration_and_the_store_goes_on() -> None:
    zk = Zk()
    store = await zk.ready()
    info = BookieInfo("b:1", BookieAddress("h", 1))
    lost = asyncio.Event()
    store.on_session_lost(lost.set)
    await store.register(info, readonly=True)
    assert sorted(zk.nodes("/ledgers/available")) == ["/ledgers/available/readonly", "/ledgers/available/readonly/b:1"]
    store.session.expire()  # type: ignore[attr-defined]  # the simulated one
    async with asyncio.timeout(5):
        await lost.wait()
    assert (await store.bookies()).readonly == {}
    await store.register(info, readonly=False)
    assert list((await store.bookies()).writable) == ["b:1"]
    assert await store.create_ledger(1, ledger())


async def test_nothing_brings_a_removed_root_back() -> None:
    zk = Zk()
    store = await zk.ready()
    await store.create_ledger(await store.allocate_ledger_id(), ledger())
    for path in sorted(zk.nodes("/ledgers"), reverse=True):
        zk.tree.delete(path, -1)
    zk.tree.delete("/ledgers", -1)
    attempts = (store.allocate_ledger_id(), store.create_ledger(70_000, ledger()), store.create_ledger(2**40, ledger()))
    for attempt in attempts:
        with pytest.raises(ClusterNotInitialised):
            await attempt
    assert not any(path.startswith("/ledgers") for path in zk.nodes())


async def test_apaches_rack_mapping_is_read_below_our_own_and_followed() -> None:
    zk = Zk()
    store = await zk.ready()
    changed = asyncio.Event()
    assert await read_topology(store, changed.set) == Topology()
    mapping = b'{"default": {"b1:3181": {"rack": "/r1", "hostname": "h1"}}, "gold": {"b2:3181": {"rack": "/eu/r2"}}}'
    zk.put("/ledgers/bookies", mapping)
    async with asyncio.timeout(10):
        await changed.wait()
    found = await read_topology(store)
    assert (str(found.location("b1:3181").rack), found.location("b1:3181").host) == ("r1", "h1")
    assert (str(found.location("b2:3181")), found.labelled("b2:3181")) == ("/eu/r2", ("gold",))
    await change_rack_map(store, lambda kept: kept.placed("b2:3181", "/us/r7"))
    found = await read_topology(store)
    assert str(found.location("b2:3181")) == "/us/r7"
    assert found.location("b1:3181").rack == "r1"
    assert zk.nodes()["/ledgers/bookies"] == mapping, "Apache's is never written"
    assert await store.ledgers.strays() == []


async def test_pulsars_rack_mapping_beside_the_ledgers_is_read_below_all_others_and_followed() -> None:
    zk = Zk()
    store = await zk.ready()
    changed = asyncio.Event()
    assert await read_topology(store, changed.set) == Topology()
    theirs = {"b1:3181": {"rack": "/p1"}, "b2:3181": {"rack": "/p2"}, "b3:1": {"rack": "/p3"}}
    zk.put("/bookies", json.dumps({"default": theirs}).encode())
    async with asyncio.timeout(10):
        await changed.wait()
    zk.put("/ledgers/bookies", b'{"default": {"b1:3181": {"rack": "/r1"}, "b2:3181": {"rack": "/r2"}}}')
    await change_rack_map(store, lambda kept: kept.placed("b1:3181", "/own"))
    found = await read_topology(store)
    assert [found.location(bookie).rack for bookie in ("b1:3181", "b2:3181", "b3:1")] == ["own", "r2", "p3"]


@pytest.mark.parametrize("value", [b"", b"somebody else's", b"[1]"])
async def test_a_node_beside_the_ledgers_that_is_no_mapping_is_somebody_elses(value: bytes) -> None:
    zk = Zk()
    store = await zk.ready()
    zk.put("/bookies", value)
    assert await read_topology(store) == Topology()


async def test_of_a_mapping_of_pulsars_that_does_not_parse_the_node_is_named() -> None:
    zk = Zk()
    store = await zk.ready()
    zk.put("/bookies", b'{"default": {"b1:3181": "/r1"}}')
    with pytest.raises(MalformedRecord, match=r"^/bookies: not a rack mapping"):
        await read_topology(store)


async def test_of_a_rack_mapping_that_does_not_parse_the_node_is_named() -> None:
    zk = Zk()
    store = await zk.ready()
    zk.put("/ledgers/bookies", b"racks")
    with pytest.raises(MalformedRecord, match="/ledgers/bookies: not a rack mapping"):
        await read_topology(store)


async def test_a_rack_mapping_that_is_not_for_us_is_none() -> None:
    zk = Zk()
    store = await zk.ready()
    zk.put("/ledgers/bookies", b'{"default": {"b1:3181": {"rack": "/r1"}}}')
    zk.put("/bookies", b'{"default": {"b1:3181": {"rack": "/r1"}}}')
    zk.tree.refused["/ledgers/bookies"] = zk.tree.refused["/bookies"] = None
    await change_rack_map(store, lambda kept: kept.placed("b2:3181", "/r2"))
    found = await read_topology(store)
    assert (found.location("b1:3181").rack, found.location("b2:3181").rack) == (None, "r2")
