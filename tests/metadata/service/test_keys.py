"""What only stores behind bookies have: connections that end, silent sessions, other bookies, refusals."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from tests.support.metadata_service_kit import NET, ServedMetadata

from buckram import connect
from buckram.core.security.key_access import KeyUse
from buckram.core.security.principal import Principal
from buckram.errors import AccessRefused, MetadataUnavailable, NoSuchKey, WrongCluster
from buckram.metadata.service.keys import ServiceKeys
from buckram.metadata.service.packets import KeyRequest, RequestKind
from buckram.metadata.service.uri import ServiceUri
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.seams import MetadataStore
from buckram.testing import cluster
from buckram.types import Create, KeyOp


class Tree:
    """A tree that several bookies serve, and how many sessions they opened on it."""

    def __init__(self) -> None:
        self.tree = MemoryTree()
        self.sessions = 0

    async def open(self) -> TreeStore:
        self.sessions += 1
        return TreeStore(MemoryKeys(self.tree), "memory:served", random.Random(self.sessions))


@pytest.fixture
async def tree() -> Tree:
    found = Tree()
    await (await found.open()).initialise()
    found.sessions = 0
    return found


@pytest.fixture
async def served(tree: Tree) -> AsyncIterator[ServedMetadata]:
    one = ServedMetadata(tree.open)
    await one.start()
    yield one
    await one.close()


async def test_connections_share_a_session_until_they_have_session_keys(served: ServedMetadata, tree: Tree) -> None:
    clients = [await served.open() for _ in range(5)]
    for client in clients:
        await client.children("/")
    assert tree.sessions == 1
    await clients[0].create("/mine", b"", ephemeral=True)
    await clients[0].create("/mine-too", b"", ephemeral=True)
    assert tree.sessions == 2
    assert (await clients[0].get("/mine")).owned
    assert not (await clients[1].get("/mine")).owned


async def test_session_keys_go_and_watches_fire_when_the_connection_ends(served: ServedMetadata) -> None:
    mine, other = await served.open(), await served.open()
    await mine.create("/live/mine", b"", ephemeral=True)
    await mine.create("/stays", b"")
    lost, changed, gone = asyncio.Event(), asyncio.Event(), asyncio.Event()
    mine.on_session_lost(lost.set)
    await mine.get("/stays", changed.set)
    await other.children("/live", watch=gone.set)
    connection = mine._connection
    assert connection is not None
    connection.fail("cut by the test")
    async with asyncio.timeout(10):
        await lost.wait()
        await changed.wait()
        await gone.wait()
    assert await other.children("/live") == []
    assert (await mine.get("/stays")).value == b""


async def test_a_silent_session_ends_and_a_talking_one_does_not(served: ServedMetadata) -> None:
    silent, idle, other = await served.open(2.0), await served.open(2.0), await served.open()
    await silent.create("/live/silent", b"", ephemeral=True)
    await idle.create("/live/idle", b"", ephemeral=True)
    connection = silent._connection
    assert connection is not None
    assert connection._beat is not None
    connection._beat.cancel()  # as a process that was stopped
    ended = asyncio.Event()
    assert await other.children("/live", watch=ended.set) == ["idle", "silent"]
    async with asyncio.timeout(20):
        await ended.wait()
    assert await other.children("/live") == ["idle"]
    assert (await idle.get("/live/idle")).owned


async def test_another_bookie_is_asked_when_one_is_gone(tree: Tree, served: ServedMetadata) -> None:
    first = ServedMetadata(tree.open)
    await first.start()
    uri = ServiceUri((("127.0.0.1", first.port), ("127.0.0.1", served.port)))
    keys = ServiceKeys(uri, served.runtime.network)
    try:
        await keys.create("/a", b"1")
        await first.close()
        assert (await keys.get("/a")).value == b"1"
        await served.close()
        with pytest.raises(MetadataUnavailable, match=str(served.port)):
            await keys.get("/a")
    finally:
        await keys.close()


async def test_a_change_without_an_answer_is_not_repeated_and_a_read_is(served: ServedMetadata) -> None:
    keys = await served.open()
    await keys.create("/n", b"")
    change = asyncio.create_task(keys.set("/n", b"x", 0))
    read = asyncio.create_task(keys.get("/n"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    connection = keys._connection
    assert connection is not None
    connection.fail("cut by the test")
    with pytest.raises(MetadataUnavailable, match="cut by the test"):
        await change
    assert (await read).version in (0, 1)


async def test_the_cluster_of_the_uri_is_the_one_that_answers(served: ServedMetadata) -> None:
    keys = ServiceKeys(ServiceUri((("127.0.0.1", served.port),), "another-cluster"), served.runtime.network)
    with pytest.raises(WrongCluster, match="another-cluster"):
        await keys.get("/a")
    await keys.close()


async def test_a_bookie_that_serves_no_metadata_closes_the_connection(served: ServedMetadata) -> None:
    served.server._service.keys = None  # type: ignore[union-attr]
    keys = ServiceKeys(ServiceUri((("127.0.0.1", served.port),)), served.runtime.network)
    with pytest.raises(MetadataUnavailable, match="serves metadata"):
        await keys.get("/a")
    await keys.close()


class OnlyBelow:
    """Lets everybody use keys below a folder, and notes what it was asked."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.principals: list[str] = []
        self.asked: list[tuple[str, KeyUse]] = []

    def rules(self, principal: Principal) -> OnlyBelow:
        self.principals.append(principal.name)
        return self

    def refusal(self, key: str, use: KeyUse, value: bytes | None = None) -> str | None:
        self.asked.append((key, use))
        return "" if f"{key}/".startswith(self.folder) else "it is not yours"

    def learn(self, key: str, value: bytes) -> None:
        """Nothing depends on it."""

    def is_ledger(self, key: str) -> bool:
        return False

    def name_of(self, uid: str) -> str | None:
        return None

    def trial(self) -> OnlyBelow:
        return self


