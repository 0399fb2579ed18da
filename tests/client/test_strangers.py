"""Real bookies at addresses that were others': of another cluster, under a new id, with an empty disk. What a client
knows of a bookie is older than that, as it is while sessions have not ended or lists have not arrived."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.bookie_kit import Kit, memory_metadata, start
from tests.support.polling import until

from buckram.cluster import Client, connect
from buckram.config import ClientConfig, NetConfig
from buckram.core.wire.introduction import IDENTITY_PROPERTY
from buckram.core.wire.messages import GetBookieInfo
from buckram.errors import BuckramError, NotEnoughBookies, ReadFailed, RecoveryFailed, StoreWentBack
from buckram.metadata.tree.memory import MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.types import BookieInfo, LedgerState

NET = NetConfig(connect_timeout_s=1.0, request_timeout_s=1.0, sweep_interval_s=0.05)
CONFIG = ClientConfig(quarantine_s=0.2)


class Ours:
    """Our cluster and a client of it, and whoever else comes to the addresses of its bookies."""

    def __init__(self, path: Path) -> None:
        self._path, self._tree = path, MemoryTree()
        self._others: TreeStore | None = None
        self._seed = 10
        self.kits: dict[str, Kit] = {}
        self.ports: dict[str, int] = {}
        self.places: dict[str, Path] = {}
        self.client: Client
        self._closing: list[Kit] = []

    async def session(self) -> TreeStore:
        return await memory_metadata(self._tree, seed=1)

    async def boot(self, name: str, port: int = 0, place: str = "") -> Kit:
        self.places[name] = self._path / (place or name)
        self.places[name].mkdir(exist_ok=True)
        self._seed += 1  # so that each empty directory gets an incarnation of its own
        kit = await start(
            self.places[name],
            metadata=await self.session(),
            port=port or self.ports.get(name, 0),
            bookie_id=name,
            seed=self._seed,
        )
        assert kit.bookie.info is not None
        assert kit.bookie.info.address is not None
        self.kits[name], self.ports[name] = kit, kit.bookie.info.address.port
        return kit

    async def stop(self, name: str) -> None:
        """Its registration goes, but clients know where it was."""
        await self.kits.pop(name).close()

    async def taken(self, name: str, bookie_id: str = "") -> Kit:
        """A bookie of another cluster comes to where this one was."""
        await self.stop(name)
        self._others = self._others or await memory_metadata(seed=2)
        place = self._path / f"stranger-{name}"
        place.mkdir()
        kit = await start(place, metadata=self._others, port=self.ports[name], bookie_id=bookie_id or name)
        self._closing.append(kit)
        return kit

    async def left(self, kit: Kit) -> None:
        self._closing.remove(kit)
        await kit.close()

    async def close(self) -> None:
        for kit in (*self.kits.values(), *self._closing):
            await kit.close()


@pytest.fixture
async def ours(tmp_path: Path) -> AsyncIterator[Ours]:
    world = Ours(tmp_path)
    for name in ("b1", "b2", "b3"):
        await world.boot(name)
    async with connect(await world.session(), config=CONFIG, net=NET) as client:
        world.client = client
        yield world
    await world.close()


async def ten_entries(client: Client, shape: str) -> int:
    """Acknowledged, in a ledger that nobody closed."""
    writer = await client.create(ensemble=shape)
    for n in range(10):
        await writer.append(f"entry {n}".encode())
    await writer.abandon()
    return writer.ledger_id


@pytest.mark.parametrize(("shape", "count"), [("2/2/2", 1), ("3/3/2", 2), ("3/3/2", 3)])
async def test_strangers_do_not_end_a_ledger_below_what_was_acknowledged(ours: Ours, shape: str, count: int) -> None:
    client = ours.client
    ledger = await ten_entries(client, shape)
    members = (await client.metadata(ledger)).last_fragment.ensemble
    others = {name: await ours.taken(name) for name in members[:count]}
    if count < len(members) and shape != "3/3/2":
        # Qw - Qa + 1 members of ours are left: they are enough, and they have all of it.
        async with client.recover(ledger) as reader:
            assert reader.last_confirmed == 9
    else:
        with pytest.raises(RecoveryFailed):
            await client.recover(ledger)
        assert (await client.metadata(ledger)).state is LedgerState.IN_RECOVERY
    for kit in others.values():
        assert kit.store.ledger(ledger) is None
        assert kit.store.highest_ledger == -1
    for name, kit in others.items():
        await ours.left(kit)
        await ours.boot(name)
    async with client.recover(ledger) as reader:
        assert reader.last_confirmed == 9
        assert [entry.payload for entry in await reader.read(0, 9)] == [f"entry {n}".encode() for n in range(10)]


async def test_a_ledger_of_the_same_number_elsewhere_is_neither_read_nor_fenced(ours: Ours) -> None:
    client = ours.client
    ledger = await ten_entries(client, "2/2/2")
    members = (await client.metadata(ledger)).last_fragment.ensemble
    others = [await ours.taken(name) for name in members]
    assert others[0].metadata is others[1].metadata
    async with connect(others[0].metadata, config=CONFIG, net=NET) as theirs:
        their_writer = await theirs.create(ensemble="2/2/2", ledger_id=ledger)
        for _ in range(3):
            await their_writer.append(b"theirs")
        with pytest.raises(BuckramError):
            await client.recover(ledger)
        with pytest.raises(ReadFailed):
            async with client.open(ledger) as reader:
                await reader.get(0)
        assert await their_writer.append(b"theirs") == 3
        await their_writer.close()


async def test_strangers_acknowledge_nothing(ours: Ours) -> None:
    """A writer's bookies go away one after the other, and others come to their addresses."""
    client = ours.client
    writer = await client.create(ensemble="2/2/2")
    assert await writer.append(b"ours") == 0
    others = [await ours.taken(name) for name in ("b1", "b2", "b3")]
    with pytest.raises((BuckramError, TimeoutError)):
        async with asyncio.timeout(5):
            await writer.append(b"to nobody")
    assert writer.last_confirmed == 0
    for kit in others:
        assert kit.store.highest_ledger == -1
    await writer.abandon()


