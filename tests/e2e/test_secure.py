"""`buckram up --secure`: the printed line is all that a client needs, and without it nothing goes."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Up, buckram
from tests.support.polling import wait_until

from buckram.cli.shared.exits import Exit

pytestmark = pytest.mark.share(10, "stores")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    running = Up(tmp_path_factory.mktemp("secure") / "data", "--bookies", 3, "--secure")
    yield running
    assert running.stop() == 0


def settings(running: Up, **changes: str) -> Mapping[str, str]:
    """What a client on another machine has: no Unix socket, no file of the cluster."""
    client: dict[str, Any] = running.ready["client"]
    known = {"BUCKRAM_CA": client["ca"], "BUCKRAM_TOKEN": client["token"], "BUCKRAM_SOCKETS": "tcp"}
    return {**known, "BUCKRAM_CLIENT_LOCAL_READ_BYTES": "0", **changes}


def test_the_printed_line_is_all_that_a_client_needs(secure: Up) -> None:
    service, env = secure.ready["service"], settings(secure)
    assert service.startswith("buckram+tls://")
    written = buckram("stream", "write", "numbers", "--json", uri=service, stdin=b"1\n2\n3\n", env=env)
    assert written.code == 0, written.err
    assert buckram("stream", "read", "numbers", uri=service, env=env).out == "1\n2\n3\n"
    ledger = buckram("ledger", "write", "--close", "--json", uri=service, stdin=b"x\n", env=env)
    assert ledger.code == 0, ledger.err
    assert buckram("ledger", "read", ledger.json["ledger"], uri=service, env=env).out == "x\n"


def test_a_list_has_what_one_may_see(secure: Up) -> None:
    service, env = secure.ready["service"], settings(secure)
    assert buckram("stream", "write", "seen", uri=service, stdin=b"x\n", env=env).code == 0
    listed = buckram("stream", "list", "--json", uri=service, env=env)
    assert "default/seen" in listed.json["streams"], listed.err
    assert not any(name.startswith("system/") for name in listed.json["streams"])
    assert buckram("stream", "list", "system", uri=service, env=env).code == Exit.REFUSED


@pytest.mark.parametrize("missing", ["BUCKRAM_TOKEN", "BUCKRAM_CA"])
def test_without_a_part_of_it_nothing_goes(secure: Up, missing: str) -> None:
    refused = buckram("stream", "list", uri=secure.ready["service"], env=settings(secure, **{missing: ""}))
    assert refused.code == Exit.REFUSED, refused.err
    assert missing in refused.err
    assert "may succeed later" not in refused.err


def test_other_namespaces_need_a_grant_and_a_revoked_token_is_none(secure: Up) -> None:
    service, direct = secure.ready["service"], secure.uri
    assert buckram("namespace", "create", "shop", uri=direct).code == 0
    made = buckram("token", "create", "--subject", "bob", "--expires", "1h", "--json", uri=direct)
    assert made.code == 0, made.err
    bob = settings(secure, BUCKRAM_TOKEN=made.json["token"])

    def write() -> Any:
        return buckram("stream", "write", "shop/s", "--json", uri=service, stdin=b"1\n", env=bob)

    refused = write()
    assert refused.code == Exit.REFUSED, refused.err
    assert "may not" in refused.err
    permissions = ("--principal", "token:bob", "--permission", "read,append,create", "shop", "--json")
    assert buckram("acl", "check", *permissions, uri=direct).code == 1
    assert buckram("acl", "grant", *permissions, uri=direct).json["permissions"] == ["append", "create", "read"]
    assert buckram("acl", "check", *permissions, uri=direct).code == 0
    wait_until(lambda: write().code == 0, "the grant is not in force")
    shown = buckram("token", "verify", made.json["token"], "--json", uri=direct)
    assert shown.json["subject"] == "bob"
    assert buckram("token", "show", made.json["token"], "--json").json["id"] == made.json["id"]
    assert buckram("token", "revoke", made.json["id"], uri=direct).code == 0
    assert buckram("token", "verify", made.json["token"], uri=direct).code == Exit.REFUSED
    listed = buckram("token", "list", "--json", uri=direct).json["tokens"]
    assert [one["revoked"] for one in listed if one["subject"] == "bob"] == [True]
    wait_until(lambda: write().code != 0, "the revoked token still counts")


def test_tokens_and_grants_are_made_by_administrators(secure: Up) -> None:
    for command in (("token", "list"), ("acl", "list")):
        refused = buckram(*command, uri=secure.ready["service"], env=settings(secure))
        assert refused.code == Exit.USAGE
        assert "administrators" in refused.err


def test_secrets_are_for_their_owner_and_in_no_log(secure: Up) -> None:
    folder = Path(secure.ready["client"]["ca"]).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    secrets = {path for path in folder.iterdir() if path.suffix in (".key", ".token")}
    assert {path.name for path in secrets} == {"ca.key", "bookie.key", "gateway.key", "admin.token", "client.token"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}
    everything = [folder.parent, *(path for path in folder.parent.rglob("*") if path.name != "up.lock")]
    assert not [path for path in everything if stat.S_IMODE(path.lstat().st_mode) & 0o077 and not path.is_symlink()]
    tokens = [path.read_text().strip() for path in secrets if path.suffix == ".token"]
    for log in folder.parent.glob("*.log"):
        assert not any(token in log.read_text() for token in tokens), log
    for pid in secure.pids:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        assert not any(token in command for token in tokens)


def test_it_stays_secure_and_is_not_made_so_behind_the_back(tmp_path: Path) -> None:
    first = Up(tmp_path / "data", "--bookies", 1, "--secure")
    assert first.stop() == 0
    again = Up(tmp_path / "data")
    try:
        assert again.ready["client"] == first.ready["client"]
        assert again.ready["service"].startswith("buckram+tls://")
    finally:
        again.stop()
    plain = Up(tmp_path / "plain", "--bookies", 1)
    assert plain.ready["client"] is None
    assert plain.stop() == 0
    refused = buckram("up", "--secure", "--data", str(tmp_path / "plain"))
    assert refused.code == Exit.USAGE
    assert "made without it" in refused.err
