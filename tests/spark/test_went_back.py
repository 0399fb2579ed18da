"""A streaming query whose stream went back with a restore of the metadata: it says so, and goes on if told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.replication.kit import SPACE, Pair, append, numbered, pair, records, space
from tests.replication.restoring import backed_up, restored, went_back
from tests.serve.hrana.processes import ServeProcess
from tests.spark.test_db import commit, execute, query
from tests.support.polling import until

from buckram import BatchesLost, RecordsLost
from buckram.core.streams.names import StreamName
from buckram.replication.sides import Side
from buckram.spark.shared.clients import close_connections
from buckram.spark.shared.rollback_detection import HISTORY, TIMES, without_notes
from buckram.spark.source.micro_batches import UIDS, Live
from buckram.spark.source.planning import StreamOptions
from buckram.streams.read.position_check import time_before
from buckram.testing import ThreadedCluster


async def test_a_checkpoint_that_is_ahead_of_its_stream_ends_the_query() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 6))
        uid = (await both.a.streams.read(StreamName(SPACE, "orders"))).head.uid
        given = {"metadata": both.of_a.uri, "subscribe": f"{SPACE}/orders"}
        ahead = {f"{SPACE}/orders": 9, UIDS: {f"{SPACE}/orders": uid}}
        at_end = {**ahead, f"{SPACE}/orders": 6}
        live = Live(both.a.client, StreamOptions.parse(given, "stream"))
        assert await live.latest(at_end, limited=True) == at_end
        with pytest.raises(RecordsLost, match="offset 9 is wanted and the stream went back, it ends at 6"):
            await live.latest(ahead, limited=True)
        patient = Live(both.a.client, StreamOptions.parse({**given, "failOnDataLoss": "false"}, "stream"))
        assert without_notes(await patient.latest(ahead, limited=True)) == at_end
        assert await patient.partitions(ahead, at_end) == []


ORDERS = f"{SPACE}/orders"


def live(both: Pair, **options: str) -> Live:
    given = {"metadata": both.of_a.uri, "subscribe": ORDERS, **options}
    return Live(both.a.client, StreamOptions.parse(given, "stream"))


async def regrown(both: Pair, positions: list[int]) -> AsyncIterator[tuple[Pair, list[dict[str, Any]]]]:
    """A stream of six records that went back to three and grew to eight; and offsets of a query from before that."""
    await append(both.a, numbered(0, 3))
    made = await backed_up(both.of_a)
    await append(both.a, numbered(3, 6))
    found = []
    for position in positions:
        query = live(both)
        query.target = {ORDERS: position}
        start = {ORDERS: 0, UIDS: {ORDERS: (await both.a.streams.read(StreamName(SPACE, "orders"))).head.uid}}
        found.append(await query.latest(start, limited=True))
    async with went_back(both, made) as after:
        bookies = after.a.client.services.bookies
        await until(lambda: bool(bookies.bookies.writable), "the bookie does not believe the store")
        await append(after.a, [b"other %d" % number for number in range(5)])
        yield after, found


async def test_a_stream_that_has_grown_beyond_the_checkpoint_again_ends_the_query() -> None:
    async with pair() as both:
        async for after, (below, beyond, other_end) in regrown(both, [3, 5, 6]):
            assert [one[ORDERS] for one in (below, beyond, other_end)] == [3, 5, 6]
            assert all(one[TIMES][ORDERS] for one in (below, beyond, other_end))
            now = await live(after).latest(below, limited=True)
            assert now[ORDERS] == 8, "what the query has read is what it was"
            assert now[HISTORY] != below[HISTORY]
            for offset in (beyond, other_end):
                with pytest.raises(RecordsLost, match="went back with its metadata, and has other records below it"):
                    await live(after).latest(offset, limited=True)
                with pytest.raises(RecordsLost, match="other records below it"):
                    await live(after).partitions(offset, now)
            # A batch that was planned before the restore, and comes again.
            with pytest.raises(RecordsLost, match=r"offset 5 is wanted.*other records below it"):
                await live(after).partitions(below, beyond)
            patient = live(after, failOnDataLoss="false")
            assert (await patient.latest(beyond, limited=True))[ORDERS] == 8
            assert (await live(after).latest(without_notes(beyond), limited=True))[ORDERS] == 8, "of an older release"


async def test_a_history_that_changed_is_no_new_batch() -> None:
    async with pair() as both:
        await append(both.a, numbered(0, 3))
        made = await backed_up(both.of_a)
        start = await live(both).initial()
        end = await live(both).latest(start, limited=True)
        assert await live(both).latest(end, limited=True) is end
        assert await live(both).latest(without_notes(end), limited=True) == without_notes(end)
        async with went_back(both, made) as after:
            assert await live(after).latest(end, limited=True) is end


async def test_what_was_truncated_since_cannot_be_compared() -> None:
    async with pair() as both:
        async for after, (below, *_) in regrown(both, [3]):
            await space(after.a).truncate("orders", before=3)
            with pytest.raises(RecordsLost, match="restored, and what was below it is truncated"):
                await live(after).latest(below, limited=True)


async def test_the_time_of_a_record_is_what_readers_see_wherever_it_is() -> None:
    """In an open segment, in a sealed one, at its end, within an entry, and in a bulk step, whose time is its row's."""
    async with pair() as both:
        ns = space(both.a)
        await append(both.a, numbered(0, 5))
        step = await ns.bulk("orders", application="bulk", version=1)
        bulk = await step.create_ledger()
        await bulk.append_many(numbered(5, 9))
        clocks = both.a.client.services.clocks
        made = clocks.now()
        await until(lambda: clocks.now() > made)
        await step.publish([await bulk.close()])
        async with ns.writer("orders") as writer:
            for number in range(9, 14):
                await writer.append(b"record %d" % number)
            name = StreamName(SPACE, "orders")
            head = (await both.a.streams.read(name)).head
            assert head.open_segment is not None
            known = [record async for record in ns.read("orders", stop=13)]
            times = [await time_before(both.a.client, both.a.streams, name, head, at) for at in range(14)]
            assert times == [0, *(record.append_time for record in known)]


