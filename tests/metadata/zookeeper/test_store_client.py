"""Real bookies and a real client on a simulated ZooKeeper: what a ledger's life costs, and what goes on without it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.bookie_kit import Kit, seen, start
from tests.support.clock import pass_time
from tests.support.zk_store_kit import Counted, Zk

from buckram import connect
from buckram.core.ledgers.deletions import deletions_key
from buckram.errors import MetadataUnavailable
from buckram.metadata.tree.ledger_tree import used_key
from buckram.metadata.zookeeper.store import ZooKeeperStore

IDS = ("b1", "b2", "b3")


class Running:
    """Three bookies, each with a session of its own, and a session for a client."""

    def __init__(self, zk: Zk, kits: list[Kit], store: ZooKeeperStore) -> None:
        self.zk, self.kits, self.store = zk, kits, store


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    zk = Zk()
    await zk.ready()
    async with contextlib.AsyncExitStack() as stack:
        kits = []
        for name in IDS:
            (tmp_path / name).mkdir()
            kit = await start(tmp_path / name, metadata=zk.store(name), bookie_id=name)
            stack.push_async_callback(kit.close)
            kits.append(kit)
        yield Running(zk, kits, zk.store("client"))


async def test_a_ledgers_life_in_requests_to_zookeeper(running: Running) -> None:
    """Apache's client needs three to create (an id's node made and deleted, the ledger made), one to close."""
    async with connect(running.store) as client:
        for _ in range(2):  # what is found out once, the ledgers' folder, the first connections
            async with client.create() as writer:
                await writer.append(b"x")
        bookies = [Counted(kit.metadata) for kit in running.kits]
        count = Counted(running.store)
        writer = await client.create()
        assert (count.reads, count.writes) == (0, 2)
        for _ in range(10):
            await writer.append(b"x")
        assert (count.reads, count.writes) == (0, 2)
        await writer.close()
        assert (count.reads, count.writes) == (0, 3)
        # Each asks once whether it may take adds; looks at the store's past and for quotas come in between.
        assert all(4 <= one.reads <= 10 and one.writes <= 2 for one in bookies)
        async with client.open(writer.ledger_id) as reader:
            assert [entry.payload for entry in await reader.read(0, 9)] == [b"x"] * 10
        assert (count.reads, count.writes) == (1, 3)


async def test_a_bookie_whose_session_expires_registers_again_and_serves_on(running: Running) -> None:
    async with connect(running.store) as client:
        writer = await client.create()
        await writer.append(b"before")
        for kit in running.kits:
            kit.metadata.session.expire()
        await writer.append(b"meanwhile")
        await seen(running.store, writable=IDS)
        await writer.append(b"after")
        metadata = await writer.close()
        assert len((await client.metadata(writer.ledger_id)).fragments) == 1, metadata


async def test_a_client_whose_session_expires_goes_on(running: Running) -> None:
    async with connect(running.store) as client:
        writer = await client.create()
        await writer.append(b"before")
        running.store.session.expire()  # type: ignore[attr-defined]  # the simulated one
        await writer.append(b"after")
        await writer.close()
        async with client.create() as again:
            await again.append(b"x")


async def test_open_ledgers_take_writes_while_zookeeper_is_away(running: Running) -> None:
    async with connect(running.store) as client:
        writer = await client.create()
        await writer.append(b"0")
        running.zk.server.down, running.zk.server.timeout_s = True, 0.05
        for number in range(1, 50):
            await writer.append(b"%d" % number)
        with pytest.raises(MetadataUnavailable, match="sim:2181"):
            await running.store.read_ledger(writer.ledger_id)
        closing = asyncio.create_task(writer.close())
        await pass_time(0.2)
        assert not closing.done(), "closing needs metadata, so it waits"
        running.zk.server.down, running.zk.server.timeout_s = False, 5.0
        await closing
        assert (await client.metadata(writer.ledger_id)).last_entry == 49


async def test_deletion_with_lost_reply_spares_the_next_ledger_of_that_id(
    running: Running,
) -> None:
    async with connect(running.store) as client:
        async with client.create(ledger_id=7) as writer:
            await writer.append(b"old")
        running.zk.server.lose_next("after", "client", "L0007")
        deleting = asyncio.create_task(client.delete(7))
        other = running.zk.store("other")
        async with asyncio.timeout(5):
            while await other.list_ledgers():  # noqa: ASYNC110 - polling with a deadline
                await asyncio.sleep(0)
        # Gone, as after an old backup that somebody accepted.
        for key in (used_key(other.layout.own, 7), deletions_key(other.layout.own, 0)):
            await other.keys.delete(key, (await other.keys.get(key)).version)
        for kit in running.kits:
            witness = kit.bookie.witness
            assert witness is not None
            witness._memory.change(settled=7)
        async with connect(other) as second:
            again = await second.create(ledger_id=7)
            await deleting
            await again.append(b"new")  # not fenced
            await again.close()
            async with second.open(7) as reader:
                assert [entry.payload for entry in await reader.read(0, 0)] == [b"new"]
