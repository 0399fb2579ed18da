"""Requests about keys that a bookie answers without tasks: together, in order, and with the same results and errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.support.metadata_service_kit import ServedMetadata

from buckram.core.security.key_access import KeyUse
from buckram.core.security.principal import Principal
from buckram.errors import AccessRefused, InvalidArgument, KeyExists, NoSuchKey, VersionConflict
from buckram.metadata.service.keys import ServiceKeys
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.metadata.tree.store import TreeStore
from buckram.seams import MAX_VALUE_BYTES
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, SetValue


class Counted(SqliteKeys):
    """Says how its keys were read and changed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.peeks: list[int] = []
        self.begun = 0
        self.in_threads = 0

    def peek(self, keys: Sequence[str]) -> Sequence[KeyValue | None]:
        self.peeks.append(len(keys))
        return super().peek(keys)

    def begin(self, ops: Sequence[KeyOp]) -> asyncio.Future[list[int]]:
        self.begun += 1
        return super().begin(ops)

    async def get(self, key: str, watch: object = None) -> KeyValue:
        self.in_threads += 1
        return await super().get(key, watch)  # type: ignore[arg-type]


class Behind:
    """A database that a bookie serves; `keys` is what all connections share."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.opened: list[Counted] = []

    async def open(self) -> TreeStore:
        self.opened.append(Counted(self.path))
        store = TreeStore(self.opened[-1], "sqlite:test", random.Random(1))
        await store.initialise()
        return store

    @property
    def keys(self) -> Counted:
        return self.opened[0]


@pytest.fixture
def behind(tmp_path: Path) -> Behind:
    return Behind(tmp_path / "metadata.db")


@pytest.fixture
async def served(behind: Behind) -> AsyncIterator[ServedMetadata]:
    one = ServedMetadata(behind.open)
    await one.start()
    yield one
    await one.close()


async def settled(client: ServiceKeys, behind: Behind) -> None:
    """Wait until what was written is durable for readers, too: until then a thread reads it."""

    async def is_seen_at_once() -> bool:
        before = behind.keys.in_threads
        await client.get("/k/0")
        return behind.keys.in_threads == before

    async with asyncio.timeout(20):
        while not await is_seen_at_once():
            pass


async def test_the_reads_of_one_moment_are_one_look_and_its_changes_need_no_task(
    served: ServedMetadata, behind: Behind
) -> None:
    client = await served.open()
    await asyncio.gather(*(client.create(f"/k/{number}", b"%d" % number) for number in range(50)))
    assert behind.keys.begun == 50
    await settled(client, behind)
    behind.keys.in_threads = 0
    behind.keys.peeks.clear()
    found = await asyncio.gather(*(client.get(f"/k/{number}") for number in range(50)))
    assert [one.value for one in found] == [b"%d" % number for number in range(50)]
    assert sum(behind.keys.peeks) == 50
    assert len(behind.keys.peeks) <= 5
    assert behind.keys.in_threads == 0
    assert all(session.requests_held == 0 for session in served.server.sessions)


async def test_results_and_errors_are_those_of_the_store(served: ServedMetadata) -> None:
    client = await served.open()
    assert await client.create("/a", b"1") == 0
    assert await client.set("/a", b"2", 0) == 1
    await client.multi([SetValue("/a", b"3", 1), CheckVersion("/a", 2), Create("/b", b"")])
    await client.multi([CheckVersion("/b", 0)])
    assert await client.get("/a") == KeyValue(b"3", 2, False)
    with pytest.raises(KeyExists):
        await client.create("/a", b"")
    with pytest.raises(VersionConflict):
        await client.set("/a", b"", 7)
    with pytest.raises(VersionConflict):
        await client.multi([Delete("/b", 0), SetValue("/a", b"", 7)])
    with pytest.raises(NoSuchKey):
        await client.get("/nothing")
    await client.delete("/b", 0)
    with pytest.raises(NoSuchKey):
        await client.get("/b")
    with pytest.raises(InvalidArgument):
        await client._change((Create("/x/../y", b""),))


async def test_a_read_sees_the_change_that_its_client_asked_for_before(served: ServedMetadata) -> None:
    client = await served.open()
    await client.create("/a", b"0")
    for version in range(20):
        written, found = await asyncio.gather(client.set("/a", b"%d" % (version + 1), version), client.get("/a"))
        assert (written, found.value) == (version + 1, b"%d" % (version + 1))


async def test_session_keys_are_their_clients_and_watches_fire(served: ServedMetadata) -> None:
    mine, other = await served.open(), await served.open()
    await mine.create("/live", b"x", ephemeral=True)
    assert (await mine.get("/live")).owned
    assert not (await other.get("/live")).owned
    await mine.create("/plain", b"1")
    changed = asyncio.Event()
    await other.get("/plain", changed.set)
    await mine.set("/plain", b"2", 0)
    async with asyncio.timeout(10):
        await changed.wait()


async def test_many_large_values_are_not_gathered_in_memory_at_once(served: ServedMetadata, behind: Behind) -> None:
    client = await served.open()
    large = bytes(MAX_VALUE_BYTES)
    for number in range(12):
        await client.create(f"/large/{number}", large)
    behind.keys.in_threads = 0
    found = await asyncio.gather(*(client.get(f"/large/{number}") for number in range(12)))
    assert all(one.value == large for one in found)
    assert behind.keys.in_threads >= 3  # the others, each in its turn


async def test_signing_keys_are_no_clients(served: ServedMetadata, behind: Behind) -> None:
    client = await served.open()
    await behind.keys.create("/buckram/security/signing/1", b"secret")
    with pytest.raises(AccessRefused):
        await client.get("/buckram/security/signing/1")
    with pytest.raises(AccessRefused):
        await client.set("/buckram/security/signing/1", b"mine", 0)
    assert await client.create("/buckram/security-notes", b"no secret") == 0
    assert (await client.get("/buckram/security-notes")).value == b"no secret"


class Hides:
    """Rules by which nobody reads /hidden or changes anything."""

    def rules(self, principal: Principal) -> Hides:
        return self

    def name_of(self, uid: str) -> str | None:
        return None

    def trial(self) -> Hides:
        return self

    def refusal(self, key: str, use: KeyUse, value: bytes | None = None) -> str:
        return "hidden" if key == "/hidden" or use not in (KeyUse.READ, KeyUse.LIST) else ""

    def learn(self, key: str, value: bytes) -> None:
        assert key != "/hidden"

    def is_ledger(self, key: str) -> bool:
        return False


async def test_what_is_refused_is_refused_here_too(behind: Behind) -> None:
    served = ServedMetadata(behind.open, Hides())
    await served.start()
    try:
        client = await served.open()
        await behind.keys.create("/hidden", b"secret")
        await behind.keys.create("/seen", b"1")
        assert (await client.get("/seen")).value == b"1"
        assert sum(behind.keys.peeks) == 1
        with pytest.raises(AccessRefused):
            await client.get("/hidden")
        with pytest.raises(AccessRefused):
            await client.set("/seen", b"2", 0)
    finally:
        await served.close()


async def test_a_key_that_does_not_exist_is_said_at_once_to_whoever_may_read_it(behind: Behind) -> None:
    served = ServedMetadata(behind.open, Hides())
    await served.start()
    try:
        client = await served.open()
        await behind.keys.create("/k/0", b"")
        await settled(client, behind)
        behind.keys.in_threads = 0
        with pytest.raises(NoSuchKey) as missed:
            await client.get("/nothing")
        assert missed.value.key == "/nothing"
        assert behind.keys.in_threads == 0
        with pytest.raises(AccessRefused):  # whether there is such a key is not said
            await client.get("/hidden")
        assert all(session.requests_held == 0 for session in served.server.sessions)
    finally:
        await served.close()
