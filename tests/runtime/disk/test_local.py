"""LocalDisk on real files: what the seam promises, in each mode."""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.store_kit import NullStats, add, durable, read, stored

from buckram.bookie.storage.segments.file_cache import OpenFiles
from buckram.bookie.storage.store import Store
from buckram.config import StoreConfig
from buckram.errors import ConfigError
from buckram.runtime.disk.local import MODES, LocalDisk
from buckram.seams import File, Read, Write


async def write(disk: LocalDisk, *writes: Write) -> OSError | None:
    future: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    disk.write(writes, future.set_result)
    return await future


async def zeros(directory: Path, size: int) -> tuple[LocalDisk, File]:
    """A disk with one file of so many."""
    disk = LocalDisk(directory)
    file = disk.open("a", create=True)
    assert await write(disk, Write(file, 0, [bytes(size)])) is None
    return disk, file


async def fetched(disk: LocalDisk, reads: list[Read]) -> list[bytes] | OSError:
    future: asyncio.Future[list[bytes] | OSError] = asyncio.get_running_loop().create_future()
    disk.read(reads, future.set_result)
    return await future


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("direct", [False, True])
async def test_what_is_written_is_read(tmp_path: Path, mode: str, direct: bool) -> None:
    disk = LocalDisk(tmp_path, mode)
    file = disk.open("a", create=True, size=1 << 20, direct=direct)
    assert file.size() == 1 << 20
    unit = disk.alignment
    pieces = [os.urandom(unit), bytearray(os.urandom(3 * unit)), memoryview(os.urandom(2 * unit))]
    assert await write(disk, Write(file, unit, pieces), Write(file, 20 * unit, [b"z" * unit])) is None
    memory = memoryview(mmap.mmap(-1, 1 << 16))
    memory[:] = os.urandom(1 << 16)
    assert await write(disk, Write(file, 1 << 17, [memory])) is None
    big = os.urandom(3 << 20)
    disk.write_now([Write(file, 1 << 20, [big])])
    assert file.read(unit, 6 * unit) == b"".join(pieces)
    future: asyncio.Future[list[bytes] | OSError] = asyncio.get_running_loop().create_future()
    reads = [Read(file, unit, 10), Read(file, 20 * unit, 5), Read(file, 1 << 17, 1 << 16)]
    reads.append(Read(file, (4 << 20) - 5, 99))
    disk.read(reads, future.set_result)
    assert await future == [pieces[0][:10], b"zzzzz", bytes(memory), big[-5:]]
    again = disk.open("a")
    assert again.read(1 << 20, 3 << 20) == big
    for one in (file, again):
        one.close()
    disk.close()


async def test_names(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path / "new" / "directory")
    disk.open("a", create=True).close()
    with pytest.raises(FileExistsError):
        disk.open("a", create=True)
    with pytest.raises(FileNotFoundError):
        disk.open("b")
    disk.rename("a", "b")
    disk.sync_names()
    disk.lock()
    assert disk.names() == ["b"]
    disk.remove("b")
    assert disk.names() == []
    assert 0 < disk.space().free_bytes <= disk.space().total_bytes
    disk.close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    disk.lock()
    disk.lock()
    code = f"from buckram.runtime.disk.local import LocalDisk; LocalDisk({str(tmp_path)!r}).lock()"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert f"directory {tmp_path} is in use by another process" in other.stderr
    disk.close()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_mode(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="adaptive, inline, thread"):
        LocalDisk(tmp_path, "fast")


async def test_no_space_and_failed_syncs_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LocalDisk(tmp_path)
    with pytest.raises(OSError, match=r"No space|too large") as caught:
        disk.open("huge", create=True, size=1 << 50)
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert disk.names() == []
    file = disk.open("a", create=True)

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "fdatasync", full)
    error = await write(disk, Write(file, 0, [b"x"]))
    assert error is not None
    assert error.errno == errno.EIO
    file.close()
    disk.close()


async def test_adaptive_leaves_the_loop_while_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = LocalDisk(tmp_path)
    file = disk.open("a", create=True)
    clock = [0.0]
    step = [0.01]

    def tick() -> float:
        clock[0] += step[0]
        return clock[0]

    monkeypatch.setattr("buckram.runtime.disk.local.time.perf_counter", tick)

    async def inline() -> bool:
        told: list[bool] = []
        done = asyncio.Event()

        def finished(error: OSError | None) -> None:
            told.append(error is None)
            done.set()

        disk.write([Write(file, 0, [b"x"])], finished)
        at_once = told == [True]
        await done.wait()
        return at_once

    assert await inline()
    for _ in range(5):
        await inline()
    assert not await inline()
    step[0] = 0.00001
    for _ in range(100):
        await inline()
    assert await inline()
    file.close()
    disk.close()


