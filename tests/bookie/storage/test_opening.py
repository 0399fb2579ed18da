"""What a store takes for its directory when it is opened."""

from __future__ import annotations

import json
import random

import pytest
from tests.support.store_kit import (
    NullStats,
    open_store,
    small_config,
)

from buckram.bookie.storage.disk_space import RESERVE_FILE as RESERVE
from buckram.bookie.storage.log.tail_page import NAME as TAIL
from buckram.bookie.storage.store import Store
from buckram.bookie.storage.superblock import NAME, Superblock, read_superblock
from buckram.core.storage.segment_format import crc
from buckram.errors import CorruptStore
from buckram.runtime.disk.memory import MemoryDisk
from buckram.seams import Write

# -- opening


async def test_an_empty_directory_gets_a_new_incarnation() -> None:
    first, second = open_store(seed=1), open_store(seed=2)
    assert first.incarnation != second.incarnation
    assert not first.limbo
    await first.close()
    await second.close()


async def test_log_files_without_a_superblock_are_refused() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    await store.close()
    disk.remove(NAME)
    with pytest.raises(CorruptStore, match="no file 'superblock'"):
        open_store(disk)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (b'"format":3', b'"format":4', "format version 4"),
        (b'"clean"', b'"glean"', "checksum"),
    ],
)
async def test_a_superblock_of_another_format_or_a_damaged_one_is_refused(old: bytes, new: bytes, says: str) -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    await store.close()
    file = disk.open(NAME)
    text = file.read(0, file.size()).replace(old, new)
    if "format" in says:
        body = text.split(b"\n")[0]
        text = body + b"\ncrc32c %08x\n" % crc(body)
    disk.write_now([Write(file, 0, [text])])
    with pytest.raises(CorruptStore, match=says):
        open_store(disk)


@pytest.mark.parametrize("version", [1, 2])
async def test_a_superblock_of_an_older_format_becomes_one_of_format_3(version: int) -> None:
    fields = json.loads(Superblock("incarnation", 7).encode().split(b"\n")[0])
    body = json.dumps(fields | {"format": version}).replace(', "starts": 0', "").encode()
    disk = MemoryDisk()
    disk.write_now([Write(disk.open(NAME, create=True), 0, [body + b"\ncrc32c %08x\n" % crc(body)])])
    found = read_superblock(disk)
    assert found is not None
    assert (found.format, found.starts) == (version, 0)
    store = open_store(disk)
    found = read_superblock(disk)
    assert found is not None
    assert (found.format, found.incarnation) == (3, "incarnation")
    await store.close()


async def test_strays_are_removed_and_foreign_files_are_not() -> None:
    disk = MemoryDisk()
    store = open_store(disk)
    await store.close()
    for name in ("log-99999999", "ledgers-00000077", "superblock.new", "cookie"):
        disk.open(name, create=True)
    store = open_store(disk)
    assert [name for name in disk.names() if not name.startswith("log-0")] == ["cookie", RESERVE, NAME, TAIL]
    await store.close()


async def test_segment_size_has_limits() -> None:
    from buckram.errors import ConfigError

    with pytest.raises(ConfigError, match="segment_bytes"):
        Store.open(MemoryDisk(), small_config(segment_bytes=1000), NullStats(), random.Random(1))
