"""`buckram deploy systemd`: units that systemd understands, and that run what they say."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.command_kit import check_command

from buckram.cli.app import run
from buckram.cli.deploy import Machine
from buckram.errors import InvalidArgument

BUCKRAM = Path(sys.executable).parent / "buckram"
ZK = "zk://zk1:2181,zk2:2181/ledgers"


def written(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert run(["deploy", "systemd", "--output", str(folder), "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


def test_systemd_understands_the_units(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("NO SYSTEMD-ANALYZE HERE: its verdict on the units is not known")
    options = ("--metadata", ZK, "--disk", "/disk1", "--disk", "/disk2", "--host", "10.0.0.5", "--user", "root")
    options += ("--exporter", "--gateway-port", "8090")
    written(tmp_path, capsys, *options, "--program", str(BUCKRAM))
    units = sorted((tmp_path / "systemd").glob("*.service"))
    names = [path.stem for path in units]
    beside = ["autorecovery", "exporter", "gateway", "janitor", "usage"]
    assert names == ["bookie-1", "bookie-2", *(f"buckram-{one}" for one in beside)]
    command = ["systemd-analyze", "verify", "--man=no", *map(str, units)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    ours = [line for line in done.stderr.splitlines() if any(name in line for name in names)]
    assert ours == [], done.stderr


def test_what_a_unit_starts_is_a_bookie_that_says_when_it_is_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The unit's command with the unit's environment, in the place of systemd."""
    disk, ports = tmp_path / "disk", [str(port) for port in free_ports(2)]
    disk.mkdir()
    options = ["--metadata", f"sqlite://{tmp_path}/metadata.db", "--disk", str(disk), "--host", "127.0.0.1"]
    options += ["--id", "shelf", "--port", ports[0], "--http-port", ports[1], "--program", str(BUCKRAM)]
    written(tmp_path, capsys, *options)
    service = unit(tmp_path / "systemd" / "bookie.service")["Service"]
    assert service["ReadWritePaths"].split() == [f"{disk}/bookie", str(tmp_path)]
    environment = dict(
        line.split("=", 1)
        for line in (tmp_path / "buckram" / "buckram.env").read_text().splitlines()
        if not line.startswith("#")
    )
    command = shlex.split(service["ExecStart"].replace("/etc/buckram", str(tmp_path / "buckram")))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(60)
        environment = {**os.environ, **environment, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        try:
            assert listening.recv(100) == b"READY=1"
            child.send_signal(signal.SIGHUP)  # ExecReload: it goes on
            child.terminate()
            out, _ = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()
    assert child.returncode == 0
    assert b"bookie shelf serves at 127.0.0.1:" + ports[0].encode() in out


def test_every_command_of_the_units_exists() -> None:
    machine = Machine("zk://a:2181/x", ["/d"], "10.0.0.5", exporter=True, gateway_port=8090)
    starts = [text for name, text in machine.files().items() if name.startswith("systemd/")]
    lines = [
        line.partition("=")[2].split()[1:] for text in starts for line in text.splitlines() if "ExecStart=" in line
    ]
    assert len(lines) == 6
    for words in lines:
        check_command(words)


def free_ports(count: int) -> list[int]:
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in found]
    for one in found:
        one.close()
    return ports


def test_files_are_not_replaced_unasked_and_not_readable_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--metadata", ZK, "--disk", "/disk1", "--host", "10.0.0.5", "--no-janitor")
    found = written(tmp_path, capsys, *options)
    assert found["services"] == ["bookie", "buckram-autorecovery"]
    assert stat.S_IMODE((tmp_path / "buckram" / "buckram.env").stat().st_mode) & 0o007 == 0
    written(tmp_path, capsys, *options)  # the same again is no change
    assert run(["deploy", "systemd", "--output", str(tmp_path), *options, "--port", "4000"]) == 2
    assert "buckram/bookie.toml is there and different; --force replaces it" in capsys.readouterr().err
    written(tmp_path, capsys, *options, "--port", "4000", "--force")
    assert "port = 4000" in (tmp_path / "buckram" / "bookie.toml").read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": 'zk://a:2181/x"\nEVIL=1'},
        {"disks": ["disk1"]},
        {"disks": ["/disk 1"]},
        {"disks": ["/a/../b"]},
        {"disks": ["/a", "/a"]},
        {"disks": []},
        {"host": "10.0.0.5\n"},
        {"user": "root; rm"},
        {"location": "rack"},
        {"program": "buckram"},
        {"bookie_id": "a b"},
        {"port": 8079, "disks": ["/a", "/b"]},
        {"http_port": 65535, "disks": ["/a", "/b"]},
        {"gateway_port": 8080},
        {"exporter": True, "port": 9110},
        {"writable": ["/with space"]},
    ],
)
def test_what_systemd_or_a_shell_would_misread_is_refused(wrong: dict[str, object]) -> None:
    right: dict[str, object] = {"metadata": "zk://a:2181/x", "disks": ["/disk1"], "host": "10.0.0.5"}
    Machine(**right)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        Machine(**{**right, **wrong})  # type: ignore[arg-type]


def test_memory_is_no_place_for_services(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["deploy", "systemd", "--metadata", "memory:x", "--disk", "/d", "--host", "h"]) == 2
    assert "cannot share memory" in capsys.readouterr().err
