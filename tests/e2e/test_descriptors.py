"""Too few file descriptors: fewer connections are accepted, files are still opened, and no ledger is in limbo."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.limited_kit import Limited, descriptors, set_limit
from tests.support.polling import wait_until

SMALL_FILES = {"BUCKRAM_STORE_SEGMENT_BYTES": str(4 << 20), "BUCKRAM_STORE_TAIL_CACHE_BYTES": str(1 << 20)}
SIZE = 64 << 10
READ_ONLY, IO_ERROR, NO_LEDGER = 105, 101, 1


@pytest.fixture
def bookies() -> Iterator[list[Limited]]:
    started: list[Limited] = []
    yield started
    for one in started:
        one.close()


@contextlib.contextmanager
def idle(bookie: Limited, count: int) -> Iterator[list[socket.socket]]:
    doors = []
    try:
        for _ in range(count):
            door = socket.create_connection((bookie.host, bookie.port), 20)
            door.setblocking(False)
            doors.append(door)
        yield doors
    finally:
        for door in doors:
            door.close()


def is_open(door: socket.socket) -> bool:
    try:
        return door.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


@pytest.mark.parametrize(("limit", "most"), [(1024, 1010), (128, 400)])
def test_idle_connections_leave_descriptors_for_files(
    tmp_path: Path, bookies: list[Limited], limit: int, most: int
) -> None:
    bookies.append(bookie := Limited(tmp_path / "b", tmp_path, files=(limit, limit), **SMALL_FILES).ready())
    with idle(bookie, most) as doors:
        wait_until(lambda: sum(map(is_open, doors)) < limit, "no connection is closed")
        # An operator of this machine still gets in, and work goes on: through several log files, and back out of them.
        peer = bookie.connect(local=True)
        for first in range(0, 448, 64):
            assert set(peer.add(1, first, 64, SIZE)) == {0}
        assert {peer.read(1, entry, SIZE) for entry in range(0, 448, 7)} == {0}
        assert len(bookie.logs()) >= 6
        left = sum(map(is_open, doors))
        assert 30 < left < limit - 48, "it takes connections, and leaves descriptors for files"
        assert descriptors(bookie.process) < limit
    said = bookie.said()
    assert f"the limit of {limit} open files leaves room for no more" in said
    assert "limbo" not in said
    assert "Traceback" not in said

    def taken() -> bool:
        with contextlib.suppress(AssertionError, OSError):
            peer = bookie.connect()
            try:
                return peer.read(1, 3, SIZE) == 0
            finally:
                peer.close()
        return False

    wait_until(taken, "no connection is accepted")  # there is room again
    peer.close()
    assert bookie.end() == 0


def test_the_soft_limit_is_raised_and_a_hard_one_that_is_too_low_is_named(
    tmp_path: Path, bookies: list[Limited]
) -> None:
    bookies.append(bookie := Limited(tmp_path / "b", tmp_path, files=(64, 2048)).ready())
    assert resource.prlimit(bookie.process.pid, resource.RLIMIT_NOFILE) == (2048, 2048)
    assert bookie.end() == 0
    bookies.append(bookie := Limited(tmp_path / "b", tmp_path, files=(64, 64)))
    assert bookie.process.wait(30) == 2
    assert "this process may have 64 open files, a bookie needs 96: raise the limit (ulimit -n" in bookie.said()


def test_a_bookie_out_of_descriptors_waits_and_recovers_without_limbo(tmp_path: Path, bookies: list[Limited]) -> None:
    bookies.append(bookie := Limited(tmp_path / "b", tmp_path, **SMALL_FILES).ready())
    peer = bookie.connect()
    for first in range(0, 320, 64):
        assert set(peer.add(1, first, 64, SIZE)) == {0}
    assert bookie.end() == 0
    bookies.append(bookie := Limited(tmp_path / "b", tmp_path, **SMALL_FILES).ready())  # with no file open to read
    peer = bookie.connect()
    assert peer.read(77, 0, SIZE) == NO_LEDGER  # it is accepted
    before = resource.prlimit(bookie.process.pid, resource.RLIMIT_NOFILE)[0]
    set_limit(bookie.process, 3)
    # What lies in files that are not open cannot be read now, which is not the same as its absence.
    assert {peer.read(1, entry, SIZE) for entry in (0, 1, 70)} <= {0, IO_ERROR}
    peer.send(1, 320, 64, SIZE)  # the file must grow for it, and a superblock say so
    wait_until(lambda: "the store is read-only" in bookie.said(), "the store is writable")
    assert "Too many open files; raise the limit of open files of this process (ulimit -n" in bookie.said()
    set_limit(bookie.process, before)
    codes = peer.codes(64)  # it goes on by itself
    assert codes[0] == 0
    assert set(codes) <= {0, READ_ONLY}
    wait_until(lambda: peer.add(1, 384, 1, SIZE) == [0], "the add is refused")
    assert {peer.read(1, entry, SIZE) for entry in range(320)} == {0}
    assert {peer.read(1, 320 + n, SIZE) for n, code in enumerate(codes) if code == 0} == {0}
    assert "limbo" not in bookie.said()
    peer.close()
    assert bookie.end() == 0


def test_files_are_opened_with_the_spare_descriptors(tmp_path: Path, bookies: list[Limited]) -> None:
    bookies.append(bookie := Limited(tmp_path / "b", tmp_path, **SMALL_FILES).ready())
    peer = bookie.connect()
    assert set(peer.add(1, 0, 8, SIZE)) == {0}
    set_limit(bookie.process, max(map(int, os.listdir(f"/proc/{bookie.process.pid}/fd"))) + 1)
    for first in range(8, 392, 64):
        wait_until(lambda: set(peer.add(1, first, 64, SIZE)) == {0}, "adds are refused")  # noqa: B023  # called at once
    assert {peer.read(1, entry, SIZE) for entry in range(392)} == {0}
    assert len(bookie.logs()) > 3
    assert "limbo" not in bookie.said()
    peer.close()
    assert bookie.end() == 0
