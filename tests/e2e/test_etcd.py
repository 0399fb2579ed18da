"""A real etcd server of our own: as a process, as a command, and under `buckram up`, with all that is kept in it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import DEADLINE_S, Up, buckram, environment, gone

from buckram.errors import ConfigError, ForeignDirectory, PortInUse
from buckram.launch.etcd_server import find_etcd, start_etcd
from buckram.launch.etcd_server.server import VARIABLE

pytestmark = pytest.mark.share(10, "stores")


@pytest.fixture(autouse=True, scope="module")
def _etcd() -> None:
    try:
        find_etcd()
    except ConfigError as error:
        if os.environ.get("CI"):
            pytest.fail(f"no etcd server can be started: {error}")
        pytest.skip(f"no etcd server can be started: {error}")


def test_the_same_directory_is_the_same_server(tmp_path: Path) -> None:
    with start_etcd(tmp_path / "etcd") as server:
        first = server.address
        with pytest.raises(ConfigError, match="runs on this directory"):
            start_etcd(tmp_path / "etcd")
        server.kill()
        assert not server.alive
        server.restart()
        assert server.address == first
    assert gone(server.pid)
    with start_etcd(tmp_path / "etcd") as again:
        assert again.address == first
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=str(port)):
            start_etcd(tmp_path / "other", port=port)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "x").touch()
    with pytest.raises(ForeignDirectory, match="holds 'x'"):
        start_etcd(tmp_path / "foreign")


def test_without_etcd_or_with_an_old_one_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "etcd"
    old.write_text("#!/bin/sh\necho etcd Version: 3.4.23\n")
    old.chmod(0o755)
    for program, said in ((old, "3.5 or later is needed"), (tmp_path / "none", "No such file")):
        monkeypatch.setenv(VARIABLE, str(program))
        with pytest.raises(ConfigError, match=rf"{said}.*install etcd 3\.5 or later"):
            find_etcd()


def test_the_command_runs_until_it_is_told_to_stop(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "buckram", "etcd", "run", "--data", str(tmp_path / "etcd"), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(None))
    assert process.stdout is not None
    uri = process.stdout.readline() and process.stdout.readline().split()[-1].decode()
    made = buckram("cluster", "init", "--json", "--metadata", uri)
    assert made.json["created"], made.err
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=DEADLINE_S)[1] == b""
    assert process.returncode == 0


def test_up_with_etcd_is_the_same_cluster_again(tmp_path: Path) -> None:
    data = tmp_path / "buckram-data"
    first = Up(data, "--etcd", "--bookies", 2)
    assert first.uri == f"etcd://{first.ready['etcd']}/buckram"
    written = buckram("ledger", "write", "--ensemble", "2/2/2", "--close", stdin=b"kept\n", cwd=tmp_path)
    assert written.code == 0, written.err
    assert buckram("stream", "write", "s", stdin=b"1\n2\n", cwd=tmp_path).code == 0
    assert first.stop(signal.SIGINT) == 0
    assert all(gone(pid) for pid in first.pids)
    again = Up(data)
    try:
        assert again.ready["etcd"] == first.ready["etcd"]
        assert [b["id"] for b in again.ready["bookies"]] == ["bookie-1", "bookie-2"]
        assert buckram("ledger", "read", written.json["ledger"], cwd=tmp_path).out == "kept\n"
        assert buckram("stream", "read", "s", cwd=tmp_path).out == "1\n2\n"
        checked = buckram("cluster", "check", "--json", cwd=tmp_path)
        assert checked.json["manager"] == "one folder"
        nuked = buckram("cluster", "nuke", "--force", "--yes", cwd=tmp_path)
        assert (nuked.code, "bookies are registered" in nuked.err) == (5, True)
    finally:
        assert again.stop() == 0
    assert "was made with --etcd" in again.said
    mixed = buckram("up", "--data", data, "--zookeeper")
    assert (mixed.code, "was made with etcd" in mixed.err) == (2, True)
    with start_etcd(data / "etcd"):
        instance = checked.json["instance_id"]
        wrong = buckram("cluster", "nuke", "--instance-id", "x", "--yes", cwd=tmp_path)
        assert (wrong.code, instance in wrong.err) == (5, True)
        nuked = buckram("cluster", "nuke", "--instance-id", instance, "--yes", "--json", cwd=tmp_path)
        assert nuked.json["nodes_removed"] > 5
        assert buckram("ledger", "list", cwd=tmp_path).code == 2


def test_status_is_watched_while_the_store_is_away(tmp_path: Path) -> None:
    """It says that the store cannot be asked, and goes on when that is back."""
    with start_etcd(tmp_path / "etcd") as server:
        uri = f"etcd://{server.address}/buckram"
        assert buckram("cluster", "init", uri=uri).code == 0
        command = [sys.executable, "-m", "buckram", "status", "--watch", "--every", "100ms", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(uri)) as watching:
            try:
                first = _next_state(watching, healthy=True)["problems"]
                assert [one for one in first if one["severity"] == "error"] == []
                server.kill()
                (problem,) = _next_state(watching, healthy=False)["problems"]
                assert (problem["what"], problem["where"]) == ("metadata-unreachable", uri)
                assert problem["why"]
                assert problem["do"]
                server.restart()
                _next_state(watching, healthy=True)
                assert watching.poll() is None
            finally:
                watching.kill()


def _next_state(watching: subprocess.Popen[bytes], *, healthy: bool) -> dict[str, Any]:
    """The next line with such a state; those before are of the moment before."""
    assert watching.stdout is not None
    limit = time.monotonic() + DEADLINE_S
    while time.monotonic() < limit:
        line = watching.stdout.readline()
        assert line, f"the command ended with {watching.wait()}"
        found: dict[str, Any] = json.loads(line)
        if found["healthy"] is healthy:
            return found
    pytest.fail(f"no status that is {'' if healthy else 'not '}healthy within {DEADLINE_S} s")
