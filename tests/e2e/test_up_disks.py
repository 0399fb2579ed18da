"""`buckram up --disks`: one bookie for each disk, found again by the second `up`; a disk that is missing is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram

pytestmark = pytest.mark.share(10, "clusters")


def disks(tmp_path: Path, *names: str) -> str:
    for name in names:
        (tmp_path / name).mkdir(exist_ok=True)
    return ",".join(str(tmp_path / name) for name in names)


def test_each_disk_has_its_bookie_and_a_second_up_finds_them(tmp_path: Path) -> None:
    first = Up(tmp_path / "data", "--disks", disks(tmp_path, "a", "b"), "--bookies", 3)
    try:
        assert [one["id"] for one in first.ready["bookies"]] == ["bookie-1", "bookie-2", "bookie-3"]
        wrote = buckram("ledger", "write", "--ensemble", "3/3/2", "--close", uri=first.uri, stdin=b"kept\n")
        assert wrote.code == 0, wrote.err
    finally:
        assert first.stop() == 0
    for place in ("a/bookie-1", "b/bookie-2", "a/bookie-3"):
        assert (tmp_path / place / "superblock").is_file()
    assert not [one for one in (tmp_path / "data").glob("bookie-*") if one.is_dir()]
    assert (tmp_path / "data" / "bookie-1.log").is_file()  # not on the disk that may fail
    again = Up(tmp_path / "data")
    try:
        assert [one["id"] for one in again.ready["bookies"]] == ["bookie-1", "bookie-2", "bookie-3"]
        assert buckram("ledger", "read", 0, uri=again.uri).out == "kept\n"
    finally:
        again.stop()
    # More bookies go to the disks that are named now; those that are there stay where they are.
    more = Up(tmp_path / "data", "--disks", disks(tmp_path, "a", "b", "c", "d"), "--bookies", 4)
    try:
        assert len(more.ready["bookies"]) == 4
        assert (tmp_path / "d" / "bookie-4" / "superblock").is_file()
        assert not list((tmp_path / "c").iterdir())
    finally:
        more.stop()


def test_a_disk_that_is_missing_is_named_and_the_others_start(tmp_path: Path) -> None:
    first = Up(tmp_path / "data", "--disks", disks(tmp_path, "a", "b", "c"))
    assert len(first.ready["bookies"]) == 3
    first.stop()
    (tmp_path / "b").rename(tmp_path / "unmounted")
    again = Up(tmp_path / "data")
    try:
        assert [one["id"] for one in again.ready["bookies"]] == ["bookie-1", "bookie-3"]
        assert again.ready["not_started"] == ["bookie-2"]
        assert not (tmp_path / "b").exists()
    finally:
        again.stop()
    err = again.said
    assert f"bookie-2 is not started: its disk {tmp_path / 'b'} is not there. Mount it" in err
    (tmp_path / "unmounted").rename(tmp_path / "b")
    back = Up(tmp_path / "data")
    try:
        assert len(back.ready["bookies"]) == 3
    finally:
        back.stop()


@pytest.mark.parametrize("given", ["{a},{a}", "{a},{missing}", "{a},", "{a},{a}/../a"])
def test_disks_that_cannot_be_used_are_refused(tmp_path: Path, given: str) -> None:
    disks(tmp_path, "a")
    named = given.format(a=tmp_path / "a", missing=tmp_path / "missing")
    refused = buckram("up", "--data", tmp_path / "data", "--disks", named)
    assert refused.code == 2
    assert f"--disks {named}: " in refused.err
    assert not list((tmp_path / "a").iterdir())


def test_a_release_that_does_not_know_disks_does_not_know_the_description(tmp_path: Path) -> None:
    """It would look for the bookies where they are not, and start them empty."""
    from buckram.cli.up.cluster_directory import FORMATS, ClusterDirectory

    place = ClusterDirectory(tmp_path, disks=[tmp_path / "a"])
    place.place(2)
    place.bookies = 2
    place.write()
    assert json.loads((tmp_path / "cluster.json").read_text())["format_version"] not in FORMATS.values()
    assert ClusterDirectory.read(tmp_path) == place
