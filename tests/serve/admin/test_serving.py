"""The HTTP API of a bookie process, from the first request to jobs."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from tests.health.telling import telling
from tests.serve.admin.conftest import Site

from buckram.cluster import connect

B, A, L = "/api/v1/bookie", "/api/v1/autorecovery", "/api/v1/ledger"


@pytest.fixture
async def ledger(site: Site) -> int:
    """A closed ledger of five entries on all bookies."""
    async with connect(site.uri) as client, client.create(ensemble=3) as writer:
        for number in range(5):
            await writer.append(b"entry %d" % number if number else b"\xff text")
        return writer.ledger_id


def ended(site: Site, location: str) -> dict[str, object]:
    deadline = time.monotonic() + 60
    while (job := site.ask("GET", location).json)["state"] == "running":
        assert time.monotonic() < deadline
    assert isinstance(job, dict)
    return job


def test_status_pages_are_there_too(site: Site) -> None:
    assert site.ask("GET", "/heartbeat").text == "OK\n"
    assert site.ask("GET", "/ready").text == "writable\n"
    assert "buckram_bookie_added_entries_total" in site.ask("GET", "/metrics").text
    assert site.ask("GET", f"{B}/is_ready")[:2] == (200, "OK")


def test_unknown_paths_and_methods_are_told(site: Site) -> None:
    assert site.ask("GET", "/api/v1/nothing").status == 404
    assert site.ask("POST", f"{B}/info")[:2] == (404, "Not found method. Should be GET method")
    assert site.ask("DELETE", f"{B}/gc").status == 405


def test_a_bookie_says_what_it_is(site: Site) -> None:
    space = site.ask("GET", f"{B}/info").json
    assert 0 < space["freeSpace"] <= space["totalSpace"]
    assert site.ask("GET", f"{B}/state").json == {
        "running": True,
        "readOnly": False,
        "shuttingDown": False,
        "availableForHighPriorityWrites": True,
    }
    settings = site.ask("GET", "/api/v1/config/server_config").json
    assert settings["metadataServiceUri"] == site.uri
    assert settings["store.segment_bytes"] == str(4 << 20)
    assert len(site.ask("GET", f"{B}/last_log_mark").json) == 1
    files = site.ask("GET", f"{B}/list_disk_file").json
    assert set(files) == {"journal files", "entrylog files", "index files"}
    assert site.ask("GET", f"{B}/sanity").json == {"passed": True, "readOnly": False}


def test_readonly_goes_there_and_back(site: Site) -> None:
    assert site.ask("PUT", f"{B}/state/readonly", '{"readOnly": true}', bookie=2).json == {"readOnly": True}
    assert site.ask("GET", f"{B}/state", bookie=2).json["readOnly"]
    assert site.ask("GET", f"{B}/list_bookies?type=ro").json == {"bookie-2": None}
    assert site.ask("GET", f"{B}/sanity", bookie=2).json == {"passed": False, "readOnly": True}
    assert site.ask("PUT", f"{B}/state/readonly", '{"readOnly": false}', bookie=2).json == {"readOnly": False}
    for bad in ("", "x", "[]", "{}", '{"readOnly": 1}'):
        assert site.ask("PUT", f"{B}/state/readonly", bad, bookie=2).status == 400


def test_ledgers_are_listed_read_and_deleted(site: Site, ledger: int) -> None:
    assert site.ask("GET", f"{L}/list").json[str(ledger)] is None
    assert site.ask("GET", f"{L}/list?print_metadata=true").json[str(ledger)].startswith("BookieMetadataFormatVersion")
    decoded = site.ask("GET", f"{L}/list?print_metadata=true&decode_meta=true&page=1").json[str(ledger)]
    assert decoded == site.ask("GET", f"{L}/metadata?ledger_id={ledger}").json[str(ledger)]
    assert (decoded["closed"], decoded["lastEntryId"], decoded["ensembleSize"]) == (True, 4, 3)
    entries = site.ask("GET", f"{L}/read?ledger_id={ledger}").json
    assert entries == {"0": "\ufffd text", **{str(n): f"entry {n}" for n in range(1, 5)}}
    part = site.ask("GET", f"{L}/read?ledger_id={ledger}&start_entry_id=1&end_entry_id=2").json
    assert part == {"1": "entry 1", "2": "entry 2"}
    assert site.ask("GET", f"{L}/read?ledger_id={ledger}&start_entry_id=3&end_entry_id=2").status == 500
    assert site.ask("DELETE", f"{L}/delete?ledger_id={ledger}").json == f"Deleted ledger: {ledger}"
    assert site.ask("DELETE", f"{L}/delete?ledger_id={ledger}").status == 200
    for method, path in (("GET", "metadata"), ("GET", "read"), ("DELETE", "delete")):
        if method == "GET":
            gone = site.ask(method, f"{L}/{path}?ledger_id={ledger}")
            assert (gone.status, str(ledger) in gone.text) == (404, True)
        assert site.ask(method, f"{L}/{path}").status == 404
        assert "needs a whole number" in site.ask(method, f"{L}/{path}?ledger_id=-x").text


def test_the_cluster_is_described(site: Site) -> None:
    found = site.ask("GET", f"{B}/cluster_info").json
    assert (found["totalBookiesCount"], found["writableBookiesCount"], found["auditorElected"]) == (3, 3, False)
    assert site.ask("GET", f"{B}/list_bookies?print_hostnames=true").json == {
        f"bookie-{n}": "127.0.0.1" for n in (1, 2, 3)
    }
    spaces = site.ask("GET", f"{B}/list_bookie_info").json
    assert set(spaces) == {"bookie-1", "bookie-2", "bookie-3", "ClusterInfo: "}
    assert site.ask("GET", f"{A}/who_is_auditor")[:2] == (404, "No auditor elected")
    assert site.ask("GET", f"{A}/list_under_replicated_ledger").status == 404


def test_autorecovery_is_switched(site: Site) -> None:
    assert site.ask("PUT", f"{A}/status?enabled=false").json == {"enabled": False}
    assert site.ask("GET", f"{A}/status").json == {"enabled": False}
    assert site.ask("PUT", f"{A}/status?enabled=True").json == {"enabled": True}
    assert site.ask("PUT", f"{A}/status").status == 400
    assert site.ask("PUT", f"{A}/lost_bookie_recovery_delay", '{"delay_seconds": 17}').status == 200
    assert site.ask("GET", f"{A}/lost_bookie_recovery_delay").text == "lostBookieRecoveryDelay value: 17"
    assert "delay_seconds = -1" in site.ask("PUT", f"{A}/lost_bookie_recovery_delay", '{"delay_seconds": -1}').text
    assert site.ask("PUT", f"{A}/trigger_audit").text == "Success trigger audit."


def test_a_collection_is_a_job(site: Site) -> None:
    begun = site.ask("PUT", f"{B}/gc")
    assert begun.json == "Triggered GC on BookieServer: bookie-1"
    job = ended(site, begun.headers["Location"])
    assert (job["state"], job["what"]) == ("done", "collection")
    assert job in site.ask("GET", "/api/v1/jobs").json["jobs"]
    details = site.ask("GET", f"{B}/gc_details").json[0]
    assert details["majorCompactionCounter"] >= 1
    assert abs(details["lastMajorCompactionTime"] / 1000 - time.time()) < 60
    assert site.ask("GET", f"{B}/gc").status == 200
    assert site.ask("GET", "/api/v1/jobs/none").status == 404


def test_compaction_is_suspended_and_resumed(site: Site) -> None:
    path = f"{B}/gc/suspend_compaction"
    assert site.ask("PUT", path, '{"suspendMajor": true}').status == 200
    assert site.ask("GET", path).json == {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"}
    before = site.ask("GET", f"{B}/gc_details").json[0]["majorCompactionCounter"]
    assert ended(site, site.ask("PUT", f"{B}/gc").headers["Location"])["state"] == "done"
    assert site.ask("GET", f"{B}/gc_details").json[0]["majorCompactionCounter"] == before
    assert site.ask("PUT", f"{B}/gc/resume_compaction", '{"resumeMajor": true}').status == 200
    assert site.ask("GET", path).json == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
    assert site.ask("PUT", path, "{}").status == 400


def test_a_job_that_cannot_go_on_says_why(site: Site) -> None:
    begun = site.ask("PUT", f"{A}/decommission", json.dumps({"bookie_src": "bookie-3"}))
    assert begun.text == "Success send decommission Bookie command bookie-3"
    job = ended(site, begun.headers["Location"])
    assert job["state"] == "failed"
    assert "is registered: stop it first" in str(job["error"])
    assert site.ask("PUT", f"{A}/decommission", "{}").status == 404


async def test_a_bookie_that_answers_and_is_not_registered_is_not_taken_out(site: Site) -> None:
    async with connect(site.uri) as client, telling(client, "", registered=False) as bookie:
        for path, body in (
            ("decommission", {"bookie_src": bookie.name}),
            ("bookie", {"bookie_src": [bookie.name], "delete_cookie": True}),
        ):
            refused = await asyncio.to_thread(site.ask, "PUT", f"{A}/{path}", json.dumps(body))
            assert (refused.status, "it answers at" in refused.text) == (400, True), refused
        assert bookie.name in await client.services.store.known_bookies()


def test_bookies_are_recovered_by_a_job(site: Site, ledger: int) -> None:
    begun = site.ask("PUT", f"{A}/bookie", '{"bookie_src": ["bookie-2"], "delete_cookie": false}')
    job = ended(site, begun.headers["Location"])
    assert job["state"] == "done"
    progress = job["progress"]
    assert isinstance(progress, dict)
    assert progress["done"] == progress["total"] > 0


def test_metrics_have_apaches_names_too(site: Site, ledger: int) -> None:
    site.ask("GET", f"{L}/read?ledger_id={ledger}")
    both = site.ask("GET", "/metrics?names=both").text
    for name in ('bookkeeper_server_ADD_ENTRY_REQUEST_count{success="true"}', "bookie_SERVER_STATUS", "buckram_"):
        assert name in both
    assert "buckram_" not in site.ask("GET", "/metrics?names=apache").text
    assert "bookie_SERVER_STATUS" not in site.ask("GET", "/metrics").text
    assert site.ask("GET", "/metrics?names=x").status == 400
