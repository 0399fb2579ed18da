"""A cluster with a stream of each purpose, for the tests of the doors to them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from buckram import Client, StreamPurpose
from buckram.core.streams.names import OBJECTS_LOG
from buckram.streams.system_streams import make_system_stream
from buckram.testing import cluster

LOGS = ("shop/main", "shop/inventory", f"shop/{OBJECTS_LOG}")
Door = Callable[[Client, str], Awaitable[object]]


@asynccontextmanager
async def shop() -> AsyncIterator[Client]:
    """A cluster of one bookie with a stream of each purpose."""
    async with cluster(bookies=1) as one, one.client() as client:
        await client.namespaces.create("shop", ensemble="1/1/1")
        ns = client.namespace("shop")
        await ns.create("orders")
        await ns.create_database("main")
        await ns.create_machine_log("inventory")
        await ns.create_machine_log(OBJECTS_LOG)
        await make_system_stream(client, "audit")
        await make_system_stream(client, "usage")
        yield client


async def refuses(door: Door, client: Client, name: str) -> bool:
    """Whether the door refuses it by the purpose of the stream."""
    try:
        await door(client, name)
    except StreamPurpose as error:
        return "which nobody may" in str(error)
    return False
