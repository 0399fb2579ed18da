"""On every key store: no stream is created by who did not see that its side of the namespace was replaced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from tests.contracts.conftest import Cluster

from buckram.core.streams.metadata.head import Fork, Head, Mirror
from buckram.core.streams.metadata.mirrors import MIRROR, PROMOTED, SUPERSEDED
from buckram.core.streams.names import StreamName
from buckram.core.streams.replication_links import SOURCE, Link
from buckram.errors import ReplicationRefused
from buckram.replication.sides import Side, put_link, write_link
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces, create_stream
from buckram.types import KeyOp

ORDERS = StreamName("shop", "orders")
FENCE = Link(SUPERSEDED, "there", "", 1)


class Interrupted(StreamStore):
    """Does something between what a creation reads and what it writes, once."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def create(self, name: StreamName, head: Head, namespace_version: int, extra: Sequence[KeyOp] = ()) -> Head:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        return await super().create(name, head, namespace_version, extra)


async def side_of(cluster: Cluster) -> tuple[Side, Interrupted]:
    streams = Interrupted(await cluster.store())
    return Side(cast(Any, None), streams, Namespaces(streams), "here"), streams


@pytest.mark.parametrize("before", [None, Link(SOURCE, "there", "")], ids=["not replicated", "a source"])
async def test_a_creation_that_began_before_the_fence_loses(cluster: Cluster, before: Link | None) -> None:
    side, streams = await side_of(cluster)
    await side.namespaces.create("shop")
    known = None if before is None else (await write_link(side, "shop", before)).link
    fence = replace(FENCE, version=-1 if known is None else known.version)
    streams.meanwhile = lambda: write_link(side, "shop", fence)
    with pytest.raises(ReplicationRefused, match="cluster there was promoted in place of this one"):
        await create_stream(streams, ORDERS, Head("a" * 16, 1))
    assert await streams.streams("shop") == []
    assert await streams.link("shop") == replace(fence, version=fence.version + 1)


async def test_a_link_of_other_streams_or_of_a_source_refuses_nothing(cluster: Cluster) -> None:
    side, streams = await side_of(cluster)
    await side.namespaces.create("shop")
    streams.meanwhile = lambda: put_link(side, "shop", Link(SOURCE, "there", ""))
    await create_stream(streams, ORDERS, Head("a" * 16, 1))
    await put_link(side, "shop", replace(FENCE, streams=("orders",)))
    await create_stream(streams, StreamName("shop", "private"), Head("b" * 16, 1))
    assert await streams.streams("shop") == ["orders", "private"]


async def test_a_namespace_that_is_made_after_the_fence_is_fenced(cluster: Cluster) -> None:
    side, streams = await side_of(cluster)
    await put_link(side, "shop", FENCE)
    await side.namespaces.create("shop")
    with pytest.raises(ReplicationRefused):
        await create_stream(streams, ORDERS, Head("a" * 16, 1))


async def test_while_a_run_looks_not_even_a_fork_is_created(cluster: Cluster) -> None:
    side, streams = await side_of(cluster)
    await side.namespaces.create("shop")
    tentative = Link(MIRROR, "there", "", tentative=True)
    fork = Head("a" * 16, 1, fork=Fork("shop/orders", "b" * 16, 0, False))
    streams.meanwhile = lambda: put_link(side, "shop", tentative)
    for _ in range(2):
        with pytest.raises(ReplicationRefused, match="run it again, or in the other direction"):
            await create_stream(streams, StreamName("shop", "branch"), fork)
    assert await streams.link("shop") == replace(tentative, version=0, time=0)
    await put_link(side, "shop", replace(tentative, tentative=False))
    await create_stream(streams, StreamName("shop", "branch"), fork)


async def test_a_mirror_is_made_neither_after_a_promotion_nor_by_one_that_began_before(cluster: Cluster) -> None:
    side, streams = await side_of(cluster)
    await side.namespaces.create("shop")
    mirror = Head("a" * 16, 1, mirror=Mirror(MIRROR, "there", "b" * 16))
    link = await put_link(side, "shop", Link(MIRROR, "there", ""))
    await create_stream(streams, ORDERS, mirror)
    streams.meanwhile = lambda: write_link(side, "shop", replace(link, state=PROMOTED, epoch=1))
    with pytest.raises(ReplicationRefused, match="no mirror is made here any more"):
        await create_stream(streams, StreamName("shop", "late"), replace(mirror, uid="c" * 16))
    kept = Head("d" * 16, 1, mirror=Mirror(MIRROR, "here", "b" * 16))
    await create_stream(streams, StreamName("shop", "orders.kept-1"), kept)
    assert await streams.streams("shop") == ["orders", "orders.kept-1"]
