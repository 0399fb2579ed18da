"""Forks, their deletion and trimming, killed between any two operations: nothing is lost, and no ledger stays."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from tests.streams.maintain.fork_kit import (
    FORK,
    NAME,
    DyingStreams,
    Killed,
    clean,
    end_leases,
    ledgers,
    listed,
    records,
)

from buckram.cluster import Client
from buckram.errors import StreamExists, WriterExists
from buckram.namespace import Namespace
from buckram.streams.maintain.delete import delete_stream
from buckram.streams.maintain.fork import fork_stream
from buckram.streams.maintain.truncate import trim, truncate
from buckram.streams.shared.metadata import StreamStore


async def steps(ns: Namespace, count: int) -> None:
    await ns.create("s", ensemble="1/1/1")
    for number in range(count):
        step = await ns.bulk("s", application="job", version=number)
        ledger = await step.create_ledger()
        await ledger.append_many([b"%d" % number, b"x", b"y"])
        await step.publish([await ledger.close()])


async def fork_it(client: Client, streams: StreamStore) -> None:
    await fork_stream(client, streams, NAME, FORK, at=7)


async def delete_fork(client: Client, streams: StreamStore) -> None:
    await delete_stream(client, streams, FORK)


async def delete_source(client: Client, streams: StreamStore) -> None:
    await delete_stream(client, streams, NAME)


async def trim_source(client: Client, streams: StreamStore) -> None:
    await truncate(client, streams, NAME, 6)
    await trim(client, streams, NAME)


@pytest.mark.parametrize("work", [fork_it, delete_fork, delete_source, trim_source])
async def test_killed_between_any_two_operations(
    client: Client, ns: Namespace, work: Callable[[Client, StreamStore], Awaitable[None]]
) -> None:
    killed, left = True, 0
    while killed:
        await steps(ns, 3)
        before = await records(ns, "s")
        if work is not fork_it:
            await fork_it(client, ns.store)
        streams = DyingStreams(client, left)
        try:
            await work(client, streams)
            killed = False
        except Killed:
            left += 1
        await end_leases(ns)
        await clean(client)
        there = {name: await records(ns, name) for name in await ns.list()}
        assert there.get("f", before[:7]) == before[:7], left
        assert there.get("s", before) in (before, before[6:]), left
        assert "s" in there or work is delete_source, left
        assert "f" in there or work in (fork_it, delete_fork), left
        assert await ledgers(client) == await listed(ns, *there), left
        for name in there:
            await ns.delete(name)
        assert await ledgers(client) == set(), left
        assert await ns.store.keys.children(ns.store.layout.all_data) == [], left
    assert left > 2


async def test_a_fork_that_died_is_made_by_the_next_call(client: Client, ns: Namespace) -> None:
    await steps(ns, 3)
    whole, left = False, 0
    while not whole:
        with suppress(Killed):
            await fork_it(client, DyingStreams(client, left))
        left += 1
        whole = await ns.exists("f") and not (await ns.store.read(FORK)).head.incomplete
        if await ns.exists("f") and not whole:
            with pytest.raises(WriterExists, match="is being made as a fork by another process"):
                await fork_it(client, ns.store)
        await end_leases(ns)
        if whole:
            with pytest.raises(StreamExists, match=r"as a fork of shop/s at offset 7 \(`buckram stream show shop/f`\)"):
                await fork_it(client, ns.store)
        else:
            await fork_it(client, ns.store)
        assert await records(ns, "f") == (await records(ns, "s"))[:7], left
        await ns.delete("f")
        await clean(client)
        assert await ledgers(client) == await listed(ns, "s"), left
    assert left > 4
