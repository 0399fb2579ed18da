"""The end of a client: bookies that are behind the quorum get what a sealed ledger has for them, within bounds."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.clock import pass_time
from tests.support.scripted_bookie import NET, ScriptedBookie, eventually, scripted

from buckram.client.shared.copies import Copies


def hold(bookie: ScriptedBookie) -> None:
    bookie.held = []


@pytest.mark.parametrize("shape", ["3/3/2", "3/2/1"])
async def test_the_end_of_a_client_waits_for_bookies_that_are_behind(shape: str) -> None:
    async with scripted() as (cluster, client):
        hold(cluster["b2"])
        async with client.create(ensemble=shape) as writer:
            await writer.append_many([b"%d" % n for n in range(20)])
        ended = asyncio.ensure_future(client.close())
        await eventually(lambda: bool(cluster["b2"].held), "the adds arrived")
        await pass_time(0.05)
        assert not ended.done()
        cluster["b2"].release()
        await asyncio.wait_for(ended, NET.request_timeout_s / 2)
        assert all(len(cluster.holders(writer.ledger_id, entry)) == int(shape[2]) for entry in range(20))


async def test_copies_that_wait_for_a_connection_are_not_dropped() -> None:
    """Two of three answer while the connection to the third one is still being made: it gets its copies, too."""
    async with scripted() as (cluster, client):
        network, connect = cluster.runtime.network, cluster.runtime.network.connect
        open_door = asyncio.Event()

        async def late(host: str, port: int, factory: object) -> object:
            if port == cluster["b1"].port:
                await open_door.wait()
            return await connect(host, port, factory)  # type: ignore[arg-type]  # passed on as it came

        network.connect = late  # type: ignore[method-assign, assignment]  # a slow way to one bookie
        async with client.create() as writer:
            await writer.append(b"x")
        ended = asyncio.ensure_future(client.close())
        asyncio.get_running_loop().call_later(0.05, open_door.set)
        await ended
        assert cluster.holders(writer.ledger_id, 0) == ["b0", "b1", "b2"]


async def test_one_that_hangs_is_waited_for_as_long_as_for_any_answer() -> None:
    async with scripted() as (cluster, client):
        cluster["b0"].silent = True
        writers = [await client.create() for _ in range(5)]
        for writer in writers:
            await writer.append(b"x")
            await writer.close()
        ended, waits = asyncio.ensure_future(client.close()), 0
        while not (await asyncio.wait([ended], timeout=NET.request_timeout_s / 10))[0]:
            waits += 1
        assert waits < 20  # not once for each writer; counted, as a machine may stand still


async def test_sealing_waits_for_the_quorum_only_and_replicated_for_all() -> None:
    async with scripted() as (cluster, client):
        hold(cluster["b2"])
        writer = await client.create()
        await writer.append(b"x")
        await asyncio.wait_for(writer.close(), NET.request_timeout_s / 2)
        rest = asyncio.ensure_future(writer.replicated())
        await asyncio.sleep(0)
        assert not rest.done()
        await eventually(lambda: bool(cluster["b2"].held), "the add arrived")
        cluster["b2"].release()
        await asyncio.wait_for(rest, NET.request_timeout_s / 2)
        await writer.replicated()  # nothing is left to wait for
        assert not client.services.pending_copies


async def test_what_is_not_sealed_is_not_waited_for() -> None:
    async with scripted() as (cluster, client):
        for name in ("b1", "b2"):
            hold(cluster[name])
        writer = await client.create()
        waiting = writer.append_nowait(b"x")
        await eventually(lambda: all(cluster[name].held for name in ("b1", "b2")), "the add arrived")
        await asyncio.wait_for(client.close(), NET.request_timeout_s / 2)
        assert waiting.exception() is not None
        for name in ("b1", "b2"):
            cluster[name].release()


async def test_counting() -> None:
    lagging: dict[Copies, None] = {}
    copies = Copies(lagging)
    copies.unanswered += 6
    copies.answered(2)
    copies.complete()
    assert list(lagging) == [copies]
    copies.answered(3)
    await copies.wait(0.0)  # gives up
    assert not lagging
    copies.answered(1)
    await copies.wait(60.0)
