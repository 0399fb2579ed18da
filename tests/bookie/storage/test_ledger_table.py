"""Ledger states on disk: newest wins over segments and tables, with bounded memory, whatever the number of ledgers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import pytest
from tests.bookie.storage.segments.test_index import Bytes
from tests.support.store_kit import KEY, add, durable, open_store, settle, small_config

from buckram.bookie.storage.ledger_table import LedgerTable, Losses, TableWriter, record_of
from buckram.bookie.storage.reading import ledger_listing
from buckram.bookie.storage.segments.file_cache import PageCache
from buckram.bookie.storage.segments.segments import Footer, Segment
from buckram.core.storage.ledger_state import StoredLedgerState
from buckram.core.storage.segment_format import PAGE, open_trailer
from buckram.runtime.disk.memory import MemoryDisk


class NoSegments:
    """The segments of a store that has none, so that all records come from the table."""

    def newest_first(self) -> Iterable[Segment]:
        return ()

    def uncovered(self) -> Iterable[Segment]:
        return ()

    def repair_footer(self, segment: Segment | None) -> None:
        raise AssertionError("no footer is damaged here")


def table_of(states: list[StoredLedgerState]) -> Footer:
    writer = TableWriter(7, 8)
    data = b"".join([*(writer.add(state.ledger_id, state.pack()[8:]) or b"" for state in states), writer.finish()])
    trailer = open_trailer(data[-PAGE:], 7, 8)
    assert trailer is not None
    file = Bytes(data, 0)
    return Footer(trailer, lambda: file, PageCache(4))


def test_a_table_of_any_size_is_found_again() -> None:
    for count in (0, 1, 41, 42, 43, 5000):
        states = [StoredLedgerState(3 * number, KEY, lac=number) for number in range(count)]
        table = table_of(states)
        assert list(table.states()) == states
        assert list(table.states(3 * count // 2)) == [one for one in states if one.ledger_id > 3 * count // 2]
        for number in random.Random(count).sample(range(count), min(count, 50)):
            assert table.find_state(3 * number) == states[number]
            assert table.find_state(3 * number + 1) is None


def test_the_cache_is_bounded_and_keeps_what_is_used() -> None:
    table = LedgerTable(3, Losses(), NoSegments(), NoSegments())
    table.file = table_of([StoredLedgerState(number, KEY) for number in range(100)])
    kept = table.find(1)
    for number in range(2, 50):
        table.find(number)
        assert table.find(1) is kept
    assert table.find(2) is not None
    assert len(table._cached) == 3


def test_limbo_marks_records_older_than_the_loss() -> None:
    losses = Losses()
    table = LedgerTable(3, losses, NoSegments(), NoSegments())
    table.file = table_of([StoredLedgerState(1, KEY, born=0), StoredLedgerState(2, KEY, born=1)])
    old, young = table.find(1), table.find(2)
    assert old is not None
    assert young is not None
    losses.count, losses.limbo = 1, True
    table.refresh_limbo()
    assert (old.limbo, young.limbo) == (True, False)
    assert record_of(old.snapshot()) is not old


async def test_checkpoints_merge_and_replace_one_another() -> None:
    disk = MemoryDisk()
    store = open_store(disk, small_config(ledger_cache_entries=5))
    rng = random.Random(1)
    lacs: dict[int, int] = {}
    tables = set()
    for round_number in range(6):
        for _ in range(120):
            ledger = rng.randrange(200)
            lacs[ledger] = lacs.get(ledger, -1) + 1
            add(store, ledger, lacs[ledger] + 1, [bytes(600)], lac=lacs[ledger])
            await durable(store)
        await settle(store)
        await store._maintenance.checkpoint()
        tables.add(store._state.superblock.table)
        assert len([name for name in disk.names() if name.startswith("ledgers-")]) == 1
        for ledger in range(200):
            record = store.ledger(ledger)
            assert (None if record is None else record.lac) == lacs.get(ledger)
        if round_number % 2:
            await store.close()
            store = open_store(disk, small_config(ledger_cache_entries=5))
    assert len(tables) == 6
    assert store.ledgers(-1, 1000) == sorted(lacs)
    await store.close()


async def test_the_table_is_rewritten_by_itself() -> None:
    store = open_store()
    entry = 0
    while store.stats()["checkpoints"] == 0 and entry < 2000:
        add(store, entry % 30, entry // 30, [bytes(1000)])
        entry += 1
        await durable(store)
        await settle(store, 2)
    assert store.stats()["checkpoints"] == 1
    await settle(store)
    assert store.stats()["uncovered_segments"] < 8
    await store.close()


async def test_live_ledger_ids_lists_states_on_disk_and_in_memory() -> None:
    """In the table, in sealed and unsealed segments and in memory, some deleted, over several lives of the store."""
    disk = MemoryDisk()
    store = open_store(disk, small_config(ledger_cache_entries=5))
    rng = random.Random(2)
    last: dict[int, int] = {}
    living: set[int] = set()
    for life in range(4):
        for _ in range(200):
            ledger = rng.randrange(700)
            if ledger in living and rng.random() < 0.3:
                store.delete_ledger(ledger)
                living.remove(ledger)
            elif ledger in living or ledger not in last:
                last[ledger] = last.get(ledger, -1) + 1
                add(store, ledger, last[ledger], [bytes(900)])
                living.add(ledger)
            if rng.random() < 0.3:
                await durable(store)
        if life == 1:
            await settle(store)
            await store._maintenance.checkpoint()
        assert (await store.live_ledger_ids()).tolist() == sorted(living) == store.ledgers(-1, 10_000)
        if life == 2:
            await store.close()
            store = open_store(disk, small_config(ledger_cache_entries=5))
            assert (await store.live_ledger_ids()).tolist() == sorted(living)
    await store.close()


async def test_ledgers_that_move_into_files_meanwhile_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_listing, "PAGE_IDS", 8)
    store = open_store()
    for ledger in range(0, 3000, 3):
        add(store, ledger, 0, [bytes(10)])
    listing = asyncio.ensure_future(store.live_ledger_ids())
    while not listing.done():
        add(store, 100_000, store.ledger(100_000).last + 1 if store.ledger(100_000) else 0, [bytes(2000)] * 6)
        await durable(store)
        await asyncio.sleep(0)
    assert store.stats()["sealed_segments"] > 0
    found = (await listing).tolist()
    assert [ledger for ledger in found if ledger < 100_000] == list(range(0, 3000, 3))
    await store.close()
