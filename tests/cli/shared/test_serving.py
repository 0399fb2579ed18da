"""The log of a real bookie: JSON lines with fields, and a level that changes while it runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.http_kit import ask
from tests.support.polling import wait_until

from buckram.cli.app import run
from buckram.launch.processes import BookieProcess

CONFIG = "/api/v1/config/server_config"


class Logging:
    def __init__(self, root: Path) -> None:
        self.file = root / "bookie.toml"
        self.file.write_text('[log]\nformat = "json"\n')
        self.uri = f"sqlite://{root / 'metadata.db'}"
        self.child = BookieProcess(
            self.uri,
            root / "b",
            bookie_id="bookie-1",
            options=("--http", "127.0.0.1:0", "--config", str(self.file)),
        )
        self.child.start()
        self.http = self.child.wait_ready().http or ""

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.child.log.read_text().splitlines()]

    def level(self) -> str:
        return str(ask(self.http, "GET", CONFIG).json["log.level"])


@pytest.fixture(scope="module")
def bookie(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Logging]:
    made = Logging(tmp_path_factory.mktemp("logs"))
    try:
        yield made
    finally:
        made.child.stop()


def test_lines_are_json_with_fields(bookie: Logging) -> None:
    def serving() -> list[dict[str, Any]]:
        return [line for line in bookie.lines() if "serves at" in line["message"]]

    wait_until(lambda: bool(serving()), "no line says that it serves")
    found = serving()[0]
    assert (found["level"], found["logger"], found["bookie"]) == ("info", "buckram.bookie", "bookie-1")


def test_the_level_changes_by_command(bookie: Logging, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bookie", "log-level", bookie.http]) == 0
    assert capsys.readouterr().out == "info\n"
    assert run(["bookie", "log-level", bookie.http, "error buckram.admin=warning", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["level"] == "error buckram.admin=warning"
    said = ask(bookie.http, "PUT", CONFIG, '{"log.level": "info"}', **{"X-Request-Id": "mine-1"})
    assert (said.status, said.headers["X-Request-Id"]) == (200, "mine-1")
    wait_until(lambda: any(line.get("request") == "mine-1" for line in bookie.lines()), "no line names its request")


def test_the_level_changes_by_a_signal(bookie: Logging) -> None:
    bookie.file.write_text('[log]\nlevel = "debug"\nformat = "json"\n')
    bookie.child.signal(signal.SIGHUP)
    wait_until(lambda: bookie.level() == "debug", "the file was not read again")
    bookie.file.write_text('[log]\nlevel = "loud"\n')
    bookie.child.signal(signal.SIGHUP)
    wait_until(lambda: any("is unchanged" in line["message"] for line in bookie.lines()), "a bad file is not told")
    assert bookie.level() == "debug"
    assert bookie.child.alive


def test_what_is_wrong_is_told(bookie: Logging, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(bookie.http, "PUT", CONFIG, '{"log.level": "loud"}').status == 400
    assert ask(bookie.http, "PUT", CONFIG, '{"store.segment_bytes": 1}').status == 400
    assert run(["bookie", "log-level", bookie.http, "loud"]) == 2
    assert run(["bookie", "log-level", "nowhere"]) == 2
    assert run(["bookie", "log-level", "127.0.0.1:9", "info"]) == 1
    assert "no HTTP API of a bookie answers at 127.0.0.1:9" in capsys.readouterr().err


_TELLS = """
import atexit, gc, sys
from buckram.cli import main
atexit.register(lambda: print("left alone:", gc.get_freeze_count(), file=sys.stderr))
sys.argv[1:] = {words!r}
main()
"""


@pytest.mark.parametrize("command", ["autorecovery run", "gateway --port 0", "db serve default/main --port 0"])
def test_collections_pass_over_the_start_of_a_server(bookie: Logging, command: str) -> None:
    words = [*command.split(), "--metadata", bookie.uri, "--json"]
    program = [sys.executable, "-c", _TELLS.format(words=words)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGTERM)
        _, told = child.communicate(timeout=60)
    left = int(told.rpartition("left alone: ")[2])
    assert left > 20_000, "the objects of its modules are visited by each full collection"
