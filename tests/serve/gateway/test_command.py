"""`buckram gateway` and the gateway of `buckram up`, as an operator runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Up, environment

from buckram.cli.app import run as in_process
from buckram.cli.shared.exits import Exit
from buckram.testing import ThreadedCluster


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with ThreadedCluster(bookies=3) as cluster:
        yield cluster.uri


def ask(url: str, method: str, path: str, body: bytes | None = None, **headers: str) -> Any:
    request = urllib.request.Request(f"{url}{path}", body, headers, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_a_gateway_serves_until_it_is_told_to_stop(uri: str) -> None:
    command = [sys.executable, "-m", "buckram", "gateway", "--metadata", uri, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(None)) as process:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        path = "/v2/namespaces/default/streams/a/records?create=true"
        appended = ask(url, "POST", path, b"x", **{"Content-Type": "application/octet-stream"})
        assert appended["last_offset"] == 0
        assert [one["url"] for one in ask(url, "GET", "/v2/gateways")["gateways"]] == [url]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_up_runs_a_gateway_at_the_same_address_again(tmp_path: Path) -> None:
    urls = []
    for _ in range(2):
        up = Up(tmp_path / "data", "--bookies", 1, "--gateway")
        try:
            urls.append(up.ready["gateway"])
            assert len(ask(urls[-1], "GET", "/v2/status")["bookies"]) == 1
            assert (tmp_path / "data" / "gateway.url").read_text() == f"{urls[-1]}\n"
        finally:
            assert up.stop() == 0
        assert not (tmp_path / "data" / "gateway.url").exists()
    assert urls[0] == urls[1]


def test_up_runs_none_where_that_is_asked_for(tmp_path: Path) -> None:
    up = Up(tmp_path / "data", "--bookies", 1, "--no-gateway")
    assert up.ready["gateway"] is None
    assert up.stop() == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--host", "192.0.2.1"], "--host and --port 192.0.2.1:0"),
        (["--advertise", "10.0.0.7:80"], "needs a URL such as"),
        (["--open", "--tokens"], "exclude each other"),
        (["--tls-cert", __file__], "--tls-cert and --tls-key go together"),
    ],
)
def test_wrong_use_is_said_in_one_line(
    uri: str, words: list[str], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert in_process(["gateway", *words, "--metadata", uri]) == Exit.USAGE
    said = capfd.readouterr().err
    assert reason in said
    assert len(said.splitlines()) == 1
