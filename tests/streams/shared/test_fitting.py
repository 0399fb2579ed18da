"""Namespaces of clusters with few bookies: what `up` fits, what is fitted like it, and what grows again."""

from __future__ import annotations

import pytest

from buckram.core.streams.policy import merged
from buckram.errors import NotEnoughBookies
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces, fit_namespaces
from buckram.testing import cluster


@pytest.mark.parametrize("bookies", [1, 2])
async def test_a_namespace_made_in_a_small_cluster_is_written(bookies: int) -> None:
    async with cluster(bookies=bookies) as small, small.client() as client:
        await client.namespaces.create("before")
        await fit_namespaces(StreamStore(client.services.store), 0, bookies)
        await client.namespaces.create("after")
        for name in ("default", "before", "after"):
            async with client.namespace(name).writer("s") as writer:
                await writer.append(b"a")
                assert (await client.namespace(name).get("s", 0)).value == b"a"
        chosen = await client.namespaces.create("chosen", ensemble="3/3/2")
        assert not chosen.fitted
        with pytest.raises(NotEnoughBookies, match=f"3 bookies are needed, {bookies} .*namespace set chosen"):
            await client.namespace("chosen").writer("s")


async def test_a_cluster_that_grew_widens_what_nobody_chose() -> None:
    async with cluster(bookies=1) as small, small.client() as client:
        streams = StreamStore(client.services.store)
        namespaces = Namespaces(streams)
        await fit_namespaces(streams, 0, 1)
        await namespaces.create("fitted")
        await namespaces.create("chosen", ensemble="1/1/1")
        await namespaces.create("changed", retention_s=7.0)
        await namespaces.set("changed", retention_s=9.0)  # leaves the ensemble to the cluster
        await namespaces.create("taken")
        await namespaces.set("taken", ensemble="1/1/1")  # is a choice from now on

        async def ensembles() -> dict[str, str]:
            names = await namespaces.list()
            return {name: merged((await namespaces.get(name)).policy).ensemble for name in names}

        assert set((await ensembles()).values()) == {"1/1/1"}
        await fit_namespaces(streams, 1, 2)
        wide = {"default": "2/2/2", "fitted": "2/2/2", "changed": "2/2/2", "chosen": "1/1/1", "taken": "1/1/1"}
        assert await ensembles() == wide
        await fit_namespaces(streams, 2, 5)
        assert await ensembles() == {name: "1/1/1" if old == "1/1/1" else "3/3/2" for name, old in wide.items()}
        assert not (await namespaces.get("changed")).fitted
        assert (await namespaces.get("changed")).policy == {"retention_s": 9.0}


async def test_a_cluster_of_an_earlier_release_grows_too() -> None:
    """There, namespace default has the ensemble and no mark."""
    async with cluster(bookies=1) as small, small.client() as client:
        namespaces = client.namespaces
        await namespaces.set("default", ensemble="1/1/1")
        await namespaces.create("old")
        await fit_namespaces(StreamStore(client.services.store), 1, 1)
        assert (await namespaces.get("old")).policy == {"ensemble": "1/1/1"}
        await fit_namespaces(StreamStore(client.services.store), 1, 3)
        assert (await namespaces.get("default")).policy == (await namespaces.get("old")).policy == {}


async def test_a_large_cluster_is_not_touched() -> None:
    async with cluster(bookies=1) as there, there.client() as client:
        await client.namespaces.set("default", ensemble="2/2/2")
        for before, count in ((0, 3), (3, 4)):
            await fit_namespaces(StreamStore(client.services.store), before, count)
        assert (await client.namespaces.get("default")).policy == {"ensemble": "2/2/2"}
        assert not (await client.namespaces.create("new")).policy
