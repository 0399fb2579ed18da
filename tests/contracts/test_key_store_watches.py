"""The contract of KeyStore, for every implementation: watches and sessions."""

from __future__ import annotations

import asyncio

import pytest
from tests.contracts.conftest import Cluster, Watch

from buckram.errors import (
    InvalidArgument,
    KeyExists,
    MetadataUnavailable,
    NoSuchKey,
)
from buckram.types import Create, Delete


@pytest.mark.parametrize("same_session", [True, False])
async def test_a_value_watch_fires_once(cluster: Cluster, same_session: bool) -> None:
    keys = await cluster.keys()
    other = keys if same_session else await cluster.keys()
    await keys.create("/a", b"")
    watch = Watch()
    await keys.get("/a", watch)
    await other.set("/a", b"1", 0)
    await watch.fired()
    await other.set("/a", b"2", 1)
    marker = Watch()
    await keys.get("/a", marker)
    await other.delete("/a", 2)
    await marker.fired()
    assert watch.times == 1


@pytest.mark.parametrize("same_session", [True, False])
async def test_a_watch_on_an_absent_key_fires_when_it_appears(cluster: Cluster, same_session: bool) -> None:
    keys = await cluster.keys()
    other = keys if same_session else await cluster.keys()
    watch, parent = Watch(), Watch()
    with pytest.raises(NoSuchKey):
        await keys.get("/a/b", watch)
    with pytest.raises(NoSuchKey):
        await keys.get("/a", parent)
    await other.create("/a/b", b"")
    await watch.fired()
    await parent.fired()


async def test_a_watch_notices_a_key_deleted_and_created_again(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    await other.create("/a", b"same")
    watch = Watch()
    await keys.get("/a", watch)
    await other.multi([Delete("/a", 0), Create("/a", b"same")])
    await watch.fired()


@pytest.mark.parametrize("same_session", [True, False])
async def test_a_children_watch_fires_for_creation_and_deletion_only(cluster: Cluster, same_session: bool) -> None:
    keys = await cluster.keys()
    other = keys if same_session else await cluster.keys()
    born = Watch()
    assert await keys.children("/p", watch=born) == []
    await other.create("/p/a", b"")
    await born.fired()
    quiet, value = Watch(), Watch()
    assert await keys.children("/p", watch=quiet) == ["a"]
    await keys.get("/p/a", value)
    await other.set("/p/a", b"changed", 0)
    await other.create("/p/a/grandchild", b"")
    await value.fired()
    assert quiet.times == 0
    await other.delete("/p/a/grandchild", 0)
    await other.delete("/p/a", 1)
    await quiet.fired()
    assert (born.times, quiet.times, value.times) == (1, 1, 1)


async def test_a_function_set_twice_on_a_key_fires_once(cluster: Cluster) -> None:
    keys = await cluster.keys()
    await keys.create("/a", b"")
    watch, last = Watch(), Watch()
    for _ in range(3):
        await keys.get("/a", watch)
    await keys.get("/a", last)
    await keys.set("/a", b"", 0)
    await last.fired()
    assert watch.times == 1


async def test_no_change_is_missed_between_watches(cluster: Cluster) -> None:
    """A reader that reads again after each notification sees the last value, however fast the changes come."""
    keys, other = await cluster.keys(), await cluster.keys()
    await other.create("/a", b"0")
    seen: list[int] = []

    async def follow() -> None:
        while not seen or seen[-1] < 60:
            watch = Watch()
            seen.append(int((await keys.get("/a", watch)).value))
            if seen[-1] < 60:
                await watch.fired()

    follower = asyncio.create_task(follow())
    for number in range(60):
        await other.set("/a", b"%d" % (number + 1), number)
    await follower
    assert seen == sorted(seen)


async def test_ephemeral_keys_end_with_their_session(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    await keys.create("/live/mine", b"1", ephemeral=True)
    await other.create("/live/theirs", b"2", ephemeral=True)
    assert (await keys.get("/live/mine")).owned
    assert not (await other.get("/live/mine")).owned
    assert not (await other.get("/live")).owned
    with pytest.raises(KeyExists):
        await other.create("/live/mine", b"", ephemeral=True)
    gone, fewer, lost = Watch(), Watch(), Watch()
    other.on_session_lost(lost)
    await other.get("/live/mine", gone)
    await other.children("/live", watch=fewer)
    await keys.close()
    await gone.fired()
    await fewer.fired()
    assert await other.children("/live") == ["theirs"]
    with pytest.raises(NoSuchKey):
        await other.get("/live/mine")
    assert lost.times == 0


async def test_an_ephemeral_key_takes_no_children_and_others_may_change_it(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    await keys.create("/e", b"", ephemeral=True)
    with pytest.raises(InvalidArgument):
        await keys.create("/e/child", b"")
    with pytest.raises(InvalidArgument):
        await other.multi([Create("/e/child/deep", b"")])
    assert await other.set("/e", b"set by another", 0) == 1
    await other.delete("/e", 1)
    await keys.create("/e", b"persistent now")
    await keys.close()
    assert (await other.get("/e")).value == b"persistent now"


async def test_a_lost_session_is_reported_and_replaced(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    await keys.create("/live/a", b"", ephemeral=True)
    await keys.create("/stays", b"")
    lost, mine, theirs = Watch(), Watch(), Watch()
    keys.on_session_lost(lost)
    await keys.get("/stays", mine)
    await other.children("/live", watch=theirs)
    await cluster.backend.lose_session(keys)
    await theirs.fired()
    await lost.fired()
    await mine.fired()
    assert await other.children("/live") == []
    await keys.create("/live/a", b"again", ephemeral=True)
    assert (await keys.get("/live/a")).owned
    assert await other.children("/live") == ["a"]
    await cluster.backend.lose_session(keys)
    await theirs.fired()


async def test_a_closed_store_raises_and_fires_no_watches(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    await keys.create("/a", b"")
    silent, heard = Watch(), Watch()
    await keys.get("/a", silent)
    await other.get("/a", heard)
    await keys.close()
    await keys.close()
    await other.set("/a", b"", 0)
    await heard.fired()
    assert silent.times == 0
    for attempt in (keys.get("/a"), keys.create("/b", b""), keys.multi([]), keys.children("/")):
        with pytest.raises(MetadataUnavailable):
            await attempt


async def test_a_cancelled_call_does_not_disturb_others(cluster: Cluster) -> None:
    keys = await cluster.keys()
    tasks = [asyncio.create_task(keys.create(f"/c/{number:02d}", b"")) for number in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    made = await keys.children("/c")
    assert all(f"{number:02d}" in made for number, result in enumerate(results) if result == 0)
    assert all(result == 0 for result in results[1::2])
