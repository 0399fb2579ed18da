"""`buckram db` as scripts use it: output, exit codes, JSON."""

from __future__ import annotations

import io
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.sync import connect
from buckram.testing import ThreadedCluster

Run = Callable[..., str]


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as cluster:
        yield cluster.uri


@pytest.fixture
def run(uri: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `buckram db WORDS` in this process; returns what it printed."""
    monkeypatch.setenv("BUCKRAM_METADATA", uri)

    def run(*words: object, code: Exit = Exit.OK, stdin: str | None = None) -> str:
        if stdin is not None:
            monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        assert in_process(["db", *map(str, words)]) == code, capfd.readouterr().err
        said = capfd.readouterr()
        assert "Traceback" not in said.err
        return said.out if code is Exit.OK else said.err + said.out

    return run


_SCRIPT = """
CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT);
CREATE TRIGGER tr AFTER INSERT ON item BEGIN
  UPDATE item SET name = upper(name) WHERE id = new.id;
END;
INSERT INTO item (name) VALUES ('a;b'); INSERT INTO item (name) VALUES ('c')
"""


def test_a_stream_with_the_property_of_a_database_is_none(run: Run, uri: str) -> None:
    with connect(uri) as client:
        client.namespace().create("posing", properties={"buckram": "database"})
    assert "posing" not in run("list", "--json")
    for words in (("show", "posing"), ("drop", "posing", "--yes"), ("shell", "posing", "SELECT 1")):
        assert "posing" in run(*words, code=Exit.USAGE)


def test_a_backup_by_policy_is_shown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def clean(code: Exit) -> None:
        words = ["stream", "janitor", "--wait", "0", "--grace", "0", "--no-orphans"]
        assert in_process(words) == code

    run("create", "kept", "--set", "backup_every_s=6h", "--set", "backup_to=nightly", "--set", "backup_keep=2")
    assert json.loads(run("show", "kept", "--json"))["backup"] is None
    clean(Exit.FAILED)
    assert "failed: its policy has backup_to = 'nightly'" in run("show", "kept")
    monkeypatch.setenv("BUCKRAM_JANITOR_BACKUP_PLACES", "nightly")
    clean(Exit.USAGE)
    monkeypatch.setenv("BUCKRAM_JANITOR_BACKUP_PLACES", f"nightly={tmp_path}")
    clean(Exit.OK)
    said, shown = run("show", "kept"), json.loads(run("show", "kept", "--json"))
    assert f"  backup at nightly, {shown['backup']['file']}: offset {shown['backup']['offset']}, " in said
    assert "failed" not in said
    file = tmp_path / "default" / "kept" / shown["backup"]["file"]
    assert file.stat().st_size == shown["backup"]["bytes"]
    assert "only operators" in run("create", "other", "--set", "backup_to=/tmp", code=Exit.USAGE)
    run("drop", "kept", "--yes")


def test_a_database_from_creation_to_the_end(run: Run, tmp_path: Path) -> None:
    assert json.loads(run("create", "main", "--json")) == {"database": "default/main", "created": True, "cdc": False}
    assert "exists" in run("create", "main", code=Exit.REFUSED)
    run("shell", "main", stdin=_SCRIPT)
    said = json.loads(run("shell", "main", "SELECT id, name FROM item ORDER BY id", "--json"))
    assert (said["columns"], said["rows"]) == (["id", "name"], [[1, "A;B"], [2, "C"]])
    assert run("shell", "main", "SELECT name FROM item WHERE id = 1").split() == ["name", "A;B"]
    assert "SQLITE_ERROR" in run("shell", "main", "SELECT * FROM none", code=Exit.FAILED)
    assert [row["database"] for row in json.loads(run("list", "--json"))["databases"]] == ["default/main"]
    shown = json.loads(run("show", "main", "--json"))
    assert (shown["leader"], shown["snapshots"]) == (None, [])
    copy = tmp_path / "copy.db"
    assert json.loads(run("backup", "main", copy, "--json"))["bytes"] == copy.stat().st_size
    with sqlite3.connect(copy) as connection:
        assert connection.execute("SELECT count(*) FROM item").fetchall() == [(2,)]
    offset = shown["offset"]
    run("shell", "main", "DELETE FROM item")
    assert json.loads(run("fork", "main", "before", "--at", offset, "--json"))["offset"] == offset
    assert run("shell", "before", "SELECT count(*) FROM item").split() == ["count(*)", "2"]
    run("restore", copy, "again")
    assert run("shell", "again", "SELECT count(*) FROM item").split() == ["count(*)", "2"]
    report = json.loads(run("verify", "again", "--json"))
    assert (report["equal"], report["faults"]) == (True, [])
    assert "cannot be had" in run("fork", "main", "never", "--at", 10_000, code=Exit.USAGE)
    run("drop", "again", "--yes")
    assert "does not exist" in run("shell", "again", "SELECT 1", code=Exit.NOT_FOUND)


def test_changes_are_lines_or_json_and_only_where_they_are_kept(run: Run) -> None:
    assert json.loads(run("create", "kept", "--cdc", "--json"))["cdc"]
    run("shell", "kept", "CREATE TABLE t (k INTEGER PRIMARY KEY, v); INSERT INTO t VALUES (1, x'ff00')")
    run("shell", "kept", "UPDATE t SET v = 'two'; DELETE FROM t")
    lines = run("changes", "kept").splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "schema CREATE TABLE t (k INTEGER PRIMARY KEY, v);",
        "insert t k=1, v=b'\\xff\\x00'",
        "update t k=1: v='two'",
        "delete t k=1, v='two'",
    ]
    said = [json.loads(line) for line in run("changes", "kept", "--json").splitlines()]
    assert [one["operation"] for one in said] == ["schema", "insert", "update", "delete"]
    assert said[1]["new"] == {"k": 1, "v": {"base64": "/wA="}}
    assert set(said[1]) == {
        *("offset", "transaction", "time", "last", "operation", "table", "key"),
        *("rowid", "new_rowid", "old", "new", "sql"),
    }
    later = run("changes", "kept", "--from", said[2]["offset"], "--json").splitlines()
    assert [json.loads(line) for line in later] == said[2:]
    run("create", "plain")
    assert "--cdc" in run("changes", "plain", code=Exit.USAGE)
    assert "beyond the end" in run("changes", "kept", "--from", 10_000, code=Exit.USAGE)


@pytest.mark.parametrize(
    "words",
    [
        ("create", "a/b/c"),
        ("fork", "main", "x", "--at", "soon"),
        ("restore", "/none", "x"),
        ("shell", "shelled", "--create", "SELECT 'no end"),
        ("drop", "main"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(run: Run, words: tuple[str, ...]) -> None:
    assert len(run(*words, code=Exit.USAGE).strip().splitlines()) <= 4
