"""A backup policy from end to end: real processes, an interval in seconds, a janitor that is killed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Up, buckram, environment
from tests.support.polling import wait_until

pytestmark = pytest.mark.share(10, "clusters")
PLACES = "BUCKRAM_JANITOR_BACKUP_PLACES"


def files(place: Path) -> list[Path]:
    return sorted((place / "default" / "main").glob("*.db"))


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        found: int = connection.execute("SELECT count(*) FROM item").fetchone()[0]
        return found


def shown(uri: str) -> dict[str, Any]:
    return buckram("db", "show", "main", "--json", uri=uri).json


def states(uri: str) -> dict[str, str]:
    """The findings about the database, each with its reason."""
    found = buckram("status", "--json", uri=uri).json["problems"]
    return {one["what"]: one["why"] for one in found if one["where"] == "default/main"}


@contextmanager
def janitor(uri: str, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "buckram", "stream", "janitor", "--every", "0.3s", "--no-orphans", "--json"]
    given = {**environment(uri), PLACES: f"nightly={place}"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=given)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_policy_makes_backups_that_come_back(tmp_path: Path) -> None:
    place = tmp_path / "place"
    up = Up(tmp_path / "data", "--bookies", 1, "--janitor", "0.3s", env={PLACES: f"nightly={place}"})
    uri = up.uri
    try:
        done = buckram("db", "create", "main", "--set", "backup_to=/etc", uri=uri)
        assert done.code == 2
        assert "only operators say where places are" in done.err
        settings = ("--set", "backup_every_s=2s", "--set", "backup_to=nightly", "--set", "backup_keep=3")
        assert buckram("db", "create", "main", *settings, uri=uri).code == 0
        wait_until(lambda: "backup-failed" in states(uri), "the place that is away is not told")
        assert "there is no such directory" in states(uri)["backup-failed"]
        assert "there is no such directory" in shown(uri)["backup_trouble"]
        place.mkdir()
        assert buckram("db", "shell", "main", "CREATE TABLE item (id INTEGER PRIMARY KEY)", uri=uri).code == 0
        for _ in range(5):
            assert buckram("db", "shell", "main", "INSERT INTO item DEFAULT VALUES", uri=uri).code == 0
            before = files(place)[-1:]
            wait_until(lambda before=before: files(place)[-1:] != before, "no backup is made")
        last = files(place)[-1]
        wait_until(lambda: files(place)[-1] != last, "no backup is made")
        wait_until(lambda: len(files(place)) == 3, "the old backups stay")
        assert buckram("stream", "set", "main", "--set", "backup_every_s=10m", uri=uri).code == 0
        wait_until(lambda: not states(uri), "a state stays")
        assert "  backup at nightly, " in buckram("db", "show", "main", uri=uri).out
        made = shown(uri)["backup"]
        assert made["place"] == "nightly"
        copy = tmp_path / "copy.db"
        shutil.copy(place / "default" / "main" / made["file"], copy)
        assert hashlib.sha256(copy.read_bytes()).hexdigest() == made["sha256"]
        assert buckram("db", "restore", copy, "again", uri=uri).code == 0
        count = buckram("db", "shell", "again", "SELECT count(*) AS n FROM item", "--json", uri=uri)
        assert json.loads(count.out)["rows"] == [[5]], count.out
    finally:
        assert up.stop() == 0


def test_a_janitor_that_is_killed_leaves_backups_that_are_whole(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    up = Up(tmp_path / "data", "--bookies", 1, "--janitor", "never")
    uri = up.uri
    try:
        settings = ("--set", "backup_every_s=1s", "--set", "backup_to=nightly", "--set", "backup_keep=2")
        assert buckram("db", "create", "main", *settings, uri=uri).code == 0
        table = "CREATE TABLE item AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
        assert buckram("db", "shell", "main", f"{table} SELECT randomblob(4000) FROM n", uri=uri).code == 0
        wait_until(lambda: "backup-late" in states(uri), "nobody makes backups, and nobody tells")
        assert "no backup of it was ever made" in states(uri)["backup-late"]
        seen = 0
        for _ in range(4):
            with janitor(uri, place) as process:
                # Killed as soon as something is being written, be it whole or not.
                wait_until(lambda seen=seen: _stamp(place) != seen, "the janitor writes nothing")
                process.send_signal(signal.SIGKILL)
                process.wait()
            seen = _stamp(place)
            assert [rows(path) for path in files(place)] == [500] * len(files(place))
            kept = shown(uri)["backup"]
            assert kept is None or (place / "default" / "main" / kept["file"]).exists()
        with janitor(uri, place):
            wait_until(lambda: len(list((place / "default" / "main").iterdir())) == 2, "what was killed stays")
            assert buckram("stream", "set", "main", "--set", "backup_every_s=10m", uri=uri).code == 0
            wait_until(lambda: not states(uri), "a state stays")
        assert len(files(place)) == 2
    finally:
        assert up.stop() == 0


def _stamp(place: Path) -> int:
    """Changes with every file that comes or goes."""
    directory = place / "default" / "main"
    return os.stat(directory).st_mtime_ns if directory.exists() else 0
