"""Places of history: files are whole and durable before they have their names; only files of history are touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from buckram.core.streams.external.history import manifest_file, part_file
from buckram.errors import NoSuchEntry, ReadFailed, WriteFailed
from buckram.streams.shared.locations import FileLocation

FILE = part_file(0, 7, 0)


def test_a_file_is_durable_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[str] = []
    sync, replace = os.fsync, os.replace

    def note_sync(number: int) -> None:
        did.append(f"sync {os.path.basename(os.readlink(f'/proc/self/fd/{number}'))}")
        sync(number)

    def note_replace(source: str, target: str) -> None:
        did.append(f"name {os.path.basename(target)}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(os, "replace", note_replace)
    place = FileLocation(f"{tmp_path}/shop/s/uid")
    place.write(FILE, b"bytes", 7)
    above = ["sync s", "sync shop", f"sync {tmp_path.name}"]
    assert did == [*above, f"sync .{FILE}.unfinished", f"name {FILE}", "sync uid"]
    assert place.read(FILE, 7) == b"bytes"


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_files_are_listed_and_removed_by_their_segment(tmp_path: Path, scheme: str) -> None:
    if scheme == "memory://":
        pytest.importorskip("fsspec")
    place = FileLocation(f"{scheme}{tmp_path}/shop/s/uid")
    assert place.files() == []
    mine = [FILE, part_file(0, 7, 1), manifest_file(0, 7)]
    for name in (*mine, part_file(5, 8, 0), "README.txt"):
        place.write(name, b"x", 7)
    assert set(place.files()) == {*mine, part_file(5, 8, 0)}
    assert place.remove(7) == 3
    assert place.remove(7) == 0
    assert place.files() == [part_file(5, 8, 0)]
    with pytest.raises(NoSuchEntry, match="missing"):
        place.read(FILE, 7)
    place.remove(8)
    with pytest.raises(ReadFailed, match="away"):
        place.read(FILE, 7)


@pytest.mark.parametrize("there", ["", "default", "default/orders", "default/orders/uid"])
def test_the_names_of_all_directories_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str) -> None:
    """Also of those that another process has made, and died before it had synced them."""
    root, sync, synced = tmp_path / "history", os.fsync, dict[str, None]()
    (root / there).mkdir(parents=True)

    def note_sync(number: int) -> None:
        synced[os.readlink(f"/proc/self/fd/{number}")] = None
        sync(number)

    monkeypatch.setattr(os, "fsync", note_sync)
    FileLocation(f"{root}/default/orders/uid").write(FILE, b"x", 7)
    assert {str(root / part) for part in ("", "default", "default/orders", "default/orders/uid")} <= set(synced)


def test_files_that_are_removed_do_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks for them again, so the caller is told while a loss of power could bring them back."""
    place, sync, fails = FileLocation(f"{tmp_path}/shop/s/uid"), os.fsync, [True]
    place.write(FILE, b"x", 7)
    place.write(part_file(5, 8, 0), b"x", 8)

    def sync_or_fail(number: int) -> None:
        if fails.pop() if fails else False:
            raise OSError(5, "Input/output error")
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{number}")))
        sync(number)

    synced = list[str]()
    monkeypatch.setattr(os, "fsync", sync_or_fail)
    with pytest.raises(WriteFailed, match="cannot be deleted"):
        place.remove(7)
    assert place.remove(7) == 0
    assert synced == ["uid"]


@pytest.mark.parametrize("scheme", ["", "file://", "memory://"])
def test_a_large_file_is_copied_under_its_name(tmp_path: Path, scheme: str) -> None:
    if scheme == "memory://":
        pytest.importorskip("fsspec")
    source, place = tmp_path / "source", FileLocation(f"{scheme}{tmp_path}/there", "backups")
    source.write_bytes(os.urandom(3_000_000))
    for _ in range(2):  # One of the same name is replaced.
        place.put("copy.db", str(source))
    assert place.names() == ["copy.db"]
    assert place.read("copy.db", -1) == source.read_bytes()


def test_a_copy_that_fails_leaves_nothing_and_says_of_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, place = tmp_path / "source", FileLocation(f"{tmp_path}/there", "backups")
    source.write_bytes(b"x" * 5000)

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(WriteFailed, match=f"its backups cannot be written to {tmp_path}/there: .*No space left"):
            place.put("copy.db", str(source))
    assert place.names() == []


def test_a_local_directory_that_is_not_there_is_away(tmp_path: Path) -> None:
    FileLocation(str(tmp_path)).check_there()
    FileLocation("memory://bucket/none").check_there()
    with pytest.raises(ReadFailed, match=f"backups at {tmp_path}/none is away: there is no such directory"):
        FileLocation(f"{tmp_path}/none", "backups").check_there()


def test_a_location_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(WriteFailed, match=f"{tmp_path}/file"):
        FileLocation(f"{tmp_path}/file/shop").write(FILE, b"x", 7)


def test_an_unknown_kind_of_location_is_an_error_that_names_it() -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(ReadFailed, match="nosuchkind://x"):
        FileLocation("nosuchkind://x").read(FILE, 7)


def test_of_two_who_create_a_file_at_once_one_has_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, link, unfinished = FileLocation(f"{tmp_path}/table/metadata"), os.link, list[str]()

    def second_comes_first(source: str, target: str) -> None:
        unfinished.append(source)
        if len(unfinished) == 1:
            assert place.create("v1.metadata.json", b"the second one's")
        link(source, target)

    monkeypatch.setattr(os, "link", second_comes_first)
    assert not place.create("v1.metadata.json", b"the first one's")
    assert len(set(unfinished)) == 2  # Neither can write into what the other one publishes.
    assert place.read("v1.metadata.json", -1) == b"the second one's"
    assert place.names() == ["v1.metadata.json"]


def test_an_attempt_that_was_swept_away_was_too_late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, link = FileLocation(f"{tmp_path}/table/metadata"), os.link

    def swept(source: str, target: str) -> None:
        os.unlink(source)
        Path(target).write_bytes(b"another one's")
        link(source, target)

    monkeypatch.setattr(os, "link", swept)
    assert not place.create("v1.metadata.json", b"mine")
    assert place.read("v1.metadata.json", -1) == b"another one's"
