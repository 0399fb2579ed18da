"""Several processes on one SqliteKeys file: kill -9, watches, a counter, forks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.soak import soak
from tests.support.sqlite_kit import DEADLINE_S, FILE, opened

from buckram.errors import MetadataUnavailable, NoSuchKey
from buckram.metadata.sqlite.keys import SqliteKeys

CHILD = """
import asyncio, sys
from pathlib import Path
from buckram.metadata.sqlite.keys import SqliteKeys
from buckram.errors import *
from buckram.seams import *
from buckram.types import *

async def main(path, name):
{body}

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@contextlib.contextmanager
def child(path: Path, name: str, body: str) -> Iterator[subprocess.Popen[str]]:
    """Another process; it is killed with -9 at the end, if not before."""
    code = CHILD.format(body="\n".join("    " + line for line in body.strip().splitlines()))
    process = subprocess.Popen([sys.executable, "-c", code, str(path), name], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE


REGISTER = """
keys = SqliteKeys(path)
await keys.create(f"/live/{name}", b"", ephemeral=True)
print("ready", flush=True)
await asyncio.Event().wait()
"""
WRITE = """
keys = SqliteKeys(path)
await keys.create(f"/live/{name}", b"", ephemeral=True)
print("ready", flush=True)
number = 0
while True:
    await keys.multi([Create(f"/{name}/{number:09d}/{part}", b"x" * 100) for part in "ab"])
    print(number, flush=True)
    number += 1
"""


async def test_a_killed_process_is_gone_within_100_ms_and_nothing_was_written(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        with child(path, "victim", REGISTER) as process:
            assert await asyncio.to_thread(line, process) == "ready"
            fired = asyncio.Event()
            assert await keys.children("/live", watch=fired.set) == ["victim"]
            value = asyncio.Event()
            await keys.get("/live/victim", value.set)
            before = path.with_name("metadata.db-wal").stat().st_size
            process.send_signal(signal.SIGKILL)
            process.wait()
            died = time.monotonic()
            async with asyncio.timeout(DEADLINE_S):
                await fired.wait()
                await value.wait()
            # The promise is 100 ms; a machine that is busy with other tests gets ten times that.
            assert time.monotonic() - died < 1.0
            assert await keys.children("/live") == []
            with pytest.raises(NoSuchKey):
                await keys.get("/live/victim")
            assert path.with_name("metadata.db-wal").stat().st_size == before, "noticing must not write"
            await keys.create("/live/victim", b"", ephemeral=True)
            assert len(list(path.with_name("metadata.db.sessions").iterdir())) == 1, "the dead session was swept"


async def test_a_change_by_another_store_fires_a_watch_soon(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"")
        fired = asyncio.Event()
        await keys.get("/a", fired.set)
        started = time.monotonic()
        other = SqliteKeys(path)
        await other.set("/a", b"1", 0)
        async with asyncio.timeout(DEADLINE_S):
            await fired.wait()
        assert time.monotonic() - started < 1.0
        await other.close()


async def test_a_stopped_process_stays_registered(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        with child(path, "paused", REGISTER) as process:
            assert await asyncio.to_thread(line, process) == "ready"
            process.send_signal(signal.SIGSTOP)
            assert await keys.children("/live") == ["paused"]
            await keys.create("/any", b"")
            assert await keys.children("/live") == ["paused"]


async def test_kill_9_at_any_time_leaves_a_usable_store(path: Path) -> None:
    """Writers are killed while they write; whatever they were told is there, and no multi is there by half."""
    rounds = soak(40, 6)
    async with opened(path) as keys:
        await keys.prepare()
        for number in range(rounds):
            names = [f"w{number}-{part}" for part in range(2)]
            with contextlib.ExitStack() as stack:
                writers = [stack.enter_context(child(path, name, WRITE)) for name in names]
                told = [-1, -1]
                for index, writer in enumerate(writers):
                    assert await asyncio.to_thread(line, writer) == "ready"
                    for _ in range(3 + 7 * number % 23):
                        told[index] = int(await asyncio.to_thread(line, writer))
                for writer in writers:
                    writer.send_signal(signal.SIGKILL)
                for index, writer in enumerate(writers):
                    rest = [text for text in (writer.stdout or ()) if text.endswith("\n")]
                    told[index] = int(rest[-1]) if rest else told[index]
            for name, last in zip(names, told, strict=True):
                there = await keys.children(f"/{name}", limit=10_000)
                assert len(there) in (last + 1, last + 2), "what was acknowledged, and at most one more"
                for entry in there[-2:]:
                    assert await keys.children(f"/{name}/{entry}") == ["a", "b"]
            assert await keys.children("/live") == []
        for number in range(10):  # every few changes somebody looks for sessions that ended
            await keys.create(f"/after/{number}", b"")
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert check.execute("SELECT count(*) FROM sessions").fetchone() == (0,)
    check.close()


async def test_many_processes_share_one_counter(path: Path) -> None:
    body = """
keys = SqliteKeys(path)
done = 0
while done < 40:
    found = await keys.get("/counter")
    try:
        await keys.set("/counter", b"%d" % (int(found.value) + 1), found.version)
        done += 1
    except VersionConflict:
        pass
print("done", flush=True)
"""
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/counter", b"0")
        with contextlib.ExitStack() as stack:
            processes = [stack.enter_context(child(path, str(number), body)) for number in range(3)]
            for process in processes:
                assert await asyncio.to_thread(line, process) == "done"
        assert (await keys.get("/counter")).value == b"120"


async def test_several_processes_may_prepare_at_once(path: Path) -> None:
    body = """
keys = SqliteKeys(path)
await keys.prepare()
await keys.create(f"/made/{name}", b"")
print("done", flush=True)
"""
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(child(path, str(number), body)) for number in range(3)]
        for process in processes:
            assert await asyncio.to_thread(line, process) == "done"
    async with opened(path) as keys:
        assert await keys.children("/made") == ["0", "1", "2"]


async def test_a_forked_child_may_not_use_the_store_nor_keep_the_session_alive(path: Path) -> None:
    body = """
import os
keys = SqliteKeys(path)
await keys.create("/live/parent", b"", ephemeral=True)
pid = os.fork()
if pid == 0:
    try:
        await keys.get("/live/parent")
        print("used", flush=True)
    except ForkedClient:
        await keys.close()
        print("refused", os.getpid(), flush=True)
    import signal
    signal.pause()
await keys.get("/live/parent")
await asyncio.Event().wait()
"""
    async with opened(path) as keys:
        await keys.prepare()
        with child(path, "parent", body) as process:
            refused, grandchild = (await asyncio.to_thread(line, process)).split()
            try:
                assert refused == "refused"
                fired = asyncio.Event()
                assert await keys.children("/live", watch=fired.set) == ["parent"]
                process.kill()
                process.wait()
                async with asyncio.timeout(DEADLINE_S):
                    await fired.wait()
                assert await keys.children("/live") == []
                os.kill(int(grandchild), 0)
            finally:
                os.kill(int(grandchild), signal.SIGKILL)


STOPPED = """
import os, signal, sqlite3
db = sqlite3.connect(path, isolation_level=None)
db.execute("BEGIN IMMEDIATE")
db.execute("UPDATE keys SET value=x'00' WHERE name='a'")
print("inside", flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
db.execute("COMMIT")
print("done", flush=True)
"""


def stops(process: subprocess.Popen[str]) -> None:
    """Wait until it has stopped itself."""
    deadline = time.monotonic() + DEADLINE_S
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who holds a lock")
async def test_process_stopped_inside_a_write_blocks_no_reads_and_is_named(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"old")
    keys = SqliteKeys(path, busy_timeout_s=1.0)
    try:
        with child(path, "stopped", STOPPED) as process:
            assert await asyncio.to_thread(line, process) == "inside"
            await asyncio.to_thread(stops, process)
            change = asyncio.ensure_future(keys.create("/b", b""))
            reads = 0
            while not change.done():
                began = time.monotonic()
                assert (await keys.get("/a")).value == b"old"
                assert time.monotonic() - began < 0.9, "a read waited for the change"
                reads += 1
            assert reads >= 3
            with pytest.raises(MetadataUnavailable, match=f"kill -CONT {process.pid}.*kill -9 {process.pid}"):
                await change
            with pytest.raises(NoSuchKey):
                await keys.get("/b")
            # Let go in time: who waits gets through.
            change = asyncio.ensure_future(keys.create("/b", b""))
            process.send_signal(signal.SIGCONT)
            assert await asyncio.to_thread(line, process) == "done"
            assert await change == 0
            assert (await keys.get("/a")).value == b"\0"
    finally:
        await keys.close()


async def test_a_process_that_is_killed_inside_a_change_is_in_nobodys_way(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/a", b"old")
        with child(path, "stopped", STOPPED) as process:
            assert await asyncio.to_thread(line, process) == "inside"
            await asyncio.to_thread(stops, process)
            change = asyncio.ensure_future(keys.create("/b", b""))
            process.kill()
            assert await change == 0
            assert (await keys.get("/a")).value == b"old"


async def test_closing_does_not_wait_for_a_process_that_was_stopped(path: Path) -> None:
    async with opened(path) as keys:
        await keys.prepare()
    keys = SqliteKeys(path, busy_timeout_s=30.0)
    with child(path, "stopped", STOPPED) as process:
        assert await asyncio.to_thread(line, process) == "inside"
        await asyncio.to_thread(stops, process)
        change = asyncio.ensure_future(keys.create("/b", b""))
        assert await keys.children("/") == []
        async with asyncio.timeout(DEADLINE_S):
            await keys.close()
        with pytest.raises(MetadataUnavailable, match="closed"):
            await change
