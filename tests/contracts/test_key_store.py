"""The contract of KeyStore, for every implementation."""

from __future__ import annotations

import asyncio

import pytest

from buckram.errors import (
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MetadataUnavailable,
    NoSuchKey,
    ValueTooLarge,
    VersionConflict,
)
from buckram.seams import MAX_MULTI_BYTES, MAX_VALUE_BYTES, CheckVersion, Create, Delete, KeyOp, KeyValue, SetValue

from .conftest import Cluster, Watch


async def test_versions_begin_at_zero_and_rise_by_one(cluster: Cluster) -> None:
    keys = await cluster.keys()
    assert await keys.create("/a", b"0") == 0
    assert await keys.get("/a") == KeyValue(b"0", 0)
    assert await keys.set("/a", b"1", 0) == 1
    assert await keys.set("/a", b"2", 1) == 2
    assert await keys.get("/a") == KeyValue(b"2", 2)
    await keys.delete("/a", 2)
    with pytest.raises(NoSuchKey):
        await keys.get("/a")
    assert await keys.create("/a", b"new") == 0


async def test_every_mutation_needs_the_current_version(cluster: Cluster) -> None:
    keys = await cluster.keys()
    await keys.create("/a", b"")
    await keys.set("/a", b"x", 0)
    for version in (0, 2):
        with pytest.raises(VersionConflict) as error:
            await keys.set("/a", b"y", version)
        assert (error.value.key, error.value.expected) == ("/a", version)
        with pytest.raises(VersionConflict):
            await keys.delete("/a", version)
        with pytest.raises(VersionConflict):
            await keys.multi([CheckVersion("/a", version)])
    assert await keys.get("/a") == KeyValue(b"x", 1)


@pytest.mark.parametrize("version", [-1, -2])
async def test_there_is_no_unconditional_version(cluster: Cluster, version: int) -> None:
    keys = await cluster.keys()
    await keys.create("/a", b"")
    checked = keys.multi([CheckVersion("/a", version)])
    for attempt in (keys.set("/a", b"", version), keys.delete("/a", version), checked):
        with pytest.raises(InvalidArgument):
            await attempt


async def test_absent_and_present_keys(cluster: Cluster) -> None:
    keys = await cluster.keys()
    for attempt in (keys.get("/n"), keys.set("/n", b"", 0), keys.delete("/n", 0), keys.multi([CheckVersion("/n", 0)])):
        with pytest.raises(NoSuchKey):
            await attempt
    await keys.create("/n", b"first")
    with pytest.raises(KeyExists):
        await keys.create("/n", b"second")
    assert (await keys.get("/n")).value == b"first"


async def test_values_are_bytes_of_any_kind(cluster: Cluster) -> None:
    keys = await cluster.keys()
    everything = bytes(range(256))
    await keys.create("/empty", b"")
    await keys.create("/all", everything)
    assert (await keys.get("/empty")).value == b""
    assert (await keys.get("/all")).value == everything


async def test_parents_appear_as_empty_keys_and_stay(cluster: Cluster) -> None:
    keys = await cluster.keys()
    await keys.create("/a/b/c", b"x")
    assert await keys.get("/a/b") == KeyValue(b"", 0)
    assert await keys.children("/") == ["a"]
    with pytest.raises(KeyExists):
        await keys.create("/a", b"")
    with pytest.raises(KeyNotEmpty):
        await keys.delete("/a/b", 0)
    await keys.delete("/a/b/c", 0)
    assert await keys.children("/a") == ["b"]
    assert await keys.set("/a/b", b"now a value", 0) == 1
    await keys.delete("/a/b", 1)
    assert await keys.children("/a") == []


BAD_KEYS = [
    "", "a", "/", "/a/", "//a", "/a//b", "/a/../b", "/.", "/a\0", "/a\n", "/\x7f", "/\ud800", "/\uf000", "/🙂",
    "/" + "k" * 1024,
]  # fmt: skip


@pytest.mark.parametrize("key", BAD_KEYS)
async def test_keys_outside_the_grammar_are_refused(cluster: Cluster, key: str) -> None:
    keys = await cluster.keys()
    for attempt in (keys.create(key, b""), keys.get(key), keys.set(key, b"", 0), keys.delete(key, 0)):
        with pytest.raises(InvalidArgument):
            await attempt
    with pytest.raises(InvalidArgument):
        await keys.multi([Create(key, b"")])


async def test_unusual_keys_are_kept_as_they_are(cluster: Cluster) -> None:
    keys = await cluster.keys()
    names = ["%", "A", "a", "a b", "a'b", "a:b", "b%20", "ä", "日本"]
    for name in names:
        await keys.create(f"/u/{name}", name.encode())
    assert await keys.children("/u") == sorted(names)
    for name in names:
        assert (await keys.get(f"/u/{name}")).value == name.encode()


async def test_children_come_in_order_and_in_pages(cluster: Cluster) -> None:
    keys = await cluster.keys()
    names = [f"{number:05d}" for number in range(250)]
    for start in range(0, 250, 50):
        await keys.multi([Create(f"/p/{name}", b"") for name in reversed(names[start : start + 50])])
    await keys.create("/p/00100/below", b"")
    await keys.create("/pq", b"")
    seen: list[str] = []
    while page := await keys.children("/p", after=seen[-1] if seen else "", limit=60):
        assert len(page) <= 60
        seen += page
    assert seen == names
    assert await keys.children("/p", after="00100", limit=1) == ["00101"]
    assert await keys.children("/p", after="000995") == names[100:]
    assert await keys.children("/absent") == []
    for limit in (0, -1, 10_001):
        with pytest.raises(InvalidArgument):
            await keys.children("/p", limit=limit)


