"""Members that fail a writer midway: they get what they missed, or it is noted before the ledger is closed."""

from __future__ import annotations

import asyncio

from tests.support.polling import until

from buckram.client.maintain.check import check_ledger
from buckram.client.shared.lagging_replicas import LaggingMembers
from buckram.client.write.writer import engine_of
from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.metadata.records.incomplete_copies import ledgers_behind
from buckram.runtime.process.tasks import TaskScope
from buckram.testing import cluster

BODIES = [b"%d" % i for i in range(50)]
QUICK = ClientConfig(close_copies_s=0.3)


async def lacking(client: Client, ledger: int) -> int:
    await client.services.bookies.refresh()
    return (await check_ledger(client.services, ledger)).replicas_lacking


async def test_a_member_that_was_away_for_a_while_has_everything_when_the_ledger_is_closed() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        writer = await client.create()
        await writer.append_many(BODIES)
        await c.kill(2)
        await writer.append_many(BODIES)
        await until(lambda: writer.degraded, "the member is missed")
        await c.restart(2)
        await until(lambda: not writer.degraded, "it is written to again", 10.0)
        await writer.append_many(BODIES)
        await writer.close()
        assert await writer.replicated()
        assert await lacking(client, writer.ledger_id) == 0
        assert await ledgers_behind(client.services.store) == []


async def test_a_ledger_that_is_closed_without_a_member_is_noted_until_that_has_its_copies() -> None:
    async with cluster(bookies=3) as c, c.client(config=QUICK) as client:
        writer = await client.create()
        await writer.append_many(BODIES)
        await c.kill(2)
        await writer.append_many(BODIES)
        await writer.close()
        assert not await writer.replicated()
        assert await ledgers_behind(client.services.store) == [writer.ledger_id]
        await c.restart(2)
        await until(lambda: not client.services.lagging, "it is copied", 10.0)
        assert await writer.replicated()
        assert await lacking(client, writer.ledger_id) == 0
        assert await ledgers_behind(client.services.store) == []


async def test_a_member_that_was_replaced_gets_what_its_old_fragment_places_on_it() -> None:
    async with cluster(bookies=4) as c, c.client(config=QUICK) as client:
        writer = await client.create()
        await writer.append_many(BODIES)
        names = writer.metadata.last_fragment.ensemble
        engine = engine_of(writer)
        slot = engine._window.slots[0]
        engine._change.slot_failed(slot, LookupError("as if it had hung"))  # type: ignore[arg-type]
        await writer.append_many(BODIES)
        await until(lambda: writer.ensemble_changes == 1, "another took its place")
        await until(lambda: not engine._lagging_members.left, "it was looked at")
        await writer.close()
        assert writer.metadata.fragments[0].ensemble == names
        assert await lacking(client, writer.ledger_id) == 0


async def test_a_member_that_stays_away_is_noted_while_the_ledger_is_open() -> None:
    async with cluster(bookies=3) as c, c.client(config=QUICK) as client:
        writer = await client.create()
        await writer.append_many(BODIES)
        await c.kill(2)
        await writer.append_many(BODIES)
        store = client.services.store
        noted: list[int] = []

        async def look() -> None:
            noted[:] = await ledgers_behind(store)

        while not noted:
            await look()
        await writer.abandon()


async def test_a_recovery_notes_the_members_that_lack_entries() -> None:
    """The writer died and told nobody that a member had missed entries long before the end."""
    async with cluster(bookies=3) as c:
        async with c.client() as client:
            writer = await client.create()
            await writer.append_many(BODIES)
            await c.kill(2)
            await writer.append_many(BODIES)
            await writer.abandon()
        await c.restart(2)
        async with c.client() as client:
            await (await client.recover(writer.ledger_id)).close()
            await until(lambda: not client.services.lagging, "it is copied", 10.0)
            assert await lacking(client, writer.ledger_id) == 0
            assert await ledgers_behind(client.services.store) == []
        async with c.client() as client:
            writer = await client.create()
            await writer.append_many(BODIES)
            await writer.abandon()
            await c.kill(2)
            await (await client.recover(writer.ledger_id)).close()
            assert await ledgers_behind(client.services.store) == [writer.ledger_id]


async def test_a_copy_that_does_not_end_holds_up_no_close() -> None:
    """A bookie hangs while it is copied to, and what waits for it does not end when it is cancelled."""
    released = asyncio.Event()

    async def copy(bookie: str) -> bool:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return True

    async def note(bookies: object) -> bool:
        return True

    async with TaskScope("test") as scope:
        members = LaggingMembers(["hung:1", "away:1"], copy, scope, note=note, note_after_s=3600.0)
        settling = asyncio.ensure_future(members.settle(0.01, ["hung:1"]))
        await asyncio.wait([settling], timeout=5.0)
        ended = settling.done()
        released.set()
        assert await settling == ([] if not ended else ["hung:1", "away:1"])
        assert ended