async def test_a_streams_writer_does_not_repair_its_segment_as_empty(ours: Ours) -> None:
    space = ours.client.namespace()
    await space.create("orders", ensemble="2/2/2")
    async with connect(await ours.session(), config=CONFIG, net=NET) as crashed:
        writer = await crashed.namespace().writer("orders")
        assert (await writer.append(b"one")) == 0
    others = {name: await ours.taken(name) for name in ("b1", "b2", "b3")}
    with pytest.raises((BuckramError, TimeoutError)):
        async with asyncio.timeout(5), space.writer("orders", takeover=True) as writer:
            await writer.append(b"two")
    for name, kit in others.items():
        assert kit.store.highest_ledger == -1
        await ours.left(kit)
        await ours.boot(name)
    async with space.writer("orders", takeover=True) as writer:
        assert (await writer.append(b"two")) == 1
    async with space.read("orders") as reader:
        assert [record.value async for record in reader] == [b"one", b"two"]


@contextlib.asynccontextmanager
async def not_yet_seen(client: Client) -> AsyncIterator[None]:
    """The list of bookies does not arrive any more."""
    async with client.services.bookies._read_lock:
        yield


@pytest.mark.parametrize("seen", [False, True], ids=["before the list arrives", "after it"])
async def test_a_new_bookie_in_an_old_ones_place_acknowledges_nothing_for_it(ours: Ours, seen: bool) -> None:
    """Same cluster, same host and port, a new id and an empty disk: over a connection that is made anew."""
    client = ours.client
    ledger = await ten_entries(client, "1/1/1")
    gone = (await client.metadata(ledger)).last_fragment.ensemble[0]
    async with contextlib.AsyncExitStack() as stack:
        if not seen:
            await stack.enter_async_context(not_yet_seen(client))
        await ours.stop(gone)
        kit = await ours.boot("new", ours.ports[gone])
        if seen:
            await client.services.bookies.refresh()
            assert client.services.bookies.resolve(gone) is None
        else:
            assert client.services.bookies.resolve(gone) is not None
        with pytest.raises(RecoveryFailed):
            await client.recover(ledger)
        assert kit.store.highest_ledger == -1
    await ours.stop("new")
    await ours.boot(gone)
    async with client.recover(ledger) as reader:
        assert reader.last_confirmed == 9


