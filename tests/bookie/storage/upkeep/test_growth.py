"""Log files begin small: how they grow ahead of the log, and what is known of their length at any time."""

from __future__ import annotations

import asyncio
import errno
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
from tests.support.polling import until
from tests.support.store_kit import NullStats, add, durable, open_store, read, settle, small_config, stored

from buckram.bookie.storage.store import Store
from buckram.bookie.storage.superblock import read_superblock
from buckram.config import StoreConfig
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.disk.memory import MemoryDisk

T = TypeVar("T")
FIRST = 8192
CONFIG = small_config(segment_bytes=128 << 10)
PAYLOAD = bytes(3000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.store_state.FIRST_BYTES", FIRST)
    monkeypatch.setattr("buckram.bookie.storage.upkeep.log_files.RETRY_S", 0.001)
    monkeypatch.setattr("buckram.bookie.storage.upkeep.maintenance.POLL_S", 0.001)


def made(disk: MemoryDisk, name: str) -> int:
    block = read_superblock(disk)
    assert block is not None
    return next(one.made for one in block.segments if one.name == name)


async def test_a_block_goes_only_where_the_superblock_says_that_the_file_is() -> None:
    beyond: list[str] = []
    sizes: set[int] = set()

    def before(operation: str) -> None:
        kind, _, rest = operation.partition(" ")
        if kind == "write" and rest.startswith("log-"):
            name, _, place = rest.partition(" ")
            at, _, length = place.partition("+")
            known = made(disk, name)
            sizes.add(known)
            if int(at) + int(length) > known:
                beyond.append(operation)

    disk = MemoryDisk()
    store = open_store(disk, CONFIG)
    disk.before = before
    for entry in range(30):
        add(store, 1, entry, [PAYLOAD])
        assert await durable(store) is None
    await settle(store)
    assert not beyond
    assert sizes == {FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST, 16 * FIRST}
    disk.before = lambda operation: None
    await store.close()
    store = open_store(disk, CONFIG)
    assert await read(store, *[(1, n) for n in range(30)]) == [stored(1, n, -1, PAYLOAD) for n in range(30)]
    assert not store.limbo
    await store.close()


async def test_a_file_that_lost_what_it_had_grown_by_is_a_loss() -> None:
    disk = MemoryDisk()
    store = open_store(disk, CONFIG)
    for entry in range(8):
        add(store, 1, entry, [PAYLOAD])
        await durable(store)
    await settle(store)
    segment = store._log.segment
    assert segment is not None
    assert segment.made > FIRST
    store._maintenance._closed = True
    await store._maintenance.close()
    image = disk.model.worst_case()  # the mapped page never reached the device: it says nothing of these blocks
    del image.inode(segment.name).content[FIRST:]
    store = open_store(MemoryDisk(image), CONFIG)
    assert store.limbo
    await store.close()


class SlowGrowth(MemoryDisk):
    """Files are made longer when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()
        self.waits = False

    async def offload(self, job: Callable[[], T]) -> T:
        if isinstance(job, partial) and job.func == self.extend:
            self.waits = True
            await self.go_on.wait()
        return job()


async def test_a_file_that_still_grows_gets_its_footer_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.store_state.FIRST_BYTES", 64 << 10)
    config, disk = small_config(segment_bytes=512 << 10), SlowGrowth()
    store = open_store(disk, config)
    count = 0
    while not disk.waits:
        add(store, 1, count, [PAYLOAD])
        assert await durable(store) is None
        await settle(store)
        count += 1
    monkeypatch.setattr(
        "buckram.bookie.storage.log.group_commit.INDEX_LIMIT", 0
    )  # the log leaves the file, which has room
    add(store, 1, count, [PAYLOAD])
    assert await durable(store) is None
    await settle(store)
    disk.go_on.set()
    await settle(store)
    assert store.failed is None
    assert store.stats()["sealed_segments"] > 0
    await store.close()
    store = open_store(MemoryDisk(disk.model), config)
    assert store.stats()["sealed_segments"] > 0
    wanted = [stored(1, n, -1, PAYLOAD) for n in range(count + 1)]
    assert await read(store, *[(1, n) for n in range(count + 1)]) == wanted
    await store.close()


class FailingGrowth(SlowGrowth):
    """The first attempt to make a file longer waits for the test and fails then."""

    async def offload(self, job: Callable[[], T]) -> T:
        first = not self.waits and isinstance(job, partial) and job.func == self.extend
        result = await super().offload(job)
        if first:
            raise OSError(errno.EMFILE, "too many open files")
        return result


async def test_a_block_that_came_while_growth_failed_is_written_by_the_next_attempt() -> None:
    disk = FailingGrowth()
    store = open_store(disk, CONFIG)
    acked: list[OSError | None] = []
    add(store, 1, 0, [PAYLOAD])  # beyond a quarter of the file: it begins to grow, nothing waits for that
    store.after_durable(acked.append)
    await until(lambda: bool(acked) and disk.waits, "the file does not grow")
    for entry in range(1, 12):
        add(store, 1, entry, [PAYLOAD])
        store.after_durable(acked.append)
        for _ in range(20):
            await asyncio.sleep(0)
    assert len(acked) < 12  # the file is full now, and a block waits
    disk.go_on.set()  # from here on nothing else asks the log for anything: that would start the growth again
    await until(lambda: len(acked) == 12, "the blocks that wait are not written", 10)
    assert acked == [None] * 12
    await settle(store)
    await store.close()


def test_a_file_that_was_made_longer_is_synced_also_where_it_was_long_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What found too little room may have left it longer than before, and nobody knows whether that is durable."""
    disk = LocalDisk(tmp_path)
    file = disk.open("log", create=True, size=4096)
    reserve = os.posix_fallocate

    def in_part(fd: int, start: int, size: int) -> None:
        reserve(fd, start, size // 2)
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "posix_fallocate", in_part)
    with pytest.raises(OSError, match="make it 65536 bytes long"):
        disk.extend(file, 65536)
    assert file.size() > 8192
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    disk.extend(file, 8192)
    assert synced == [file.fd]
    file.close()
    disk.close()


async def test_a_block_waits_for_a_file_that_cannot_grow() -> None:
    disk = MemoryDisk()
    store = open_store(disk, CONFIG)
    await settle(store)
    store._state.reserve.give_up()
    disk.model.total_bytes = disk.model.used_bytes()
    acked: list[OSError | None] = []
    for entry in range(8):
        add(store, 1, entry, [PAYLOAD])
        store.after_durable(acked.append)
        for _ in range(20):
            await asyncio.sleep(0)
    assert 0 < len(acked) < 8
    assert not store.is_writable
    assert "no space left" in store._state.space.reason
    assert store.failed is None
    wanted = [stored(1, n, -1, PAYLOAD) for n in range(8)]
    assert await read(store, *[(1, n) for n in range(8)]) == wanted
    disk.model.total_bytes = 1 << 30
    assert await durable(store) is None
    assert acked == [None] * 8
    await until(lambda: store.is_writable, "its own poll does not look again", 10.0)
    await store.close()


async def test_a_stop_does_not_wait_for_a_file_that_cannot_grow() -> None:
    disk = MemoryDisk()
    store = open_store(disk, CONFIG)
    await settle(store)
    store._state.reserve.give_up()
    disk.model.total_bytes = disk.model.used_bytes()
    acked: list[OSError | None] = []
    for entry in range(8):
        add(store, 1, entry, [PAYLOAD])
        store.after_durable(acked.append)
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await store.close()
    assert len(acked) == 8


async def test_an_empty_store_takes_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.bookie.storage.store_state.FIRST_BYTES", 16 << 20)
    disk = LocalDisk(tmp_path)
    store = Store.open(disk, StoreConfig(), NullStats(), random.Random(1))

    def sizes() -> list[int]:
        return sorted(one.stat().st_size >> 20 for one in tmp_path.glob("log-*"))

    async with asyncio.timeout(20):
        await until(lambda: store._state.spare is not None, "the store's task makes no spare file")
        assert sizes() == [16, 16]
        for entry in range(24):
            add(store, 1, entry, [bytes(1 << 20)])
            assert await durable(store) is None
        await until(lambda: sizes() == [16, 64], "the next file does not grow")
    assert store.failed is None
    await store.close()
    disk.close()
