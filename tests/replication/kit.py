"""Two clusters in this process, and what tests of their replication compare."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from buckram import Client, Namespace, Record
from buckram.core.streams.names import StreamName
from buckram.replication.run import Replication
from buckram.replication.sides import Side, side_of
from buckram.replication.stream_copy import StreamCopy
from buckram.runtime.net.pace import Pace
from buckram.testing import Cluster, cluster

SPACE = "shop"
ORDERS = StreamName(SPACE, "orders")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two clusters of one bookie each: `a`, which is copied, and `b`."""

    a: Side
    b: Side
    of_a: Cluster
    of_b: Cluster

    @property
    def orders(self) -> StreamCopy:
        return StreamCopy(self.a, self.b, ORDERS, Pace(None))

    async def work(self, *places: str, back: bool = False, skip_truncated: bool = False) -> Replication:
        source, target = (self.b, self.a) if back else (self.a, self.b)
        return await Replication.prepare(
            source, target, places or (SPACE,), pace=Pace(None), skip_truncated=skip_truncated
        )

    async def copied(self, *places: str, back: bool = False) -> Replication:
        """Copy once; every stream must have succeeded."""
        work = await self.work(*places, back=back)
        await work.once()
        assert {name: one.trouble for name, one in work.streams.items() if one.trouble} == {}
        return work


@asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    """Two clusters, each with a namespace SPACE whose ledgers have one copy."""
    async with cluster(bookies=1) as one, cluster(bookies=1) as two, one.client() as a, two.client() as b:
        for client in (a, b):
            await client.namespaces.create(SPACE, ensemble="1/1/1")
        yield Pair(await side_of(a), await side_of(b), one, two)


def space(side: Side | Client) -> Namespace:
    client = side.client if isinstance(side, Side) else side
    return client.namespace(SPACE)


async def append(side: Side, values: Iterable[bytes], stream: str = "orders") -> None:
    async with space(side).writer(stream) as writer:
        await writer.append_many(list(values))


async def records(side: Side, stream: str = "orders") -> list[Record]:
    """All that can be read, as readers see it."""
    return [record async for record in space(side).read(stream)]


def numbered(first: int, stop: int) -> list[bytes]:
    return [b"record %d" % number for number in range(first, stop)]
