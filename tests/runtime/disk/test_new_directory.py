"""Directories that a start made in vain are removed again; what was there before stays."""

from __future__ import annotations

import fcntl
from contextlib import suppress
from pathlib import Path

from buckram.runtime.disk.new_directory import removed_on_failure


def failing(path: Path, *names: str, lock: str = "", whole: bool = False, unless: str = "") -> None:
    with suppress(OSError), removed_on_failure(path, lock=lock, whole=whole, unless=unless):
        path.mkdir(parents=True, exist_ok=True)
        for name in names:
            (path / name).write_text("x")
        raise OSError("no")


def test_what_was_made_goes_with_the_lock(tmp_path: Path) -> None:
    failing(tmp_path / "a" / "b" / "c", "lock", lock="lock")
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays(tmp_path: Path) -> None:
    failing(tmp_path, "lock", lock="lock", whole=True)
    assert (tmp_path / "lock").exists()
    (tmp_path / "a").mkdir()
    failing(tmp_path / "a" / "b", whole=True)
    assert list(tmp_path.glob("a/*")) == []
    assert (tmp_path / "a").is_dir()


def test_a_file_keeps_its_directory_unless_all_of_it_goes(tmp_path: Path) -> None:
    failing(tmp_path / "a", "VERSION.new", "lock", lock="lock")
    assert (tmp_path / "a" / "VERSION.new").exists()
    failing(tmp_path / "b", "log", "lock", lock="lock", whole=True)
    assert not (tmp_path / "b").exists()
    failing(tmp_path / "c", "cluster.json", whole=True, unless="cluster.json")
    assert (tmp_path / "c" / "cluster.json").exists()


def test_a_directory_that_another_process_has_by_now_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with suppress(OSError), removed_on_failure(path, lock="lock", whole=True):
        path.mkdir()
        other = (path / "lock").open("w")
        fcntl.flock(other, fcntl.LOCK_EX)
        raise OSError("no")
    assert (path / "lock").exists()
    other.close()


def test_success_removes_nothing(tmp_path: Path) -> None:
    with removed_on_failure(tmp_path / "a", whole=True):
        (tmp_path / "a").mkdir()
    assert (tmp_path / "a").is_dir()
