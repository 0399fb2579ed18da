"""The client's view of the bookies: changes, lost sessions, an absent store, quarantine."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.clock import pass_time
from tests.support.polling import until

from buckram.client.cluster.bookie_changes import BookieChange
from buckram.client.cluster.bookies import BookieWatcher
from buckram.config import ClientConfig
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.topology import LOCATION_PROPERTY
from buckram.errors import MetadataUnavailable, NotEnoughBookies
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.runtime.production import production_runtime
from buckram.seams import KeyStore
from buckram.types import BookieAddress, BookieInfo


class Flaky:
    """A MetadataStore that can be away, in front of another."""

    def __init__(self, inner: TreeStore) -> None:
        self.inner, self.away, self.reads = inner, False, 0

    async def bookies(self, watch: Any = None) -> Any:
        self.reads += 1
        if self.away:
            raise MetadataUnavailable("away")
        return await self.inner.bookies(watch)

    @property
    def own(self) -> str:
        return self.inner.own

    @property
    def keys(self) -> KeyStore:
        return self.inner.keys


class World:
    def __init__(self, watcher: BookieWatcher, store: Flaky, tree: MemoryTree, changes: list[BookieChange]) -> None:
        self.watcher, self.store, self.tree, self.changes = watcher, store, tree, changes
        self.sessions: dict[str, TreeStore] = {}

    async def register(
        self, name: str, port: int = 1, incarnation: str = "i", *, rack: str | None = None, readonly: bool = False
    ) -> None:
        if name not in self.sessions:
            self.sessions[name] = TreeStore(MemoryKeys(self.tree), "memory:", random.Random(1))
        properties = {"buckram.incarnation": incarnation} | ({LOCATION_PROPERTY: rack} if rack else {})
        info = BookieInfo(name, BookieAddress("127.0.0.1", port), properties)
        await self.sessions[name].register(info, readonly=readonly)
        await until(lambda: self.watcher.info(name) == info, f"{name} seen")

    async def leave(self, name: str) -> None:
        await self.sessions.pop(name).close()
        await until(lambda: self.watcher.info(name) is None, f"{name} gone")


@asynccontextmanager
async def world(config: ClientConfig | None = None) -> AsyncIterator[World]:
    tree = MemoryTree()
    store = TreeStore(MemoryKeys(tree), "memory:", random.Random(1))
    await store.initialise()
    flaky = Flaky(store)
    changes: list[BookieChange] = []
    async with BookieWatcher(production_runtime(1), flaky, config or ClientConfig()) as watcher:  # type: ignore[arg-type]  # what it uses of a store
        watcher.on_change(changes.append)
        yield World(watcher, flaky, tree, changes)
    assert len(asyncio.all_tasks()) == 1


async def test_changes_are_told_as_what_they_are() -> None:
    async with world() as w:
        await w.register("a", 1)
        assert w.changes[-1] == BookieChange(appeared=("a",))
        assert w.watcher.resolve("a") == BookieAddress("127.0.0.1", 1)
        await w.register("a", 2)
        assert w.changes[-1] == BookieChange(moved=("a",))
        assert w.watcher.resolve("a") == BookieAddress("127.0.0.1", 2)
        await w.register("a", 2, "wiped")
        assert w.changes[-1] == BookieChange(reborn=("a",))
        assert w.watcher.incarnation("a") == "wiped"
        await w.register("a", 2, "wiped", readonly=True)
        await until(lambda: w.changes[-1] == BookieChange(gone=("a",)), "read-only is not writable")
        await w.leave("a")
        await w.register("a", 2, "third")
        assert any(change.reborn == ("a",) for change in w.changes[3:])


async def test_lost_registration_keeps_connections_but_no_other_bookie_is_asked() -> None:
    async with world() as w:
        await w.register("a", 7)
        await w.leave("a")
        assert w.watcher.resolve("a") == BookieAddress("127.0.0.1", 7)
        await w.register("b", 7)
        assert w.watcher.resolve("a") is None
        assert w.watcher.resolve("never seen") is None


async def test_bookie_list_stays_while_the_store_is_away_and_is_reread_after() -> None:
    async with world() as w:
        await w.register("a")
        w.store.away = True
        b = TreeStore(MemoryKeys(w.tree), "memory:", random.Random(1))
        await b.register(BookieInfo("b", BookieAddress("127.0.0.1", 9), {}), readonly=False)
        await pass_time(0.2)
        assert list(w.watcher.bookies.writable) == ["a"]
        assert w.store.reads < 12
        with pytest.raises(MetadataUnavailable):
            await w.watcher.refresh()
        w.store.away = False
        await until(lambda: "b" in w.watcher.bookies.writable, "read again")
        await b.close()


async def test_quarantine_is_a_preference_that_ends() -> None:
    async with world(ClientConfig(quarantine_s=0.1)) as w:
        for name in ("a", "b", "c", "d"):
            await w.register(name)
        w.watcher.report_failed("b")
        assert all("b" not in w.watcher.choose(Quorum(3, 3, 2)).members for _ in range(20))
        assert "b" in w.watcher.choose(Quorum(4, 3, 2)).members
        assert w.watcher.read_order(["b", "a"]) == ["a", "b"]
        w.watcher.report_slow("a")
        assert w.watcher.read_order(["b", "a", "c", "x"]) == ["c", "a", "b", "x"]
        await until(lambda: not w.watcher.quarantined("b"), "quarantine over")
        assert w.watcher.read_order(["b", "c"]) == ["b", "c"]
        w.watcher.report_failed("b")
        w.watcher.report_ok("b")
        assert not w.watcher.quarantined("b")


async def test_choices_and_replacements() -> None:
    async with world() as w:
        for name, rack in (("a", "/1"), ("b", "/1"), ("c", "/2"), ("d", "/2")):
            await w.register(name, rack=rack)
        for _ in range(10):
            chosen = w.watcher.choose(Quorum(2, 2, 2)).members
            assert {"a": 1, "b": 1, "c": 2, "d": 2}[chosen[0]] != {"a": 1, "b": 1, "c": 2, "d": 2}[chosen[1]]
        assert w.watcher.replace(("a", "c"), {1: "c"}, write_quorum=2) == {1: "d"}
        assert w.watcher.replace(("a", "c"), {1: "c"}, exclude=["d"], write_quorum=2) == {1: "b"}
        assert w.watcher.replace(("a", "c"), {1: "x"}) == {}
        assert w.watcher.replace(("a", "c"), {1: "c"}, exclude=["b", "d"]) == {}
        with pytest.raises(NotEnoughBookies) as error:
            await w.watcher.choose_fresh(Quorum(5, 3, 2))
        assert (error.value.needed, error.value.available) == (5, 4)
        await w.register("r", readonly=True)
        with pytest.raises(NotEnoughBookies):
            w.watcher.choose(Quorum(5, 3, 2))


async def test_unsubscribed_listeners_hear_nothing() -> None:
    async with world() as w:
        heard: list[BookieChange] = []
        stop = w.watcher.on_change(heard.append)
        stop()
        stop()
        await w.register("a")
        assert heard == []


async def test_near_bookies_come_first_then_quick_ones_then_as_given() -> None:
    async with world(ClientConfig(location="/1")) as w:
        for name, rack in (("a", "/1"), ("b", "/1"), ("c", "/2"), ("d", "/2")):
            await w.register(name, rack=rack)
        assert w.watcher.read_order(["a", "b", "c", "d"]) == ["a", "b", "c", "d"]
        now = asyncio.get_running_loop().time()
        for name, seconds in (("a", 0.2), ("b", 0.01), ("c", 0.1), ("d", 0.004)):
            w.watcher.recent.reads.took(name, seconds, now)
        assert w.watcher.read_order(["a", "b", "c", "d"]) == ["b", "a", "d", "c"]
        w.watcher.report_failed("b")
        assert w.watcher.read_order(["a", "b", "c", "d"]) == ["a", "d", "c", "b"]


async def test_a_bookie_that_registers_anew_is_as_quick_as_any() -> None:
    async with world() as w:
        for name in ("a", "b"):
            await w.register(name)
        now = asyncio.get_running_loop().time()
        for name, seconds in (("a", 0.2), ("b", 0.01)):
            w.watcher.recent.batches.took(name, seconds, now)
        assert w.watcher.read_order(["a", "b"]) == ["b", "a"]
        await w.leave("a")
        await w.register("a", incarnation="another")
        assert w.watcher.read_order(["a", "b"]) == ["a", "b"]


async def test_slow_bookies_get_no_new_ensemble() -> None:
    async with world() as w:
        for name in ("a", "b", "c", "d"):
            await w.register(name)
        now = asyncio.get_running_loop().time()
        for name in ("a", "b", "c", "d"):
            w.watcher.recent.adds.took(name, 0.3 if name == "b" else 0.01, now)
        assert all("b" not in w.watcher.choose(Quorum(3, 3, 2)).members for _ in range(20))
        assert "b" in w.watcher.choose(Quorum(4, 3, 2)).members


async def test_that_no_bookie_was_ever_there_is_said_after_a_while() -> None:
    tree = MemoryTree()
    store, runtime = TreeStore(MemoryKeys(tree), "sqlite:///x/metadata.db", random.Random(0)), production_runtime(1)
    await store.initialise()
    async with BookieWatcher(runtime, store, ClientConfig()) as watcher:
        assert watcher.nobody() is None, "not at once"
        await pass_time(3.1)
        said = watcher.nobody()
        assert isinstance(said, NotEnoughBookies)
        assert said.retryable
        assert "no bookie of the cluster at sqlite:///x/metadata.db is registered" in str(said)
        await store.register(BookieInfo("b1", BookieAddress("h", 1)), readonly=False)
        await until(lambda: watcher.info("b1") is not None, "it is seen")
        assert watcher.nobody() is None
        await store.unregister("b1")
        await until(lambda: watcher.info("b1") is None, "it is gone")
        await pass_time(3.1)
        assert watcher.nobody() is None, "bookies that were there may restart"
