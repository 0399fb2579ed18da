"""Damaged and missing files: what is good is kept, what may be lost is unknown, never absent."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.support.store_kit import (
    KEY,
    add,
    durable,
    frame,
    open_store,
    read,
    read_frames,
    read_range,
    reopened,
    settle,
    small_config,
    stored,
)

from buckram.bookie.storage.log.tail_page import NAME as TAIL
from buckram.bookie.storage.store import Store, StoreError
from buckram.runtime.disk.memory import MemoryDisk
from buckram.seams import PAGE_BYTES


def crashed(disk: MemoryDisk) -> MemoryDisk:
    """A disk with what a kill leaves when everything was synced."""
    for name in disk.names():
        disk.model.inode(name).sync()
    disk.model.sync_names()
    return MemoryDisk(disk.model.crash(random.Random(1)))


def flip(disk: MemoryDisk, name: str, offset: int, mask: int = 1) -> None:
    content = disk.model.inode(name).content
    content[offset] ^= mask


async def filled(disk: MemoryDisk, entries: int = 200) -> dict[tuple[int, int], bytes]:
    """A store with four ledgers in several segments, killed after the last acknowledgement."""
    store = open_store(disk)
    content = {}
    for entry in range(entries):
        for ledger in range(4):
            payload = bytes([ledger]) * 300
            add(store, ledger, entry, [payload], lac=entry - 1)
            content[ledger, entry] = stored(ledger, entry, entry - 1, payload)
        await durable(store)
        await settle(store, 3)
    await settle(store)
    assert store.stats()["sealed_segments"] >= 3
    await stop(store)
    return content


async def stop(store: Store) -> None:
    """End the background work without writing anything, as a kill does."""
    await store._maintenance.close()
    store._log.segment = None


async def check(disk: MemoryDisk, content: dict[tuple[int, int], bytes], least: float) -> Store:
    """In limbo: most is there and right, the rest is unknown, and nothing is denied."""
    store = open_store(disk)
    keys = sorted(content)
    good = 0
    for key, outcome in zip(keys, await read(store, *keys), strict=True):
        if isinstance(outcome, StoreError):
            continue
        assert outcome == content[key]
        good += 1
    assert store.limbo
    assert least * len(keys) <= good < len(keys)
    (absent, unknown) = await read(store, (0, 10**6), (99, 0))
    assert isinstance(absent, StoreError)
    assert absent.limbo
    assert isinstance(unknown, StoreError)
    assert unknown.limbo
    return store


async def test_a_torn_last_block_is_the_end_of_the_log() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    add(store, 1, 0, [b"first"])
    await durable(store)
    end = store._state.segments[-1].log_end
    name = store._state.segments[-1].name
    before = disk.model.inode(TAIL).read(0, PAGE_BYTES)
    add(store, 1, 1, [bytes(3000)])
    await settle(store)
    await stop(store)
    disk = crashed(disk)
    flip(disk, name, end + 2000)
    disk.model.inode(TAIL).content[:] = before  # its sync had not returned
    for _ in range(3):
        # However often it starts: the torn bytes never count, not even after the log went on.
        store = open_store(disk)
        assert not store.limbo
        assert await read(store, (1, 0), (1, 1)) == [stored(1, 0, -1, b"first"), None]
        add(store, 2, store.last_entry(2) or 0, [b"more"])
        await durable(store)
        await stop(store)
        disk = crashed(disk)


async def test_a_bad_block_before_good_ones_is_lost_data() -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    store = open_store(disk)
    name = store._state.segments[-1].name
    await stop(store)
    disk = crashed(disk)
    flip(disk, name, 700)
    store = await check(disk, content, 0.9)
    # It stays so over restarts, and new ledgers that are certainly younger are not affected.
    store.put_ledger(500, KEY, born=True)
    store.put_ledger(501, KEY)
    await settle(store)
    store = await reopened(store, disk)
    assert store.limbo
    young, old = await read(store, (500, 0), (501, 0))
    assert young is None
    assert isinstance(old, StoreError)
    store.clear_limbo(store.loss)
    assert await read(store, (501, 0), (0, 10**6)) == [None, None]
    await settle(store)
    await store.close()
    assert not open_store(disk).limbo


async def test_a_missing_log_file_is_lost_data() -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    disk = crashed(disk)
    disk.remove("log-00000001")
    store = await check(disk, content, 0.3)
    await store.close()


async def test_a_missing_ledger_table_is_lost_state() -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    store = open_store(disk)
    await store._maintenance.checkpoint()
    table = store._state.superblock.table
    assert store._state.table.file is not None
    await stop(store)
    damaged = crashed(disk)
    inode = damaged.model.inode(table)
    inode.content[-50] ^= 4
    store = open_store(damaged)
    assert store.limbo
    disk.remove(table)
    store = open_store(crashed(disk))
    assert store.limbo
    for outcome in await read(store, (0, 0), (99, 0)):
        assert outcome == content[0, 0] or isinstance(outcome, StoreError)


def footer_page(name: str, disk: MemoryDisk) -> int:
    return disk.model.inode(name).size() - 2 * 4096


def trailer(name: str, disk: MemoryDisk) -> int:
    return disk.model.inode(name).size() - 20


@pytest.mark.parametrize("where", [footer_page, trailer])
async def test_a_damaged_footer_is_rebuilt_from_good_blocks(where: Callable[[str, MemoryDisk], int]) -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    disk = crashed(disk)
    flip(disk, "log-00000001", where("log-00000001", disk))
    for _ in range(2):
        store = open_store(disk)
        keys = sorted(content)
        assert await read(store, *keys) == [content[key] for key in keys]
        assert not store.limbo
        add(store, 9, store.last_entry(9) or 0, [b"x"])
        await settle(store)
        assert all(one.footer is not None for one in store._state.segments[:-1])
        await store.close()


@pytest.mark.parametrize("number", range(4))
async def test_every_page_of_a_footer_may_be_damaged(number: int) -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    store = open_store(disk)
    footer = store._state.segments[0].footer
    assert footer is not None
    if number >= footer.trailer.pages:
        pytest.skip("this footer has fewer pages")
    at = footer.trailer.footer_at + number * 4096 + 100
    await stop(store)
    disk = crashed(disk)
    flip(disk, "log-00000001", at)
    store = open_store(disk, small_config(ledger_cache_entries=1))
    keys = sorted(content)
    assert await read(store, *keys) == [content[key] for key in keys]
    assert store.entries(2) == [(0, 200)]
    assert [store.ledger(ledger) is None for ledger in range(5)] == [False] * 4 + [True]
    assert not store.limbo
    await store.close()


async def test_a_damaged_footer_over_damaged_blocks_is_lost_data() -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    disk = crashed(disk)
    flip(disk, "log-00000001", footer_page("log-00000001", disk))
    flip(disk, "log-00000001", trailer("log-00000001", disk))
    flip(disk, "log-00000001", 30_000)
    store = await check(disk, content, 0.7)
    await store.close()


async def test_the_last_block_of_a_full_log_is_not_taken_for_a_torn_one() -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    store = open_store(disk)
    first = store._state.segments[0]
    end = first.log_end
    await stop(store)
    disk = crashed(disk)
    flip(disk, first.name, trailer(first.name, disk))
    flip(disk, first.name, end - 600)
    await (await check(disk, content, 0.7)).close()


async def test_after_a_clean_stop_the_last_block_is_known() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    add(store, 1, 0, [b"x"])
    await durable(store)
    add(store, 1, 1, [b"y"])
    await store.close()
    disk = crashed(disk)
    flip(disk, "log-00000001", 600)
    store = open_store(disk)
    assert store.limbo
    assert isinstance((await read(store, (1, 1)))[0], StoreError)
    await store.close()


async def test_a_bit_flip_in_an_entry_is_an_error_or_visible_to_its_digest_never_absence() -> None:
    disk = MemoryDisk()
    content = await filled(disk)
    disk = crashed(disk)
    rng = random.Random(3)
    for _ in range(300):
        flip(disk, "log-00000001", rng.randrange(60_000), 1 << rng.randrange(8))
    store = open_store(disk)
    outcomes = await read(store, *sorted(content))
    assert None not in outcomes
    assert any(isinstance(one, StoreError) and one.kind == "corrupt" for one in outcomes)
    await store.close()


async def test_an_unreadable_piece_of_the_active_log_is_lost_data(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    for entry in range(30):
        add(store, 1, entry, [bytes(1000)])
        await durable(store)
    await stop(store)
    disk = crashed(disk)
    inode = disk.model.inode("log-00000001")
    whole = disk.read_inode

    def failing(which: object, offset: int, length: int) -> bytes:
        if which is inode and offset < 20_000 < offset + length:
            raise OSError(5, "unreadable sector")
        return whole(inode if which is inode else which, offset, length)  # type: ignore[arg-type]  # an inode

    monkeypatch.setattr(disk, "read_inode", failing)
    store = open_store(disk)
    assert store.limbo
    (outcome,) = await read(store, (1, 25))
    assert isinstance(outcome, StoreError)
    await store.close()


@pytest.mark.parametrize("damaged", [0, 2, 4])
async def test_a_broken_frame_costs_its_run_and_not_the_runs_beside_it(damaged: int) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    payloads = [bytes([65 + entry]) * 50 for entry in range(6)]
    for first in (0, 2, 4):
        add(store, 1, first, payloads[first : first + 2])
    await durable(store)
    name = store._state.segments[-1].name
    store._state.segments[-1].base = None  # as if it had left the ring: the file is read
    flip(disk, name, bytes(disk.model.inode(name).content).index(frame(1, damaged, -1, payloads[damaged])) + 1)
    whole = [stored(1, entry, -1, payload) for entry, payload in enumerate(payloads)]
    found = await read_range(store, 1, 0, 10, 1 << 20)
    frames = await read_frames(store, 1, 0, 10, 1 << 20)
    assert frames is None or frames == whole[:damaged]
    if damaged == 0:
        assert isinstance(found, StoreError)
        assert await read_range(store, 1, 2, 10, 1 << 20) == whole[2:]
    else:
        assert found == whole[:damaged]
    for entry, outcome in enumerate(await read(store, *((1, entry) for entry in range(6)))):
        assert outcome == whole[entry] if entry // 2 != damaged // 2 else isinstance(outcome, StoreError)
    await stop(store)
