"""Tailing against scripted bookies: prompt, complete, never beyond what is confirmed, never ended too early."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until
from tests.support.readable_bookie import ReadableCluster, Switch, readable

from buckram.client.read.reader import Reader
from buckram.config import ClientConfig
from buckram.core.wire.messages import BatchRead, Read
from buckram.errors import Code, HandleClosed, NoSuchLedger
from buckram.seams import MetadataStore

FAST = ClientConfig(speculative_read_ms=30.0, idle_lac_ms=5.0, long_poll_s=0.3)


async def collect(reader: Reader, into: list[bytes], start: int = 0) -> None:
    async for entry in reader.tail(start):
        assert entry.entry_id == start + len(into)
        into.append(entry.payload)


def reached(got: list[bytes], count: int) -> bool:
    return len(got) == count


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/2", "3/2/1"])
async def test_entries_come_as_they_are_confirmed_and_end_with_the_ledger(shape: str) -> None:
    async with readable(config=FAST) as (_, client):
        writer = await client.create(ensemble=shape)
        got: list[bytes] = []
        async with client.open(writer.ledger_id) as reader:
            task = asyncio.ensure_future(collect(reader, got))
            for i in range(20):
                await writer.append(b"%d" % i)
                if i % 5 == 4:
                    await until(partial(reached, got, i + 1), f"entry {i} delivered")
            await writer.append_many([b"x"] * 500)
            await writer.close()
            await asyncio.wait_for(task, 5)
        assert got == [b"%d" % i for i in range(20)] + [b"x"] * 500


async def test_an_idle_writers_last_entry_is_delivered_within_milliseconds() -> None:
    async with readable(config=FAST) as (_, client), client.create() as writer, client.open(writer.ledger_id) as reader:
        tail = reader.tail()
        times = []
        loop = asyncio.get_running_loop()
        for i in range(10):
            waiting = asyncio.ensure_future(anext(tail))
            await pass_time(0.01)
            await writer.append(b"%d" % i)
            acked = loop.time()
            assert (await asyncio.wait_for(waiting, 5)).payload == b"%d" % i
            times.append(loop.time() - acked)
        assert sorted(times)[5] < 0.15  # half of a long poll: it was woken, it did not look by chance


@pytest.mark.parametrize("shape", ["3/1/1", "3/2/2"])
async def test_also_with_striping_where_the_next_entry_carries_it_elsewhere(shape: str) -> None:
    """The second entry confirms the first one at bookies that a tail waiting for the first one does not ask first."""
    config = ClientConfig(idle_lac_ms=10.0)
    async with readable(config=config) as (_, client), client.create(ensemble=shape) as writer:
        got: list[bytes] = []
        async with client.open(writer.ledger_id) as reader:
            await writer.append(b"seen by all")
            await writer.append_many([b"x"] * 8)
            await pass_time(0.03)
            task = asyncio.ensure_future(collect(reader, got))
            await until(lambda: len(got) == 9, "caught up")
            await pass_time(0.03)
            await writer.append(b"9")
            await writer.append(b"10")
            await until(lambda: len(got) == 11, "both delivered", 0.3)
            await writer.close()
            await asyncio.wait_for(task, 5)


async def test_a_cancelled_wait_loses_nothing_and_does_not_end_the_tail() -> None:
    async with readable(config=FAST) as (_, client), client.create() as writer, client.open(writer.ledger_id) as reader:
        tail = reader.tail()
        for round_ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(tail), 0.02)
            await writer.append(b"%d" % round_)
            assert (await asyncio.wait_for(anext(tail), 5)).payload == b"%d" % round_
        assert tail.position == 3
        await writer.append_many([b"a", b"b", b"c"])
        chunk: list[Any] = []
        while len(chunk) < 3:
            chunk += await asyncio.wait_for(tail.next_chunk(), 5)
        assert [e.payload for e in chunk] == [b"a", b"b", b"c"]
        await tail.aclose()
        assert await tail.next_chunk() == []


async def test_it_starts_anywhere_and_on_closed_ledgers() -> None:
    async with readable(config=FAST) as (_, client):
        async with client.create() as writer:
            await writer.append_many([b"%d" % i for i in range(10)])
        async with client.open(writer.ledger_id) as reader:
            assert [e.entry_id async for e in reader.tail(7)] == [7, 8, 9]
            assert [e async for e in reader.tail(10)] == []
            assert [e async for e in reader.tail(99)] == []


async def test_it_follows_an_ensemble_change() -> None:
    async with readable(4, config=FAST) as (cluster, client):
        got: list[bytes] = []
        writer = await client.create()
        async with client.open(writer.ledger_id) as reader:
            task = asyncio.ensure_future(collect(reader, got))
            await writer.append_many([b"a"] * 10)
            await until(lambda: len(got) == 10, "before the change")
            await cluster[writer.metadata.last_fragment.ensemble[0]].kill()
            await writer.append_many([b"b"] * 10)
            assert len(writer.metadata.fragments) == 2
            await until(lambda: len(got) == 20, "after the change")
            await writer.close()
            await asyncio.wait_for(task, 5)
        assert got == [b"a"] * 10 + [b"b"] * 10


async def test_it_delivers_what_recovery_found_before_it_ends() -> None:
    async with readable(config=ClientConfig(speculative_read_ms=30.0, idle_lac_ms=0, long_poll_s=0.3)) as (_, client):
        got: list[bytes] = []
        writer = await client.create()
        async with client.open(writer.ledger_id) as reader:
            task = asyncio.ensure_future(collect(reader, got))
            await writer.append_many([b"a"] * 10)
            await pass_time(0.02)
            assert got == []  # nobody has published the LAC yet
            async with client.recover(writer.ledger_id) as recovered:
                assert recovered.last_confirmed == 9
            await asyncio.wait_for(task, 5)
        assert got == [b"a"] * 10
        await writer.abandon()


async def test_it_goes_on_while_the_metadata_store_is_away() -> None:
    switch: list[Switch] = []

    def wrap(store: MetadataStore) -> Any:
        switch.append(Switch(store))
        return switch[0]

    async with readable(config=FAST, wrap=wrap) as (_, client):
        writer = await client.create()
        got: list[bytes] = []
        async with client.open(writer.ledger_id) as reader:
            switch[0].away = True
            task = asyncio.ensure_future(collect(reader, got))
            await writer.append_many([b"a"] * 10)
            await until(lambda: len(got) == 10, "delivered")
            switch[0].away = False
            await writer.close()
            await asyncio.wait_for(task, 5)


async def test_a_lac_that_is_not_proven_is_not_believed_and_costs_little() -> None:
    async with readable(config=FAST) as (cluster, client):
        writer = await client.create()
        await writer.append_many([b"a"] * 3)
        await until(lambda: all(b.lacs for b in cluster.all), "explicit LAC")
        for bookie in cluster.all:
            bookie.held = []
        pending = [writer.append_nowait(b"unconfirmed") for _ in range(5)]
        await until(lambda: len(cluster["b0"].ids(writer.ledger_id)) == 8, "stored")
        got: list[bytes] = []
        async with client.open(writer.ledger_id) as reader:
            for bookie in cluster.all:
                bookie.claimed_lac = 7
                bookie.requests.clear()
            task = asyncio.ensure_future(collect(reader, got))
            await pass_time(0.5)
            assert got == [b"a"] * 3
            assert sum(len(b.requests) for b in cluster.all) < 80
            for bookie in cluster.all:
                bookie.claimed_lac = None
                bookie.release()
            await asyncio.gather(*pending)
            await writer.close()
            await asyncio.wait_for(task, 5)
        assert len(got) == 8


async def idle_requests(cluster: ReadableCluster, seconds: float) -> int:
    before = sum(len(b.requests) for b in cluster.all)
    await pass_time(seconds)
    return sum(len(b.requests) for b in cluster.all) - before


async def test_waiting_is_no_busy_loop_also_when_fenced_or_refused() -> None:
    async with readable(config=FAST) as (cluster, client):
        writer = await client.create()
        got: list[bytes] = []
        async with client.open(writer.ledger_id) as reader:
            task = asyncio.ensure_future(collect(reader, got))
            assert await idle_requests(cluster, 0.4) < 20
            for bookie in cluster.all:
                bookie.fenced[writer.ledger_id] = b""
            await pass_time(0.3)
            assert await idle_requests(cluster, 0.4) < 60
            for bookie in cluster.all:
                bookie.fenced.clear()
                bookie.refuse = lambda request: Code.IO_ERROR if isinstance(request, Read) else None
            await pass_time(0.3)
            assert await idle_requests(cluster, 0.4) < 60
            for bookie in cluster.all:
                bookie.refuse = lambda request: None
            await writer.append(b"x")
            await until(lambda: got == [b"x"], "delivered after all that")
            await writer.close()
            await asyncio.wait_for(task, 5)


async def test_a_hung_bookie_does_not_hold_it_up() -> None:
    async with readable(config=FAST) as (cluster, client):
        writer = await client.create()
        got: list[bytes] = []
        async with client.open(writer.ledger_id) as reader:
            task = asyncio.ensure_future(collect(reader, got))
            await writer.append(b"0")
            await until(lambda: len(got) == 1, "delivered")
            # Position 1 is asked first for entry 1.
            cluster[writer.metadata.last_fragment.ensemble[1]].hang = lambda request: True
            await writer.append(b"1")
            await until(lambda: len(got) == 2, "delivered by another", 0.5)
            await writer.close(wait=False)
            await asyncio.wait_for(task, 5)


async def test_a_bookie_that_lags_is_overtaken_without_waiting_for_the_hedge() -> None:
    """While the LAC moves often others are asked for the next ones ahead: what they know counts."""
    config = ClientConfig(speculative_read_ms=60_000.0, idle_lac_ms=5.0)
    async with readable(config=config) as (cluster, client), client.create(ensemble="3/3/2") as writer:
        got: list[bytes] = []
        async with client.open(writer.ledger_id) as reader:
            task = asyncio.ensure_future(collect(reader, got))
            for i in range(30):
                await writer.append(b"%d" % i)
            await until(lambda: len(got) > 20, "keeps up", 2.0)
            lagging = cluster[writer.metadata.last_fragment.ensemble[0]]
            lagging.hang = lambda request: isinstance(request, Read) and request.previous_lac is not None
            for i in range(30, 300):
                await writer.append(b"%d" % i)
            await until(lambda: len(got) > 280, "still keeps up", 2.0)
            await writer.close()
            await asyncio.wait_for(task, 5)
        assert got == [b"%d" % i for i in range(300)]


@pytest.mark.parametrize("damaged", [False, True])
async def test_slightly_lagging_tail_catches_up_with_one_request(
    damaged: bool,
) -> None:
    config = ClientConfig(speculative_read_ms=60_000.0, idle_lac_ms=5.0)
    async with readable(config=config) as (cluster, client), client.create(ensemble="3/3/2") as writer:
        async with client.open(writer.ledger_id) as reader:
            tail = reader.tail()
            got: list[bytes] = []
            for i in range(10):
                await writer.append(b"%d" % i)
                got.append((await asyncio.wait_for(anext(tail), 5)).payload)
            if damaged:
                for number, bookie in enumerate(cluster.all):
                    bookie.bad = {12 + number}
            for i in range(10, 16):
                await writer.append(b"%d" % i)
            before = len(reads_of(cluster))
            while len(got) < 15:
                got.append((await asyncio.wait_for(anext(tail), 5)).payload)
            asked = reads_of(cluster)[before:]
            assert damaged or len(asked) <= 2
            assert any(one.entry_id + one.max_count > 16 for one in asked)  # also for what may not be confirmed yet
            await tail.aclose()
        assert got == [b"%d" % i for i in range(15)]


def reads_of(cluster: ReadableCluster) -> list[BatchRead]:
    return [one for bookie in cluster.all for one in bookie.requests if isinstance(one, BatchRead)]


async def test_the_reader_was_closed_or_the_ledger_deleted() -> None:
    async with readable(config=FAST) as (cluster, client):
        writer = await client.create()
        reader = await client.open(writer.ledger_id)
        task = asyncio.ensure_future(collect(reader, []))
        await pass_time(0.05)
        await reader.close()
        with pytest.raises(HandleClosed):
            await asyncio.wait_for(task, 5)
        reader = await client.open(writer.ledger_id)
        unused = reader.tail()
        await reader.close()
        with pytest.raises(HandleClosed):
            await anext(unused)
        reader = await client.open(writer.ledger_id)
        task = asyncio.ensure_future(collect(reader, []))
        await pass_time(0.05)
        versioned = await cluster.store.read_ledger(writer.ledger_id)
        await cluster.store.delete_ledger(writer.ledger_id, versioned.version)
        with pytest.raises(NoSuchLedger):
            await asyncio.wait_for(task, 5)
        await reader.close()
        await writer.abandon()
