"""One parser of addresses for the whole project, and nobody who takes them apart by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import buckram
from buckram.addresses import (
    Address,
    address_of_id,
    check_announced,
    check_reachable,
    host_port,
    is_unspecified,
    join,
    loopback,
    parse_host,
    read_address,
    with_port,
)
from buckram.bookie.process import Bookie
from buckram.cli.app import run
from buckram.cli.shared.serving import ServerAddress
from buckram.config import BookieConfig, TlsConfig, load
from buckram.errors import ConfigError
from buckram.metadata.uri import parse
from buckram.types import BookieAddress

SOURCES = Path(buckram.__file__).parent


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:80", Address("127.0.0.1", 80)),
        ("bookie-1.example.org:0", Address("bookie-1.example.org", 0)),
        ("localhost", Address("localhost", None)),
        ("[::1]:3181", Address("::1", 3181)),
        ("[::1]", Address("::1", None)),
        ("::1", Address("::1", None)),
        ("[fe80::1%eth0]:65535", Address("fe80::1%eth0", 65535)),
        *(
            (text, None)
            for text in (
                "",
                ":80",
                "a:",
                "a:b",
                "a:-1",
                "a:65536",
                "a:1:2",
                "[::1",
                "[::1]80",
                "[a]:80",
                "a b:80",
                "u@a:80",
                "a/b:80",
                "[]:1",
                "$(id):1",
                "[fe80::1%$(id)]:1",
                "a:٣",
            )
        ),
    ],
)
def test_what_is_an_address(text: str, found: Address | None) -> None:
    assert read_address(text) == found
    if found is not None and found.port is not None:
        assert host_port(text, "x") == found
        assert join(*host_port(text, "x")) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("here", r"--listen: needs HOST:PORT, for example 127.0.0.1:9181 or \[::1\]:9181"),
        ("::1", "in brackets before its port"),
        ("::1:3181", "in brackets before its port"),
        ("a:70000", "port 70000 is over the limit of 65535"),
    ],
)
def test_what_is_wrong_is_said(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        host_port(text, "--listen")


def test_hosts_without_a_port() -> None:
    assert parse_host("[::1]", "--host") == parse_host("::1", "--host") == "::1"
    with pytest.raises(ConfigError, match="without a port"):
        parse_host("a:80", "--host")
    assert with_port("[::1]", 2181) == ("::1", 2181)
    assert with_port("a:0", 2181) is None


def test_ids_of_bookies_that_are_addresses() -> None:
    """An id may hold brackets by Apache's grammar; whoever writes IPv6 without them is understood, too."""
    assert address_of_id("[::1]:3181") == address_of_id("::1:3181") == BookieAddress("::1", 3181)
    assert str(BookieAddress("::1", 3181)) == "[::1]:3181"
    assert address_of_id("b1") is None
    assert address_of_id("b1:x") is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_what_listens_everywhere_is_not_announced(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One rule for bookies, gateways and servers of databases."""
    with pytest.raises(
        ConfigError, match="x listens on all addresses, so clients have to know which one to use: say so"
    ):
        check_announced(host, "x", "say so")
    assert check_announced("10.0.0.7", "x", "say so") == "10.0.0.7"
    for words in (["gateway"], ["db", "serve", "shop/main"]):
        assert run([*words, "--host", host, "--metadata", "memory:x"]) == 2
        assert f"--host {host} listens on all addresses" in capsys.readouterr().err
    options = {"host": host, "port": 0, "tokens": False, "hosts": (), "pages": (), "tls_cert": None, "tls_key": None}
    assert ServerAddress.of({**options, "tls_ca": None, "advertise": "http://a:1"}).advertise == "http://a:1"


def test_other_servers_are_trusted_as_this_process_trusts_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"host": "127.0.0.1", "port": 0, "tokens": False, "hosts": (), "pages": (), "advertise": None}
    given = {**options, "tls_cert": "a.pem", "tls_key": "a.key"}
    monkeypatch.delenv("BUCKRAM_CA", raising=False)
    assert ServerAddress.of({**options, "tls_cert": None, "tls_key": None, "tls_ca": None}).ca == ""
    monkeypatch.setenv("BUCKRAM_CA", "/ca.pem")
    assert ServerAddress.of({**options, "tls_cert": None, "tls_key": None, "tls_ca": None}).ca == "/ca.pem"
    assert ServerAddress.of({**given, "tls_ca": None}).tls == TlsConfig("required", "/ca.pem", "a.pem", "a.key")
    assert ServerAddress.of({**given, "tls_ca": "/other.pem"}).ca == "/other.pem"


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "[::]", "::ffff:0.0.0.0", "*"])
def test_every_address_of_a_machine_is_none_to_connect_to(host: str) -> None:
    assert is_unspecified(host)
    with pytest.raises(ConfigError, match=r"--advertise: .* means every address .*: give the name or address"):
        check_reachable(host, "--advertise")
    assert loopback(host) == ("::1" if ":" in host else "127.0.0.1")


async def test_where_a_bookie_or_a_server_says_it_is() -> None:
    bookie = Bookie.__new__(Bookie)
    for advertise in ("0.0.0.0:3181", "[::]:3181"):
        bookie._config = BookieConfig(advertise=advertise)
        with pytest.raises(ConfigError, match=r"advertise = .* no client can connect"):
            bookie._advertised(3181)
    bookie._config = BookieConfig(host="::")
    with pytest.raises(ConfigError, match="set advertise = HOST:PORT"):
        bookie._advertised(3181)
    bookie._config = BookieConfig(host="::", advertise="[fd00::7]:0")
    assert str(bookie._advertised(3181)) == "[fd00::7]:3181"
    options = {"advertise": "http://0.0.0.0:80", "tls_cert": None, "tls_key": None, "tls_ca": None}
    with pytest.raises(ConfigError, match=r"--advertise 'http://0\.0\.0\.0:80': 0\.0\.0\.0 means"):
        ServerAddress.of(dict(options))


def test_settings_and_metadata_uris() -> None:
    assert load("bookie", {}, {}, {"host": "[::1]"})[0].host == "::1"
    for uri in ("zk://[::1]:2181/ledgers", "etcd://[::1]:2379/b", "buckram://[::1]:3181/"):
        assert str(parse(uri)) == uri
    assert str(parse("zk://[::1],::2/ledgers")) == "zk://[::1]:2181,[::2]:2181/ledgers"
    assert str(parse("[::1]:2181")) == "zk://[::1]:2181/ledgers"


_ADDRESS = r"(host|address|server|listen|netloc|advertise|url)\w*"
_BY_HAND = re.compile(
    rf"""{_ADDRESS}\.(r?partition|r?split)\(":"|r?(partition|split)\(":"\)[^#\n]*port|\{{[\w.]*host\}}:\{{|_HOST = re"""
)


def test_nobody_takes_addresses_apart_or_puts_them_together_by_hand() -> None:
    own = {
        "addresses.py",
        "types.py",
        "cli/bench/profiling.py",
        "simulator/engine/network.py",
        "runtime/net/local_sockets.py",
    }
    """Of hexadecimal ports in /proc; simulated hosts; names of sockets."""
    found = [
        f"{path.relative_to(SOURCES)}:{number}: {line.strip()}"
        for path in sorted(SOURCES.rglob("*.py"))
        if str(path.relative_to(SOURCES)) not in own
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if _BY_HAND.search(line)
    ]
    assert found == []
