"""Ledgers that are made while a member is away (M11): who may be absent, what they hold, and that they become whole."""

from __future__ import annotations

import pytest
from tests.support.polling import until
from tests.support.scripted_bookie import scripted

from buckram.client.write.writer import engine_of
from buckram.errors import NotEnoughBookies, RecoveryFailed
from buckram.testing import cluster
from buckram.types import LedgerState

BODIES = [b"%d" % i for i in range(50)]


async def test_ledger_is_created_with_an_absent_bookie_which_joins_later() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await c.kill(2)
        await client.services.bookies.refresh()
        async with client.create() as writer:
            assert set(writer.metadata.last_fragment.ensemble) == set(c.bookies)
            assert writer.degraded
            assert "away when the ledger was made" in writer.degraded_reason
            await writer.append_many(BODIES)
            await c.restart(2)
            await until(lambda: not writer.degraded, "the member is back", 10.0)
            await c.kill(0)  # now it counts
            await writer.append_many(BODIES)
            assert len(writer.metadata.fragments) == 1


async def test_the_writer_fills_in_what_a_member_missed_when_it_is_back() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await c.kill(2)
        await client.services.bookies.refresh()
        async with client.create() as writer:
            await writer.append_many(BODIES)
            await c.restart(2)
            left = engine_of(writer)._lagging_members
            await until(lambda: not writer.degraded and not left.left, "it has everything", 10.0)
            await writer.append_many(BODIES)
        await c.kill(0)
        await c.kill(1)
        async with client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 2 * len(BODIES) - 1) == BODIES * 2


async def test_the_writer_fills_in_what_a_member_missed_in_the_middle_of_a_ledger() -> None:
    """It was there when the ledger was made and when it was closed, so nobody would look for what it lacks."""
    async with cluster(bookies=3) as c, c.client() as client:
        async with client.create() as writer:
            await writer.append_many(BODIES)
            for _ in range(2):
                await c.kill(2)
                await writer.append_many(BODIES)
                await until(lambda: writer.degraded, "it is missed")
                await c.restart(2)
                await until(lambda: not writer.degraded, "the member is back", 10.0)
                await writer.append_many(BODIES)
            left = engine_of(writer)._lagging_members
            await until(lambda: not left.left, "it has everything", 10.0)
        await c.kill(0)
        await c.kill(1)
        async with client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 5 * len(BODIES) - 1) == BODIES * 5


async def test_closed_ledgers_are_copied_to_a_member_that_comes_back() -> None:
    """Closed by their writer, and by a recovery."""
    async with cluster(bookies=3) as c, c.client() as client:
        await c.kill(2)
        await client.services.bookies.refresh()
        async with client.create() as closed:
            await closed.append_many(BODIES)
        left = await client.create()
        await left.append_many(BODIES)
        await left.abandon()
        await (await client.recover(left.ledger_id)).close()
        assert len(client.services.lagging) == 2
        await c.restart(2)
        await until(lambda: not client.services.lagging, "both are whole", 10.0)
        await c.kill(0)
        await c.kill(1)
        for ledger in (closed.ledger_id, left.ledger_id):
            async with client.open(ledger) as reader:
                assert await reader.read_payloads(0, len(BODIES) - 1) == BODIES


async def test_without_degraded_it_is_refused_and_says_why() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await c.kill(2)
        await client.services.bookies.refresh()
        with pytest.raises(NotEnoughBookies, match=r"3 bookies are needed, 2 are usable.*ensemble=2/2/2 would do"):
            await client.create(degraded=False)
        with pytest.raises(NotEnoughBookies, match="2 are usable"):
            await client.create(deferred_sync=True)
        with pytest.raises(NotEnoughBookies, match="2 are usable"):
            await client.create(ensemble="3/3/3")


async def test_an_unknown_bookie_is_no_member() -> None:
    """Two bookies and nobody else who ever had a cookie."""
    async with cluster(bookies=2) as c, c.client() as client:
        with pytest.raises(NotEnoughBookies, match="their cookies exist"):
            await client.create()


async def test_no_more_than_the_spare_ones_are_away() -> None:
    async with cluster(bookies=5) as c, c.client() as client:
        await c.kill(3)
        await c.kill(4)
        await client.services.bookies.refresh()
        with pytest.raises(NotEnoughBookies, match="5 bookies are needed, 3 are usable"):
            await client.create(ensemble="5/3/2")
        async with client.create(ensemble="5/5/3") as writer:
            await writer.append_many(BODIES)
        await c.restart(3)
        async with client.create(ensemble="5/3/2") as writer:
            await writer.append_many(BODIES)
        for number in (0, 1, 3):
            await c.kill(number)
        await client.services.bookies.refresh()
        with pytest.raises(NotEnoughBookies, match="3 bookies are needed, 1 is usable"):
            await client.create()


async def test_one_that_lives_is_preferred_to_one_that_is_away() -> None:
    async with cluster(bookies=4) as c, c.client() as client:
        await c.kill(0)
        await client.services.bookies.refresh()
        for _ in range(5):
            async with client.create() as writer:
                assert not writer.degraded
                assert c.bookies[0] not in writer.metadata.last_fragment.ensemble


async def test_recovery_with_another_member_away_finds_everything() -> None:
    """The absent one came back and denies everything; with one holder gone the other one's copy counts."""
    async with cluster(bookies=3) as c, c.client() as client:
        await c.kill(2)
        await client.services.bookies.refresh()
        writer = await client.create()
        await writer.append_many(BODIES)
        await writer.abandon()
        await c.restart(2)
        await c.kill(0)
        async with client.recover(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, len(BODIES) - 1) == BODIES
        assert (await client.metadata(writer.ledger_id)).last_entry == len(BODIES) - 1


async def test_recovery_with_two_members_away_decides_nothing() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await c.kill(2)
        await client.services.bookies.refresh()
        writer = await client.create()
        await writer.append_many(BODIES)
        await writer.abandon()
        await c.kill(1)
        with pytest.raises(RecoveryFailed):
            await client.recover(writer.ledger_id)
        assert (await client.metadata(writer.ledger_id)).state is LedgerState.IN_RECOVERY
        await c.restart(1)
        async with client.recover(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, len(BODIES) - 1) == BODIES


async def test_an_absent_member_may_come_back_empty() -> None:
    """It held nothing of the ledger, so another incarnation of it is as good; from then on it is held to that one."""
    async with scripted(3) as (cluster, client):
        for name in cluster.bookies:
            await cluster.store.write_cookie(name, b"", None)
        await cluster["b2"].kill()
        await client.services.bookies.refresh()
        async with client.create() as writer:
            await writer.append_many(BODIES)
            cluster["b2"].incarnation = "2"
            await cluster["b2"].start()
            await until(lambda: not writer.degraded, "taken in as another incarnation")
            await cluster["b2"].kill()
            await writer.append_many(BODIES)
            cluster["b2"].incarnation = "3"
            await cluster["b2"].start()
            await writer.append_many(BODIES)
            await until(lambda: writer.degraded, "not as a third one")


async def test_the_bookie_that_was_seen_lately_is_preferred() -> None:
    async with scripted(3) as (cluster, client):
        for name in ("a-retired-one", *cluster.bookies):
            await cluster.store.write_cookie(name, b"", None)
        await cluster["b1"].kill()
        await client.services.bookies.refresh()
        async with client.create() as writer:
            assert set(writer.metadata.last_fragment.ensemble) == {"b0", "b1", "b2"}
