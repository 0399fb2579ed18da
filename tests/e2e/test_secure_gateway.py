"""The gateway of `buckram up --secure`, and its certificates, as an operator meets them."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.e2e.conftest import Up, buckram, environment
from tests.e2e.test_secure import settings

from buckram.cli.shared.exits import Exit
from buckram.core.security.certificates import life_of
from buckram.runtime.net.security.certificate_authority import Authority

pytestmark = pytest.mark.share(10, "stores")
DAY_S = 86_400
PLAIN_S = 5.0
"""A request without TLS is refused well before a handshake's time is over, which is 10 s."""


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("gateway") / "data", "--bookies", 1, "--secure", "--gateway")
    yield running
    assert running.stop() == 0


def folder(running: Up) -> Path:
    return running.directory / "security"


def connection(running: Up, ca: Path | None = None) -> http.client.HTTPSConnection:
    place = urlsplit(running.ready["gateway"])
    context = ssl.create_default_context(cafile=str(ca or running.ready["client"]["ca"]))
    return http.client.HTTPSConnection(place.netloc, timeout=60, context=context)


def ask(to: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
    to.request(method, path, None if body is None else json.dumps(body), headers)
    answer = to.getresponse()
    return answer.status, json.loads(answer.read())


def shown_at(port: int, ca: Path) -> int:
    """The serial number of the certificate that somebody shows there."""
    context = ssl.create_default_context(cafile=str(ca))
    with (
        socket.create_connection(("127.0.0.1", port), 60) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secured,
    ):
        shown = secured.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


def shown_by(running: Up, ca: Path) -> dict[str, int]:
    """The serial numbers of the certificates that bookie and gateway show to those who connect now."""
    ports = {"bookie": running.ready["bookies"][0]["port"], "gateway": urlsplit(running.ready["gateway"]).port}
    return {name: shown_at(port, ca) for name, port in ports.items()}


def test_the_printed_authority_and_token_reach_it_and_nothing_less_does(secure: Up) -> None:
    url, token = secure.ready["gateway"], secure.ready["client"]["token"]
    assert url.startswith("https://127.0.0.1:")
    assert (secure.directory / "gateway.url").read_text() == f"{url}\n"
    assert secure.ready["files"] == url.replace("https", "swebhdfs") == f"swebhdfs://{secure.ready['webhdfs']}"
    to, bearer = connection(secure), {"Authorization": f"Bearer {token}"}
    assert ask(to, "GET", "/v2/namespaces/default/streams", **bearer)[0] == 200
    assert ask(to, "GET", "/v2/namespaces/default/streams")[0] == 401
    assert [one["url"] for one in ask(to, "GET", "/v2/gateways", **bearer)[1]["gateways"]] == [url]
    to.close()
    stranger = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=60)
    with pytest.raises(ssl.SSLCertVerificationError):
        stranger.request("GET", "/health")


def test_what_people_read_says_https(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "buckram", "up", "--data", str(tmp_path / "data"), "--bookies", "1", "--secure"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(None)) as process:
        assert process.stdout is not None
        lines: list[str] = []
        while not lines or not lines[-1].startswith("ready"):
            lines.append(process.stdout.readline())
            assert lines[-1]
        process.send_signal(signal.SIGTERM)
    text = "".join(lines)
    assert "console and HTTP for any language: https://127.0.0.1:" in text
    assert "files and checkpoints for Spark: swebhdfs://127.0.0.1:" in text
    assert "http://" not in text


def test_its_cookie_is_for_https_alone(secure: Up) -> None:
    to = connection(secure)
    to.request("POST", "/v2/session", json.dumps({"token": secure.ready["client"]["token"]}),
               {"Content-Type": "application/json"})  # fmt: skip
    answer = to.getresponse()
    assert answer.status == 201, answer.read()
    words = str(answer.headers["set-cookie"]).split("; ")
    assert {"Secure", "HttpOnly", "SameSite=Strict"} <= set(words)
    to.close()


@pytest.mark.parametrize("sent", [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"x"])
def test_what_is_no_tls_is_ended_at_once(secure: Up, sent: bytes) -> None:
    place = urlsplit(secure.ready["gateway"])
    with socket.create_connection(("127.0.0.1", place.port or 0), PLAIN_S) as plain:
        plain.sendall(sent)
        if sent == b"x":  # nobody can tell yet what this is going to be
            plain.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while piece := plain.recv(1024):
                found += piece
        except ConnectionError:
            pass
    assert b"HTTP/1.1 200" not in found