@pytest.mark.parametrize("page_cache", [True, False])
async def test_reads_give_all_wherever_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page_cache: bool
) -> None:
    if not page_cache:
        monkeypatch.setattr("buckram.runtime.disk.local_files._NOWAIT", 0)
    pages = [bytes([number]) * 4096 for number in range(100)]
    for mode in ("adaptive", "inline", "thread"):
        disk = LocalDisk(tmp_path / mode, mode)
        file = disk.open("a", create=True)
        assert await write(disk, Write(file, 0, pages)) is None
        wanted = [Read(file, 4096 * number, 4096) for number in (*range(0, 100, 3), 7)]
        assert await fetched(disk, wanted) == [pages[read.offset // 4096] for read in wanted]
        file.close()
        disk.close()


async def test_small_reads_run_on_the_loop_for_a_bounded_time_on_a_fast_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buckram.runtime.disk.local_files._NOWAIT", 0)
    now, takes = [0.0], [0.0001]

    def tick() -> float:
        now[0] += takes[0]
        return now[0]

    monkeypatch.setattr("buckram.runtime.disk.local_files.time.perf_counter", tick)
    disk, file = await zeros(tmp_path, 4096)

    async def turns(count: int) -> int:
        """After how many turns of the loop so many reads were answered."""
        future: asyncio.Future[list[bytes] | OSError] = asyncio.get_running_loop().create_future()
        disk.read([Read(file, 64 * number, 64) for number in range(count)], future.set_result)
        turn = 0
        while not future.done():
            turn += 1
            await asyncio.sleep(0)
        assert future.result() == [bytes(64)] * count
        return turn

    assert await turns(15) == 1, "the device begins with them, the loop first looks at what else there is"
    assert await turns(50) == 3, "after 2 ms others have their turn"
    takes[0] = 0.01
    await turns(8)
    assert await turns(4), "a thread waits for a slow device"
    takes[0] = 0.00001
    for _ in range(100):
        await turns(4)
    assert await turns(4) > 1, "what did not wait for the device says nothing about it"
    takes[0] = 0.0001
    for _ in range(30):
        await turns(4)
    assert await turns(4) == 1
    file.close()
    disk.close()


async def test_the_device_is_told_of_every_small_read_before_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buckram.runtime.disk.local_files._NOWAIT", 0)
    told, read, tell = list[int](), os.pread, os.posix_fadvise
    early: list[bool] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, *rest: told.append(at) or tell(fd, at, *rest))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: early.append(at not in told) or read(fd, size, at))
    disk, file = await zeros(tmp_path, 4096 * 256)
    early.clear()
    assert await fetched(disk, [Read(file, 4096 * number, 64) for number in range(256)]) == [bytes(64)] * 256
    assert early == [False] * 256
    assert sorted(told) == [4096 * number for number in range(256)]
    file.close()
    disk.close()


async def test_a_file_that_is_forgotten_is_closed_after_those_who_hold_it(tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path)
    disk.open("a", create=True).close()
    files = OpenFiles(disk)
    first, again = files.hold("a"), files.hold("a")
    assert again is first
    files.forget("a")
    assert first.size() == 0
    files.release("a")
    assert first.size() == 0
    files.release("a")
    with pytest.raises(OSError, match="Bad file descriptor"):
        first.size()
    last = files.hold("a")
    files.forget("a")
    files.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        last.size()
    disk.close()


def test_small_reads_of_a_loop_that_ended_do_not_hold_up_those_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("buckram.runtime.disk.local_files._NOWAIT", 0)
    disk = LocalDisk(tmp_path)
    file = disk.open("a", create=True)

    async def unheard() -> None:
        assert await write(disk, Write(file, 0, [bytes(4096)])) is None
        disk.read([Read(file, 0, 64)], lambda outcome: None)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(unheard())
    loop.close()

    async def heard() -> None:
        async with asyncio.timeout(10):
            assert await fetched(disk, [Read(file, 0, 64)]) == [bytes(64)]

    asyncio.run(heard())
    file.close()
    disk.close()


async def test_offload_is_waited_for_even_when_cancelled(tmp_path: Path) -> None:
    import threading

    disk = LocalDisk(tmp_path)
    assert await disk.offload(lambda: 7) == 7
    go, ended = threading.Event(), []

    def job() -> None:
        go.wait(5)
        ended.append(True)

    task = asyncio.ensure_future(disk.offload(job))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [True]
    disk.close()


@pytest.mark.parametrize("mode", MODES)
async def test_a_store_on_it(tmp_path: Path, mode: str) -> None:
    disk = LocalDisk(tmp_path, mode)
    config = StoreConfig(segment_bytes=1 << 20, tail_cache_bytes=1 << 20, commit_max_bytes=1 << 18)
    store = Store.open(disk, config, NullStats(), random.Random(1))
    content = {}
    rng = random.Random(2)
    for entry in range(600):
        for ledger in range(3):
            payload = rng.randbytes(rng.choice((1, 1000, 5000)))
            add(store, ledger, entry, [payload])
            content[ledger, entry] = stored(ledger, entry, -1, payload)
        if entry % 20 == 0:
            assert await durable(store) is None
    assert await durable(store) is None
    async with asyncio.timeout(20):
        while store.stats()["sealed_segments"] < 3:
            await disk.offload(lambda: None)
    keys = sorted(content, key=lambda key: rng.random())
    for _ in range(2):
        assert await read(store, *keys) == [content[key] for key in keys]
        await store.close()
        disk.close()
        disk = LocalDisk(tmp_path, mode)
        store = Store.open(disk, config, NullStats(), random.Random(1))
    for ledger in range(2):
        store.delete_ledger(ledger)
    await store.compact()
    assert await read(store, *keys) == [content[key] if key[0] == 2 else None for key in keys]
    await store.close()
    disk.close()
