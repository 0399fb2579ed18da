"""Syncs on platforms where fsync is enough, and where it is not. F_FULLFSYNC is played by a recorder of calls."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
from pathlib import Path

import pytest

import buckram
from buckram.metadata.sqlite.database_file import connect, prepare
from buckram.runtime.disk import syncing
from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.disk.syncing import sync_data, sync_directory, sync_file
from buckram.seams import Read, Write

F_FULLFSYNC = 51
"""Its number on macOS."""


class Calls(list[str]):
    """The syncs that are asked of the system, in order."""

    answer: OSError | None = None

    def full(self, fd: int, command: int) -> int:
        assert command == F_FULLFSYNC
        self.append("full")
        if self.answer is not None:
            raise self.answer
        return 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()
    monkeypatch.setattr(os, "fsync", lambda fd: found.append("fsync"))
    monkeypatch.setattr(os, "fdatasync", lambda fd: found.append("fdatasync"), raising=False)
    return found


@pytest.fixture
def macos(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Calls:
    monkeypatch.setattr(syncing, "FULL", F_FULLFSYNC)
    monkeypatch.setattr(fcntl, "fcntl", calls.full)
    for missing in ("fdatasync", "posix_fadvise", "posix_fallocate"):
        monkeypatch.delattr(os, missing)
    return calls


def every_sync(directory: Path) -> None:
    with (directory / "file").open("wb") as file:
        sync_file(file.fileno())
        sync_data(file.fileno())
    sync_directory(directory)


def test_elsewhere_fsync_is_a_sync(calls: Calls, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(syncing, "FULL", None)
    every_sync(tmp_path)
    assert calls == ["fsync", "fdatasync", "fsync"]


def test_on_macos_every_sync_waits_for_the_device(macos: Calls, tmp_path: Path) -> None:
    every_sync(tmp_path)
    assert macos == ["full", "full", "full"]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_that_does_not_know_it_gets_an_fsync(macos: Calls, tmp_path: Path, number: int) -> None:
    macos.answer = OSError(number, "not here")
    every_sync(tmp_path)
    assert macos == ["full", "fsync"] * 3


def test_a_sync_that_fails_is_not_tried_in_another_way(macos: Calls, tmp_path: Path) -> None:
    macos.answer = OSError(errno.EIO, "the device is broken")
    with pytest.raises(OSError, match="broken"):
        every_sync(tmp_path)
    assert macos == ["full"]


async def test_a_bookies_disk_does_without_what_macos_has_not(macos: Calls, tmp_path: Path) -> None:
    disk = LocalDisk(tmp_path, "inline")
    file = disk.open("log", create=True, size=4096)
    before = len(macos)
    disk.write_now([Write(file, 0, [b"x" * 512])])
    disk.sync_names()
    assert macos[before:] == ["full", "full"]
    assert set(macos) == {"full"}
    found: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    disk.read([Read(file, 0, 512)], found.set_result)
    assert await found == [b"x" * 512]
    file.close()
    disk.close()


def test_sqlite_is_told_to_wait_for_the_device(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    prepare(path, 1.0)
    db = connect(path, 1.0)
    assert db.execute("PRAGMA fullfsync").fetchone() == (1,)
    db.close()


def test_nothing_else_syncs() -> None:
    (package,) = buckram.__path__
    calling = [
        path.relative_to(package).as_posix()
        for path in Path(package).rglob("*.py")
        if re.search(r"\bos\.(fsync|fdatasync)\b", path.read_text())
    ]
    assert calling == ["runtime/disk/syncing.py"]
