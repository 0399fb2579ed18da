"""A disk without a free byte: a store starts on it, can be read, gives room back, and writes again by itself."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests.support.polling import until
from tests.support.store_kit import add, durable, open_store, read, settle, small_config, stored

from buckram.bookie.storage.disk_space import RESERVE_FILE, Reserve
from buckram.bookie.storage.store import Store
from buckram.config import StoreConfig
from buckram.runtime.disk.memory import MemoryDisk

PAYLOAD = bytes(2000)
LEDGERS = 4


def config() -> StoreConfig:
    return small_config(reserved_bytes=160 << 10, writable_again_bytes=200 << 10, compaction_threshold=0.9)


def fill(disk: MemoryDisk) -> None:
    disk.model.total_bytes = disk.model.used_bytes()


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.upkeep.maintenance.POLL_S", 0.001)
    monkeypatch.setattr("buckram.bookie.storage.log.group_commit.RETRY_S", 0.001)
    monkeypatch.setattr("buckram.bookie.storage.upkeep.log_files.RETRY_S", 0.001)


async def filled(disk: MemoryDisk, count: int = 160) -> Store:
    """A store with some sealed files, all on a disk that has no room any more."""
    store = open_store(disk, config())
    await settle(store)
    for entry in range(count):
        add(store, entry * LEDGERS // count, entry, [PAYLOAD])
        await durable(store)
    await settle(store)
    assert store.stats()["sealed_segments"] > 3
    assert store._state.reserve.present
    fill(disk)
    store._maintenance.measure()
    return store


async def everything(store: Store, count: int = 160) -> bool:
    wanted = [(entry * LEDGERS // count, entry) for entry in range(count)]
    return await read(store, *wanted) == [stored(ledger, entry, -1, PAYLOAD) for ledger, entry in wanted]


async def until_writable(store: Store) -> None:
    await until(lambda: store.is_writable, "its own poll does not look again", 10.0)


async def test_deletion_frees_space_on_a_full_disk() -> None:
    disk = MemoryDisk()
    store = await filled(disk)
    assert not store.is_writable
    assert await everything(store)
    for ledger in range(LEDGERS):
        store.delete_ledger(ledger)
    assert await durable(store) is None
    assert await store.compact() > 0
    await until_writable(store)
    assert disk.model.free_bytes() > 100 << 10
    await settle(store)
    assert store._state.reserve.present  # it is made again
    assert store.failed is None
    add(store, 9, 0, [PAYLOAD])
    assert await durable(store) is None
    await store.close()
    store = open_store(disk, config())
    assert await read(store, (0, 0), (9, 0)) == [None, stored(9, 0, -1, PAYLOAD)]
    await store.close()


async def test_compaction_without_room_for_its_superblock_waits_for_it() -> None:
    disk = MemoryDisk()
    store = await filled(disk)
    await store._maintenance.checkpoint()  # so that only the superblock is missing below
    for ledger in range(LEDGERS):
        store.delete_ledger(ledger)
    await durable(store)
    store._state.reserve.give_up()
    fill(disk)
    compaction = asyncio.ensure_future(store.compact())
    await settle(store, 2000)
    assert not compaction.done()
    assert store.failed is None
    disk.model.total_bytes += 1 << 20
    assert await compaction > 0
    await until_writable(store)
    await store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("reserve", [True, False])
async def test_a_store_starts_on_a_full_disk_and_can_be_read(clean: bool, reserve: bool) -> None:
    disk = MemoryDisk()
    store = await filled(disk)
    if clean:
        await store.close()
    else:
        store._maintenance._closed = True
        await store._maintenance.close()
        disk = MemoryDisk(disk.model.worst_case())
    if not reserve:
        disk.remove(RESERVE_FILE)  # as earlier releases leave it
    fill(disk)
    if not reserve:
        disk.model.total_bytes += 2000  # a superblock, and not one byte for a log file
    store = open_store(disk, config())
    assert not store.is_writable
    assert "free space there" in store._state.space.reason
    assert not store.limbo
    assert await everything(store)
    for ledger in range(LEDGERS):
        store.delete_ledger(ledger)
    disk.model.total_bytes += 0 if reserve else 200 << 10
    assert await durable(store) is None
    assert await store.compact() > 0
    await until_writable(store)
    await store.close()


async def test_a_start_on_a_full_disk_without_an_unfinished_log_file() -> None:
    """The log file that was written is full, and there is no room for another one."""
    disk = MemoryDisk()
    store = await filled(disk)
    disk.model.total_bytes = 1 << 40
    active = store._log.segment
    assert active is not None
    while active.log_end < config().segment_bytes and store._log.segment is active:
        add(store, 7, active.log_end, [PAYLOAD])
        await durable(store)
    await store.close()
    fill(disk)
    for _ in range(3):
        store = open_store(disk, config())
        assert await everything(store)
        assert store.failed is None
        await store.close()


async def test_a_reserve_is_as_large_as_there_is_room_for() -> None:
    disk = MemoryDisk()
    reserve = Reserve(disk, 64 << 10)
    assert reserve.bytes == 32 << 10
    disk.model.total_bytes = 3000
    reserve.make()
    assert not reserve.present
    disk.model.total_bytes = 20 << 10
    reserve.make()
    assert disk.open(RESERVE_FILE).size() == 16 << 10
    ran: list[int] = []

    def job() -> int:
        ran.append(1)
        if len(ran) == 1:
            raise OSError(errno.EDQUOT, "quota")
        return 5

    assert reserve.run(job) == 5
    assert reserve.present  # at once
    disk.model.total_bytes = 1 << 20
    reserve.make()
    assert disk.open(RESERVE_FILE).size() == reserve.bytes
    reserve.give_up()
    disk.model.total_bytes = 0
    ran.clear()
    with pytest.raises(OSError, match="quota"):
        reserve.run(job)
    assert not reserve.present


def test_who_takes_the_room_that_is_free_for_a_moment_gets_little_of_it() -> None:
    disk = MemoryDisk()
    reserve = Reserve(disk, 2 << 20)
    reserve.make()
    fill(disk)
    before = reserve.bytes

    def job() -> None:
        if not disk.model.free_bytes():
            raise OSError(errno.ENOSPC, "no room")
        fill(disk)  # somebody else, and the process may be killed here as well

    reserve.run(job)
    left = disk.open(RESERVE_FILE).size()
    assert before * 31 // 32 <= left < before
    assert Reserve(disk, 2 << 20).present


def test_concurrent_writes_on_a_full_disk_both_use_the_reserve() -> None:
    disk = MemoryDisk()
    reserve = Reserve(disk, 64 << 10)
    reserve.make()
    fill(disk)
    both = threading.Barrier(2, timeout=20)

    def writes(name: str) -> None:
        if disk.model.free_bytes() < 4096:
            both.wait()
            raise OSError(errno.ENOSPC, "no room")
        disk.open(name, create=True, size=4096)

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(reserve.run, partial(writes, name)) for name in "ab"]:
            done.result(20)
    assert {"a", "b", RESERVE_FILE} <= set(disk.names())


def test_a_reserve_that_somebody_removed_is_no_trouble() -> None:
    disk = MemoryDisk()
    reserve = Reserve(disk, 64 << 10)
    reserve.make()
    disk.remove(RESERVE_FILE)
    ran: list[int] = []

    def job() -> None:
        ran.append(1)
        if len(ran) == 1:
            raise OSError(errno.ENOSPC, "no room")

    reserve.run(job)
    assert disk.open(RESERVE_FILE).size() == reserve.bytes


async def test_the_log_leaves_the_reserve_to_what_frees_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds that were taken before the disk was full may fill what is left of it, and no start may fail for that."""
    monkeypatch.setattr("buckram.bookie.storage.store_state.FIRST_BYTES", 8192)
    disk, settings = MemoryDisk(), small_config(segment_bytes=512 << 10)
    store = open_store(disk, settings)
    await settle(store)
    fill(disk)
    acked: list[OSError | None] = []
    for entry in range(120):
        add(store, 1, entry, [PAYLOAD])
        store.after_durable(acked.append)
        for _ in range(200):
            await asyncio.sleep(0)
        fill(disk)  # somebody else takes what is free
    assert len(acked) < 120
    count = len(acked)
    wanted = [stored(1, n, -1, PAYLOAD) for n in range(count)]
    for _ in range(12):
        store._maintenance._closed = True
        await store._maintenance.close()
        disk = MemoryDisk(disk.model.worst_case())
        fill(disk)
        store = open_store(disk, settings)
        assert not store.limbo
        assert await read(store, *[(1, n) for n in range(count)]) == wanted