async def test_the_time_of_a_segments_first_record_is_not_that_of_the_producers_before_it() -> None:
    async with pair() as both:
        name = StreamName(SPACE, "orders")
        for number in range(2):
            async with space(both.a).writer("orders") as writer:
                for sequence in (2 * number, 2 * number + 1):
                    await writer.append(b"x", producer="p", sequence=sequence)
        head = (await both.a.streams.read(name)).head
        times = [await time_before(both.a.client, both.a.streams, name, head, at) for at in range(1, 5)]
        assert times == [record.append_time for record in await records(both.a)]


async def publish(side: Side, version: int, *, new_epoch: bool = False) -> None:
    """One batch of a query, as the sink writes it."""
    bulk = await side.client.namespace(SPACE).bulk(
        "orders", application="q", version=version, query="q1", place="p", new_epoch=new_epoch
    )
    assert bulk.foreseen()
    ledger = await bulk.create_ledger()
    await ledger.append_many([b"batch %d" % version])
    await bulk.publish([await ledger.close()])


async def test_a_query_that_writes_behind_lost_batches_is_stopped() -> None:
    async with pair() as both:
        await space(both.a).create("orders")
        for version in (0, 1, 3):  # batch 2 had no rows
            await publish(both.a, version)
        made = await backed_up(both.of_a)
        for version in (4, 5):
            await publish(both.a, version)
        async with went_back(both, made) as after:
            bookies = after.a.client.services.bookies
            await until(lambda: bool(bookies.bookies.writable), "the bookie does not believe the store")
            with pytest.raises(BatchesLost, match="batch 6, and the newest of its batches that is known here is 3"):
                await publish(after.a, 6)
            await publish(after.a, 4)
            await publish(after.a, 6)  # batch 5 had no rows this time
            assert (await after.a.client.namespace(SPACE).info("orders")).end == 5


async def test_a_query_goes_on_without_lost_batches_when_told_to() -> None:
    async with pair() as both:
        await space(both.a).create("orders")
        await publish(both.a, 0)
        made = await backed_up(both.of_a)
        await publish(both.a, 1)
        async with went_back(both, made) as after:
            bookies = after.a.client.services.bookies
            await until(lambda: bool(bookies.bookies.writable), "the bookie does not believe the store")
            with pytest.raises(BatchesLost):
                await publish(after.a, 2)
            await publish(after.a, 2, new_epoch=True)
            await publish(after.a, 4)


def test_a_query_that_writes_a_database_through_a_server_is_stopped_as_one_that_leads() -> None:
    with ThreadedCluster(bookies=3) as cluster:

        def write(*versions: int) -> None:
            with ServeProcess(cluster.uri, "default/shop") as served:
                for version in versions:
                    commit(cluster, "shop", version, [(version, "q")], server=served.url)

        execute(cluster, "shop", "CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        write(0, 1, 3)  # batch 2 had no rows
        made = asyncio.run(backed_up(cluster))
        write(4, 5)
        asyncio.run(restored(cluster, made))
        with pytest.raises(BatchesLost, match="batch 6, and the newest of its batches that is known here is 3"):
            write(6)
        close_connections()
        with pytest.raises(BatchesLost, match="known here is 3"):
            commit(cluster, "shop", 6, [(6, "q")])
        write(4, 6)  # batch 5 had no rows this time
        assert [row[0] for row in query(cluster, "shop", "SELECT id FROM item")] == [0, 1, 3, 4, 6]
        close_connections()
