"""Compiled modules in archives: they are what is imported, and an archive is written once."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from buckram.spark.archives import compile_archives


@pytest.fixture
def library(tmp_path: Path) -> Path:
    with zipfile.ZipFile(tmp_path / "part.zip", "w") as made:
        made.writestr("part/__init__.py", "")
        made.writestr("part/module.py", "VALUE = 7\ndef place():\n    return place.__code__.co_filename\n")
        made.writestr("part/tests/broken.py", "this is no Python\n")
        made.writestr("part/data.txt", "kept")
    return tmp_path


def imported(archive: Path, tell: str = "print(m.__file__, m.VALUE)") -> str:
    command = f"import part.module as m; {tell}"
    return subprocess.run(
        [sys.executable, "-c", command], env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_compiled_modules_are_imported_and_nothing_else_changes(library: Path) -> None:
    archive = library / "part.zip"
    assert imported(archive).endswith("module.py 7")
    assert compile_archives(library) == [archive]
    assert imported(archive).endswith("module.pyc 7")
    with zipfile.ZipFile(archive) as found:
        assert found.read("part/data.txt") == b"kept"
        assert "part/tests/broken.pyc" not in found.namelist()
    before = archive.stat().st_mtime_ns
    assert compile_archives(library) == []
    assert archive.stat().st_mtime_ns == before


def test_a_traceback_names_the_places_of_the_sources(library: Path) -> None:
    """PySpark shows users no frame of its own: it tells them by their places."""
    archive = library / "part.zip"
    before = imported(archive, "print(m.place())")
    compile_archives(library)
    assert imported(archive, "print(m.place())") == before == f"{archive}/part/module.py"


def test_what_another_python_compiled_is_compiled_again(library: Path) -> None:
    archive = library / "part.zip"
    with zipfile.ZipFile(archive, "a") as made:
        made.writestr("part/module.pyc", b"none of ours")
    assert compile_archives(library) == [archive]
    assert imported(archive).endswith("module.pyc 7")


def test_an_archive_that_cannot_be_compiled_is_left_as_it_is(library: Path) -> None:
    archive = library / "part.zip"
    with zipfile.ZipFile(archive, "a") as made:
        made.writestr("part/wrong.py", "def\n")
    before = archive.read_bytes()
    with pytest.raises(Exception, match="invalid syntax"):
        compile_archives(library)
    assert archive.read_bytes() == before
    assert [path.name for path in library.iterdir()] == ["part.zip"]
