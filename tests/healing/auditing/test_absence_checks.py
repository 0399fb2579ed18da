"""What lacks although every bookie is registered is found by itself, with real bookies."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.polling import eventually

from buckram.client.maintain.check import check_ledger
from buckram.client.shared import lagging_replicas as behind_module
from buckram.cluster import Client
from buckram.config import ClientConfig, HealingConfig
from buckram.healing.auditing import absence_checks as first_checks
from buckram.healing.auditing.absence_checks import FirstChecks
from buckram.healing.auditing.auditor import Auditor
from buckram.healing.overview import overview
from buckram.healing.repair import replicator
from buckram.healing.repair.replicator import Replicator
from buckram.healing.status_store import HealingStatusStore
from buckram.metadata.records.incomplete_copies import ledgers_behind, note_behind
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import Cluster, cluster

CONFIG = HealingConfig(lost_bookie_delay_s=60.0, retry_s=0.2, copy_bytes_per_s=0)
BODIES = [b"%d" % i for i in range(40)]


@asynccontextmanager
async def healing(c: Cluster, *, copying: bool = True) -> AsyncIterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicator, "_POLL_S", 0.2)
        patch.setattr(first_checks, "LOOK_S", 0.2)
        async with c.client() as client, TaskScope("healing") as scope:
            auditor = Auditor(client, "a", CONFIG)
            scope.spawn(auditor.run(), "auditor")
            scope.spawn(FirstChecks(client, auditor, CONFIG).run(), "first checks")
            if copying:
                scope.spawn(Replicator(client, "r", CONFIG).run(), "replicator")
            yield client


async def lacking(client: Client, ledger: int) -> int:
    await client.services.bookies.refresh()
    return (await check_ledger(client.services, ledger)).replicas_lacking


async def write_without_a_member(c: Cluster, *, mute: bool) -> int:
    """A ledger that is closed while a member is away; its client ends then. `mute`: as Apache's, it notes nothing."""

    async def nothing(*arguments: object) -> list[object]:
        return []

    with pytest.MonkeyPatch.context() as patch:
        if mute:
            patch.setattr(behind_module, "note_behind", nothing)
        async with c.client(config=ClientConfig(close_copies_s=0.1)) as client:
            writer = await client.create()
            await writer.append_many(BODIES)
            await c.kill(2)
            await writer.append_many(BODIES)
            await writer.close()
            return writer.ledger_id


async def test_a_noted_ledger_gets_its_copies_when_the_member_is_back() -> None:
    async with cluster(bookies=3) as c, healing(c) as client:
        store = client.services.store
        ledger = await write_without_a_member(c, mute=False)
        assert [one.ledger for one in (await overview(store)).queue] == [ledger]
        await c.restart(2)

        async def healed() -> bool:
            return not (await overview(store)).queue

        await eventually(healed, "it is copied")
        assert await lacking(client, ledger) == 0
        assert not await ledgers_behind(store)


async def test_a_bookie_that_was_away_is_unverified_until_its_copies_were_looked_at() -> None:
    """The client noted nothing, and the auditor that saw the bookie go is not the one that sees it come back."""
    async with cluster(bookies=3) as c:
        async with healing(c, copying=False) as client:
            board = HealingStatusStore(client.services.store)

            async def walked() -> bool:
                return (await board.attendance())[0].walks is not None

            await eventually(walked, "the auditor knows what is open")
            ledger = await write_without_a_member(c, mute=True)
        await c.restart(2)
        async with c.client() as client:
            assert await lacking(client, ledger) > 0
            assert not await ledgers_behind(client.services.store)
            assert set((await overview(client.services.store)).unverified) == {c.bookies[2]}  # without an auditor, too
        async with healing(c) as client:
            store = client.services.store

            async def verified() -> bool:
                found = await overview(store)
                return not found.queue and not found.unverified

            await eventually(verified, "all is looked at")
            assert await lacking(client, ledger) == 0


async def test_a_note_of_what_nobody_lacks_goes_without_a_mark() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        async with client.create() as closed:
            await closed.append_many(BODIES)
        gone = await client.create()
        await gone.close()
        opened = await client.create()
        await opened.append_many(BODIES)
        store = client.services.store
        await client.delete(gone.ledger_id)
        for ledger in (closed.ledger_id, gone.ledger_id, opened.ledger_id):
            await note_behind(store, ledger, [c.bookies[0]])
        await note_behind(store, closed.ledger_id, ["nobody:1"])
        async with healing(c, copying=False):

            async def gone_by() -> bool:
                return not await ledgers_behind(store)

            await eventually(gone_by, "all were looked at")
            assert not (await overview(store)).queue
        await opened.close()


async def test_an_open_ledger_whose_member_is_behind_is_filled_in() -> None:
    """Its writer is gone, and nobody has recovered it."""
    async with cluster(bookies=3) as c:
        async with c.client(config=ClientConfig(close_copies_s=0.1)) as client:
            writer = await client.create()
            await writer.append_many(BODIES)
            await c.kill(2)
            await writer.append_many(BODIES)
            await writer.abandon()
        await c.restart(2)
        async with healing(c) as client:
            await note_behind(client.services.store, writer.ledger_id, [c.bookies[2]])

            async def settled() -> bool:
                return not (await overview(client.services.store)).queue

            await eventually(settled, "it is filled in")
            await c.kill(0)
            await (await client.recover(writer.ledger_id)).close()
            assert (await client.metadata(writer.ledger_id)).last_entry == 2 * len(BODIES) - 1
            reader = await client.open(writer.ledger_id)
            assert await reader.read_payloads(0, 2 * len(BODIES) - 1) == BODIES * 2
