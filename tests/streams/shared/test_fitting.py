"""Namespaces of clusters with few bookies: what `up` fits, what is fitted like it, and what grows again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

from buckram.core.streams.policy import merged
from buckram.errors import MetadataUnavailable, NamespaceExists, NotEnoughBookies
from buckram.seams import KeyStore, MetadataStore
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces, fit_namespaces
from buckram.testing import cluster
from buckram.types import KeyOp, KeyValue

Step = Callable[[], Awaitable[None]]


class Asked:
    """A store's keys, which note what they are asked. `before` and `after` the next multi, something else happens."""

    def __init__(self, keys: KeyStore) -> None:
        self.keys, self.asked = keys, list[str]()
        self.before: Step | None = None
        self.after: Step | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.keys, name)

    async def get(self, key: str) -> KeyValue:
        self.asked.append("get")
        return await self.keys.get(key)

    async def create(self, key: str, value: bytes) -> int:
        self.asked.append("create")
        return await self.keys.create(key, value)

    async def multi(self, ops: Sequence[KeyOp]) -> None:
        self.asked.append("multi")
        before, after, self.before, self.after = self.before, self.after, None, None
        if before is not None:
            await before()
        await self.keys.multi(ops)
        if after is not None:
            await after()


class AskedStreams(StreamStore):
    def __init__(self, store: MetadataStore) -> None:
        super().__init__(store)
        self.noted = Asked(store.keys)

    @property
    def keys(self) -> Asked:  # type: ignore[override]
        return self.noted


@pytest.fixture
async def asked() -> AsyncIterator[AskedStreams]:
    """The streams of a cluster of one bookie, whose namespace default is fitted to that."""
    async with cluster(bookies=1) as small, small.client() as client:
        streams = AskedStreams(client.services.store)
        await fit_namespaces(streams, 0, 1)
        streams.noted.asked.clear()
        yield streams


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


async def test_a_namespace_that_is_made_while_the_cluster_grows_is_as_wide(asked: AskedStreams) -> None:
    """`fit_namespaces` changes default first, then all that it finds: it finds the new one, or that is made anew."""
    namespaces = Namespaces(asked)

    async def grow() -> None:
        await fit_namespaces(StreamStore(asked.metadata), 1, 3)

    asked.noted.before = grow
    made = await Namespaces(asked).create("before")
    assert (made.policy, made.fitted) == ({}, False)
    await fit_namespaces(StreamStore(asked.metadata), 0, 1)
    asked.noted.after = grow
    assert (await namespaces.create("after")).policy == {"ensemble": "1/1/1"}
    for name in ("before", "after"):
        assert (await namespaces.get(name)).policy == {}


async def test_default_is_read_once_for_many_namespaces_and_again_when_it_changed(asked: AskedStreams) -> None:
    namespaces, noted = Namespaces(asked), asked.noted
    for number in range(3):
        made = await namespaces.create(f"n{number}", retention_s=7.0)
        assert made == await Namespaces(StreamStore(asked.metadata)).get(f"n{number}")
        assert (made.policy, made.fitted) == ({"retention_s": 7.0, "ensemble": "1/1/1"}, True)
    assert noted.asked == ["get", "multi", "multi", "multi"]
    await fit_namespaces(StreamStore(asked.metadata), 1, 2)
    assert (await namespaces.create("wider")).policy == {"ensemble": "2/2/2"}
    assert noted.asked[4:] == ["multi", "get", "multi"]
    await fit_namespaces(StreamStore(asked.metadata), 2, 3)
    assert (await namespaces.create("usual")).policy == {}
    noted.asked.clear()
    assert not (await namespaces.create("chosen", ensemble="1/1/1")).fitted
    assert noted.asked == ["create"]
    with pytest.raises(NamespaceExists):
        await namespaces.create("n0")
    noted.asked.clear()
    with pytest.raises(NamespaceExists):
        await namespaces.create("default")
    assert noted.asked == ["create", "get"]


async def test_a_creation_whose_answer_was_lost_is_known_again_after_default_changed(asked: AskedStreams) -> None:
    namespaces, keys = Namespaces(asked), asked.noted.keys

    async def lose() -> None:
        default = asked.layout.namespace("default")
        found = await keys.get(default)
        await keys.set(default, found.value.replace(b"1/1/1", b"2/2/2"), found.version)
        raise MetadataUnavailable("the answer was lost")

    asked.noted.after = lose
    assert (await namespaces.create("mine")).policy == {"ensemble": "1/1/1"}
    with pytest.raises(NamespaceExists):
        await namespaces.create("mine")


async def test_where_there_is_no_default_a_namespace_is_made_without(asked: AskedStreams) -> None:
    keys, default = asked.noted.keys, asked.layout.namespace("default")
    namespaces = Namespaces(asked)
    await namespaces.create("fitted")
    await keys.delete(default, (await keys.get(default)).version)
    assert (await namespaces.create("unfitted")).policy == {}
    assert (await namespaces.create("default")).policy == {}
    assert (await namespaces.create("usual")).policy == {}
