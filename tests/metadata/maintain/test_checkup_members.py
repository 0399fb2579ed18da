"""Bookies that are registered and are no members of the cluster are named, each with advice that is right for it."""

from __future__ import annotations

import random

from buckram.core.cluster.store_history import WitnessStatement, encode_statement
from buckram.core.health.facts import Facts
from buckram.core.health.findings import Finding, finding_of
from buckram.metadata.maintain.backup import set_history
from buckram.metadata.maintain.checkup import examine, no_members
from buckram.metadata.tree.layout import WITNESSES
from buckram.metadata.tree.memory import MemoryKeys, MemoryTree
from buckram.metadata.tree.store import TreeStore
from buckram.types import BookieAddress, BookieInfo, History


async def cluster() -> TreeStore:
    store = TreeStore(MemoryKeys(MemoryTree()), "memory:", random.Random(1))
    await store.initialise()
    return store


def bookie(name: str, incarnation: str | None) -> BookieInfo:
    properties = {} if incarnation is None else {"buckram.incarnation": incarnation}
    return BookieInfo(name, BookieAddress("127.0.0.1", 3181), properties)


async def name(store: TreeStore, bookie_id: str, incarnation: str) -> None:
    said = WitnessStatement(incarnation, 1, 1, 0, 1, "r", "n", 2)
    await store.keys.create(f"{store.own}/{WITNESSES}/{bookie_id}", encode_statement(said))


async def found(store: TreeStore, info: BookieInfo, *, cookie: bool) -> Finding | None:
    out = await no_members(store, [info], [info.bookie_id] if cookie else [])
    return finding_of(Facts(), out[0]) if out else None


async def test_members_are_not_named() -> None:
    store = await cluster()
    await name(store, "b1", "mine")
    assert await found(store, bookie("b1", "mine"), cookie=True) is None
    assert await found(store, bookie("b2", "without a key yet"), cookie=True) is None
    assert await found(store, bookie("apache", None), cookie=True) is None


async def test_an_old_incarnation_is_to_be_stopped_at_once() -> None:
    store = await cluster()
    await name(store, "b1", "newest")
    for cookie in (True, False):
        one = await found(store, bookie("b1", "old"), cookie=cookie)
        assert one is not None
        for part in ("old", "newest", "generation 2", "127.0.0.1:3181"):
            assert part in one.why
        assert "stop that process at once" in one.do


async def test_one_without_a_cookie_is_not_to_be_restarted() -> None:
    store = await cluster()
    await name(store, "b1", "mine")
    one = await found(store, bookie("b1", "mine"), cookie=False)
    assert one is not None
    assert "taken out" in one.why
    assert "do not restart it" in one.do
    assert "buckram bookie drain b1" in one.do
    apache = await found(store, bookie("apache", None), cookie=False)
    assert apache is not None
    assert "cookie_create" in apache.do


async def test_one_that_a_restore_forgot_may_go_on() -> None:
    store = await cluster()
    await set_history(store, History(1, "r", accepted=False))
    one = await found(store, bookie("b1", "mine"), cookie=False)
    assert one is not None
    assert "younger than the restored metadata" in one.why
    assert one.do.startswith("let it run")


async def test_the_check_of_a_cluster_names_the_registration() -> None:
    store = await cluster()
    await name(store, "b1", "newest")
    await store.register(bookie("b1", "old"), readonly=True)
    await store.register(bookie("b2", "mine"), readonly=False)
    problems = {(one.state, one.bookie): one.why for one in (await examine(store)).problems}
    assert "newest" in problems["bookie-replaced", "b1"]
    assert "without a cookie" in problems["bookie-without-cookie", "b2"]
