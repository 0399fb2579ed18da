"""The write lock of an SQLite file among many processes: waiting in line, and who is told to stand in the way."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.metadata.test_sqlite_processes import child, line, stops
from tests.support.polling import wait_until
from tests.support.soak import soak
from tests.support.sqlite_kit import FILE, opened

from buckram.metadata.sqlite import file_locks as sqlite_holder
from buckram.metadata.sqlite.file_locks import Holder, Wait, line_of, quick_turns

needs_proc = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who holds a lock")
CROWD = """
async def one(number):
    keys = SqliteKeys(path)
    try:
        await keys.create(f"/live/{name}-{number}", b"", ephemeral=True)
        await keys.create(f"/written/{name}-{number}", b"x")
    finally:
        await keys.close()

print("ready", flush=True)
sys.stdin.readline()
found = await asyncio.gather(*(one(number) for number in range(int(sys.argv[3]))), return_exceptions=True)
print([str(error) for error in found if error is not None], flush=True)
"""


async def test_a_crowd_that_begins_at_once_gets_in(tmp_path: Path) -> None:
    processes, each = 5, soak(100, 20)
    path = tmp_path / FILE
    async with opened(path) as keys:
        await keys.prepare()
        await keys.create("/first", b"")
        code = crowd_code()
        crowd = [
            subprocess.Popen(  # noqa: ASYNC220 - it ends below
                [sys.executable, "-c", code, str(path), str(number), str(each)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(processes)
        ]
        try:
            for process in crowd:
                assert await asyncio.to_thread(line, process) == "ready"
            began = time.monotonic()
            for process in crowd:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            assert [await asyncio.to_thread(line, process) for process in crowd] == ["[]"] * processes
            assert time.monotonic() - began < 60.0
        finally:
            for process in crowd:
                process.kill()
                process.wait()
        assert len(await keys.children("/written")) == processes * each
        assert await keys.children("/live") == []


def crowd_code() -> str:
    from tests.metadata.test_sqlite_processes import CHILD

    return CHILD.format(body="\n".join("    " + line for line in CROWD.strip().splitlines()))


BUSY = """
keys = SqliteKeys(path)
print("ready", flush=True)
number = 0
while True:
    await keys.multi([Create(f"/w/{number % 7}/{number:09d}", b"x" * 100), Create(f"/v/{number:09d}", b"y" * 200)])
    number += 1
    await asyncio.sleep(0.05)
"""


@pytest.mark.soak
@needs_proc
async def test_whoever_is_stopped_is_hardly_ever_inside_a_change(tmp_path: Path) -> None:
    """What comes of the mechanism of test_changes, for a process that makes about 40 keys a second."""
    rounds, path = 1000, tmp_path / FILE
    async with opened(path) as keys:
        await keys.prepare()
    held, rng = 0, random.Random(rounds)
    probe = sqlite3.connect(path, isolation_level=None, timeout=0.0)
    with child(path, "busy", BUSY) as process:
        assert await asyncio.to_thread(line, process) == "ready"
        for _ in range(rounds):
            await asyncio.sleep(rng.uniform(0.0, 0.02))
            process.send_signal(signal.SIGSTOP)
            stops(process)
            try:
                probe.execute("BEGIN IMMEDIATE")
                probe.execute("ROLLBACK")
            except sqlite3.OperationalError:
                held += 1
            process.send_signal(signal.SIGCONT)
    probe.close()
    assert held <= 5, f"{held} of {rounds} stops held everybody"


class Locks:
    """What looks at the holder find, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *holders: Holder | None) -> None:
        self.left = list(holders)
        monkeypatch.setattr(sqlite_holder, "held_by", lambda path: self.left.pop(0) if self.left else holders[-1])


RUNNING, OTHER, STOPPED = Holder(7, "one", False, "1"), Holder(8, "two", False, "1"), Holder(7, "one", True, "1")


def waited(progress: list[int]) -> Wait:
    wait = Wait(Path("/x.db"), 4.0, 0.0)
    for second, number in enumerate(progress):
        wait.look(float(second), number)
    return wait


def test_who_had_the_lock_all_the_time_is_named_and_nobody_healthy_is_to_be_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Locks(monkeypatch, RUNNING)
    told = waited([5, 5, 5, 5, 5]).why_stuck()
    assert "process 7 (one) has been changing it for 4 s and is running" in told
    assert "kill" not in told
    Locks(monkeypatch, STOPPED)
    assert "`kill -CONT 7`" in waited([5, 5, 5, 5]).why_stuck()


def test_a_lock_that_goes_from_hand_to_hand_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    Locks(monkeypatch, RUNNING, OTHER, RUNNING, OTHER)
    wait = waited([5, 5, 5, 5])
    assert wait.since == 3.0
    assert "process 7" not in wait.why_stuck()
    Locks(monkeypatch, RUNNING)
    assert "it is not known which" in waited([5]).why_stuck(), "one look says nothing of the time before"


def test_who_gets_things_done_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    Locks(monkeypatch, RUNNING)
    wait = waited([5, 6, 7, 8, 9])
    assert wait.since == 4.0
    assert "kill" not in wait.why_long(60.0)


def test_threads_of_a_process_try_one_at_a_time(tmp_path: Path) -> None:
    with line_of(tmp_path / "a"):
        turns: list[bool] = []

        def other(path: Path) -> None:
            turns.append(line_of(path).acquire(blocking=False))

        for name in ("a", "b"):
            thread = threading.Thread(target=other, args=(tmp_path / name,))
            thread.start()
            thread.join()
        assert turns == [False, True]
    if (pid := os.fork()) == 0:
        os._exit(0 if line_of(tmp_path / "a").acquire(blocking=False) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_quick_turns_end_with_the_last_one() -> None:
    usual = sys.getswitchinterval()
    with quick_turns():
        with quick_turns():
            assert sys.getswitchinterval() < usual / 10
        assert sys.getswitchinterval() < usual / 10
    wait_until(lambda: sys.getswitchinterval() == usual, "it stays", 5.0)
