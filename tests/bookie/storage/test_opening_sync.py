"""What a start finds that its predecessor had not synced: it is served only after it is made durable."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.support.store_kit import add, durable, open_store, read, small_config

from buckram.bookie.storage.store import Store
from buckram.runtime.disk.memory import MemoryDisk


class Died(BaseException):
    pass


def power_lost(disk: MemoryDisk, seed: int) -> MemoryDisk:
    return MemoryDisk(disk.model.crash(random.Random(seed)))


async def written_not_synced(disk: MemoryDisk, entries: int, **config: Any) -> Store:
    """The process dies when the last entry is with the operating system and not yet on the device."""
    store = open_store(disk, small_config(**config))
    for entry in range(entries - 1):
        add(store, 1, entry, [bytes([entry]) * 3000])
        assert await durable(store) is None

    def before(operation: str) -> None:
        if operation == "sync":
            raise Died

    disk.before = before
    add(store, 1, entries - 1, [bytes([entries - 1]) * 3000])
    with pytest.raises(Died):
        store._log._flush()
    disk.before = lambda operation: None
    return store


@pytest.mark.parametrize("goes_on", [True, False])
async def test_an_entry_that_a_start_found_is_still_there_after_a_loss_of_power(goes_on: bool) -> None:
    """Where the log goes on in this file and where it goes on in another: nobody writes to the found one again."""
    for seed in range(8):
        disk = MemoryDisk()
        await written_not_synced(disk, 24, segment_bytes=128 << 10)
        found = open_store(disk, small_config(segment_bytes=(128 if goes_on else 64) << 10))
        (before,) = await read(found, (1, 23))
        if not isinstance(before, bytes):
            continue  # it did not reach the file as a whole: an unfinished write
        after = open_store(power_lost(disk, seed))
        assert await read(after, (1, 23)) == [before], f"seed {seed}"
        assert not after.limbo
        await after.close()
        await found.close()


async def test_a_start_makes_the_names_of_its_files_durable() -> None:
    for seed in range(8):
        disk = MemoryDisk()
        store = open_store(disk)
        add(store, 1, 0, [b"x"])
        assert await durable(store) is None
        again = open_store(power_lost(disk, seed))
        assert not again.limbo
        assert [type(found) for found in await read(again, (1, 0))] == [bytes]
        await again.close()
        await store.close()
