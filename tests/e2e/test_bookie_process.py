"""One bookie as a process: ready line, clean stop, kill -9, metrics, what it imports and how much memory it takes."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import buckram

from buckram.core.entries.entry import Digest, master_key
from buckram.core.wire.adds import frame_add
from buckram.types import DigestType

pytestmark = pytest.mark.share(2)

KEY = master_key(b"")
DIGEST = Digest(DigestType.CRC32C, b"")


def _same_code() -> dict[str, str]:
    """The child runs the sources under test, also where another version is installed."""
    return {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}


class Process:
    """`buckram bookie run` with its ready line."""

    def __init__(self, directory: Path, *options: str, **environment: str) -> None:
        uri = f"sqlite://{directory.parent / 'metadata.db'}"
        self.log = directory.parent / "log"
        command = [sys.executable, "-m", "buckram", "bookie", "run", "--metadata", uri, "--data", str(directory)]
        self.process = subprocess.Popen(
            [*command, "--json", *(options or ("--port", "0"))],
            stdout=subprocess.PIPE,
            stderr=self.log.open("ab"),
            env={"PATH": "/usr/bin:/bin", **_same_code(), "BUCKRAM_BOOKIE_ADMISSION": "any", **environment},
        )

    def ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.log.read_text()
        said: dict[str, Any] = json.loads(line)
        assert said["pid"] == self.process.pid
        return said

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    started: list[Process] = []
    yield started
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.wait()
        if one.process.stdout is not None:
            one.process.stdout.close()


def talk(said: dict[str, Any], request: bytes, answers: int) -> list[bytes]:
    with socket.create_connection((said["host"], said["port"]), 10) as peer:
        peer.sendall(request)
        with peer.makefile("rb") as stream:
            return [stream.read(struct.unpack(">I", stream.read(4))[0]) for _ in range(answers)]


def adds(ledger: int, count: int) -> bytes:
    return b"".join(frame_add(KEY, DIGEST.seal(ledger, n, n - 1, n + 1, b"x")) for n in range(count))


def read(ledger: int, entry: int) -> bytes:
    return struct.pack(">IIqq", 20, 0x02020000, ledger, entry)


@pytest.mark.parametrize("loop", ["", "asyncio"])
def test_a_killed_bookie_restarts_under_another_port(tmp_path: Path, processes: list[Process], loop: str) -> None:
    processes.append(Process(tmp_path / "b", BUCKRAM_LOOP=loop))
    said = processes[-1].ready()
    assert said["id"] == f"127.0.0.1:{said['port']}"
    acks = talk(said, adds(5, 100), 100)
    assert all(ack[4:8] == bytes(4) for ack in acks)
    assert processes[-1].end(signal.SIGKILL) == -signal.SIGKILL
    processes.append(Process(tmp_path / "b"))
    again = processes[-1].ready()
    assert again["id"] == said["id"]
    assert talk(again, read(5, 99), 1)[0][24:] == DIGEST.seal(5, 99, 98, 100, b"x")
    assert processes[-1].end() == 0
    assert "Traceback" not in processes[-1].log.read_text()


def test_an_interrupt_stops_a_bookie_cleanly(tmp_path: Path, processes: list[Process]) -> None:
    processes.append(Process(tmp_path / "b"))
    said = processes[-1].ready()
    talk(said, adds(5, 1), 1)
    assert processes[-1].end(signal.SIGINT) == 0


def test_a_second_process_on_one_directory_is_refused(tmp_path: Path, processes: list[Process]) -> None:
    processes.append(Process(tmp_path / "b"))
    processes[-1].ready()
    second = Process(tmp_path / "b")
    processes.append(second)
    assert second.process.wait(30) != 0
    assert "in use" in second.log.read_text()
    assert "Traceback" not in second.log.read_text()


def test_metrics_are_served(tmp_path: Path, processes: list[Process]) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes.append(Process(tmp_path / "b", "--port", "0", "--metrics", f"127.0.0.1:{port}"))
    talk(processes[-1].ready(), adds(5, 7), 7)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
        assert page.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "buckram_bookie_added_entries_total 7.0" in text
    assert "_created" not in text
    assert 'buckram_bookie_state{state="writable"} 1.0' in text
    assert 'buckram_bookie_state{state="readonly"} 0.0' in text
    assert "buckram_build_info{" in text
    for path, said in (("health", "writable"), ("ready", "writable"), ("version", '"version"')):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10) as page:
            assert (page.status, said in page.read().decode()) == (200, True)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=10)
    assert processes[-1].end() == 0


def test_an_idle_bookie_uses_little_memory(tmp_path: Path, processes: list[Process]) -> None:
    processes.append(Process(tmp_path / "b"))
    said = processes[-1].ready()
    talk(said, adds(5, 1), 1)
    status = Path(f"/proc/{said['pid']}/status").read_text()
    resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
    assert resident <= 80 * 1024
    maps = Path(f"/proc/{said['pid']}/maps").read_text()
    assert "pyarrow" not in maps


def test_a_bookie_never_imports_spark_or_arrow() -> None:
    code = (
        "import sys, buckram.bookie.run, buckram.cli.bookie.run\n"
        "print([m for m in sys.modules if m.split('.')[0] in ('pyarrow', 'pyspark', 'numpy', 'pandas')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_disk_layer_is_refused(tmp_path: Path, processes: list[Process]) -> None:
    processes.append(Process(tmp_path / "b", BUCKRAM_DISK="imaginary:1"))
    assert processes[-1].process.wait(30) == 2
    assert "BUCKRAM_DISK" in processes[-1].log.read_text()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not _has_ipv6(), reason="this machine has no ::1")
@pytest.mark.parametrize("door", ["sqlite", "bookies"])
def test_a_bookie_of_a_host_with_ipv6_only(tmp_path: Path, processes: list[Process], door: str) -> None:
    """It registers, is listed and written to at ::1; clients that come through it do so, too."""
    processes.append(Process(tmp_path / "data", "--host", "[::1]", "--port", "0", "--http", "[::1]:0"))
    said = processes[-1].ready()
    assert said["host"] == "::1"
    assert said["id"] == f"[::1]:{said['port']}"
    with urllib.request.urlopen(f"http://{said['http']}/heartbeat", timeout=30) as answer:
        assert answer.status == 200
    service = f"buckram://[::1]:{said['port']}/"
    uri = f"sqlite://{tmp_path / 'metadata.db'}" if door == "sqlite" else service
    written = buckram("ledger", "write", "--ensemble", "1/1/1", "--close", uri=uri, stdin=b"kept\n")
    assert written.code == 0, written.err
    assert buckram("ledger", "read", 0, uri=uri).out == "kept\n"
    assert buckram("bookie", "list", "--json", uri=uri).json["bookies"][0]["id"] == said["id"]
    assert processes[-1].end() == 0
