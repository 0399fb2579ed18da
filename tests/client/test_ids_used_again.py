"""Two ledgers of one id, with real bookies and clients: what is remembered of the first is never taken for the second.

The metadata store refuses an id that was used. It forgets that here, as one does that was restored from an old backup,
or that Apache's clients share.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.polling import until

from buckram.client.maintain.repair import repair_ledger
from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.ledgers.deletions import deletions_key
from buckram.errors import BuckramError, LedgerFenced, LedgerIdUsed, NoSuchKey, NoSuchLedger, ReadFailed
from buckram.metadata.tree.ledger_tree import used_key
from buckram.testing import Cluster, cluster

OLD, NEW = [b"old %d" % n for n in range(10)], [b"new %d" % n for n in range(2)]
WIRES = pytest.mark.parametrize("wire", [2, 3])


async def forget_used(c: Cluster, client: Client) -> None:
    """As after an old backup that somebody accepted: nothing says that the ids were used, and bookies know that."""
    store: Any = client.services.store
    keys = store.keys
    for bookie in running(c):
        bookie.witness._memory.change(settled=5)
    own = store.layout.own
    for key in (used_key(own, 5), f"{own}/next-ledger-id", deletions_key(own, 0)):
        with contextlib.suppress(NoSuchKey):
            await keys.delete(key, (await keys.get(key)).version)


async def old_ledger(c: Cluster, client: Client, *, delete: bool = True) -> None:
    async with client.create(ensemble=3, ledger_id=5) as writer:
        await writer.append_many(OLD)
    if delete:
        await client.delete(5)
        with pytest.raises(LedgerIdUsed, match="choose another id"):
            await client.create(ensemble=3, ledger_id=5)
        await forget_used(c, client)


@WIRES
async def test_readers_see_the_entries_of_the_ledger_that_they_opened(wire: int) -> None:
    config = ClientConfig(wire_protocol=wire)
    async with cluster(bookies=3) as c, c.client(config) as client, c.client(config) as other:
        await old_ledger(c, client)
        writer = await client.create(ensemble=3, ledger_id=5)
        async with other.open(5) as reader:
            assert reader.last_confirmed == -1
        await writer.append_many(NEW)
        await writer.abandon()
        async with other.recover(5) as reader:
            assert reader.last_confirmed == 1
            assert await reader.read_payloads(0, 1) == NEW


@WIRES
async def test_recovery_of_a_ledger_without_entries_finds_none(wire: int) -> None:
    config = ClientConfig(wire_protocol=wire)
    async with cluster(bookies=3) as c, c.client(config) as client:
        await old_ledger(c, client)
        await (await client.create(ensemble=3, ledger_id=5)).abandon()
        async with client.recover(5) as reader:
            assert reader.last_confirmed == -1


async def test_after_collection_the_id_is_good_for_a_new_ledger() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await old_ledger(c, client)
        for bookie in running(c):
            bookie.store.delete_ledger(5)
        async with client.create(ensemble=3, ledger_id=5) as writer:
            await writer.append_many(NEW)
        async with client.open(5) as reader:
            assert await reader.read_payloads(0, reader.last_confirmed) == NEW


async def test_ids_go_on_after_one_that_was_chosen() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        given = []
        for chosen in (3, 1):
            await (await client.create(ensemble=3, ledger_id=chosen)).close()
            await client.delete(chosen)
        for _ in range(6):
            writer = await client.create(ensemble=3)
            given.append(writer.ledger_id)
            await writer.append_many(NEW)
            await writer.close()
        assert not {1, 3} & set(given)
        assert len(set(given)) == 6


async def test_a_stale_reader_gets_nothing_of_the_new_ledger() -> None:
    async with cluster(bookies=3) as c, c.client() as client, c.client() as other:
        await old_ledger(c, client, delete=False)
        async with other.open(5) as stale:
            assert await stale.read_payloads(0, 1) == OLD[:2]
            await client.delete(5)
            await forget_used(c, client)
            async with client.create(ensemble=3, ledger_id=5) as writer:
                await writer.append_many(NEW)
            await until(lambda: all(bookie.store.entries(5) == [(0, 2)] for bookie in running(c)))
            with pytest.raises(BuckramError) as error:
                await stale.read_payloads(0, 1)
            assert isinstance(error.value, ReadFailed | NoSuchLedger) or "ledger 5" in str(error.value)


async def test_a_stale_writer_is_not_acknowledged_for_the_new_ledger() -> None:
    async with cluster(bookies=3) as c, c.client() as client, c.client() as other:
        stale = await other.create(ensemble=3, ledger_id=5)
        await stale.append_many(OLD)
        store = client.services.store
        await store.delete_ledger(5, (await store.read_ledger(5)).version)
        await forget_used(c, client)
        async with client.create(ensemble=3, ledger_id=5) as writer:
            await writer.append_many(NEW)
            with pytest.raises(LedgerFenced):
                await stale.append(b"more")
            await writer.append(b"last")
        async with client.open(5) as reader:
            assert await reader.read_payloads(0, 2) == [*NEW, b"last"]
        await stale.abandon()


async def test_names_are_said_again_on_a_new_connection() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await old_ledger(c, client)
        writer = await client.create(ensemble=3, ledger_id=5)
        await writer.append_many(NEW)
        for bookie in running(c):
            for session in list(bookie.server.sessions):
                session.kill()
        await until(lambda: not any(bookie.server.sessions for bookie in running(c)))
        await writer.append(b"last")
        assert all(session.named for bookie in running(c) for session in bookie.server.sessions if session.named)
        assert any(session.named for bookie in running(c) for session in bookie.server.sessions)
        await writer.close()
        async with client.open(5) as reader:
            assert await reader.read_payloads(0, 2) == [*NEW, b"last"]


async def test_repair_copies_the_living_ledger_over_the_dead_one() -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        async with client.create(ensemble=4, write_quorum=4, ack_quorum=4, ledger_id=5) as writer:
            await writer.append_many(OLD)
        await client.delete(5)
        await forget_used(c, client)
        async with client.create(ensemble=3, ledger_id=5) as writer:
            await writer.append_many(NEW)
            gone = writer.metadata.last_fragment.ensemble[0]
        await c.kill(c.bookies.index(gone))
        report = await repair_ledger(client.services, 5)
        assert report is not None
        async with client.open(5) as reader:
            assert gone not in reader.metadata.last_fragment.ensemble
            assert await reader.read_payloads(0, 1) == NEW
        for bookie in running(c):
            if bookie.info is not None and bookie.info.bookie_id != gone:
                assert bookie.store.entries(5) == [(0, 2)]


def running(c: Cluster) -> list:  # type: ignore[type-arg]  # Bookie, which the testing module does not show
    return [node.bookie for node in c._nodes if node.bookie is not None]


_: Callable[..., object] = running
