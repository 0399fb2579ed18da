"""Real bookies and clients when metadata.db is deleted, replaced, restored and accepted."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram, environment
from tests.support.polling import wait_until

from buckram.core.ledgers.deletions import NONE_DELETED, decode_file

pytestmark = pytest.mark.share(10, "stores")

ANSWER_S = 3.0
"""An acknowledgement takes milliseconds."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Up]:
    up = Up(tmp_path / "data", "--bookies", 3)
    yield up
    up.stop()


def database(up: Up) -> Path:
    return Path(up.uri.removeprefix("sqlite://"))


def copy_of(up: Up, name: str) -> Path:
    """Copy the database file while the cluster runs."""
    copy = database(up).with_name(name)
    source, target = sqlite3.connect(database(up)), sqlite3.connect(copy)
    source.backup(target)
    source.close()
    target.close()
    return copy


def put_in_place(copy: Path, up: Up) -> None:
    os.replace(copy, database(up))
    for rest in ("-wal", "-shm"):
        database(up).with_name(database(up).name + rest).unlink(missing_ok=True)


def write(up: Up, *lines: str) -> int:
    done = buckram(
        "ledger", "write", "--ensemble", "3/3/2", "--close", "--json", uri=up.uri, stdin="\n".join(lines).encode()
    )
    assert done.code == 0, done.err
    ledger: int = done.json["ledger"]
    return ledger


def problems(up: Up) -> str:
    return buckram("cluster", "check", uri=up.uri).out


def healthy(up: Up) -> bool:
    return "nothing is wrong" in problems(up) and "3 writable" in problems(up)


class Live:
    """A writer process that reports which entries were acknowledged."""

    def __init__(self, up: Up) -> None:
        command = [sys.executable, "-m", "buckram", "ledger", "write", "--ensemble", "3/3/2", "--acks"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0,
            env=environment(up.uri),
        )  # fmt: skip
        assert self.process.stdout is not None
        assert b"ledger" in self.process.stdout.readline()

    def acknowledged(self, line: bytes) -> bool:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(line + b"\n")
        except BrokenPipeError:
            return False
        ready, _, _ = select.select([self.process.stdout], [], [], ANSWER_S)
        return bool(ready) and self.process.stdout.readline().strip().isdigit()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def test_an_older_copy_under_a_running_cluster_is_noticed_and_nothing_is_lost(cluster: Up) -> None:
    first = write(cluster, "one")
    older = copy_of(cluster, "older.db")
    second = write(cluster, "two")
    live = Live(cluster)
    assert live.acknowledged(b"before")
    wait_until(lambda: healthy(cluster), "not healthy at first")
    newest = copy_of(cluster, "newest.db")
    put_in_place(older, cluster)
    wait_until(lambda: problems(cluster).count("does not believe this store") == 3, "not noticed")
    assert not live.acknowledged(b"after"), "an acknowledgement for a ledger that the file does not know"
    live.end()
    refused = buckram("ledger", "write", "--ensemble", "3/3/2", uri=cluster.uri, stdin=b"three\n")
    assert refused.code != 0
    assert "went back" in refused.err
    put_in_place(newest, cluster)
    wait_until(lambda: healthy(cluster), "the newest metadata is not believed again")
    for ledger, text in ((first, "one\n"), (second, "two\n")):
        assert buckram("ledger", "read", ledger, uri=cluster.uri).out == text
    assert write(cluster, "four") > second + 1, "an id was given twice"


def test_a_deleted_file_stops_the_cluster_until_a_backup_is_restored_and_accepted(cluster: Up, tmp_path: Path) -> None:
    first = write(cluster, "one")
    file = tmp_path / "monday"
    made = buckram("cluster", "backup", file, "--json", uri=cluster.uri)
    assert (made.code, made.json["ledgers"], made.json["epoch"]) == (0, 1, 1)
    lost = write(cluster, "two", "three")
    live = Live(cluster)
    assert live.acknowledged(b"before")
    for path in database(cluster).parent.glob("metadata.db*"):
        if path.is_file():
            path.unlink()
    wait_until(lambda: not live.acknowledged(b"after"), "acknowledged without metadata")
    live.end()
    assert buckram("cluster", "restore", file, uri=cluster.uri).code == 2, "it asks"
    restored = buckram("cluster", "restore", file, "--yes", "--json", uri=cluster.uri)
    assert (restored.code, restored.json["ledgers"], restored.json["accepted"]) == (0, 1, False), restored.err
    assert "restore-not-accepted" in problems(cluster)
    refused = buckram("ledger", "write", "--ensemble", "3/3/2", uri=cluster.uri, stdin=b"no\n")
    assert refused.code != 0
    assert "accept-restore" in refused.err
    accepted = buckram("cluster", "accept-restore", "--yes", "--json", uri=cluster.uri)
    assert accepted.code == 0, accepted.err
    assert accepted.json["epoch"] == 2
    assert lost in accepted.json["salvageable"]
    assert accepted.json["next_id"] > max(accepted.json["salvageable"])
    wait_until(lambda: "3 writable" in problems(cluster), "the bookies do not go on")
    assert write(cluster, "new") > max(accepted.json["salvageable"]), "an id was given twice"
    assert buckram("ledger", "read", lost, uri=cluster.uri).code != 0
    back = buckram("cluster", "salvage", lost, "--bring-back", "--json", uri=cluster.uri)
    assert back.code == 0, back.err
    assert back.json["brought_back"] == [lost]
    assert buckram("ledger", "read", lost, uri=cluster.uri).out == "two\nthree\n"
    assert buckram("ledger", "read", first, uri=cluster.uri).out == "one\n"
    assert lost not in buckram("cluster", "salvage", "--json", uri=cluster.uri).json["salvageable"]
    assert buckram("cluster", "collect", "--yes", "--json", uri=cluster.uri).json["epoch"] == 2