def test_a_command_makes_certificates_anew_and_whoever_runs_goes_on_with_them(secure: Up, tmp_path: Path) -> None:
    ca, data = folder(secure) / "ca.pem", ("--data", str(secure.directory))
    copied = Path(shutil.copy(ca, tmp_path / "ca.pem"))
    before, open_before = shown_by(secure, ca), connection(secure)
    assert ask(open_before, "GET", "/health")[0] == 200
    listed = buckram("certificate", "list", "--json", *data).json["certificates"]
    assert {one["name"]: one["state"] for one in listed} == {"ca": "good", "bookie": "good", "gateway": "good"}
    lives = {one["name"]: (one["expires_s"] - one["begins_s"]) // DAY_S for one in listed}
    assert lives == {"ca": 3650, "bookie": 365, "gateway": 365}
    idle = buckram("certificate", "renew", "--json", *data)
    assert (idle.code, idle.json["certificates"]) == (0, [])
    assert shown_by(secure, ca) == before
    one = buckram("certificate", "renew", str(folder(secure) / "bookie.pem"), "--json")
    assert [row["name"] for row in one.json["certificates"]] == ["bookie"], one.err
    after = shown_by(secure, ca)
    assert (after["bookie"] != before["bookie"], after["gateway"]) == (True, before["gateway"])
    whole = buckram("certificate", "renew", "--all", "--json", *data)
    assert [row["name"] for row in whole.json["certificates"]] == ["ca", "bookie", "gateway"], whole.err
    assert not set(shown_by(secure, ca).values()) & {*before.values(), *after.values()}
    # Clients elsewhere have a copy of the authority's certificate, and connections that are open stay.
    assert ca.read_bytes() != copied.read_bytes()
    assert shown_by(secure, copied) == shown_by(secure, ca)
    assert ask(open_before, "GET", "/health")[0] == 200
    open_before.close()
    env = settings(secure, BUCKRAM_CA=str(copied))
    written = buckram("stream", "write", "renewed", uri=secure.ready["service"], stdin=b"1\n", env=env)
    assert written.code == 0, written.err
    for path in folder(secure).iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_up_makes_anew_what_is_due(tmp_path: Path) -> None:
    first = Up(tmp_path / "data", "--bookies", 1, "--secure", "--gateway")
    assert first.stop() == 0
    authority = Authority(folder(first))
    authority.renew(days=1 / 1440)
    for name in ("bookie", "gateway"):
        authority.bookie(name, ["127.0.0.1", "localhost"], days=1 / 1440)
    worn = {name: (folder(first) / f"{name}.pem").read_text() for name in ("ca", "bookie", "gateway")}
    (folder(first) / "gateway.key").unlink()
    again = Up(tmp_path / "data", "--gateway")
    try:
        for name, before in worn.items():
            now = life_of((folder(again) / f"{name}.pem").read_text())
            assert now.ends_s - life_of(before).ends_s > 300 * DAY_S
        to = connection(again)
        assert ask(to, "GET", "/health") == (200, {"status": "ok"})
        to.close()
        assert set(shown_by(again, folder(again) / "ca.pem"))
    finally:
        assert again.stop() == 0


def test_what_is_no_certificate_of_up_is_refused_in_one_line(secure: Up, tmp_path: Path) -> None:
    plain = Up(tmp_path / "plain", "--bookies", 1)
    assert plain.stop() == 0
    ca = folder(secure) / "ca.pem"
    elsewhere = Path(shutil.copy(ca, tmp_path / "ca.pem"))
    for words, reason in (
        (["list", "--data", str(tmp_path / "none")], "no cluster of `buckram up`"),
        (["renew", "--data", str(tmp_path / "plain")], "made without --secure"),
        (["renew", str(elsewhere)], "needs a file in DIR/security"),
        (["renew", str(folder(secure) / "admin.token")], "is none of the certificates"),
        (["renew", "--all", str(ca)], "exclude each other"),
    ):
        refused = buckram("certificate", *words)
        assert (refused.code, len(refused.err.splitlines())) == (Exit.USAGE, 1), (words, refused.err)
        assert reason in refused.err
