"""Closing a client ends everything that waits on it, with an error that says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.clock import pass_time

from buckram.errors import HandleClosed
from buckram.namespace import Namespace
from buckram.testing import Cluster


async def test_closing_the_client_ends_every_wait(three_bookies: Cluster, ns: Namespace) -> None:
    async with ns.writer("s") as writer:
        await writer.append(b"1")
        await ns.create("empty")
        async with ns.writer("rolled") as other:
            await other.append(b"1")
        client = await three_bookies.client()
        mine = client.namespace("shop")
        reader = mine.read("s", follow=True)
        assert (await anext(reader)).value == b"1"
        waiting: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(work) for work in (
                mine.writer("s", wait=True).__aenter__(), reader.next_batch(),
                mine.read("s", start="latest", follow=True).next_batch(),
                mine.read("empty", follow=True).next_batch(),
                mine.read("rolled", start=1, follow=True).next_batch(),
            )
        ]  # fmt: skip
        await pass_time(0.3)
        assert not any(one.done() for one in waiting)
        await client.close()
        async with asyncio.timeout(10):
            for one in waiting:
                with pytest.raises(HandleClosed):
                    await one


async def test_a_closed_client_refuses_every_call(three_bookies: Cluster, ns: Namespace) -> None:
    await ns.create("s")
    client = await three_bookies.client()
    mine = client.namespace("shop")
    await client.close()
    attempts: list[Callable[[], Any]] = [
        lambda: mine.writer("s"), lambda: mine.read("s").next_batch(), lambda: mine.create("t"), lambda: mine.list(),
        lambda: mine.info("s"), lambda: mine.exists("s"), lambda: mine.get("s", 0), lambda: mine.delete("s"),
        lambda: mine.truncate("s", before=0), lambda: mine.cursors("s"), lambda: mine.move_cursor("s", "c", 0),
        lambda: mine.bulk("s", application="a", version=1), lambda: mine.set_policy("s", roll_s=5.0),
        lambda: client.namespaces.list(),
    ]  # fmt: skip
    for attempt in attempts:
        with pytest.raises(HandleClosed, match="connect again"):
            await attempt()
