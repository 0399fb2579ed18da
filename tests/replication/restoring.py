"""Restores of a cluster's metadata, as an operator makes them, for tests of who remembers positions in its streams."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from tests.replication.kit import Pair

from buckram.core.streams.metadata.head import encode_head
from buckram.core.streams.names import StreamName
from buckram.errors import KeyExists
from buckram.metadata.maintain.acceptance import accept
from buckram.metadata.maintain.backup import Backup, copy_of, restore
from buckram.metadata.tree.store import TreeStore
from buckram.metadata.uri import open_store
from buckram.replication.sides import Side, side_of
from buckram.runtime.production import production_runtime
from buckram.testing import Cluster, ThreadedCluster


async def backed_up(cluster: Cluster | ThreadedCluster) -> Backup:
    """A backup of the cluster's metadata, as `buckram cluster backup` makes it."""
    async with opened_store(cluster) as store:
        return await copy_of(store)


async def restored(cluster: Cluster | ThreadedCluster, made: Backup, *, accepted: bool = True) -> None:
    """Have the metadata of a cluster be what they were in the backup."""
    async with opened_store(cluster) as store:
        await restore(store, made)
        if accepted:
            await accept(store, random.Random(made.next_id))


@asynccontextmanager
async def went_back(both: Pair, made: Backup) -> AsyncIterator[Pair]:
    """The metadata of `a` are what they were in the backup, and accepted; clients connect again."""
    await restored(both.of_a, made)
    async with both.of_a.client() as client:
        yield replace(both, a=await side_of(client))


async def becomes(side: Side, name: StreamName, other: str) -> None:
    """Have a stream the records of another one of its namespace, under its own uid, as if it had gone back to them."""
    mine, theirs = await side.streams.read(name), await side.streams.read(name._replace(stream=other))
    head = replace(theirs.head, uid=mine.head.uid, epoch=mine.head.epoch + 1)
    await side.streams.keys.set(side.streams.layout.head(name), encode_head(head), mine.version)
    for row in head.tail:  # Its ledgers were not made for it.
        key = await side.streams.metadata.ledger_key(row.ledger)
        with suppress(KeyExists):
            await side.streams.keys.create(f"{key}/{mine.head.uid}", str(name).encode())


@asynccontextmanager
async def opened_store(cluster: Cluster | ThreadedCluster) -> AsyncIterator[TreeStore]:
    store = await open_store(cluster.uri, production_runtime())
    assert isinstance(store, TreeStore)
    try:
        yield store
    finally:
        await store.close()
