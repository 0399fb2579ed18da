"""The same questions to the HTTP APIs of a bookie of Apache's and one of ours, which are in one cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.interop.apache import Java
from tests.interop.clusters import Cluster
from tests.support.http_kit import Said, ask

from buckram.launch.child_process import free_port

B, A, L = "/api/v1/bookie", "/api/v1/autorecovery", "/api/v1/ledger"


@dataclass
class Both:
    theirs: str
    ours: str
    ledger: int

    def ask(self, method: str, path: str, body: str | None = None) -> tuple[Said, Said]:
        """What Apache's says, and what ours does."""
        where = path.replace("LEDGER", str(self.ledger))
        return ask(self.theirs, method, where, body), ask(self.ours, method, where, body)


@pytest.fixture(scope="module")
def both(zookeeper: str, workdir: Path, java: Java) -> Iterator[Both]:
    port = free_port("127.0.0.1")
    settings = {
        "httpServerEnabled": "true",
        "httpServerHost": "127.0.0.1",
        "httpServerPort": port,
        "httpServerClass": "interop.PlainHttp",
    }
    uri = f"zk+hierarchical://{zookeeper}/http"
    cluster = Cluster(
        uri, workdir / "http", their_settings=settings, our_settings={"BUCKRAM_BOOKIE_HTTP": "127.0.0.1:0"}
    )
    try:
        cluster.init_with_apache(java)
        cluster.add(ours=1, theirs=1)
        made = java.call("Handles.create", uri=uri, e=2, qw=2, qa=2, custom={"a": "b"})
        java.call("Handles.add", uri=uri, writer=made["writer"], count=5)
        java.call("Handles.closeWriter", uri=uri, writer=made["writer"])
        java.call("Handles.abandon", uri=uri)
        yield Both(f"127.0.0.1:{port}", cluster.ours[0].http, made["ledger"])
    finally:
        cluster.close()


def shape(value: Any) -> Any:
    """Keys and types of a JSON value."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items()}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return type(value).__name__


def parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@pytest.mark.parametrize(
    "path",
    [
        "/heartbeat",
        f"{L}/list",
        f"{L}/read?ledger_id=LEDGER",
        f"{L}/read?ledger_id=LEDGER&page=1",
        f"{L}/read?ledger_id=LEDGER&start_entry_id=1&end_entry_id=2",
        f"{L}/read?ledger_id=LEDGER&start_entry_id=3&end_entry_id=99",
        f"{B}/list_bookies",
        f"{B}/list_bookies?type=ro",
        f"{B}/list_bookies?print_hostnames=true",
        f"{B}/cluster_info",
        f"{B}/state",
        f"{B}/state/readonly",
        f"{B}/sanity",
        f"{B}/is_ready",
        f"{B}/gc",
        f"{B}/gc/suspend_compaction",
        f"{B}/entry_location_compact",
        f"{A}/status",
        f"{A}/list_under_replicated_ledger",
    ],
)
def test_the_answer_is_the_same(both: Both, path: str) -> None:
    theirs, ours = both.ask("GET", path)
    assert (ours.status, parsed(ours.text)) == (theirs.status, parsed(theirs.text))


@pytest.mark.parametrize(
    "path",
    [
        f"{L}/metadata?ledger_id=LEDGER",
        f"{L}/list?print_metadata=true",
        f"{L}/list?print_metadata=true&decode_meta=true",
        f"{B}/info",
        f"{B}/list_bookie_info",
        f"{B}/gc_details",
        f"{B}/list_disk_file",
        f"{B}/list_disk_file?file_type=journal",
    ],
)
def test_keys_and_types_are_the_same(both: Both, path: str) -> None:
    theirs, ours = both.ask("GET", path)
    assert (ours.status, shape(ours.json)) == (theirs.status, shape(theirs.json))


def test_metadata_differ_in_the_password_alone(both: Both) -> None:
    """And in the time of creation, which Apache takes from ZooKeeper where the record has none."""
    theirs, ours = both.ask("GET", f"{L}/metadata?ledger_id=LEDGER")
    record = theirs.json[str(both.ledger)]
    assert record["password"] != ""
    assert ours.json[str(both.ledger)] == record | {"password": "", "ctime": -1}


def test_settings_have_the_names_that_both_know(both: Both) -> None:
    theirs, ours = both.ask("GET", "/api/v1/config/server_config")
    common = {"bookiePort", "metadataServiceUri", "ledgerDirectories", "httpServerPort", "advertisedAddress"}
    assert common <= theirs.json.keys() & ours.json.keys()
    assert all(isinstance(value, str) for value in ours.json.values())
    mark_theirs, mark_ours = both.ask("GET", f"{B}/last_log_mark")
    for said in (mark_theirs, mark_ours):
        ((key, value),) = said.json.items()
        assert key.startswith("LastLogMark: Journal Id - ")
        assert value.startswith("Pos - ")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", f"{L}/metadata", None),
        ("GET", f"{L}/read", None),
        ("DELETE", f"{L}/delete", None),
        ("DELETE", f"{L}/delete?ledger_id=12345", None),
        ("GET", f"{A}/trigger_audit", None),
        ("GET", f"{A}/decommission", None),
        ("GET", f"{B}/expand_storage", None),
        ("PUT", f"{B}/expand_storage", None),
        ("GET", f"{L}/delete", None),
        ("DELETE", f"{B}/gc", None),
        ("PUT", f"{B}/gc", None),
        ("PUT", f"{B}/gc", '{"forceMajor": true}'),
        ("PUT", f"{B}/gc", "x"),
        ("PUT", f"{B}/gc/suspend_compaction", None),
        ("PUT", f"{B}/gc/suspend_compaction", "{}"),
        ("PUT", f"{B}/gc/suspend_compaction", '{"suspendMajor": true}'),
        ("PUT", f"{B}/gc/resume_compaction", '{"resumeMajor": true, "resumeMinor": true}'),
        ("PUT", f"{B}/gc/resume_compaction", "{}"),
        ("PUT", f"{B}/entry_location_compact", None),
        ("PUT", f"{B}/entry_location_compact", "{}"),
        ("PUT", f"{B}/entry_location_compact", '{"entryLocationRocksDBCompact": true}'),
        ("PUT", f"{B}/state/readonly", '{"readOnly": false}'),
        ("PUT", f"{A}/status", None),
        ("PUT", f"{A}/status?enabled=false", None),
        ("PUT", f"{A}/status?enabled=true", None),
        ("PUT", f"{A}/lost_bookie_recovery_delay", None),
        ("PUT", f"{A}/lost_bookie_recovery_delay", "{}"),
        ("PUT", f"{A}/lost_bookie_recovery_delay", '{"delay_seconds": 10}'),
        ("PUT", f"{A}/decommission", None),
        ("PUT", f"{A}/decommission", "{}"),
        ("PUT", f"{A}/decommission", '{"bookie_src": "127.0.0.1:1"}'),
        ("PUT", f"{A}/bookie", '{"bookie_src": ["127.0.0.1:1"], "delete_cookie": false}'),
        ("PUT", f"{A}/bookie", None),
        ("PUT", f"{A}/bookie", "x"),
        ("PUT", "/api/v1/config/server_config", None),
        ("DELETE", f"{A}/status", None),
        ("DELETE", f"{B}/state/readonly", None),
    ],
)
def test_the_status_is_the_same(both: Both, method: str, path: str, body: str | None) -> None:
    theirs, ours = both.ask(method, path, body)
    assert ours.status == theirs.status, (theirs.text, ours.text)
    assert type(parsed(ours.text)) is type(parsed(theirs.text))
