"""The counting of changes itself: what is one, in which order, and that a process dies before it and not after."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.kills.harness import changes_in, watching

PROGRAM = """
import os, pathlib, sqlite3, sys
root = pathlib.Path(sys.argv[1])
(root / "folder").mkdir()
(root / "folder" / "file.new").write_text("content")
(root / "folder" / "file.new").rename(root / "folder" / "file")
(root / "folder" / "file").read_text()
db = sqlite3.connect(sys.argv[1] + "/store.db", isolation_level=None)
db.execute("CREATE TABLE kept (value)")
db.execute("BEGIN")
db.execute("INSERT INTO kept VALUES (1)")
db.execute("INSERT INTO kept VALUES (2)")
db.execute("COMMIT")
pathlib.Path(sys.argv[1] + "-outside").write_text("not watched")
with open(root / "log", "ab", buffering=0) as log:
    os.fsync(log.fileno())
os.remove(root / "log")
"""
CHANGES = (
    "mkdir folder",
    "open folder/file.new",
    "opened folder/file.new",
    "rename folder/file.new",
    "sql CREATE TABLE kept (value)",
    "sql COMMIT",
    "open log",
    "opened log",
    "fsync log",
    "remove log",
)


def run(root: Path, at: int) -> tuple[int, tuple[str, ...]]:
    root.mkdir()
    log = root.with_suffix(".changes")
    given = {**os.environ, **watching(root, at, log)}
    code = subprocess.run([sys.executable, "-c", PROGRAM, str(root)], env=given, process_group=0).returncode
    return code, changes_in(log)


def state(root: Path) -> list[object]:
    """What is there: the file's content under either name, the rows, and the log."""
    found: list[object] = [path.read_text() if path.exists() else None for path in files(root)]
    if not (root / "store.db").exists():
        return [*found, None]
    with closing(sqlite3.connect(root / "store.db")) as db:
        tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        return [*found, db.execute("SELECT count(*) FROM kept").fetchone()[0] if tables else -1]


def files(root: Path) -> list[Path]:
    return [root / "folder" / "file.new", root / "folder" / "file", root / "log"]


def test_a_process_dies_before_each_of_its_changes(tmp_path: Path) -> None:
    assert run(tmp_path / "whole", 0) == (0, CHANGES)
    seen: list[list[object]] = []
    for at in range(1, len(CHANGES) + 1):
        code, changes = run(tmp_path / str(at), at)
        assert (code, changes) == (-signal.SIGKILL, CHANGES[:at])
        seen.append(state(tmp_path / str(at)))
    nothing, empty, filled, kept = [None] * 3, ["", None, None], ["content", None, None], [None, "content", None]
    assert seen[:4] == [[*nothing, None], [*nothing, None], [*empty, None], [*filled, None]]
    assert seen[4:7] == [[*kept, -1], [*kept, 0], [*kept, 2]]
    assert seen[7:] == [[None, "content", "", 2]] * 3
    assert state(tmp_path / "whole") == [*kept, 2]
