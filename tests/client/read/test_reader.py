"""Readers against scripted bookies: good replicas are found, nothing bad or unconfirmed gets through."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.polling import until
from tests.support.readable_bookie import Switch, readable

from buckram.config import ClientConfig
from buckram.core.wire.messages import BatchRead, Read
from buckram.errors import (
    Code,
    HandleClosed,
    InvalidArgument,
    NoSuchEntry,
    NoSuchLedger,
    ReadFailed,
    Unauthorized,
)
from buckram.seams import MetadataStore

FAST = ClientConfig(speculative_read_ms=30.0)


def payloads(count: int) -> list[bytes]:
    return [b"payload %d" % i for i in range(count)]


async def test_a_closed_ledger_is_read_by_range_entry_and_payload() -> None:
    async with readable() as (_, client):
        async with client.create() as writer:
            await writer.append_many(payloads(1500))
        async with client.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 1499
            assert reader.length == sum(map(len, payloads(1500)))
            entries = await reader.read(0, 1499)
            assert [e.payload for e in entries] == payloads(1500)
            assert [e.entry_id for e in entries] == list(range(1500))
            assert await reader.read_payloads(7, 1203) == payloads(1500)[7:1204]
            assert (await reader.get(1499)).payload == b"payload 1499"
            assert [e.entry_id async for e in reader.entries(1490)] == list(range(1490, 1500))
            assert await reader.read_unconfirmed(3, 3) == entries[3:4]
            assert [one async for chunk in reader.payload_chunks() for one in chunk] == payloads(1500)
            assert [one async for chunk in reader.payload_chunks(5, 700) for one in chunk] == payloads(1500)[5:701]
            with pytest.raises(NoSuchEntry):
                await anext(reader.payload_chunks(7, 1500))


@pytest.mark.parametrize("shape", ["3/2/2", "4/2/1", "2/2/2", "1/1/1", "4/3/2"])
async def test_every_shape_is_read_back(shape: str) -> None:
    async with readable(4) as (_, client):
        async with client.create(ensemble=shape, digest="mac", password="s") as writer:
            await writer.append_many(payloads(200))
        async with client.open(writer.ledger_id, password="s") as reader:
            assert await reader.read_payloads(0, 199) == payloads(200)


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/2"])
async def test_bad_and_missing_copies_are_read_around(shape: str) -> None:
    async with readable() as (cluster, client):
        async with client.create(ensemble=shape) as writer:
            await writer.append_many(payloads(60))
        ensemble = writer.metadata.last_fragment.ensemble
        cluster[ensemble[0]].bad = set(range(0, 60, 7))
        for entry in range(10, 20):
            cluster[ensemble[1]].entries[writer.ledger_id].pop(entry, None)
        cluster[ensemble[0]].bad -= set(range(9, 21))
        async with client.open(writer.ledger_id) as reader:
            assert [e.payload for e in await reader.read(0, 59)] == payloads(60)
            assert await reader.read_payloads(0, 59) == payloads(60)


async def test_a_flipped_bit_everywhere_is_an_error_that_is_not_a_negative() -> None:
    async with readable() as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(5))
        for bookie in cluster.all:
            bookie.bad = {3}
        async with client.open(writer.ledger_id) as reader:
            assert len(await reader.read(0, 2)) == 3
            with pytest.raises(ReadFailed, match="entry 3"):
                await reader.read(0, 4)
            with pytest.raises(ReadFailed):
                await reader.get(3)


async def test_absent_only_if_every_replica_says_so() -> None:
    async with readable() as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(2))
        for bookie in cluster.all:
            del bookie.entries[writer.ledger_id][1]
        async with client.open(writer.ledger_id) as reader:
            with pytest.raises(NoSuchEntry):
                await reader.get(1)
            cluster["b1"].refuse = lambda request: Code.IO_ERROR if isinstance(request, Read) else None
            with pytest.raises(ReadFailed):
                await reader.get(1)


async def test_a_hung_bookie_costs_one_speculation_for_each_entry_at_most() -> None:
    async with readable(config=FAST) as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(30))
        first = writer.metadata.last_fragment.ensemble[0]
        # It answers one entry and hangs on the others: that must not stop speculation for them (L11).
        cluster[first].hang = lambda request: isinstance(request, Read | BatchRead) and request.entry_id != 0
        async with client.open(writer.ledger_id) as reader:
            async with asyncio.timeout(0.9):
                assert len(await reader.read(0, 29)) == 30
                for entry in (3, 6, 9):
                    await reader.get(entry)


async def test_ranges_and_handles_are_checked() -> None:
    async with readable() as (_, client):
        async with client.create() as writer:
            await writer.append_many(payloads(3))
        reader = await client.open(writer.ledger_id)
        for first, last in ((-1, 2), (2, 1)):
            with pytest.raises(InvalidArgument):
                await reader.read(first, last)
        with pytest.raises(NoSuchEntry, match="last entry is 2"):
            await reader.read(1, 3)
        with pytest.raises(InvalidArgument):
            reader.tail(-1)
        await reader.close()
        await reader.close()
        with pytest.raises(HandleClosed):
            await reader.read(0, 1)
        with pytest.raises(NoSuchLedger):
            await client.open(12345)
        with pytest.raises(InvalidArgument):
            await client.open(-1)


async def test_an_open_ledger_is_read_up_to_its_last_confirmed_entry_only() -> None:
    async with readable(config=ClientConfig(idle_lac_ms=5)) as (cluster, client), client.create() as writer:
        await writer.append_many(payloads(5))
        await until(lambda: all(b.lacs for b in cluster.all), "explicit LAC")
        async with client.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 4
            for bookie in cluster.all:
                bookie.held = []
            pending = writer.append_nowait(b"unconfirmed")
            await until(lambda: cluster["b0"].ids(writer.ledger_id)[-1] == 5, "stored")
            assert [e.payload for e in await reader.read_unconfirmed(4, 5)] == [b"payload 4", b"unconfirmed"]
            with pytest.raises(NoSuchEntry, match="last confirmed entry is 4"):
                await reader.read(0, 5)
            for bookie in cluster.all:
                bookie.release()
            await pending
            await until(lambda: all(5 in b.lacs for b in cluster.all), "explicit LAC")
            assert len(await reader.read(0, 5)) == 6


async def test_opening_has_no_side_effects_and_lac_reaches_the_last_fragment() -> None:
    quiet = ClientConfig(idle_lac_ms=0)  # an explicit LAC that comes after they forgot would say 7
    async with readable(4, config=quiet) as (cluster, client), client.create() as writer:
        await writer.append_many(payloads(4))
        victim = writer.metadata.last_fragment.ensemble[1]
        await cluster[victim].kill()
        await writer.append_many(payloads(4))
        assert len(writer.metadata.fragments) == 2
        holders = [cluster[name] for name in writer.metadata.last_fragment.ensemble]
        await until(lambda: all(7 in b.entries.get(writer.ledger_id, {}) for b in holders), "every copy")
        for bookie in cluster.all:
            bookie.packets.clear()
            for entries in bookie.entries.values():
                for entry in list(entries):
                    if entry >= 4:
                        del entries[entry]
                entries.pop(3, None)
                entries.pop(2, None)
        before = await client.services.store.read_ledger(writer.ledger_id)
        async with client.open(writer.ledger_id) as reader:
            assert reader.last_confirmed == 3
        assert not any(bookie.fenced for bookie in cluster.all)
        assert await client.services.store.read_ledger(writer.ledger_id) == before


async def test_opening_needs_a_covering_set_of_answers() -> None:
    async with readable() as (cluster, client), client.create() as writer:
        await writer.append(b"x")
        cluster["b0"].refuse = cluster["b1"].refuse = lambda request: Code.UNKNOWN_LEDGER_STATE
        with pytest.raises(ReadFailed, match="too few of the bookies"):
            await client.open(writer.ledger_id)
        cluster["b1"].refuse = lambda request: None
        await (await client.open(writer.ledger_id)).close()
        cluster["b0"].refuse = lambda request: None


async def test_a_wrong_password_is_refused_before_any_bookie_is_asked() -> None:
    async with readable() as (cluster, client):
        async with client.create(password="right") as writer:
            await writer.append(b"x")
        with pytest.raises(Unauthorized):
            await client.open(writer.ledger_id, password="wrong")
        with pytest.raises(Unauthorized):
            await client.recover(writer.ledger_id, password="wrong")
        assert not any(isinstance(r, Read | BatchRead) for b in cluster.all for r in b.requests)


async def test_bookies_without_batch_reads_are_found_out_and_remembered() -> None:
    async with readable() as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(300))
        for bookie in cluster.all:
            bookie.batches = False
        async with client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 299) == payloads(300)
            assert set(client.services.batch_unsupported) >= {cluster.all[0].name} or client.services.batch_unsupported
            for bookie in cluster.all:
                bookie.requests.clear()
            assert await reader.read_payloads(0, 299) == payloads(300)
        asked = [r for b in cluster.all for r in b.requests]
        assert sum(isinstance(r, BatchRead) for r in asked) < 10
        assert sum(isinstance(r, Read) for r in asked) >= 300


async def test_one_lost_connection_does_not_make_a_peer_without_batch_reads() -> None:
    """Several batches are outstanding when it goes: that is one hang-up, not as many as there were batches."""
    async with readable(1) as (cluster, client):
        async with client.create(ensemble=1) as writer:
            await writer.append_many([bytes(1000)] * 3000)
        bookie = cluster.all[0]
        async with client.open(writer.ledger_id) as reader:
            await reader.read_payloads(0, 0)
            bookie.requests.clear()
            bookie.hang = lambda request: isinstance(request, BatchRead)
            task = asyncio.ensure_future(reader.read_payloads(0, 2999))
            await until(lambda: sum(isinstance(r, BatchRead) for r in bookie.requests) == 3, "three outstanding")
            bookie.hang = lambda request: False
            bookie.reset()
            assert len(await task) == 3000
            assert not client.services.batch_unsupported


async def test_an_entry_larger_than_a_batch_comes_all_the_same() -> None:
    async with readable(config=ClientConfig(read_batch_bytes=10_000)) as (_, client):
        big = [bytes([i]) * 50_000 for i in range(8)]
        async with client.create() as writer:
            await writer.append_many(big)
        async with client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 7) == big


async def test_moved_replicas_are_found_in_fresh_metadata() -> None:
    async with readable(4) as (cluster, client):
        async with client.create(ensemble="2/2/2") as writer:
            await writer.append_many(payloads(5))
        reader = await client.open(writer.ledger_id)
        old = writer.metadata.last_fragment.ensemble
        new = tuple(b for b in ("b0", "b1", "b2", "b3") if b not in old)
        for source, target in zip(old, new, strict=True):
            cluster[target].entries[writer.ledger_id] = dict(cluster[source].entries[writer.ledger_id])
            await cluster[source].kill()
        versioned = await cluster.store.read_ledger(writer.ledger_id)
        from buckram.core.ledgers.metadata import member_replaced

        metadata = versioned.metadata
        for source, target in zip(old, new, strict=True):
            metadata = member_replaced(metadata, 0, source, target)
        await cluster.store.write_ledger(writer.ledger_id, metadata, versioned.version)
        assert await reader.read_payloads(0, 4) == payloads(5)
        assert (await reader.get(2)).payload == b"payload 2"
        await reader.close()


async def test_denials_by_a_perhaps_outdated_ensemble_are_no_negative() -> None:
    switch: list[Switch] = []

    def wrap(store: MetadataStore) -> Any:
        switch.append(Switch(store))
        return switch[0]

    async with readable(wrap=wrap) as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(3))
        async with client.open(writer.ledger_id) as reader:
            for bookie in cluster.all:
                del bookie.entries[writer.ledger_id][1]
            switch[0].away = True
            with pytest.raises(ReadFailed):
                await reader.get(1)
            with pytest.raises(ReadFailed):
                await reader.read(0, 2)
            switch[0].away = False
            with pytest.raises(NoSuchEntry):
                await reader.read(0, 2)


async def test_the_v3_wire_reads_the_same() -> None:
    async with readable(config=ClientConfig(wire_protocol=3)) as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(200))
        async with client.open(writer.ledger_id) as reader:
            assert await reader.read_payloads(0, 199) == payloads(200)
            assert (await reader.get(7)).payload == b"payload 7"
        assert not any(isinstance(r, BatchRead) for b in cluster.all for r in b.requests)


async def test_entries_that_grow_do_not_fill_the_memory() -> None:
    """Tiny entries first, so that chunks are many entries long when the large ones come."""
    async with readable(config=ClientConfig(read_batch_bytes=100_000)) as (cluster, client):
        bodies = [b"x"] * 2000 + [bytes([i]) * 60_000 for i in range(60)]
        writer = await client.create()
        await writer.append_many(bodies)
        await until(lambda: all(b.lacs for b in cluster.all), "explicit LAC")
        async with client.open(writer.ledger_id) as reader:
            largest = 0
            async for chunk in reader.chunks(0):
                largest = max(largest, sum(len(e.payload) for e in chunk))
            assert largest <= 100_000
            assert await reader.read_payloads(0, len(bodies) - 1) == bodies
        await writer.close()


async def test_closing_ends_reads_that_are_under_way() -> None:
    async with readable() as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(3))
        for bookie in cluster.all:
            bookie.hang = lambda request: True
        reader = await client.open(writer.ledger_id)
        reads = [asyncio.ensure_future(c) for c in (reader.read(0, 2), reader.get(1), reader.read_payloads(0, 1))]
        await until(lambda: any(b.requests for b in cluster.all), "asked")
        await reader.close()
        for outcome in await asyncio.gather(*reads, return_exceptions=True):
            assert isinstance(outcome, HandleClosed)


async def test_a_cancelled_read_is_cancelled_and_the_reader_lives() -> None:
    async with readable() as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(3))
        async with client.open(writer.ledger_id) as reader:
            for bookie in cluster.all:
                bookie.hang = lambda request: True
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await reader.read(0, 2)
            for bookie in cluster.all:
                bookie.hang = lambda request: False
            assert len(await reader.read(0, 2)) == 3


async def test_a_batch_that_reaches_beyond_what_was_asked_is_cut() -> None:
    async with readable() as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(10))
        original = type(cluster["b0"])._reply

        def generous(self: object, request: object, code: Code | None) -> object:
            if isinstance(request, BatchRead):
                request = BatchRead(request.ledger_id, request.entry_id, 0, request.max_bytes)
            return original(self, request, code)  # type: ignore[arg-type]

        for bookie in cluster.all:
            bookie._reply = generous.__get__(bookie)  # type: ignore[method-assign]
        async with client.open(writer.ledger_id) as reader:
            assert [e.entry_id for e in await reader.read(2, 4)] == [2, 3, 4]
