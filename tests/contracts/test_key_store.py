"""The contract of KeyStore, for every implementation."""

from __future__ import annotations

import asyncio

import pytest
from tests.contracts.conftest import Cluster, Watch

from buckram.errors import (
    InvalidArgument,
    KeyExists,
    KeyNotEmpty,
    MetadataUnavailable,
    NoSuchKey,
    ValueTooLarge,
    VersionConflict,
)
from buckram.seams import MAX_MULTI_BYTES, MAX_PAGE_BYTES, MAX_VALUE_BYTES
from buckram.types import CheckVersion, Create, Delete, KeyOp, KeyValue, SetValue


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


async def test_absent_keys_and_existing_keys_raise_their_errors(cluster: Cluster) -> None:
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


async def test_children_come_with_their_values_in_pages(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    names = [f"{number:05d}" for number in range(450)]
    for start in range(0, 450, 50):
        await keys.multi([Create(f"/p/{name}", b"v" + name.encode()) for name in names[start : start + 50]])
    await keys.set("/p/00007", b"changed", 0)
    await keys.create("/p/00100/below", b"not of this folder")
    await keys.create("/pq", b"")
    await keys.create("/p/session", b"mine", ephemeral=True)
    seen: list[tuple[str, KeyValue]] = []
    while page := await keys.children_with_values("/p", after=seen[-1][0] if seen else "", limit=400):
        assert len(page) <= 400
        seen += page
    values = {name: KeyValue(b"v" + name.encode(), 0) for name in names}
    values["00007"], values["session"] = KeyValue(b"changed", 1), KeyValue(b"mine", 0, owned=True)
    assert seen == list(values.items())
    last = await other.children_with_values("/p", after=names[-1])
    assert last == [("session", KeyValue(b"mine", 0, owned=False))]
    assert await keys.children_with_values("/p", after="00100", limit=1) == [("00101", values["00101"])]
    assert await keys.children_with_values("/absent") == []
    assert [name for name, _ in await keys.children_with_values("/")][:2] == ["p", "pq"]
    for limit in (0, 10_001):
        with pytest.raises(InvalidArgument):
            await keys.children_with_values("/p", limit=limit)


async def test_values_that_changed_between_pages_are_the_new_ones(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    await keys.multi([Create(f"/p/{number}", b"old") for number in range(6)])
    first = await keys.children_with_values("/p", limit=2)
    await other.set("/p/3", b"new", 0)
    await other.delete("/p/4", 0)
    await keys.sync()
    rest = await keys.children_with_values("/p", after=first[-1][0])
    assert [(name, found.value) for name, found in first] == [("0", b"old"), ("1", b"old")]
    assert [(name, found.value) for name, found in rest] == [("2", b"old"), ("3", b"new"), ("5", b"old")]


async def test_a_page_of_large_values_ends_before_it_takes_much_memory(cluster: Cluster) -> None:
    keys = await cluster.keys()
    count = 3 * MAX_PAGE_BYTES // MAX_VALUE_BYTES
    for number in range(count):
        await keys.create(f"/p/{number:03d}", b"x" * MAX_VALUE_BYTES)
    seen: list[str] = []
    while page := await keys.children_with_values("/p", after=seen[-1] if seen else "", limit=count):
        assert sum(len(found.value) for _, found in page) <= 200 * MAX_VALUE_BYTES
        if cluster.backend.name in ("memory", "sqlite"):
            assert len(page) == MAX_PAGE_BYTES // MAX_VALUE_BYTES
        seen += [name for name, _ in page]
    assert seen == [f"{number:03d}" for number in range(count)]


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
async def test_a_multi_is_atomic(cluster: Cluster, spoiler: KeyOp) -> None:
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


async def test_operations_of_a_multi_see_earlier_ones(cluster: Cluster) -> None:
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


async def test_what_is_read_after_a_sync_is_not_older(cluster: Cluster) -> None:
    keys, other = await cluster.keys(), await cluster.keys()
    for number in range(20):
        key = f"/synced-{number}"
        await keys.create(key, b"%d" % number)
        await other.sync()
        assert (await other.get(key)).value == b"%d" % number
        await keys.delete(key, 0)
        await other.sync()
        with pytest.raises(NoSuchKey):
            await other.get(key)


async def test_a_closed_store_cannot_be_synced(cluster: Cluster) -> None:
    keys = await cluster.keys()
    await keys.close()
    with pytest.raises(MetadataUnavailable):
        await keys.sync()
