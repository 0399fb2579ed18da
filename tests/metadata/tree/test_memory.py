"""The synchronous tree below MemoryKeys: what the simulator relies on, and the store under chosen interleavings."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from buckram.core.ledgers.metadata import created
from buckram.errors import KeyExists, LedgerExists, MetadataUnavailable, NoSuchKey
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.seams import Notify
from buckram.types import BookieAddress, BookieInfo, Create, Delete, KeyValue, SetValue


def nothing() -> None:
    """A Notify for those who do not care."""


def test_notifications_are_handed_over_not_run() -> None:
    """A late watch is one that `deliver` keeps for a while."""
    tree = MemoryTree()
    kept: list[Notify] = []
    events: list[str] = []
    session = tree.open_session(kept.append, lambda: events.append("lost"))
    writer = tree.open_session(kept.append, nothing)
    tree.apply(Create("/a", b""), writer)
    tree.get("/a", session, lambda: events.append("value"))
    tree.children("/", session, watch=lambda: events.append("children"))
    tree.apply(SetValue("/a", b"", 0), writer)
    tree.apply(SetValue("/a", b"", 1), writer)
    assert (len(kept), events) == (1, [])
    tree.expire(session)
    for notify in kept:
        notify()
    assert events == ["value", "lost", "children"]


def test_an_expired_session_is_refused_and_its_keys_are_gone() -> None:
    tree = MemoryTree()
    first, second = tree.open_session(lambda _: None, nothing), tree.open_session(lambda _: None, nothing)
    assert (first, second) == (1, 2)
    tree.apply(Create("/e/1", b"x", True), first)
    tree.apply(Create("/e/2", b"", True), second)
    assert tree.alive(first)
    tree.expire(first)
    tree.expire(first)
    assert not tree.alive(first)
    with pytest.raises(MetadataUnavailable, match="session 1"):
        tree.apply(Create("/e/3", b""), first)
    with pytest.raises(MetadataUnavailable):
        tree.get("/e/2", first)
    assert tree.children("/e", second) == ["2"]
    assert tree.snapshot() == {"/e": KeyValue(b"", 0), "/e/2": KeyValue(b"", 0)}
    assert (tree.peek("/e/1"), tree.peek("/e/2")) == (None, KeyValue(b"", 0))


def test_a_multi_that_fails_leaves_sessions_and_watches_alone() -> None:
    tree = MemoryTree()
    kept: list[Notify] = []
    session = tree.open_session(kept.append, nothing)
    tree.apply(Create("/e/1", b"x", True), session)
    tree.get("/e/1", session, nothing)
    before = tree.snapshot()
    with pytest.raises(NoSuchKey):
        tree.apply_all([Delete("/e/1", 0), Create("/e/2", b"", True), Delete("/absent", 0)], session)
    assert tree.snapshot() == before
    assert kept == []
    tree.expire(session)
    assert tree.snapshot() == {"/e": KeyValue(b"", 0)}, "the key that came back still belonged to the session"


class Interleaved(MemoryKeys):
    """Runs something else before a listing: a schedule chosen by the test."""

    before_children: Callable[[str], None] = staticmethod(lambda parent: None)

    async def children(
        self, parent: str, *, after: str = "", limit: int = 1000, watch: Notify | None = None
    ) -> list[str]:
        self.before_children(parent)
        return await super().children(parent, after=after, limit=limit, watch=watch)


@pytest.mark.parametrize("readonly_first", [True, False])
async def test_a_bookie_that_switches_while_it_is_looked_for_is_found(readonly_first: bool) -> None:
    tree = MemoryTree()
    keys = Interleaved(tree)
    client, bookie = (
        TreeStore(keys, "memory:x", random.Random(0)),
        TreeStore(MemoryKeys(tree), "memory:x", random.Random(0)),
    )
    await bookie.register(BookieInfo("b1", BookieAddress("h", 1)), readonly=readonly_first)
    assert isinstance(bookie.keys, MemoryKeys)
    session = bookie.keys.session
    new, old = (bookie.layout.registration("b1", readonly=side) for side in (not readonly_first, readonly_first))
    listings: list[str] = []

    def switch(parent: str) -> None:
        listings.append(parent)
        if len(listings) == 2:
            tree.apply(Create(new, tree.get(old, session).value, True), session)
            tree.apply(Delete(old, 0), session)

    keys.before_children = switch
    assert (await client.bookies()).find("b1") is not None
    assert len(listings) >= 2


async def test_ledger_deleted_while_its_creation_is_retried_stays_deleted() -> None:
    class Vanishing(MemoryKeys):
        async def get(self, key: str, watch: Notify | None = None) -> KeyValue:
            if key.startswith("/ledgers/all/"):
                raise NoSuchKey(key)
            return await super().get(key, watch)

    tree = MemoryTree()
    store = TreeStore(Vanishing(tree), "memory:x", random.Random(0))
    metadata = created(1, 1, 1, ["a"], creator_token=9)
    await store.create_ledger(1, metadata)
    with pytest.raises(LedgerExists):
        await store.create_ledger(1, metadata)


async def test_trees_are_not_shared_by_accident() -> None:
    one, two = MemoryKeys(MemoryTree()), MemoryKeys(MemoryTree())
    await one.create("/a", b"")
    await two.create("/a", b"")
    with pytest.raises(KeyExists):
        await two.create("/a", b"")
