"""Directories of databases: those of dead processes go, those of living ones stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from buckram.state.db.table_engine import directories
from buckram.state.db.table_engine.directories import Directory

_HOLD = """
import os, pathlib, sys
from buckram.state.db.table_engine.directories import Directory
held = Directory(pathlib.Path(sys.argv[1]))
print(held.path, flush=True)
"""


def _made_by_another(parent: Path, then: str) -> tuple[subprocess.Popen[str], Path]:
    command = [sys.executable, "-c", _HOLD + then, str(parent)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_directories_of_dead_processes_are_removed_and_others_stay(tmp_path: Path) -> None:
    dead, left = _made_by_another(tmp_path, "os._exit(1)")
    dead.wait()
    alive, used = _made_by_another(tmp_path, "sys.stdin.read()")
    try:
        begun = tmp_path / "buckram-db-begun"
        begun.mkdir()
        directories._swept.discard(str(tmp_path))
        own = Directory(tmp_path)
        assert own.sweep() == 1
        assert own.sweep() == 0
        assert sorted(tmp_path.iterdir()) == sorted([used, begun, own.path])
        assert not left.exists()
        own.close()
        own.close()
        assert not own.path.exists()
    finally:
        alive.communicate("")
