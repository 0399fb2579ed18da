"""Compaction gives space back, loses nothing that lives and raises nothing that is dead."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.support.store_kit import KEY, add, durable, open_store, read, reopened, settle, small_config, stored

from buckram.bookie.storage.store import Store
from buckram.core.storage.segment_format import PAGE
from buckram.runtime.disk.memory import MemoryDisk

Content = dict[tuple[int, int], bytes]


async def written(store: Store, ledgers: int = 6, entries: int = 120) -> Content:
    """Interleaved ledgers over several segments."""
    content: Content = {}
    rng = random.Random(2)
    for entry in range(entries):
        for ledger in range(ledgers):
            payload = rng.randbytes(rng.choice((0, 200, 600)))
            add(store, ledger, entry, [payload])
            content[ledger, entry] = stored(ledger, entry, -1, payload)
        await durable(store)
        await settle(store, 3)
    await settle(store)
    assert store.stats()["sealed_segments"] >= 3
    return content


async def check(store: Store, content: Content, deleted: tuple[int, ...]) -> None:
    keys = sorted(content)
    for key, outcome in zip(keys, await read(store, *keys), strict=True):
        assert outcome == (None if key[0] in deleted else content[key])
    for ledger in {key[0] for key in keys}:
        assert store.entries(ledger) == ([] if ledger in deleted else [(0, max(e for n, e in keys if n == ledger) + 1)])


async def test_wholly_dead_files_are_handed_on() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    content = await written(store)
    files = len([name for name in disk.names() if name.startswith("log-")])
    for ledger in range(6):
        store.delete_ledger(ledger)
    await durable(store)
    sealed = store.stats()["sealed_segments"]
    assert await store.compact() > 0
    await settle(store)
    stats = store.stats()
    # Two are kept for reuse, one of them may be the next log already; the others are gone.
    assert stats["sealed_segments"] < sealed
    assert len([name for name in disk.names() if name.startswith("log-")]) <= max(4, files - sealed + 2)
    await check(store, content, tuple(range(6)))
    # What was a dead file carries new data, and its old blocks never come back.
    fresh = await written_again(store)
    store = await reopened(store, disk)
    assert not store.limbo
    await check(store, content, tuple(range(6)))
    await check(store, fresh, ())
    await store.close()


async def written_again(store: Store) -> Content:
    content: Content = {}
    for entry in range(300):
        add(store, 70, entry, [bytes(400)])
        content[70, entry] = stored(70, entry, -1, bytes(400))
        if entry % 10 == 0:
            await settle(store, 5)
    await settle(store)
    return content


async def test_mixed_files_are_rewritten_sorted_and_reading_goes_on() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    content = await written(store)
    for ledger in (0, 2, 3, 5):
        store.delete_ledger(ledger)
    await settle(store)
    before = store.stats()["data_bytes"]
    steps: list[tuple[int, int]] = []
    compacting = asyncio.ensure_future(store.compact(lambda done, total: steps.append((done, total))))
    while not compacting.done():
        await check(store, content, (0, 2, 3, 5))
        await asyncio.sleep(0)
    assert compacting.result() > 0
    await settle(store)
    assert store.stats()["data_bytes"] < before * 0.6
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1] > 0
    outputs = [one for one in store._state.segments if not one.has_states]
    assert outputs
    for output in outputs:
        assert output.footer is not None
        ledgers = [entry.ledger for entry in output.footer.directory()]
        assert ledgers == sorted(ledgers)
    for _ in range(2):
        await check(store, content, (0, 2, 3, 5))
        assert store.ledgers(-1, 10) == [1, 4]
        store = await reopened(store, disk)
    assert await store.compact() == 0
    await store.close()


async def test_a_deletion_during_compaction_holds() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    content = await written(store)
    for ledger in (0, 2, 3):
        store.delete_ledger(ledger)
    await settle(store)
    compacting = asyncio.ensure_future(store.compact())
    for turn in range(40):
        await asyncio.sleep(0)
        if turn == 20:
            store.delete_ledger(1)
            assert not compacting.done()
    await compacting
    await settle(store)
    await check(store, content, (0, 1, 2, 3))
    assert store.stats()["dead_bytes"] > 0
    store = await reopened(store, disk)
    await check(store, content, (0, 1, 2, 3))
    await store.close()


@pytest.mark.parametrize("turns", [1, 3, 10, 25, 60, 100])
async def test_it_can_be_stopped_at_any_time_and_started_again(turns: int) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    content = await written(store)
    for ledger in (0, 2, 3, 5):
        store.delete_ledger(ledger)
    await settle(store)
    compacting = asyncio.ensure_future(store.compact())
    for _ in range(turns):
        await asyncio.sleep(0)
    compacting.cancel()
    await asyncio.gather(compacting, return_exceptions=True)
    await settle(store)
    listed = {one.name for one in store._state.segments} | set(store._state.free)
    listed |= {"" if store._state.spare is None else store._state.spare.name}
    assert {name for name in disk.names() if name.startswith("log-")} <= listed
    await check(store, content, (0, 2, 3, 5))
    await store.compact()
    await settle(store)
    await check(store, content, (0, 2, 3, 5))
    await store.close()


async def test_one_at_a_time() -> None:
    store = open_store()
    await written(store)
    for ledger in range(5):
        store.delete_ledger(ledger)
    first = asyncio.ensure_future(store.compact())
    await asyncio.sleep(0)
    assert await store.compact() == 0
    assert await first > 0
    await store.close()


async def test_damaged_data_is_not_copied() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    content = await written(store)
    for ledger in (0, 2, 3, 5):
        store.delete_ledger(ledger)
    await settle(store)
    disk.model.inode("log-00000001").content[20_000] ^= 1
    await store.compact()
    await settle(store)
    assert "log-00000001" in [one.name for one in store._state.segments]
    outcomes = await read(store, *sorted(key for key in content if key[0] in (1, 4)))
    assert None not in outcomes
    await store.close()


async def test_it_keeps_to_its_speed() -> None:
    store = open_store(config=small_config(compaction_bytes_per_s=2 << 20))
    await written(store)
    for ledger in range(5):
        store.delete_ledger(ledger)
    await settle(store)
    loop = asyncio.get_running_loop()
    began = loop.time()
    won = await store.compact()
    moved = won  # every byte given back was read once, to be verified
    assert loop.time() - began >= 0.8 * moved / (2 << 20)
    await store.close()


async def test_ledger_states_outlive_the_segments_that_held_them() -> None:
    disk = MemoryDisk()
    store = open_store(disk, small_config(ledger_cache_entries=1))
    store.put_ledger(50, b"f" * 20)
    store.fence(50)
    store.set_explicit_lac(50, 7, b"packet")
    await written(store)
    for ledger in range(6):
        store.delete_ledger(ledger)
    await settle(store)
    await store.compact()
    await settle(store)
    assert store._state.superblock.table
    for _ in range(2):
        record = store.ledger(50)
        assert record is not None
        assert (record.master_key, record.fenced, record.lac, record.explicit_lac) == (b"f" * 20, True, 7, b"packet")
        deleted = store.ledger(3)
        assert deleted is not None
        assert deleted.tombstone
        assert store.ledgers(-1, 10) == [50]
        store = await reopened(store, disk)
    assert store.ledger(51) is None
    store.put_ledger(51, KEY)
    await store.close()


async def test_data_whose_ledger_state_was_lost_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    content = await written(store)
    for ledger in (0, 2, 3, 5):
        store.delete_ledger(ledger)
    await settle(store)
    find = store._state.table.find
    monkeypatch.setattr(store._state.table, "find", lambda ledger: None if ledger == 1 else find(ledger))
    assert await store.compact() > 0
    monkeypatch.undo()
    await settle(store)
    await check(store, content, (0, 2, 3, 5))
    await store.close()


@pytest.mark.parametrize("trouble", ["no room", "a damaged index"])
async def test_files_with_states_that_no_table_covers_are_left_alone(trouble: str) -> None:
    """The table cannot be written, for want of room or because the states of an older file are damaged: what only the
    footers of later files hold must not go with these."""
    disk = MemoryDisk()
    store = open_store(disk, small_config(ledger_cache_entries=1))
    await written(store)
    store.put_ledger(50, b"f" * 20)
    store.fence(50)
    await written_again(store)
    for ledger in (*range(6), 70):
        store.delete_ledger(ledger)
    await settle(store)
    state = store._state
    waiting = [one for one in state.uncovered() if one.footer is not None]
    assert len(waiting) > 3
    if trouble == "no room":
        state.reserve.give_up()
        disk.model.total_bytes = disk.model.used_bytes() + 2000  # a superblock, and no page of a table
    else:
        oldest = waiting[-1]
        assert oldest.footer is not None
        trailer = oldest.footer.trailer
        disk.model.inode(oldest.name).content[trailer.footer_at + trailer.first_state_page * PAGE + 100] ^= 1
        state.cache.clear()
    await store.compact()
    disk.model.total_bytes = 1 << 40
    await settle(store)
    for _ in range(2):
        record = store.ledger(50)
        assert record is not None
        assert (record.master_key, record.fenced) == (b"f" * 20, True)
        assert store.ledgers(-1, 10) == [50]
        store = await reopened(store, disk)
    await store.close()
