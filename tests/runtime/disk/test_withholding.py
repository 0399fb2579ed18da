"""The withholding disk loses exactly what was not synced: looked at from a second disk on the same directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buckram.runtime.disk.local import LocalDisk
from buckram.runtime.disk.withholding import WithholdingDisk
from buckram.seams import Write


def survivors(path: Path, name: str) -> bytes:
    """What a process that starts after a kill finds."""
    return (path / name).read_bytes()


@pytest.mark.parametrize("seed", range(20))
def test_synced_bytes_are_in_the_file_and_unsynced_ones_only_in_sectors(tmp_path: Path, seed: int) -> None:
    disk = WithholdingDisk(tmp_path, seed)
    file = disk.open("log", create=True, size=4096)
    disk.write_now([Write(file, 0, [b"a" * 1024])])
    disk.write_now([Write(file, 1024, [b"b" * 2048])], sync=False)
    assert file.read(0, 3072) == b"a" * 1024 + b"b" * 2048
    found = survivors(tmp_path, "log")
    assert found[:1024] == b"a" * 1024
    for at in range(1024, 3072, 512):
        assert found[at : at + 512] in (b"b" * 512, bytes(512))
    disk.write_now([Write(file, 0, [])])
    assert survivors(tmp_path, "log")[1024:3072] == b"b" * 2048
    disk.close()


def test_over_many_seeds_unsynced_writes_are_lost_kept_and_torn(tmp_path: Path) -> None:
    seen = set()
    for seed in range(60):
        path = tmp_path / str(seed)
        disk = WithholdingDisk(path, seed)
        file = disk.open("log", create=True, size=2048)
        disk.write_now([Write(file, 0, [b"x" * 2048])], sync=False)
        kept = survivors(path, "log").count(b"x" * 512)
        seen.add("lost" if kept == 0 else "kept" if kept == 4 else "torn")
        disk.close()
    assert seen == {"lost", "kept", "torn"}


def test_without_sync_nothing_is_durable(tmp_path: Path) -> None:
    disk = WithholdingDisk(tmp_path, 1, sync_does_nothing=True)
    file = disk.open("log", create=True, size=65536)
    disk.write_now([Write(file, n * 512, [b"x" * 512]) for n in range(100)])
    assert survivors(tmp_path, "log").count(b"x" * 512) < 60
    disk.close()


@pytest.mark.parametrize("seed", range(10))
def test_renames_and_removals_wait_for_the_sync_of_names(tmp_path: Path, seed: int) -> None:
    (tmp_path / "current").write_bytes(b"old")
    disk = WithholdingDisk(tmp_path, seed)
    temporary = disk.open("temporary", create=True)
    disk.write_now([Write(temporary, 0, [b"new"])])
    disk.rename("temporary", "current")
    assert disk.names() == ["current"]
    assert disk.open("current").read(0, 9) == b"new"
    assert survivors(tmp_path, "current") in (b"old", b"new")
    disk.sync_names()
    assert survivors(tmp_path, "current") == b"new"
    assert not os.path.exists(tmp_path / "temporary")
    disk.remove("current")
    assert disk.names() == []
    again = disk.open("current", create=True)
    assert again.size() == 0
    disk.sync_names()
    disk.close()
    assert LocalDisk(tmp_path).names() == ["current"]
