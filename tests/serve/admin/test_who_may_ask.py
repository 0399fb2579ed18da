"""With logins, the HTTP API is for administrators, metrics are for who has a token for them, and health is for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.conftest import Up, buckram
from tests.support.http_kit import ask

from buckram.cli.up.security_files import FOLDER, SecureDirectory
from buckram.launch.child_process import free_port

INFO = "/api/v1/bookie/info"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    where = f"127.0.0.1:{free_port('127.0.0.1')}"
    up = Up(tmp_path_factory.mktemp("secure") / "data", "--bookies", 1, "--secure", "--http", where)
    yield up
    assert up.stop() == 0


def tokens(directory: Path) -> tuple[str, str]:
    """The administrator's, and the client's."""
    guard = SecureDirectory(directory / FOLDER)
    found = guard.admin_settings()
    admin = found.get("BUCKRAM_TOKEN") or Path(found["BUCKRAM_AUTH_TOKEN_FILE"]).read_text().strip()
    return admin, guard.client_token


def test_an_administrator_may_ask_and_others_may_not(secure: Up) -> None:
    http = secure.ready["bookies"][0]["http"]
    admin, client = tokens(secure.directory)
    assert ask(http, "GET", INFO).status == 401
    assert ask(http, "GET", INFO, Authorization="Bearer nonsense").status == 401
    assert ask(http, "GET", INFO, Authorization=f"Bearer {client}").status == 403
    assert ask(http, "GET", INFO, Authorization=f"Bearer {admin}").json["freeSpace"] > 0
    assert ask(http, "PUT", "/api/v1/bookie/gc").status == 401
    assert ask(http, "DELETE", "/api/v1/jobs/x").status == 401


@pytest.mark.parametrize("page", ["/metrics", "/metrics?names=apache", "/", "/version"])
def test_metrics_are_for_who_may_read_them_and_health_is_for_all(secure: Up, page: str) -> None:
    http = secure.ready["bookies"][0]["http"]
    admin, client = tokens(secure.directory)
    made = buckram("token", "create", "--subject", "prometheus", "--role", "monitor", "--json", uri=secure.uri)
    monitor = made.json["token"]
    refused = ask(http, "GET", page)
    assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "buckram_" not in refused.text
    assert ask(http, "GET", page, Authorization="Bearer nonsense").status == 401
    assert ask(http, "GET", page, Authorization=f"Bearer {client}").status == 403
    for token in (admin, monitor):
        assert ask(http, "GET", page, Authorization=f"Bearer {token}").status == 200
    assert ask(http, "GET", INFO, Authorization=f"Bearer {monitor}").status == 403
    for probe in ("/health", "/ready", "/heartbeat", "/api/v1/bookie/is_ready"):
        assert ask(http, "GET", probe).status == 200


def test_the_pages_reach_the_cluster_too(secure: Up) -> None:
    http = secure.ready["bookies"][0]["http"]
    admin, _ = tokens(secure.directory)
    assert "ClusterInfo: " in ask(http, "GET", "/api/v1/bookie/list_bookie_info", Authorization=f"Bearer {admin}").json


def test_tokens_that_rotate_reach_the_cluster_for_ever(secure: Up) -> None:
    http = secure.ready["bookies"][0]["http"]
    for number in range(11):
        words = ("token", "create", "--subject", f"operator-{number}", "--role", "admin", "--json")
        token = buckram(*words, uri=secure.uri).json["token"]
        found = ask(http, "GET", "/api/v1/bookie/list_bookie_info", Authorization=f"Bearer {token}")
        assert found.status == 200, (number, found.text)
