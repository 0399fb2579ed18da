"""ZooKeeperKeys beyond the contract: how many requests it takes, and what happens when others come in between."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from buckram.errors import AccessRefused, KeyExists, NoSuchKey, VersionConflict
from buckram.metadata.zookeeper.keys import ZooKeeperKeys
from buckram.types import Create, KeyOp, SetValue
from simulator.engine.zk_connection import DirectConnection
from simulator.engine.zookeeper import SimZkSession, SimZooKeeper


@pytest.fixture
def server() -> SimZooKeeper:
    server = SimZooKeeper(random.Random(1))
    server.spurious_watches = server.late_watch_s = 0.0
    return server


def operations(keys: ZooKeeperKeys) -> tuple[int, int]:
    return keys.session.operations.reads, keys.session.operations.writes


async def names(keys: ZooKeeperKeys, after: str, limit: int = 3) -> list[str]:
    return await keys.children("/p", after=after, limit=limit)


async def test_a_listing_is_read_once_and_pages_are_cut_from_it(server: SimZooKeeper) -> None:
    keys = ZooKeeperKeys(server.open())
    await keys.multi([Create(f"/p/{number}", b"") for number in range(8)])
    before = operations(keys)
    pages = [await names(keys, after) for after in ("", "2", "5", "7")]
    assert pages == [["0", "1", "2"], ["3", "4", "5"], ["6", "7"], []]
    assert operations(keys)[0] == before[0] + 2, "one for the listing, one for the question after its end"


async def test_a_new_listing_is_never_cut_from_an_old_one(server: SimZooKeeper) -> None:
    keys, other = ZooKeeperKeys(server.open()), ZooKeeperKeys(server.open())
    await keys.multi([Create(f"/p/{number}", b"") for number in range(8)])
    assert await names(keys, "") == ["0", "1", "2"]
    await other.delete("/p/1", 0)
    await other.delete("/p/4", 0)
    assert await names(keys, "") == ["0", "2", "3"]
    assert await names(keys, "2") == ["3", "4", "5"], "the page after the first listing's"
    assert await names(keys, "2") == ["3", "5", "6"], "was given, so it is read anew"
    assert await names(keys, "3") == ["5", "6", "7"]


async def test_what_this_store_changed_itself_is_seen_by_a_listing_under_way(server: SimZooKeeper) -> None:
    keys = ZooKeeperKeys(server.open())
    await keys.multi([Create(f"/p/{number}", b"") for number in range(8)])
    assert await names(keys, "") == ["0", "1", "2"]
    await keys.create("/p/31", b"")
    await keys.delete("/p/4", 0)
    assert await names(keys, "2") == ["3", "31", "5"]
    assert await names(keys, "", 2) == ["0", "1"]
    await keys.multi([Create("/p/11", b"")])
    assert await names(keys, "1", 2) == ["11", "2"]


async def test_a_page_with_a_watch_is_read_with_that_watch(server: SimZooKeeper) -> None:
    keys, fired = ZooKeeperKeys(server.open()), list[str]()
    await keys.multi([Create(f"/p/{number}", b"") for number in range(4)])
    assert await keys.children("/p", limit=2, watch=lambda: fired.append("first")) == ["0", "1"]
    assert await keys.children("/p", after="1", limit=2, watch=lambda: fired.append("second")) == ["2", "3"]
    await keys.create("/p/4", b"")
    assert fired == ["first", "second"]


async def test_requests_for_each_kind_of_operation(server: SimZooKeeper) -> None:
    keys = ZooKeeperKeys(server.open())
    await keys.create("/p/q/r", b"")
    assert operations(keys) == (0, 5), "the key, two parents, the upper one first, then again"
    keys.session.operations.writes = 0
    await keys.create("/p/q/s", b"")
    await keys.set("/p/q/s", b"1", 0)
    await keys.get("/p/q/s", lambda: None)
    await keys.delete("/p/q/s", 1)
    assert operations(keys) == (1, 3)
    with pytest.raises(NoSuchKey):
        await keys.get("/p/q/s")
    assert operations(keys) == (2, 3)
    await keys.multi([Create("/p/q/t", b""), SetValue("/p/q/t", b"", 0)])
    assert operations(keys) == (2, 4)


class Meddler(SimZkSession):
    """A session on which somebody else acts after each read, that is between a look and the multi that follows it."""

    meddle: list[object]

    async def exists(self, path: str, watch: object = None) -> object:  # type: ignore[override]
        found = await super().exists(path)
        if self.meddle:
            self.meddle.pop(0)()  # type: ignore[operator]
        return found


async def test_parents_that_come_and_go_during_a_multi(server: SimZooKeeper) -> None:
    session = Meddler(server, DirectConnection("meddled with"))
    tree = server.tree
    session.meddle = [
        lambda: tree.create("/a", b"", 0),
        lambda: tree.create("/a/b", b"", 0),
        lambda: (tree.delete("/a/b", 0), tree.delete("/a", 0)),
        lambda: tree.create("/a", b"", 0),
    ]
    keys = ZooKeeperKeys(session)
    ops: list[KeyOp] = [Create("/a/b/c", b"1"), Create("/a/b/d", b"2")]
    await keys.multi(ops)
    assert session.meddle == []
    assert await keys.children("/a/b") == ["c", "d"]
    with pytest.raises(KeyExists, match="/a/b/d"):
        await keys.multi([Create("/a/x/y", b""), Create("/a/b/d", b"")])
    assert await keys.children("/a") == ["b"], "the parent of what did not happen did not appear"


async def test_a_parent_that_another_makes_between_a_multi_and_the_look(server: SimZooKeeper) -> None:
    """Processes that make their first keys at the same moment: the one that is second finds all parents there."""

    class Beaten(SimZkSession):
        async def multi(self, ops: Sequence[KeyOp], *, session: int = 0) -> None:
            try:
                await super().multi(ops, session=session)
            except NoSuchKey:
                if server.tree.peek("/a") is None:
                    server.tree.create("/a", b"", 0)
                raise

    keys = ZooKeeperKeys(Beaten(server, DirectConnection("second")))
    await keys.multi([Create("/a/b", b"1")])
    assert (await keys.get("/a/b")).value == b"1"


async def test_the_callers_own_mistakes_are_not_taken_for_missing_parents(server: SimZooKeeper) -> None:
    keys = ZooKeeperKeys(server.open())
    for ops, error in (
        ([SetValue("/a", b"", 0), Create("/a/b", b"")], NoSuchKey),
        ([Create("/a/b", b""), Create("/a", b"")], KeyExists),
        ([Create("/a/b", b""), SetValue("/a", b"", 1)], VersionConflict),
    ):
        with pytest.raises(error):
            await keys.multi(ops)  # type: ignore[arg-type]
        assert await keys.children("/") == []
    await keys.multi([Create("/a/b", b""), SetValue("/a", b"now", 0)])
    assert (await keys.get("/a")).value == b"now"


async def test_a_node_that_refuses_everybody_is_named(server: SimZooKeeper) -> None:
    keys = ZooKeeperKeys(server.open())
    await keys.create("/mine/a", b"")
    server.tree.refused["/mine"] = None
    for attempt in (keys.get("/mine"), keys.create("/mine/b", b""), keys.children("/mine"), keys.set("/mine", b"", 0)):
        with pytest.raises(AccessRefused, match="/mine"):
            await attempt