async def test_a_value_over_the_limit_is_refused(cluster: Cluster) -> None:
    keys = await cluster.keys()
    assert MAX_VALUE_BYTES == 512 * 1024
    await keys.create("/big", b"x" * MAX_VALUE_BYTES)
    for attempt in (
        keys.create("/over", b"x" * (MAX_VALUE_BYTES + 1)),
        keys.set("/big", b"x" * (MAX_VALUE_BYTES + 1), 0),
        keys.multi([Create("/over", b"x" * (MAX_VALUE_BYTES + 1))]),
    ):
        with pytest.raises(ValueTooLarge) as error:
            await attempt
        assert (error.value.size, error.value.limit) == (MAX_VALUE_BYTES + 1, MAX_VALUE_BYTES)
    assert (await keys.get("/big")).version == 0
    assert await keys.children("/") == ["big"]


async def test_a_multi_over_the_limit_is_refused(cluster: Cluster) -> None:
    keys = await cluster.keys()
    assert MAX_MULTI_BYTES == 900 * 1024
    half = MAX_MULTI_BYTES // 2 - len("/a")
    await keys.multi([Create("/a", b"x" * half), Create("/b", b"y" * half)])
    with pytest.raises(ValueTooLarge):
        await keys.multi([Create("/c", b"x" * half), Create("/d", b"y" * (half + 1))])
    assert await keys.children("/") == ["a", "b"]


@pytest.mark.parametrize(
    "spoiler",
    [Create("/taken", b""), SetValue("/taken", b"", 7), Delete("/gone", 0), CheckVersion("/taken", 1), Delete("/m", 0)],
)
async def test_a_multi_happens_as_a_whole_or_not_at_all(cluster: Cluster, spoiler: KeyOp) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    await keys.multi([Create("/taken", b"t"), Create("/m/old", b"o"), Create("/m/dead", b"d")])
    watch = Watch()
    await other.children("/m", watch=watch)
    good: list[KeyOp] = [
        SetValue("/m/old", b"changed", 0), Delete("/m/dead", 0), Create("/m/new/deep", b"n"),
        Create("/m/e", b"", ephemeral=True),
    ]  # fmt: skip
    for position in (0, 2, len(good)):
        with pytest.raises((KeyExists, VersionConflict, NoSuchKey, KeyNotEmpty)):
            await keys.multi([*good[:position], spoiler, *good[position:]])
        assert await other.children("/m") == ["dead", "old"]
        assert await other.get("/m/old") == KeyValue(b"o", 0)
        assert await other.get("/m/dead") == KeyValue(b"d", 0)
    await keys.multi(good)
    assert await other.children("/m") == ["e", "new", "old"]
    assert await other.get("/m/old") == KeyValue(b"changed", 1)
    await watch.fired()


async def test_operations_of_a_multi_see_the_ones_before(cluster: Cluster) -> None:
    keys = await cluster.keys()
    await keys.multi([])
    changes: list[KeyOp] = [Create("/a", b"0"), SetValue("/a", b"1", 0), CheckVersion("/a", 1), Delete("/a", 1)]
    await keys.multi([*changes, Create("/a", b"2")])
    assert await keys.get("/a") == KeyValue(b"2", 0)
    with pytest.raises(KeyExists):
        await keys.multi([Create("/b", b""), Create("/b", b"")])
    with pytest.raises(NoSuchKey):
        await keys.multi([Delete("/a", 0), SetValue("/a", b"", 0)])
    assert await keys.children("/") == ["a"]
    assert await keys.get("/a") == KeyValue(b"2", 0)


async def test_two_sessions_never_lose_an_update(cluster: Cluster) -> None:
    sessions = [await cluster.keys(), await cluster.keys()]
    await sessions[0].create("/counter", b"0")

    async def count(session: int, times: int) -> int:
        conflicts = 0
        while times:
            found = await sessions[session].get("/counter")
            try:
                await sessions[session].set("/counter", b"%d" % (int(found.value) + 1), found.version)
                times -= 1
            except VersionConflict:
                conflicts += 1
        return conflicts

    conflicts = await asyncio.gather(*(count(index % 2, 25) for index in range(4)))
    assert await sessions[0].get("/counter") == KeyValue(b"100", 100)
    assert sum(conflicts) > 0, "the sessions never met, so this proved nothing"


async def test_only_one_of_many_creators_wins(cluster: Cluster) -> None:
    sessions = [await cluster.keys() for _ in range(4)]
    tries = [session.create("/one", b"%d" % number) for number, session in enumerate(sessions)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["KeyExists"] * 3 + ["int"]
    assert int((await sessions[0].get("/one")).value) == results.index(0)


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


async def test_a_key_that_was_deleted_and_created_anew_is_noticed(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    await other.create("/a", b"same")
    watch = Watch()
    await keys.get("/a", watch)
    await other.multi([Delete("/a", 0), Create("/a", b"same")])
    await watch.fired()


@pytest.mark.parametrize("same_session", [True, False])
async def test_a_children_watch_fires_for_births_and_deaths_only(cluster: Cluster, same_session: bool) -> None:
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
    """Somebody who reads again after each notification sees the last value, however fast the changes come."""
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


async def test_an_ephemeral_key_is_otherwise_an_ordinary_one(cluster: Cluster) -> None:
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


async def test_a_lost_session_is_reported_and_a_new_one_serves(cluster: Cluster) -> None:
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


async def test_a_closed_store_says_so_and_its_watches_are_silent(cluster: Cluster) -> None:
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
