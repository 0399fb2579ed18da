"""A source of very many streams: the requests of planning, the packing into partitions, and linear cost."""

from __future__ import annotations

import asyncio
import functools

import pytest
from tests.spark.reading import rows
from tests.spark.test_streaming_parts import EARLIEST, Run

from buckram import connect
from buckram.spark.shared.bounded_gather import AT_ONCE, run_in_order
from buckram.testing import ThreadedCluster

STREAMS, FILLED = 1500, 60


async def fill(uri: str, space: str) -> None:
    async with connect(uri) as client:
        await client.namespaces.create(space)
        ns = client.namespace(space)
        names = [f"s{n:04}" for n in range(STREAMS)]
        await run_in_order([functools.partial(ns.create, name) for name in names])

        async def write(name: str) -> None:
            async with await ns.writer(name) as writer:
                await writer.append_many([name.encode()] * 3)

        await run_in_order([functools.partial(write, name) for name in names[:: STREAMS // FILLED]])


def test_a_source_of_many_streams(cluster: ThreadedCluster, stream: str) -> None:
    """docs/tutorial/spark.md says what 10,000 streams cost."""
    space = stream.partition("/")[2][-40:]
    asyncio.run(fill(cluster.uri, space))
    run = Run(cluster.uri, subscribePattern=f"{space}/.*", maxOffsetsPerTrigger=FILLED * 2, **EARLIEST)
    assert len(run.start["uids"]) == STREAMS
    first, second = run.batch() or [], run.batch() or []
    assert (len(first), len(second)) == (FILLED * 2, FILLED)
    assert run.batch() is None
    whole = Run(cluster.uri, subscribePattern=f"{space}/.*", **EARLIEST)
    everything = whole.batch() or []
    assert sorted(map(str, everything)) == sorted(map(str, first + second))
    parts = whole.reader.partitions(whole.before, whole.start)
    assert len(parts) <= 8
    assert rows(whole.reader, parts) == everything


async def test_results_come_in_order_with_bounded_concurrency() -> None:
    running = most = 0

    async def ask(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(number % 3):
            await asyncio.sleep(0)
        running -= 1
        return number

    count = 3 * AT_ONCE
    assert await run_in_order([functools.partial(ask, n) for n in range(count)]) == list(range(count))
    assert most == AT_ONCE
    assert await run_in_order([]) == []


async def test_the_first_error_in_order_is_raised_and_no_job_begins_after_it() -> None:
    begun = 0

    async def ask(number: int) -> int:
        nonlocal begun
        begun += 1
        if number in (5, 9):
            if number == 5:
                await asyncio.sleep(0)
            raise ValueError(number)
        await asyncio.sleep(0)
        return number

    with pytest.raises(ValueError, match="5"):
        await run_in_order([functools.partial(ask, n) for n in range(10 * AT_ONCE)])
    assert begun <= 2 * AT_ONCE
