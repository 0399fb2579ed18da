"""The store when its disk fails or is full, when it is asked for too much, and what a deletion leaves."""

from __future__ import annotations

import asyncio
import errno

import pytest
from tests.support.store_kit import (
    KEY,
    add,
    durable,
    frame,
    open_store,
    read,
    reopened,
    settle,
    stored,
)

from buckram.bookie.storage.store import StoreError
from buckram.errors import InvalidArgument, InvariantViolation
from buckram.runtime.disk.memory import MemoryDisk


async def test_a_failed_sync_ends_the_store() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    heard: list[BaseException] = []
    store.on_failed(heard.append)
    add(store, 1, 0, [b"x"])
    disk.fail = OSError(errno.EIO, "the device broke")
    error = await durable(store)
    assert error is store.failed is heard[0]
    assert error is not None
    assert error.errno == errno.EIO
    assert not store.is_writable
    # Nothing is said of what is there and what is not, and nothing more is taken in.
    assert [type(one) for one in await read(store, (1, 0), (7, 7))] == [StoreError, StoreError]
    with pytest.raises(StoreError, match="the log failed"):
        add(store, 1, 1, [b"y"])
    assert await durable(store) is error
    await store.close()


async def test_a_block_that_finds_no_space_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.log.group_commit.RETRY_S", 0.001)
    disk = MemoryDisk()
    store = open_store(disk)
    add(store, 1, 0, [b"x"])
    disk.fail = OSError(errno.ENOSPC, "full")
    assert await durable(store) is None
    assert store.failed is None
    assert (await read(store, (1, 0))) == [stored(1, 0, -1, b"x")]
    await store.close()


async def test_a_full_disk_means_read_only_and_back() -> None:
    disk = MemoryDisk()
    file_bytes = open_store(MemoryDisk())._state.file_bytes
    disk.model.total_bytes = (3 << 20) + 6 * file_bytes
    store = open_store(disk)
    changes: list[bool] = []
    store.on_space_change(lambda: changes.append(store.is_writable))
    await settle(store)
    assert store.is_writable
    ballast = disk.open("ballast", create=True, size=(2 << 20) + 6 * file_bytes)
    store._maintenance.measure()
    assert not store.is_writable
    assert store.reserve_usable
    # Fences and recovery adds still have room.
    add(store, 1, 0, [b"x"])
    store.fence(1)
    assert await durable(store) is None
    disk.remove(ballast.name)
    store._maintenance.measure()
    assert store.is_writable
    assert changes == [False, True]
    await store.close()


async def test_a_disk_that_is_really_full_holds_back_acknowledgements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.log.group_commit.RETRY_S", 0.001)
    disk = MemoryDisk()
    store = open_store(disk)
    await settle(store)
    disk.model.total_bytes = disk.model.used_bytes()
    acked: list[OSError | None] = []
    for entry in range(400):
        add(store, 1, entry, [bytes(1000)])
        store.after_durable(acked.append)
        await asyncio.sleep(0)
    assert 0 < len(acked) < 400
    assert store.failed is None
    assert not store.is_writable
    everything = [stored(1, entry, -1, bytes(1000)) for entry in range(400)]
    assert await read(store, *[(1, entry) for entry in range(400)]) == everything
    disk.model.total_bytes *= 100
    assert await durable(store) is None
    assert acked == [None] * 400
    store = await reopened(store, disk)
    assert await read(store, *[(1, entry) for entry in range(400)]) == everything
    await store.close()


async def test_closing_a_store_on_a_full_disk_ends() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    disk.model.total_bytes = disk.model.used_bytes()
    acked: list[OSError | None] = []
    for entry in range(400):
        add(store, 1, entry, [bytes(1000)])
    store.after_durable(acked.append)
    await store.close()
    assert [type(error) for error in acked] == [OSError]


async def test_an_add_needs_a_record() -> None:
    store = open_store()
    data = frame(1, 0)
    with pytest.raises(InvariantViolation):
        store.add_run(1, 0, 1, -1, data, 0, len(data))
    with pytest.raises(InvalidArgument):
        store.put_ledger(1, b"short")
    await store.close()


async def test_a_run_that_cannot_be_held_is_refused() -> None:
    store = open_store()
    store.put_ledger(1, KEY)
    data = frame(1, 0, payload=bytes(9 << 20))
    with pytest.raises(StoreError, match="tail_cache_bytes"):
        store.add_run(1, 0, 1, -1, data, 0, len(data))
    large = [bytes(300_000)]
    add(store, 1, 0, large)
    await settle(store)
    assert await read(store, (1, 0)) == [stored(1, 0, -1, large[0])]
    await store.close()


async def test_put_ledger_twice_changes_nothing() -> None:
    store = open_store()
    store.put_ledger(1, KEY, admitted=False)
    store.put_ledger(1, b"z" * 20, admitted=False)
    record = store.ledger(1)
    assert record is not None
    assert (record.master_key, record.admitted) == (KEY, False)
    store.put_ledger(1, KEY)
    assert record.admitted
    await store.close()


async def test_deletion_outlives_data_and_restart_and_a_repair_brings_the_ledger_back() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    add(store, 1, 0, [b"x"] * 3)
    add(store, 2, 0, [b"y"])
    store.delete_ledger(77)
    store.delete_ledger(1)
    store.delete_ledger(1)
    for _ in range(2):
        record = store.ledger(1)
        assert record is not None
        assert (record.tombstone, record.fenced, record.admitted, record.lac) == (True, True, False, -1)
        assert await read(store, (1, 0), (2, 0)) == [None, stored(2, 0, -1, b"y")]
        assert store.entries(1) == []
        assert store.last_entry(1) is None
        assert store.ledgers(-1, 10) == [2]
        store = await reopened(store, disk)
    store.put_ledger(1, KEY, admitted=False)
    add(store, 1, 2, [b"back"], lac=1)
    for _ in range(2):
        record = store.ledger(1)
        assert record is not None
        assert (record.tombstone, record.fenced) == (False, True)
        assert await read(store, (1, 0), (1, 2)) == [None, stored(1, 2, 1, b"back")]
        assert store.entries(1) == [(2, 1)]
        store = await reopened(store, disk)
    await store.close()


async def test_a_copy_in_the_received_buffer_is_not_needed_for_long() -> None:
    store = open_store()
    store.put_ledger(1, KEY)
    chunk = b"".join(frame(1, entry, payload=bytes(50)) for entry in range(1000))
    size = len(chunk) // 1000
    store.add_run(1, 0, 1, -1, chunk, 0, size)
    store.add_run(1, 10, 2, -1, chunk, 10 * size, 12 * size)
    assert await read(store, (1, 0), (1, 11)) == [stored(1, 0, -1, bytes(50)), stored(1, 11, -1, bytes(50))]
    await settle(store)
    assert await read(store, (1, 0), (1, 11)) == [stored(1, 0, -1, bytes(50)), stored(1, 11, -1, bytes(50))]
    await store.close()
