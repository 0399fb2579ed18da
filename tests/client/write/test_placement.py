"""The policy of places in the client: creation, acknowledgement, replacement and recovery follow it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from tests.support.polling import until

from buckram.client.write.writer import Writer, engine_of
from buckram.cluster import Client
from buckram.config import ClientConfig
from buckram.core.placement.topology import RackMap
from buckram.errors import ConfigError, NotEnoughBookies, RecoveryFailed, WriteFailed
from buckram.metadata.records.topology import change_rack_map
from buckram.testing import cluster

STRICT = ClientConfig(placement="rack:2 enforce")


async def place(client: Client, paths: Mapping[str, str]) -> None:
    """As `buckram placement topology load` does; the client hears of it by its watch."""
    await change_rack_map(client.services.store, lambda present: RackMap(dict(paths)))
    topology = RackMap(dict(paths)).topology()
    watcher = client.services.bookies
    await until(
        lambda: all(watcher.topology.domain(b, "rack") == topology.domain(b, "rack") for b in paths), "the map is read"
    )


def copies(writer: Writer) -> int:
    return sum(mark >= 0 for mark in engine_of(writer)._window._marks)


async def test_an_enforced_rule_makes_ledgers_as_soon_as_the_racks_are_known() -> None:
    """No bookie could say where it is: then every create failed, whatever the operator did."""
    async with cluster(bookies=3) as c, c.client(STRICT) as client:
        with pytest.raises(NotEnoughBookies, match=r"level rack: .*3 without a known rack.*placement topology set"):
            await client.create()
        await place(client, dict(zip(c.bookies, ("/r1", "/r1", "/r2"), strict=True)))
        async with client.create() as writer:
            await writer.append(b"entry")
            assert set(writer.metadata.last_fragment.ensemble) == set(c.bookies)


async def test_one_rack_alone_acknowledges_nothing() -> None:
    """M5: two copies of three are an ack quorum, but not while both are in one rack."""
    async with cluster(bookies=3) as c, c.client(STRICT) as client:
        await place(client, dict(zip(c.bookies, ("/r1", "/r1", "/r2"), strict=True)))
        async with client.create() as writer:
            await writer.append(b"first")
            await c.pause(2)
            engine = engine_of(writer)
            pending = asyncio.ensure_future(writer.append(b"second"))
            await until(lambda: sum(mark >= 1 for mark in engine._window._marks) == 2, "two copies")
            assert not pending.done()
            assert engine._window.lac == 0
            await c.resume(2)
            assert await pending == 1


async def test_without_a_rule_two_copies_are_enough_wherever_they_are() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        await place(client, dict(zip(c.bookies, ("/r1", "/r1", "/r2"), strict=True)))
        async with client.create() as writer:
            await c.pause(2)
            await writer.append(b"entry")
            await c.resume(2)


async def test_a_running_writer_hears_that_a_bookie_is_in_another_rack() -> None:
    """Long before the silent bookie counts as failed, which would end the wait, too."""
    async with cluster(bookies=3) as c, c.client(STRICT) as client:
        await place(client, dict(zip(c.bookies, ("/r1", "/r1", "/r2"), strict=True)))
        async with client.create() as writer:
            await c.pause(2)
            pending = asyncio.ensure_future(writer.append(b"entry"))
            await until(lambda: copies(writer) == 2, "two copies")
            assert not pending.done()
            await place(client, dict(zip(c.bookies, ("/r1", "/r3", "/r2"), strict=True)))
            assert await pending == 0
            assert not engine_of(writer)._window.absent
            await c.resume(2)


async def test_a_ledger_keeps_the_policy_it_was_made_with() -> None:
    """The client asks for nothing, the ledger for two racks: the spare bookie, in the first rack, is not taken."""
    async with cluster(bookies=3) as c, c.client() as client:
        await place(client, dict(zip(c.bookies, ("/r1", "/r2", "/r1"), strict=True)))
        writer = await client.create(ensemble="2/2/2", placement="rack:2 enforce")
        assert writer.metadata.custom_metadata["buckram.placement"] == b"rack:2 enforce"
        await writer.append(b"entry")
        await c.kill(1)
        with pytest.raises(WriteFailed, match="no other bookie can be used"):
            await writer.append(b"entry")
        await engine_of(writer).abandon()


async def test_a_replacement_is_in_a_rack_that_keeps_the_rule() -> None:
    async with cluster(bookies=4) as c, c.client(STRICT) as client:
        await place(client, dict(zip(c.bookies, ("/r1", "/r2", "/r1", "/r2"), strict=True)))
        async with client.create(ensemble="2/2/2") as writer:
            before = writer.metadata.last_fragment.ensemble
            await writer.append(b"entry")
            await c.kill(c.bookies.index(before[0]))
            await writer.append(b"entry")
            after = writer.metadata.last_fragment.ensemble
            where = client.services.bookies.topology
            assert before[0] not in after
            assert len({where.domain(b, "rack") for b in after}) == 2


async def test_a_writer_that_cannot_meet_the_rule_any_more_ends_and_says_why() -> None:
    async with cluster(bookies=3) as c, c.client(STRICT) as client:
        await place(client, dict(zip(c.bookies, ("/r1", "/r1", "/r2"), strict=True)))
        writer = await client.create()
        await writer.append(b"entry")
        await c.kill(2)
        with pytest.raises(WriteFailed, match=r"2 of level rack.*usable members are in /r1.*another rack"):
            await writer.append(b"entry")
        await engine_of(writer).abandon()


async def test_recovery_writes_back_to_as_many_racks() -> None:
    """M5: what recovery makes final is in two racks, or it says that it cannot."""
    async with cluster(bookies=4) as c, c.client(STRICT) as client:
        racks = dict(zip(c.bookies, ("/r1", "/r1", "/r2", "/r1"), strict=True))
        await place(client, racks)
        writer = await client.create(ensemble="3/3/2")
        engine = engine_of(writer)
        await c.pause(2)
        pending = asyncio.ensure_future(writer.append(b"entry"))
        await until(lambda: copies(writer) == 2, "two copies")
        await c.kill(2)
        await client.services.bookies.refresh()
        await engine.abandon()
        pending.cancel()
        with pytest.raises(RecoveryFailed, match=r"2 of level rack.*/r1.*another rack"):
            await client.recover(writer.ledger_id)
        await c.restart(2)
        async with client.recover(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 0) == [b"entry"]


async def test_a_policy_that_is_none_is_refused_when_the_client_is_made() -> None:
    async with cluster(bookies=1) as c:
        with pytest.raises(ConfigError, match=r"\[client\] placement: .*'row:2' is not understood"):
            await c.client(ClientConfig(placement="row:2"))
        with pytest.raises(ConfigError, match=r"\[client\] location: .*needs a path"):
            await c.client(ClientConfig(location="r1"))


async def test_reads_go_to_near_bookies_first() -> None:
    async with cluster(bookies=3) as c, c.client(ClientConfig(location="/eu/r1")) as client:
        await place(client, dict(zip(c.bookies, ("/us/r1", "/eu/r2", "/eu/r1"), strict=True)))
        far, near, nearest = c.bookies
        assert list(client.services.bookies.read_order([far, near, nearest])) == [nearest, near, far]


async def test_with_weights_free_space_is_asked_once_a_minute() -> None:
    async with cluster(bookies=3) as c, c.client(ClientConfig(placement="any weights")) as client:
        for _ in range(3):
            async with client.create():
                pass
        bookies = client.services.bookies
        assert set(bookies.free_bytes) == set(c.bookies)
        assert all(candidate.free_bytes > 0 for candidate in bookies.candidates())
        bookies.free_bytes.clear()
        async with client.create():
            assert not bookies.free_bytes, "asked a moment ago"


async def test_best_effort_says_where_it_falls_short_and_only_there() -> None:
    async with cluster(bookies=3) as c, c.client() as client:
        async with client.create() as writer:
            assert writer.misplaced == (), "nobody said where any bookie is"
        await place(client, dict.fromkeys(c.bookies, "/r1"))
        async with client.create() as writer:
            (said,) = writer.misplaced
            assert said.startswith("level rack: ")
            assert said.endswith("are in /r1, 2 are needed")
            await place(client, {**dict.fromkeys(c.bookies, "/r1"), c.bookies[1]: "/r2"})
            assert writer.misplaced == ()


async def test_no_smaller_ensemble_is_proposed_where_only_places_are_wrong() -> None:
    async with cluster(bookies=4) as c, c.client(STRICT) as client:
        await place(client, dict.fromkeys(c.bookies[:2], "/r1"))
        with pytest.raises(NotEnoughBookies, match=r"2 in /r1, 2 without a known rack") as error:
            await client.create()
        assert "would do" not in str(error.value)


async def test_rack_map_that_breaks_the_placement_makes_a_writer_wait() -> None:
    """M5: nothing is acknowledged from one rack; a wrong line of the map ends no writer, a right one lets it go on."""
    async with cluster(bookies=3) as c, c.client(STRICT) as client:
        good = dict(zip(c.bookies, ("/r1", "/r1", "/r2"), strict=True))
        await place(client, good)
        async with client.create() as writer:
            await writer.append(b"entry")
            await place(client, dict.fromkeys(c.bookies, "/r1"))
            await until(lambda: writer.degraded, "it says that it waits")
            assert "2 of level rack" in writer.degraded_reason
            pending = asyncio.ensure_future(writer.append(b"entry"))
            await until(lambda: sum(m >= 1 for m in engine_of(writer)._window._marks) == 3, "three copies")
            assert not pending.done()
            await place(client, good)
            assert await pending == 1
            assert not writer.degraded


async def test_a_member_whose_new_place_breaks_the_rule_gives_way_to_another() -> None:
    async with cluster(bookies=3) as c, c.client(STRICT) as client:
        await place(client, dict(zip(c.bookies, ("/r1", "/r2", "/r1"), strict=True)))
        async with client.create(ensemble="2/2/2") as writer:
            await writer.append(b"entry")
            member, spare = c.bookies[1], next(b for b in c.bookies if b not in writer.metadata.last_fragment.ensemble)
            stays = next(b for b in writer.metadata.last_fragment.ensemble if b != member)
            await place(client, {stays: "/r1", member: "/r1", spare: "/r9"})
            await writer.append(b"entry")
            assert spare in writer.metadata.last_fragment.ensemble
