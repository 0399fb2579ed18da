"""A disk that fails on demand: no room, writes and syncs that fail, bytes that are read changed."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from buckram.runtime.disk.faulty import DiskFaults, FaultyDisk
from buckram.seams import Read, Write


async def read(disk: FaultyDisk, *reads: Read) -> list[bytes] | OSError:
    done: asyncio.Future[list[bytes] | OSError] = asyncio.get_running_loop().create_future()
    disk.read(reads, done.set_result)
    return await done


def write(disk: FaultyDisk, *writes: Write) -> OSError | None:
    found: list[OSError | None] = []
    disk.write(writes, found.append)
    return found[0]


async def test_nothing_fails_until_it_is_asked_for_and_so_often_as_asked(tmp_path: Path) -> None:
    control = tmp_path / "faults.json"
    disk = FaultyDisk(tmp_path / "data", control, "inline")
    file = disk.open("a", create=True, size=4096)
    assert write(disk, Write(file, 0, [b"kept"])) is None
    DiskFaults(1, writes=1, syncs=1).save(control)
    failed = write(disk, Write(file, 0, [b"lost"]))
    assert failed is not None
    assert failed.errno == errno.EIO
    assert "sync failed" in str(write(disk, Write(file, 4, [b"more"])))
    assert write(disk, Write(file, 4, [b"more"])) is None
    assert await read(disk, Read(file, 0, 8)) == [b"keptmore"]
    DiskFaults(2, reads=1).save(control)
    assert await read(disk, Read(file, 0, 8)) == [b"keptMore"]
    assert await read(disk, Read(file, 0, 8)) == [b"keptmore"]
    disk.close()


async def test_a_full_disk_has_no_room_and_takes_what_is_reserved(tmp_path: Path) -> None:
    control = tmp_path / "faults.json"
    disk = FaultyDisk(tmp_path / "data", control, "inline")
    file = disk.open("a", create=True, size=4096)
    assert disk.space().free_bytes > 0
    DiskFaults(1, full=True).save(control)
    assert disk.space().free_bytes == 0
    assert write(disk, Write(file, 0, [b"x"])) is None
    for attempt in (lambda: disk.open("b", create=True, size=4096), lambda: disk.extend(file, 8192)):
        with pytest.raises(OSError, match="No space") as refused:
            attempt()
        assert refused.value.errno == errno.ENOSPC
    beyond = write(disk, Write(file, 4096, [b"x"]))
    assert beyond is not None
    assert beyond.errno == errno.ENOSPC
    DiskFaults(2).save(control)
    assert disk.space().free_bytes > 0
    disk.extend(file, 8192)
    disk.close()
