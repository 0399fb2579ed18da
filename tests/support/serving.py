"""A client of a cluster of stand-in bookies: scripted ones, or ones that can also be read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

from buckram.cluster import Client, connect
from buckram.config import ClientConfig, NetConfig
from buckram.seams import MetadataStore, Runtime


class StandIn(Protocol):
    async def kill(self) -> None: ...


class Cluster(Protocol):
    runtime: Runtime
    store: MetadataStore

    @property
    def bookies(self) -> Mapping[str, StandIn]: ...
    async def add(self, name: str) -> Any: ...


C = TypeVar("C", bound=Cluster)


@asynccontextmanager
async def serving(
    cluster: C,
    bookies: int,
    config: ClientConfig | None,
    net: NetConfig,
    wrap: Callable[[MetadataStore], MetadataStore],
) -> AsyncIterator[tuple[C, Client]]:
    """Start bookies b0, b1, ... of `cluster` and a client of them. At the end no task may be left."""
    before = asyncio.all_tasks()
    await cluster.store.initialise()
    for i in range(bookies):
        await cluster.add(f"b{i}")
    async with connect(wrap(cluster.store), config=config, net=net, runtime=cluster.runtime) as client:
        yield cluster, client
    for bookie in cluster.bookies.values():
        await bookie.kill()
    await cluster.store.close()
    left = [task for task in asyncio.all_tasks() if task not in before and not task.done()]
    assert not left, f"tasks left: {left}"
