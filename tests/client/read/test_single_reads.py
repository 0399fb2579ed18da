"""Single entries, many at a time: the usual way of client/read/single_reads, and where the race takes over."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.read.test_reader import FAST, payloads
from tests.support.polling import until
from tests.support.readable_bookie import readable

from buckram.core.wire.messages import Read
from buckram.errors import ReadFailed


async def test_single_read_is_hedged_and_the_first_good_answer_counts() -> None:
    async with readable(config=FAST) as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(6))
        ensemble = writer.metadata.last_fragment.ensemble
        cluster[ensemble[0]].hang = lambda request: isinstance(request, Read) and request.entry_id == 0
        async with client.open(writer.ledger_id) as reader:
            reads = [reader.get(entry) for entry in (0, 3, 0, 1)]
            assert [entry.payload for entry in await asyncio.gather(*reads)] == [payloads(6)[n] for n in (0, 3, 0, 1)]
            asked = [
                bookie
                for bookie in ensemble
                for one in cluster[bookie].requests
                if isinstance(one, Read) and one.entry_id == 0
            ]
            assert asked == [ensemble[0]] * 2 + [ensemble[1]] * 2
            # It was beaten, so it is asked last for a while.
            await reader.get(3)
            assert [one.entry_id for one in cluster[ensemble[0]].requests if isinstance(one, Read)].count(3) == 1


async def test_a_single_read_goes_on_from_what_the_first_bookie_said() -> None:
    async with readable() as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(6))
        first, second, third = (cluster[bookie] for bookie in writer.metadata.last_fragment.ensemble)
        stored = second.entries[writer.ledger_id]
        async with client.open(writer.ledger_id) as reader:
            del first.entries[writer.ledger_id][0]
            second.entries[writer.ledger_id] = stored | {0: stored[0][:-1] + b"?"}
            assert (await reader.get(0)).payload == b"payload 0"
            del third.entries[writer.ledger_id][0]
            with pytest.raises(ReadFailed, match="digest"):
                await reader.get(0)


async def test_who_gives_up_a_single_read_leaves_nothing_behind() -> None:
    async with readable() as (cluster, client):
        async with client.create() as writer:
            await writer.append_many(payloads(6))
        for bookie in cluster.all:
            bookie.hang = lambda request: isinstance(request, Read)
        async with client.open(writer.ledger_id) as reader:
            reads = [asyncio.ensure_future(reader.get(entry)) for entry in range(6)]
            await until(lambda: sum(isinstance(r, Read) for b in cluster.all for r in b.requests) == 6, "asked")
            for read in reads:
                read.cancel()
            outcomes = await asyncio.gather(*reads, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            for bookie in cluster.all:
                bookie.hang = lambda request: False
            assert not reader._singles._waiting
            assert (await reader.get(2)).payload == b"payload 2"