async def test_a_reborn_bookie_is_refused_before_the_list_arrives(ours: Ours) -> None:
    """The same id with an empty disk: an operator removed its cookie."""
    client = ours.client
    ledger = await ten_entries(client, "1/1/1")
    name = (await client.metadata(ledger)).last_fragment.ensemble[0]
    async with not_yet_seen(client):
        await ours.stop(name)
        session = await ours.session()
        await session.delete_cookie(name, (await session.read_cookie(name)).version)
        kit = await ours.boot(name, place="empty")
        with pytest.raises(RecoveryFailed):
            await client.recover(ledger)
        assert kit.store.highest_ledger == -1


async def test_a_client_refuses_a_store_whose_epoch_its_bookies_have_passed(ours: Ours) -> None:
    """Some other client told them; this one looks at an older copy."""
    client = ours.client
    ledger = await ten_entries(client, "1/1/1")
    (member,) = (await client.metadata(ledger)).last_fragment.ensemble
    name = next(name for name in ours.kits if name != member)
    witness = ours.kits[name].bookie.witness
    assert witness is not None
    witness.observe_epoch(5)
    await client.services.pool.call(name, GetBookieInfo())  # the first word on a new connection
    for attempt in (client.metadata(ledger), client.create(ensemble="1/1/1"), client.recover(ledger)):
        with pytest.raises(StoreWentBack, match="epoch is 1, and 5 was seen by bookies"):
            await attempt


async def test_bookies_without_identity_serve_until_the_cluster_requires_it(ours: Ours) -> None:
    """One is of the release before: its registration has no such property."""
    client, name = ours.client, "b2"
    kit = ours.kits[name]
    assert kit.bookie.info is not None
    properties = {key: value for key, value in kit.bookie.info.properties.items() if key != IDENTITY_PROPERTY}
    await kit.metadata.register(BookieInfo(name, kit.bookie.info.address, properties), readonly=False)
    async with asyncio.timeout(5):
        while client.services.identities.expected(name).must_answer:
            await client.services.bookies.refresh()
    async with client.create(ensemble="3/3/3") as writer:
        await writer.append(b"all three")
    bookies = client.services.bookies
    session = await ours.session()
    await session.require_identity(True)
    await until(lambda: bookies.identity_required, "required")
    with pytest.raises(NotEnoughBookies):
        await client.create(ensemble="3/3/3")
    async with client.create(ensemble="2/2/2") as writer:
        assert name not in writer.metadata.last_fragment.ensemble
        await writer.append(b"two of them")
    await session.require_identity(True)
    await session.require_identity(False)
    await session.require_identity(False)
    await until(lambda: not bookies.identity_required, "no longer required")
    async with client.create(ensemble="3/3/3") as writer:
        await writer.append(b"all three again")


async def test_what_a_bookie_could_not_do_is_forgotten_when_it_comes_back(ours: Ours) -> None:
    services = ours.client.services
    for bookie in ("b1", "b2"):
        services.batch_unsupported[bookie] = 2
        services.remote_bookies[bookie] = None
    await ours.stop("b1")
    await until(lambda: "b1" not in services.bookies.bookies.writable, "b1 is still there")
    assert services.batch_unsupported == {"b1": 2, "b2": 2}
    await ours.boot("b1")  # perhaps of another release, or on another machine
    await until(lambda: "b1" in services.bookies.bookies.writable, "b1 did not come back")
    assert services.batch_unsupported == {"b2": 2}
    assert services.remote_bookies == {"b2": None}
