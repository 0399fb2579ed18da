"""What honest tenants do works under the gate: a tenant has read, append, create and delete on its namespace alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.state.machine.kit import Inventory
from tests.support.gate_kit import TENANT
from tests.support.polling import until
from tests.support.secure_kit import Guarded, guarded

from buckram import Client, Namespace, connect
from buckram.config import AuthConfig, ClientConfig
from buckram.core.streams.metadata.head import HISTORY, PAGE_SEGMENTS
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import merged
from buckram.errors import AccessRefused
from buckram.metadata.service.keys import ServiceKeys
from buckram.streams.maintain.compaction import compact_stream
from buckram.streams.maintain.history.export import export_stream, plan_export
from buckram.streams.maintain.offload import offload_stream
from buckram.streams.read.cursors import list_cursors, place_cursor
from buckram.streams.shared.ledgers import list_intents, make_ledger
from buckram.streams.shared.namespaces import Namespaces
from buckram.types import LedgerId

AUTH = AuthConfig(logins="token", authorisation="on")
QUIET = ClientConfig(local_read_bytes=0, idle_lac_ms=0)
NAME = StreamName("shop", "s")


@pytest.fixture
async def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Guarded]:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")  # through others the tests' user would be an administrator
    async with guarded(tmp_path, auth=AUTH) as one:
        async with connect(one.service, token=await one.token("root", "admin"), config=QUIET) as admin:
            await admin.namespaces.create("shop", ensemble="1/1/1")
        await one.security.change_acl(lambda acl: acl.granting("token:alice", "shop", TENANT))
        guard, wanted = one.bookie._guard, await one.security.acl()
        assert guard is not None
        await until(lambda: guard.state.acl == wanted)
        yield one


@pytest.fixture
async def client(running: Guarded) -> AsyncIterator[Client]:
    async with connect(running.service, token=await running.token("alice"), config=QUIET) as one:
        yield one


@pytest.fixture
def ns(client: Client) -> Namespace:
    return client.namespace("shop")


async def written(ns: Namespace, segments: int, stream: str = "s") -> list[bytes | None]:
    await ns.create(stream)
    for number in range(segments):
        async with ns.writer(stream) as writer:
            await writer.append_many([b"%d.%d" % (number, place) for place in range(3)])
    return await values(ns, stream)


async def values(ns: Namespace, stream: str = "s") -> list[bytes | None]:
    return [record.value async for record in ns.read(stream)]


async def left(running: Guarded) -> list[LedgerId]:
    return await running.store.list_ledgers()


async def test_streams_are_written_rolled_truncated_and_deleted(running: Guarded, ns: Namespace) -> None:
    await ns.create("s")
    async with ns.writer("s") as writer:
        for number in range(6):
            await writer.append(b"%d" % number)
            await writer.roll()
    assert await values(ns) == [b"%d" % number for number in range(6)]
    await ns.truncate("s", before=4)
    assert await values(ns) == [b"4", b"5"]
    async with ns.writer("s") as writer:
        await writer.append(b"6")
    await ns.delete("s")
    assert await left(running) == []
    assert await running.store.keys.children(ns.store.layout.all_data) == []


async def test_segments_become_pages_by_bulk_steps(running: Guarded, ns: Namespace) -> None:
    """Nothing is looked up for these rows: an intent proves its id, and rows move."""
    await ns.create("s")
    many = PAGE_SEGMENTS
    for version in range(2):
        step = await ns.bulk("s", application="job", version=version)
        made = []
        for number in range(many):
            ledger = await step.create_ledger()
            await ledger.append_many([b"%d.%d" % (version, number)])
            made.append(await ledger.close())
        await step.publish(made)
    assert len(await running.store.keys.children(f"{ns.store.layout.data(step.uid)}/pages")) == 1
    assert len(await values(ns)) == 2 * many
    await ns.truncate("s", before=many + 10)
    await compact_stream(ns._client, ns.store, NAME)
    assert len(await values(ns)) == many - 10


async def test_streams_are_forked_and_forks_of_forks_free_the_space(running: Guarded, ns: Namespace) -> None:
    before = await written(ns, 4)
    await ns.fork_stream("s", "f", offset=8)
    await ns.fork_stream("f", "g", offset=6)
    await ns.fork_stream("s", "h")
    await ns.delete("f")
    await ns.truncate("s", before=4)
    await ns.delete("s")
    assert await values(ns, "g") == before[:6]
    assert await values(ns, "h") == before
    await compact_stream(ns._client, ns.store, StreamName("shop", "h"))
    await ns.delete("h")
    assert await values(ns, "g") == before[:6]
    await ns.delete("g")
    assert await left(running) == []


async def test_segments_are_compacted_offloaded_and_exported(
    running: Guarded, client: Client, ns: Namespace, tmp_path: Path
) -> None:
    before = await written(ns, 5)
    assert (await compact_stream(client, ns.store, NAME)).made == 1
    await export_stream(client, ns.store, await plan_export(ns.store, NAME, str(tmp_path / "export")))
    report = await offload_stream(client, ns.store, NAME, to=str(tmp_path / "history"))
    assert report.segments
    assert [row.kind async for row in ns.segments("s")].count(HISTORY) == report.segments
    assert await values(ns) == before
    await ns.delete("s")


async def test_machines_objects_and_databases_keep_snapshots(running: Guarded, client: Client, ns: Namespace) -> None:
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        for _ in range(3):
            await machine.execute(["add", "nails", 1])
            await machine.snapshot()
    async with ns.machine("inventory", Inventory) as machine:
        await machine.lead()
        assert await machine.execute(["add", "nails", 1]) == 4
    await ns.delete("inventory", purpose="machine")
    async with client.objects("shop") as objects:
        await objects.put("a", b"x" * 100_000)
        await objects.put("b", b"y")
        assert await objects.get("a") == b"x" * 100_000
        await objects.delete("a")
    async with ns.database("main") as database:
        await database.lead()
        await database.execute("CREATE TABLE t (a)")
        await database.execute("INSERT INTO t VALUES (1)")
    async with ns.database("main") as database:
        await database.lead()
        assert (await database.query("SELECT a FROM t")).rows


async def test_a_cursor_moves_and_a_ledger_of_the_namespace_is_made(client: Client, ns: Namespace) -> None:
    await written(ns, 1)
    await place_cursor(client, ns.store, NAME, "c", 1)
    await place_cursor(client, ns.store, NAME, "c", 2)
    assert [one.offset for one in await list_cursors(client, ns.store, NAME)] == [2]
    async with client.create(ensemble=1, custom_metadata={"buckram.namespace": b"shop"}) as writer:
        await writer.append(b"x")
    with pytest.raises(AccessRefused, match="ids are given by the cluster"):
        await client.create(ensemble=1, ledger_id=10**6, custom_metadata={"buckram.namespace": b"shop"})


async def test_a_lost_connection_costs_an_id_and_nothing_else(
    running: Guarded, client: Client, ns: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ns.create("s")
    uid = (await ns.info("s")).uid
    policy = (await Namespaces(ns.store).get("shop")).policy
    store = client.services.store
    keys, allocate, lost = store.keys.inner, store.allocate_ledger_id, list[LedgerId]()
    assert isinstance(keys, ServiceKeys)

    async def losing() -> LedgerId:
        ledger = await allocate()
        if len(lost) < 3:
            lost.append(ledger)
            assert keys._connection is not None
            keys._connection.fail("cut by the test")
        return ledger

    monkeypatch.setattr(store, "allocate_ledger_id", losing)
    async with asyncio.timeout(20):
        writer, intent = await make_ledger(client, ns.store, NAME, uid, merged(policy, {}), epoch=0)
    assert intent.ledger not in lost
    assert [one.ledger for one in await list_intents(ns.store, uid)] == [intent.ledger]
    await writer.abandon()
    lost.clear()
    async with client.create(ensemble=1, custom_metadata={"buckram.namespace": b"shop"}) as plain:
        assert plain.ledger_id not in lost
    assert len(lost) == 3