async def test_every_operation_is_authorised_before_it_reaches_the_store(tree: Tree) -> None:
    access = OnlyBelow("/mine/")
    one = ServedMetadata(tree.open, access)
    await one.start()
    try:
        keys = await one.open()
        await keys.create("/mine/a", b"")
        ops: list[KeyOp] = [Create("/mine/b", b""), Create("/theirs/b", b"")]
        refused = [
            lambda: keys.get("/theirs"),
            lambda: keys.children("/theirs"),
            lambda: keys.children_with_values("/"),
            lambda: keys.create("/theirs", b""),
            lambda: keys.set("/theirs", b"", 0),
            lambda: keys.delete("/theirs", 0),
            lambda: keys.multi(ops),
            *(
                lambda request=request: keys.ask(request)
                for request in (
                    KeyRequest(RequestKind.ALLOCATE),
                    KeyRequest(RequestKind.NEXT_ID),
                    KeyRequest(RequestKind.RAISE_NEXT_ID, number=1),
                    KeyRequest(RequestKind.LEDGERS, limit=1),
                    KeyRequest(RequestKind.RECORDS, limit=1),
                    KeyRequest(RequestKind.REMOVED, "/theirs"),
                    KeyRequest(RequestKind.STRAYS),
                    KeyRequest(RequestKind.LEDGER_CREATE, number=1),
                )
            ),
        ]
        for attempt in refused:
            with pytest.raises(AccessRefused, match="anonymous may not"):
                await attempt()
        assert "/theirs" not in tree.tree.snapshot()
        with pytest.raises(NoSuchKey):
            await keys.get("/mine/b")
        assert access.principals == ["anonymous"]
        assert access.asked[0] == ("/mine/a", KeyUse.CREATE)
    finally:
        await one.close()


async def test_more_children_than_a_frame_takes_come_in_pieces(served: ServedMetadata) -> None:
    keys = await served.open()
    names = [f"{number:05d}" for number in range(50)]
    await keys.multi([Create(f"/p/{name}", b"v" * 1000) for name in names])
    session = next(iter(served.service._sessions.values()))
    session._room = 200
    assert await keys.children("/p", limit=40) == names[:40]
    assert await keys.children("/p", after=names[44], limit=40) == names[45:]
    assert [name for name, _ in await keys.children_with_values("/p")] == names[:1]
    assert NET.max_frame_bytes > 200


async def test_a_whole_client_works_without_opening_the_store() -> None:
    async with cluster(bookies=3, metadata="sqlite") as running:
        ports = [node.config.port for node in running._nodes]
        uri = f"buckram://{','.join(f'127.0.0.1:{port}' for port in ports)}"
        async with connect(uri) as client:
            async with client.create() as writer:
                for number in range(50):
                    await writer.append(b"%d" % number)
            async with client.open(writer.ledger_id) as reader:
                assert (await reader.read_payloads(0, 49))[-1] == b"49"
            shop = client.namespace("default")
            async with shop.writer("s") as stream:
                await stream.append(b"one")
            assert [one async for one in client.list()]
            store: MetadataStore = client.services.store
            assert len((await store.bookies()).writable) == 3