def test_what_was_deleted_since_the_backup_is_compared_and_deleted_again(cluster: Up, tmp_path: Path) -> None:
    """No ledger that bookies saw deleted is offered as lost, lacks copies for ever, or gives its id to another."""
    kept, gone, other = (write(cluster, text) for text in ("kept", "gone", "other"))
    assert buckram("stream", "create", "orders", uri=cluster.uri).code == 0
    assert buckram("stream", "write", "orders", uri=cluster.uri, stdin=b"one\ntwo\n").code == 0
    listed = buckram("ledger", "list", "--json", uri=cluster.uri).json["ledgers"]
    (segment,) = {one["ledger"] for one in listed} - {kept, gone, other}
    assert buckram("cluster", "backup", tmp_path / "monday", uri=cluster.uri).code == 0
    since = write(cluster, "made and deleted since")
    unwritten = buckram("ledger", "write", "--ensemble", "3/3/2", "--close", "--json", uri=cluster.uri, stdin=b"")
    for one in (gone, since, unwritten.json["ledger"]):
        assert buckram("ledger", "delete", one, "--yes", uri=cluster.uri).code == 0
    assert buckram("stream", "delete", "orders", "--yes", uri=cluster.uri).code == 0
    homes = [path.parent for path in cluster.directory.rglob("WITNESS")]
    assert len(homes) == 3
    wait_until(
        lambda: all((home / "DELETED.000001").exists() and _remembers(home, gone, since, segment) for home in homes),
        "bookies do not follow the deletions",
    )
    assert buckram("cluster", "restore", tmp_path / "monday", "--yes", uri=cluster.uri).code == 0
    accepted = buckram("cluster", "accept-restore", "--yes", "--json", uri=cluster.uri)
    assert accepted.code == 0, accepted.err
    assert accepted.json["deleted_again"] == sorted((gone, segment))
    lacking = {"stream": "default/orders", "first": 0, "end": 2, "dropped": True}
    assert accepted.json["lacking_records"] == [lacking]
    assert buckram("stream", "read", "orders", uri=cluster.uri).out == ""
    assert accepted.json["salvageable"] == []
    assert accepted.json["ledgers"] == 2
    wait_until(lambda: "3 writable" in problems(cluster), "the bookies do not go on")
    assert buckram("cluster", "salvage", gone, since, "--json", uri=cluster.uri).json["salvageable"] == []
    assert write(cluster, "new") > unwritten.json["ledger"], "an id was given twice"
    for ledger, text in ((kept, "kept\n"), (other, "other\n")):
        assert buckram("ledger", "read", ledger, uri=cluster.uri).out == text
    assert "does not exist" in buckram("ledger", "read", gone, uri=cluster.uri).err


def _remembers(home: Path, *ledgers: int) -> bool:
    _, buckets = decode_file("DELETED.000001", (home / "DELETED.000001").read_bytes())
    return all(one in buckets.get(0, NONE_DELETED) for one in ledgers)


def test_bookies_that_start_on_an_older_file_notice_it(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--bookies", 3)
    write(up, "one")
    older = copy_of(up, "older.db")
    lost = write(up, "two")
    wait_until(lambda: healthy(up), "not healthy at first")
    assert up.stop(signal.SIGTERM) == 0
    put_in_place(older, up)
    shutil.rmtree(f"{database(up)}.sessions")
    again = Up(tmp_path / "data")
    try:
        wait_until(lambda: problems(again).count("does not believe this store") == 3, "not noticed")
        accepted = buckram("cluster", "accept-restore", "--yes", "--json", uri=again.uri)
        assert accepted.code == 0, accepted.err
        assert accepted.json["salvageable"] == [lost]
        assert write(again, "three") > lost
    finally:
        again.stop()


def test_accept_is_refused_where_nothing_was_restored(cluster: Up) -> None:
    refused = buckram("cluster", "accept-restore", "--yes", uri=cluster.uri)
    assert refused.code == 2
    assert "nothing to accept" in refused.err


def test_a_torn_backup_is_refused(cluster: Up, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    assert buckram("cluster", "backup", file, uri=cluster.uri).code == 0
    whole = file.read_bytes()
    for bad in (whole[:-80], whole.replace(b"LAYOUT", b"LAYOUX") + b"\n", b"", whole[:200] + b"x" + whole[201:]):
        file.write_bytes(bad)
        refused = buckram("cluster", "restore", file, "--yes", uri=cluster.uri)
        assert refused.code == 1
        assert "not a complete backup" in refused.err
