"""The store as the rest of the bookie uses it, on a disk in memory."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.support.store_kit import (
    KEY,
    add,
    durable,
    open_store,
    read,
    read_frames,
    read_range,
    reopened,
    settle,
    small_config,
    stored,
)

from buckram.bookie.storage.store import Store
from buckram.errors import InvalidArgument
from buckram.runtime.disk.memory import MemoryDisk


async def test_an_add_is_readable_at_once_and_durable_later() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    add(store, 5, 0, [b"a", b"bb", b""], lac=-1)
    assert await read(store, (5, 0), (5, 1), (5, 2), (5, 3), (6, 0)) == [
        stored(5, 0, -1, b"a"),
        stored(5, 1, -1, b"bb"),
        stored(5, 2, -1),
        None,
        None,
    ]
    acked: list[OSError | None] = []
    store.after_durable(acked.append)
    assert acked == []
    await settle(store)
    assert acked == [None]
    store.after_durable(acked.append)
    assert acked == [None, None]
    assert store.entries(5) == [(0, 3)]
    assert (store.last_entry(5), store.last_entry(6)) == (2, None)
    await store.close()


async def test_what_arrives_in_one_turn_is_one_block() -> None:
    store = open_store()
    for ledger in range(50):
        add(store, ledger, 0, [b"x"])
    await durable(store)
    assert store.stats()["commits"] == 1
    await store.close()


async def test_all_of_a_ledger_survives_a_restart() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    incarnation = store.incarnation
    store.put_ledger(9, KEY, admitted=False)
    add(store, 9, 3, [b"x", b"y"], lac=2)
    store.fence(9)
    store.set_explicit_lac(9, 4, b"p" * 36)
    store = await reopened(store, disk)
    record = store.ledger(9)
    assert record is not None
    assert (record.master_key, record.fenced, record.lac, record.explicit_lac, record.admitted, record.tombstone) == (
        KEY,
        True,
        4,
        b"p" * 36,
        False,
        False,
    )
    assert store.last_entry(9) == 4
    assert store.incarnation == incarnation
    store.admit(9)
    store = await reopened(store, disk)
    record = store.ledger(9)
    assert record is not None
    assert record.admitted
    await store.close()


async def test_a_newer_explicit_lac_replaces_the_packet_but_never_lowers_the_lac() -> None:
    store = open_store()
    add(store, 1, 0, [b""] * 5)
    store.set_explicit_lac(1, 3, b"three")
    store.set_explicit_lac(1, 2, b"two")
    record = store.ledger(1)
    assert record is not None
    assert (record.lac, record.explicit_lac) == (3, b"two")
    with pytest.raises(InvalidArgument, match="limit is 40"):
        store.set_explicit_lac(1, 3, bytes(41))
    await store.close()


async def test_gaps_repeats_and_any_order() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for entry in (7, 3, 5, 4, 9, 3):
        add(store, 1, entry, [b"%d" % entry], lac=entry)
    assert store.entries(1) == [(3, 3), (7, 1), (9, 1)]
    add(store, 1, 2, [b"2", b"3 again", b"4 again"], lac=1)
    expected = [(2, 4), (7, 1), (9, 1)]
    for _ in range(2):
        assert store.entries(1) == expected
        assert (await read(store, *[(1, entry) for entry in range(2, 8)])) == [
            stored(1, 2, 1, b"2"),
            stored(1, 3, 1, b"3 again"),
            stored(1, 4, 1, b"4 again"),
            stored(1, 5, 5, b"5"),
            None,
            stored(1, 7, 7, b"7"),
        ]
        assert store.last_entry(1) == 9
        store = await reopened(store, disk)
    await store.close()


async def test_a_newer_copy_in_a_later_segment_wins_within_one_read() -> None:
    store = open_store()
    add(store, 1, 0, [b"old"] * 6)
    await fill(store, 2)
    add(store, 1, 2, [b"new"])
    old, new = stored(1, 0, -1, b"old")[32:], stored(1, 0, -1, b"new")[32:]
    found = await read(store, *[(1, entry) for entry in range(6)])
    assert [one[32:] if isinstance(one, bytes) else one for one in found] == [old, old, new, old, old, old]
    ranged = await read_range(store, 1, 0, 6, 1 << 20)
    assert isinstance(ranged, list)
    assert [one[32:] for one in ranged] == [old, old, new, old, old, old]
    await store.close()


async def fill(store: Store, ledger: int, segments: int = 1) -> None:
    """Write until that many more segments are sealed."""
    goal = store.stats()["sealed_segments"] + segments
    entry = (store.last_entry(ledger) if store.ledger(ledger) is not None else None) or 0
    while store.stats()["sealed_segments"] < goal:
        add(store, ledger, entry + 1, [bytes(1000)] * 8)
        entry += 8
        await durable(store)
        for _ in range(30):
            await asyncio.sleep(0)


async def test_reads_of_many_segments_and_ledgers() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    rng = random.Random(4)
    content: dict[tuple[int, int], bytes] = {}
    tops = [0] * 5
    for _ in range(400):
        ledger = rng.randrange(5)
        payloads = [rng.randbytes(rng.choice((0, 10, 500, 2000))) for _ in range(rng.randint(1, 4))]
        add(store, ledger, tops[ledger], payloads)
        for payload in payloads:
            content[ledger, tops[ledger]] = stored(ledger, tops[ledger], -1, payload)
            tops[ledger] += 1
        if rng.random() < 0.3:
            await durable(store)
            await asyncio.sleep(0)
    for _ in range(2):
        await settle(store)
        assert store.stats()["sealed_segments"] >= 3
        keys = sorted(content)
        assert await read(store, *keys) == [content[key] for key in keys]
        rng.shuffle(keys)
        assert await read(store, *keys) == [content[key] for key in keys]
        for ledger in range(5):
            assert store.entries(ledger) == [(0, tops[ledger])]
            everything = [content[ledger, entry] for entry in range(tops[ledger])]
            found: list[bytes] = []
            while len(found) < tops[ledger]:
                part = await read_range(store, ledger, len(found), 1000, 10_000)
                assert isinstance(part, list)
                assert part
                found.extend(part)
            assert found == everything
        store = await reopened(store, disk)
    await store.close()


async def test_ranges_and_single_reads_through_overlays_and_mixed_sizes() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    rng = random.Random(5)
    content: dict[int, bytes] = {}
    for number in range(60):
        size = rng.choice((0, 40, 40, 300))
        payloads = [rng.randbytes(size) for _ in range(rng.choice((1, 30, 70)))]
        if number % 4 == 3:
            payloads[-1] += b"longer"
        # Every now and then entries come again: the newest copy counts.
        first = max(0, len(content) - rng.choice((0, 0, 0, 3, 90)))
        add(store, 1, first, payloads)
        content.update({first + i: stored(1, first + i, -1, payload) for i, payload in enumerate(payloads)})
        await durable(store)
    everything = [content[entry] for entry in range(len(content))]
    for _ in range(2):
        await settle(store)
        for first in (0, 1, 59, 64, 65, len(content) - 1, *(rng.randrange(len(content)) for _ in range(30))):
            count, room = rng.choice((1, 63, 64, 65, 200)), rng.choice((10**6, 5000))
            part = await read_range(store, 1, first, count, room)
            assert isinstance(part, list)
            assert part
            assert part == everything[first : first + fitting(everything[first : first + count], room)]
            frames = await read_frames(store, 1, first, count, room)
            if frames is not None:  # for frames of different sizes the room is an estimate
                assert frames == everything[first : first + min(count, len(frames))]
                assert len(frames) == 1 or frames.size <= room
            assert await read(store, (1, first)) == [content[first]]
        store = await reopened(store, disk)
    await store.close()


def fitting(entries: list[bytes], room: int) -> int:
    """How many of them an answer of so many bytes has: the first in any case, others while they fit."""
    count = 0
    for entry in entries:
        room -= len(entry) + 4
        if count and room < 0:
            break
        count += 1
    return count


@pytest.mark.parametrize("runs", [1, 100])
async def test_a_range_has_exactly_as_many_entries_as_fit(runs: int) -> None:
    """Of small entries that were added one by one there were fewer: the plan counted what they have in the log."""
    store = open_store()
    for run in range(runs):
        add(store, 1, run * (100 // runs), [b"foobar"] * (100 // runs))
    size = 32 + 6 + 4
    for wanted in (1, 2, 5, 20, 99, 100):
        for limit in (wanted * size, (wanted + 1) * size - 1):
            found = await read_range(store, 1, 0, 1000, limit)
            assert isinstance(found, list)
            assert len(found) == min(100, wanted)
    mixed = [bytes(3000), *[b"x"] * 50, bytes(2000), *[bytes(n) for n in range(0, 300, 7)]]
    for at in range(0, len(mixed), len(mixed) // runs or 1):
        add(store, 2, at, mixed[at : at + (len(mixed) // runs or 1)])
    whole = [stored(2, at, -1, payload) for at, payload in enumerate(mixed)]
    for first in (0, 1, 20, 51, 60):
        for limit in (0, 40, 3000, 3200, 4000, 5000, 9000):
            found = await read_range(store, 2, first, 90, limit)
            assert found == whole[first : first + fitting(whole[first : first + 90], limit)]
    await store.close()


async def test_a_range_ends_at_its_limits() -> None:
    store = open_store()
    add(store, 1, 0, [bytes(100)] * 10)
    add(store, 1, 20, [bytes(100)])
    size = 132 + 4
    much = 10**6
    for count, limit, wanted in ((3, much, 3), (100, much, 10), (100, 4 * size, 4), (100, 4 * size - 1, 3), (5, 0, 1)):
        found = await read_range(store, 1, 0, count, limit)
        assert isinstance(found, list)
        assert len(found) == wanted
    for count, limit, wanted in ((3, much, 3), (100, 4 * 160, 4), (100, 4 * 160 - 1, 3), (5, 160, 1)):
        frames = await read_frames(store, 1, 0, count, limit)
        assert frames is not None
        assert len(frames) == wanted
        assert frames == await read_range(store, 1, 0, wanted, much)
    assert await read_frames(store, 1, 10, 5, 1000) is None
    assert await read_frames(store, 2, 0, 5, 1000) is None
    assert await read_range(store, 1, 10, 5, 1000) == []
    assert await read_range(store, 2, 0, 5, 1000) == []
    await store.close()


async def test_nothing_in_memory_per_idle_ledger() -> None:
    store = open_store(config=small_config(ledger_cache_entries=10))
    for ledger in range(300):
        add(store, ledger, 0, [bytes(400)])
        if ledger % 10 == 0:
            await settle(store, 20)
    await fill(store, 1000, 2)
    await settle(store)
    assert store.stats()["ledgers_in_memory"] < 20
    assert len(store._table._cached) <= 10
    for ledger in range(300):
        record = store.ledger(ledger)
        assert record is not None
        assert record.last == 0
    assert store.ledger(500) is None
    assert store.ledgers(-1, 1000) == [*range(300), 1000]
    assert store.ledgers(100, 3) == [101, 102, 103]
    await store.close()
