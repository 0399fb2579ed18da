"""`buckram up` and `bookie run` as processes: start, stop, start again, kills, and ends with the parent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import DEADLINE_S, Up, buckram, environment, gone
from tests.support.polling import wait_until

pytestmark = pytest.mark.share(10, "clusters")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_restart_on_the_same_directory_is_the_same_cluster(tmp_path: Path, number: signal.Signals) -> None:
    first = Up(tmp_path / "data", "--bookies", 2)
    assert first.ready["zookeeper"] is None
    assert buckram("ledger", "write", "--ensemble", "2/2/2", "--close", uri=first.uri, stdin=b"kept\n").code == 0
    assert first.stop(number) == 0
    assert all(gone(pid) for pid in first.pids)
    again = Up(tmp_path / "data")
    try:
        assert [b["id"] for b in again.ready["bookies"]] == [b["id"] for b in first.ready["bookies"]]
        assert again.uri == first.uri
        assert buckram("ledger", "read", 0, uri=again.uri).out == "kept\n"
    finally:
        again.stop()


def test_up_serves_the_default_cluster_of_its_folder(tmp_path: Path) -> None:
    running = Up(tmp_path / "buckram-data", "--bookies", 1)
    try:
        assert buckram("bookie", "list", "--json", cwd=tmp_path).json["bookies"][0]["state"] == "writable"
    finally:
        running.stop()


def test_children_end_when_up_is_killed(tmp_path: Path) -> None:
    running = Up(tmp_path / "data", "--bookies", 2)
    running.stop(signal.SIGKILL)
    wait_until(lambda: all(gone(pid) for pid in running.pids), "bookies outlived their parent")


def test_a_killed_bookie_stays_down_and_the_others_serve(tmp_path: Path) -> None:
    running = Up(tmp_path / "data", "--bookies", 3)
    try:
        os.kill(running.pids[0], signal.SIGKILL)
        wait_until(lambda: gone(running.pids[0]), "still there")

        def states() -> list[str]:
            return [b["state"] for b in buckram("bookie", "list", "--json", uri=running.uri).json["bookies"]]

        wait_until(lambda: states() == ["down", "writable", "writable"], "its registration stays")
        written = buckram("ledger", "write", "--ensemble", "2/2/2", "--close", uri=running.uri, stdin=b"x\n")
        assert written.code == 0, written.err
        assert running.process.poll() is None
    finally:
        assert running.stop() == 0


def test_a_second_up_on_one_directory_is_refused(tmp_path: Path) -> None:
    running = Up(tmp_path / "data", "--bookies", 1)
    try:
        second = buckram("up", "--data", tmp_path / "data")
        assert second.code == 2
        assert str(tmp_path / "data") in second.err
    finally:
        running.stop()


def test_up_in_a_folder_of_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").touch()
    refused = buckram("up", "--data", tmp_path)
    assert refused.code == 2
    assert f"{tmp_path} is no cluster's directory and holds other files (holiday.jpg): choose an empty" in refused.err
    assert {one.name for one in tmp_path.iterdir()} <= {"holiday.jpg", "up.lock"}


def test_starting_with_fewer_bookies_than_exist_is_refused(tmp_path: Path) -> None:
    Up(tmp_path / "data", "--bookies", 2).stop()
    done = buckram("up", "--data", tmp_path / "data", "--bookies", 1)
    assert done.code == 2
    assert "has 2 bookies" in done.err


def test_a_bookie_without_data_does_not_prevent_the_others_from_starting(tmp_path: Path) -> None:
    first = Up(tmp_path / "data", "--bookies", 3)
    assert buckram("ledger", "write", "--close", uri=first.uri, stdin=b"kept\n").code == 0
    first.stop()
    shutil.rmtree(tmp_path / "data" / "bookie-2")
    again = Up(tmp_path / "data")
    assert [b["id"] for b in again.ready["bookies"]] == ["bookie-1", "bookie-3"]
    assert again.ready["not_started"] == ["bookie-2"]
    assert buckram("ledger", "read", 0, uri=again.uri).out == "kept\n"
    assert again.stop() == 0
    assert "--bookies 4" in again.said
    assert "--id" not in again.said
    mended = Up(tmp_path / "data", "--bookies", 4)
    try:
        assert [b["id"] for b in mended.ready["bookies"]] == ["bookie-1", "bookie-3", "bookie-4"]
        assert buckram("ledger", "repair", 0, uri=mended.uri).code == 0
    finally:
        mended.stop()


def test_up_fails_when_no_bookie_has_its_data(tmp_path: Path) -> None:
    Up(tmp_path / "data", "--bookies", 1).stop()
    shutil.rmtree(tmp_path / "data" / "bookie-1")
    done = buckram("up", "--data", tmp_path / "data")
    assert done.code == 1
    assert "bookie-1 is not started: its data in" in done.err


def bookie_run(uri: str, directory: Path, *options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "buckram", "bookie", "run", "--metadata", uri, "--data", str(directory), "--json"]
    return subprocess.Popen(
        [*command, *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(None)
    )


def test_bookie_run_keeps_its_identity_under_another_port(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path / 'metadata.db'}"
    ids = []
    for _ in range(2):
        process = bookie_run(uri, tmp_path / "bookie", "--host", "127.0.0.1", "--port", 0)
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert set(ready) >= {"id", "host", "port", "pid"}
        ids.append(ready["id"])
        with socket.create_connection((ready["host"], ready["port"]), timeout=5):
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    assert ids[0] == ids[1]


def test_a_port_in_use_or_a_foreign_directory_is_refused_in_one_line(tmp_path: Path) -> None:
    uri = f"sqlite://{tmp_path / 'metadata.db'}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = buckram("bookie", "run", "--metadata", uri, "--data", tmp_path / "a", "--port", port)
        assert done.code == 1, done.err
        assert str(port) in done.err.splitlines()[-1]
    process = bookie_run(uri, tmp_path / "mine", "--port", 0)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    other = f"sqlite://{tmp_path / 'other.db'}"
    foreign = buckram("bookie", "run", "--metadata", other, "--data", tmp_path / "mine", "--port", 0)
    assert foreign.code == 5, foreign.err
    assert f"{tmp_path / 'mine'} has data of bookie" in foreign.err
    assert "`buckram cluster restore FILE" in foreign.err
    assert not (tmp_path / "other.db").exists()


def test_what_up_serves_needs_no_access_to_its_metadata(tmp_path: Path) -> None:
    running = Up(tmp_path / "data", "--bookies", 2)
    try:
        database = tmp_path / "data" / "metadata.db"
        modes = {
            path.name: path.stat().st_mode & 0o777 for path in database.parent.glob("metadata.db*") if path.is_file()
        }
        assert set(modes.values()) == {0o600}, modes
        service = running.ready["service"]
        assert service.startswith("buckram://127.0.0.1:")
        written = buckram("ledger", "write", "--ensemble", "2/2/2", "--close", "--json", uri=service, stdin=b"x\n")
        assert written.code == 0, written.err
        assert buckram("ledger", "read", 0, uri=running.uri).out == "x\n"
        assert buckram("bookie", "list", "--json", uri=service).json["bookies"][0]["state"] == "writable"
    finally:
        running.stop()


def test_data_whose_metadata_is_lost_gets_no_new_cluster_beside_it(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    running = Up(data, "--bookies", 1)
    assert buckram("ledger", "write", "--ensemble", "1/1/1", "--close", uri=running.uri, stdin=b"kept\n").code == 0
    assert buckram("cluster", "backup", backup, uri=running.uri).code == 0
    running.stop()
    for file in list(data.glob("metadata.db*")):
        if file.is_dir():
            shutil.rmtree(file)
        else:
            file.unlink()
    before = sorted(data.rglob("*"))
    for refused in (
        buckram("up", "--data", data),
        buckram("bookie", "run", "--data", data / "bookie-1", "--port", 0, uri=running.uri),
    ):
        assert refused.code == 5, refused.err
        for word in (str(data / "bookie-1"), "cluster restore", running.uri, "has no cluster"):
            assert word in refused.err
        assert sorted(data.rglob("*")) == before, "something was created"
    restored = buckram("cluster", "restore", backup, "--yes", uri=running.uri)
    assert restored.code == 0, restored.err
    again = Up(data)
    try:
        assert buckram("cluster", "accept-restore", "--yes", uri=again.uri).code == 0
        assert buckram("ledger", "read", 0, uri=again.uri).out == "kept\n"
    finally:
        again.stop()
