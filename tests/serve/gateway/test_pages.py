"""Streams, cursors, ledgers, namespaces, the cluster, security, jobs: what each operation does and answers."""

from __future__ import annotations

import base64
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.serve.gateway.kit import Api, serving
from tests.serve.gateway.shared.test_authentication import guarded
from tests.support.polling import eventually

from buckram.bookie.accounting.audit_queue import AuditLog
from buckram.cli.security.audit_writer import AuditWriter
from buckram.cluster import Client
from buckram.runtime.process.stats import NullStats
from buckram.runtime.production import production_runtime
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.testing import Cluster

STREAMS, STREAM = "/v2/namespaces/shop/streams", "/v2/namespaces/shop/streams/orders"
LINES = {"Content_Type": "text/plain"}


@pytest.fixture
async def orders(api: Api) -> None:
    body = {"stream": "orders", "policy": {"retention_s": 3600.0}, "properties": {"owner": "billing"}}
    made = await api.value(f"POST {STREAMS}", body, status=201)
    assert (made["stream"], made["overrides"], made["properties"]) == (
        "shop/orders",
        {"retention_s": 3600.0},
        {"owner": "billing"},
    )


@pytest.mark.usefixtures("orders")
async def test_streams(api: Api) -> None:
    await api.value(f"POST {STREAMS}", {"stream": "other"}, status=201)
    assert await api.code(f"POST {STREAMS}", {"stream": "other"}) == (409, "STREAM_EXISTS")
    assert await api.code(f"POST {STREAMS}", {"stream": "x", "policy": {"nothing": 1}}) == (400, "INVALID_ARGUMENT")
    assert await api.code(f"POST {STREAMS}", {"stream": ".."}) == (400, "INVALID_ARGUMENT")
    page = await api.value(f"GET {STREAMS}?limit=1")
    assert page == {"streams": ["orders"], "next": "orders"}
    assert (await api.value(f"GET {STREAMS}?after=orders&long=true"))["streams"][0]["stream"] == "shop/other"
    assert (await api.value(f"GET {STREAMS}?prefix=ot"))["streams"] == ["other"]
    changed = await api.value(
        f"PATCH {STREAM}", {"policy": {"retention_s": None}, "properties": {"a": "b", "owner": None}}
    )
    assert (changed["overrides"], changed["properties"]) == ({}, {"a": "b"})
    assert await api.code("GET /v2/namespaces/none/streams") == (404, "NO_SUCH_NAMESPACE")
    assert await api.code(f"GET {STREAMS}/none") == (404, "NO_SUCH_STREAM")
    assert (await api.value(f"DELETE {STREAMS}/other"))["deleted"] is True
    assert await api.code(f"DELETE {STREAMS}/other") == (404, "NO_SUCH_STREAM")


@pytest.mark.usefixtures("orders")
async def test_a_log_is_not_deleted_written_or_truncated_as_a_stream(api: Api, client: Client) -> None:
    ns = client.namespace("shop")
    await ns.create_database("main")
    await ns.create_machine_log("inventory")
    rows = (await api.value(f"GET {STREAMS}?long=true"))["streams"]
    assert {row["stream"]: row["purpose"] for row in rows} == {
        "shop/inventory": "machine",
        "shop/main": "database",
        "shop/orders": "records",
    }
    refused = {row["stream"]: row["refused"] for row in rows}
    assert refused["shop/orders"] == {}
    assert {"write", "truncate", "delete"} <= set(refused["shop/main"])
    assert "`buckram db drop shop/main`" in refused["shop/main"]["delete"]
    for log in ("main", "inventory"):
        assert await api.code(f"DELETE {STREAMS}/{log}") == (400, "MACHINE_LOG")
        assert await api.code(f"DELETE {STREAMS}/{log}?force=true") == (400, "MACHINE_LOG")
        assert await api.code(f"DELETE {STREAMS}/{log}?purpose=objects") == (400, "MACHINE_LOG")
        assert await api.code(f"POST {STREAMS}/{log}/truncate", {"before": 0}) == (400, "MACHINE_LOG")
        assert await api.code(f"POST {STREAMS}/{log}/records", b"a\n", **LINES) == (400, "MACHINE_LOG")
        for ending in ("seal", "end"):
            assert await api.code(f"POST {STREAMS}/{log}/{ending}") == (400, "MACHINE_LOG")
        assert (await api.value(f"GET {STREAMS}/{log}"))["ended"] is False
    assert await api.code(f"DELETE {STREAMS}/main?purpose=all") == (400, "INVALID_ARGUMENT")
    assert (await api.value(f"DELETE {STREAMS}/inventory?purpose=machine"))["deleted"] is True


@pytest.mark.usefixtures("orders")
async def test_a_stream_is_sealed_truncated_and_ended(api: Api) -> None:
    await api.value(f"POST {STREAM}/records", b"a\nb\nc\n", **LINES)
    assert (await api.value(f"POST {STREAM}/seal"))["end"] == 3
    await api.value(f"POST {STREAM}/records", b"d\n", **LINES)
    rows = (await api.value(f"GET {STREAM}/segments"))["segments"]
    assert [(row["number"], row["state"]) for row in rows] == [(0, "sealed"), (1, "open")]
    assert (await api.value(f"GET {STREAM}/segments?after=0&limit=1"))["next"] == 1
    assert (await api.value(f"POST {STREAM}/truncate", {"before": 2}))["earliest"] == 2
    for body in ({}, {"before": 1, "keep_bytes": 5}, {"before_cursors": False}):
        assert await api.code(f"POST {STREAM}/truncate", body) == (400, "INVALID_ARGUMENT")
    assert await api.code(f"GET {STREAM}/records?start=0") == (410, "OFFSET_TRUNCATED")
    assert api.last.value["earliest"] == 2
    assert await api.value(f"POST {STREAM}/end") == {"stream": "shop/orders", "end": 4, "ended": True}
    assert await api.code(f"POST {STREAM}/records", b"e\n", **LINES) == (409, "STREAM_ENDED")


@pytest.mark.usefixtures("orders")
async def test_cursors(api: Api) -> None:
    await api.value(f"POST {STREAM}/records", b"a\nb\nc\n", **LINES)
    await api.value(f"POST {STREAM}/seal")
    placed = await api.value(f"PUT {STREAM}/cursors/billing", {"offset": 1})
    assert placed == {"stream": "shop/orders", "cursor": "billing", "offset": 1}
    assert await api.code(f"PUT {STREAM}/cursors/billing", {"offset": 0}) == (409, "CURSOR_MOVED")
    assert await api.code(f"PUT {STREAM}/cursors/billing", {"offset": 9}) == (416, "OFFSET_OUT_OF_RANGE")
    assert await api.code(f"PUT {STREAM}/cursors/billing", {"at": 2}) == (400, "INVALID_ARGUMENT")
    assert [row["lag"] for row in (await api.value(f"GET {STREAM}/cursors"))["cursors"]] == [2]
    assert (await api.value(f"GET {STREAM}"))["cursors"][0]["cursor"] == "billing"
    await api.value(f"DELETE {STREAM}/cursors/billing")
    assert await api.code(f"DELETE {STREAM}/cursors/billing") == (404, "NO_SUCH_CURSOR")


async def test_ledgers(api: Api, client: Client) -> None:
    made = await api.value("POST /v2/ledgers", {"namespace": "shop", "custom_metadata": {"a": "b"}}, status=201)
    path = f"/v2/ledgers/{made['ledger']}"
    one = await api.value(f"POST {path}/entries", b"first", Content_Type="application/octet-stream")
    assert (one["entries"], one["last_entry"]) == (1, 0)
    framed = b"".join(struct.pack(">I", 2) + b"x%d" % n for n in range(3))
    assert (await api.value(f"POST {path}/entries", framed, Content_Type="application/vnd.buckram.values"))[
        "entries"
    ] == 3
    assert (await api.value(f"POST {path}/entries", b"a\nb\n", **LINES))["last_entry"] == 5
    shown = await api.value(f"POST {path}/close")
    assert (shown["state"], shown["last_entry"], shown["custom_metadata"]["a"]) == ("closed", 5, "b")
    rows = await api.lines(f"GET {path}/entries?first=3&limit=2")
    assert [(row["entry"], base64.b64decode(row["payload_base64"])) for row in rows] == [(3, b"x2"), (4, b"a")]
    assert api.last.headers["buckram-next-entry"] == "5"
    raw = await api.ask(f"GET {path}/entries?first=5", Accept="application/vnd.buckram.values")
    assert raw.body == b"\0\0\0\1b"
    assert await api.code(f"POST {path}/entries", b"c\n", **LINES) == (409, "LEDGER_CLOSED")
    assert await api.code(f"POST {path}/entries", b"", **LINES) == (400, "INVALID_ARGUMENT")
    assert [row["ledger"] for row in (await api.value("GET /v2/ledgers?limit=1"))["ledgers"]] == [made["ledger"]]
    assert (await api.value(f"GET /v2/ledgers?after={made['ledger']}")) == {"ledgers": [], "next": None}
    assert (await api.value(f"GET {path}"))["away"] == []
    await api.value(f"DELETE {path}")
    assert await api.code(f"GET {path}") == (404, "NO_SUCH_LEDGER")
    assert await api.code("GET /v2/ledgers/x") == (400, "INVALID_ARGUMENT")


async def test_a_ledger_of_somebody_else_is_recovered_and_not_appended_to(api: Api, client: Client) -> None:
    writer = await client.create(password="secret")
    await writer.append(b"x")
    path = f"/v2/ledgers/{writer.ledger_id}"
    assert await api.code(f"POST {path}/entries", b"y\n", **LINES) == (409, "LEDGER_CLOSED")
    assert await api.code(f"POST {path}/recover") == (403, "UNAUTHORIZED")
    assert (await api.value(f"POST {path}/recover", Buckram_Password="secret"))["last_entry"] == 0
    assert (await api.lines(f"GET {path}/entries", Buckram_Password="secret"))[0]["entry"] == 0
    await writer.abandon()
    body = {"custom_metadata": {"buckram.stream": "x"}}
    assert await api.code("POST /v2/ledgers", body) == (400, "INVALID_ARGUMENT")


async def test_an_idle_writer_of_a_ledger_closes_it(client: Client) -> None:
    async with serving(client, limits=GatewayLimits(writer_idle_s=0.2)) as gateway:
        api = await Api.to(gateway.url)
        made = (await api.value("POST /v2/ledgers", {}, status=201))["ledger"]

        async def closed() -> bool:
            return bool((await api.value(f"GET /v2/ledgers/{made}"))["state"] == "closed")

        await eventually(closed)


async def test_a_stream_s_ledger_is_not_recovered_by_itself(api: Api, client: Client) -> None:
    await api.value(f"POST {STREAM}/records?create=true", b"a\n", **LINES)
    ledger = (await api.value(f"GET {STREAM}/segments"))["segments"][0]["ledger"]
    for what in ("recover", "close"):
        assert await api.code(f"POST /v2/ledgers/{ledger}/{what}") == (400, "INVALID_ARGUMENT")
    assert await api.code(f"DELETE /v2/ledgers/{ledger}") == (409, "LEDGER_OF_STREAM")


async def test_namespaces(api: Api) -> None:
    body = {"namespace": "new", "policy": {"retention_s": 60.0}, "quotas": {"streams": 5}}
    made = await api.value("POST /v2/namespaces", body, status=201)
    assert (made["overrides"], made["quotas"]) == ({"retention_s": 60.0}, {"streams": 5})
    assert await api.code("POST /v2/namespaces", body) == (409, "NAMESPACE_EXISTS")
    assert await api.code("POST /v2/namespaces", {"namespace": "n", "quotas": {"x": 1}}) == (400, "INVALID_ARGUMENT")
    changed = await api.value(
        "PATCH /v2/namespaces/new", {"policy": {"retention_s": None}, "quotas": {"streams": None}}
    )
    assert (changed["overrides"], changed["quotas"]) == ({}, {})
    assert (await api.value("GET /v2/namespaces?limit=2"))["namespaces"] == ["default", "new"]
    await api.value("DELETE /v2/namespaces/new")
    assert await api.code("GET /v2/namespaces/new") == (404, "NO_SUCH_NAMESPACE")


async def test_the_cluster(api: Api, three_bookies: Cluster) -> None:
    status = await api.value("GET /v2/status")
    assert len(status["bookies"]) == 3
    errors = [one["what"] for one in status["problems"] if one["severity"] == "error"]
    assert (errors, status["healthy"]) == (["auditor-missing"], False)
    rows = (await api.value("GET /v2/bookies"))["bookies"]
    assert [row["state"] for row in rows] == ["writable"] * 3
    shown = await api.value("GET /v2/bookies/bookie-0")
    assert shown["total_bytes"] > shown["free_bytes"] > 0
    assert await api.code("GET /v2/bookies/none") == (404, "NO_SUCH_BOOKIE")
    assert (await api.value("GET /v2/usage"))["namespaces"].keys() <= {"default", "shop", "system"}
    assert (await api.value("GET /v2/replication"))["enabled"] is True
    assert await api.value("PUT /v2/replication", {"enabled": False}) == {"enabled": False, "changed": True}
    assert "autorecovery-disabled" in [one["what"] for one in (await api.value("GET /v2/status"))["problems"]]
    assert (await api.value("PUT /v2/bookies/bookie-0/readonly", {"readonly": True}))["state"] == "readonly"
    assert (await api.value("GET /v2/bookies"))["bookies"][0]["asked"] == "readonly"
    await three_bookies.kill(1)
    assert [one["state"] for one in (await api.value("GET /v2/status"))["bookies"]] == ["readonly", "down", "writable"]
    assert await api.code("GET /v2/audit") == (400, "INVALID_ARGUMENT")
    assert len((await api.value("GET /v2/gateways"))["gateways"]) == 1
    assert [one["under_replicated"] for one in (await api.value("GET /v2/history"))["samples"]] == [0]


async def test_jobs(api: Api, client: Client) -> None:
    async with client.create() as writer:
        await writer.append(b"x")
    job = await api.value(f"POST /v2/ledgers/{writer.ledger_id}/repair", status=202)

    async def ended() -> Any:
        return (await api.value(f"GET /v2/jobs/{job['id']}"))["state"] != "running"

    await eventually(ended)
    done = (await api.value("GET /v2/jobs"))["jobs"][0]
    assert (done["state"], done["result"]["healthy"]) == ("done", True)
    failing = await api.value("POST /v2/bookies/bookie-0/drain", status=202)  # nobody runs autorecovery here

    async def failed() -> Any:
        return (await api.value(f"GET /v2/jobs/{failing['id']}"))["state"] == "failed"

    await eventually(failed)
    assert (await api.value(f"DELETE /v2/jobs/{failing['id']}"))["state"] == "failed"
    assert await api.code("GET /v2/jobs/none") == (404, "NO_SUCH_JOB")
    assert await api.code("POST /v2/ledgers/999/repair") == (404, "NO_SUCH_LEDGER")


async def test_a_check_of_placement_and_a_rebalance_are_jobs(api: Api, client: Client) -> None:
    async with client.create() as writer:
        await writer.append(b"x")

    async def result(path: str, body: dict[str, Any]) -> Any:
        job = await api.value(f"POST {path}", body, status=202)

        async def ended() -> bool:
            return bool((await api.value(f"GET /v2/jobs/{job['id']}"))["state"] != "running")

        await eventually(ended)
        return api.last.value

    checked = await result("/v2/placement/check", {})
    assert checked["result"] == {"ledgers": 1, "broken": [], "unreadable": []}
    moved = await result("/v2/rebalance", {"dry_run": True})
    assert moved["state"] in ("done", "failed")
    assert moved["result"].get("moves", 0) == 0
    assert await api.code("POST /v2/rebalance", {"rate_bytes_per_s": 0}) == (400, "INVALID_ARGUMENT")


async def test_databases(api: Api, client: Client) -> None:
    ns = client.namespace("shop")
    await ns.create("orders")
    await ns.create_database("main")
    found = await api.value("GET /v2/namespaces/shop/databases")
    assert [(row["database"], row["leader"]) for row in found["databases"]] == [("shop/main", None)]
    assert (await api.value("GET /v2/namespaces/shop/databases?limit=1")) == {
        "databases": found["databases"],
        "next": "main",
    }
    shown = await api.value("GET /v2/namespaces/shop/databases/main")
    assert (shown["followers"], shown["cdc"]) == ([], False)
    assert (await api.code("GET /v2/namespaces/shop/databases/orders"))[1] == "NOT_DATABASE"
    assert await api.code("POST /v2/namespaces/shop/streams/main/records", b"x\n", **LINES) == (400, "MACHINE_LOG")


async def test_tokens_and_grants(client: Client) -> None:
    async with guarded(client) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("root", "admin")
        made = await api.value("POST /v2/tokens", {"subject": "bob", "expires_in_s": 60}, status=201, **root)
        bob = {"Authorization": f"Bearer {made['token']}"}
        assert (await api.value("GET /v2/session", **bob))["principal"] == "token:bob"
        grant = {"principal": "token:bob", "namespace": "shop", "permissions": ["read", "append"]}
        assert (await api.value("POST /v2/grants", grant, **root))["grants"] == [
            {**grant, "permissions": ["append", "read"]}
        ]

        async def may_read() -> bool:
            return (await api.ask("GET /v2/namespaces/shop", **bob)).status == 200

        await eventually(may_read)
        assert (await api.value("POST /v2/grants/remove", grant, **root))["grants"] == []
        bad = {**grant, "permissions": ["everything"]}
        assert await api.code("POST /v2/grants", bad, **root) == (400, "INVALID_ARGUMENT")
        assert await api.code("POST /v2/grants", {**grant, "principal": "bob"}, **root) == (400, "INVALID_ARGUMENT")
        assert {one["subject"] for one in (await api.value("GET /v2/tokens", **root))["tokens"]} == {"root", "bob"}
        await api.value(f"DELETE /v2/tokens/{made['id']}", **root)

        async def is_out() -> bool:
            return (await api.ask("GET /v2/session", **bob)).status == 401

        await eventually(is_out)


async def test_a_gateway_without_tokens_makes_none(api: Api) -> None:
    assert await api.code("POST /v2/tokens", {"subject": "bob"}) == (409, "NO_SECURITY")


async def test_databases_as_files(api: Api, client: Client, tmp_path: Path) -> None:
    ns, path = client.namespace("shop"), tmp_path / "main.db"
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (x)")
        before = db.applied
        await db.execute("INSERT INTO t VALUES (1)")
        for query, rows, offset in (("", 1, db.applied), (f"?offset={before}", 0, before)):
            answer = await api.ask(f"GET /v2/namespaces/shop/databases/main/backup{query}")
            assert (answer.status, answer.headers["content-type"]) == (200, "application/vnd.sqlite3")
            assert answer.headers["buckram-offset"] == str(offset)
            path.write_bytes(answer.body)
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("SELECT count(*) FROM t").fetchall() == [(rows,)]
        content = (await api.ask("GET /v2/namespaces/shop/databases/main/backup")).body
    made = await api.value("PUT /v2/namespaces/shop/databases/copy/backup", content, status=201)
    assert made == {"database": "shop/copy", "bytes": len(content)}
    async with ns.database("copy") as copy:
        await copy.lead()
        assert (await copy.query("SELECT x FROM t")).rows == [(1,)]
    assert await api.code("PUT /v2/namespaces/shop/databases/copy/backup", content) == (409, "DATABASE_EXISTS")
    assert await api.code("PUT /v2/namespaces/shop/databases/bad/backup", b"x") == (400, "INVALID_ARGUMENT")
    assert (await api.code("GET /v2/namespaces/shop/databases/bad/backup"))[0] == 404
    assert await api.code("GET /v2/namespaces/shop/databases/main/backup?offset=1&time=1") == (400, "INVALID_ARGUMENT")
    assert (await api.code("GET /v2/namespaces/shop/databases/main/backup?offset=99999"))[1] == "NO_EARLIER_STATE"


async def test_grants_and_limits_of_databases_as_files(client: Client) -> None:
    await client.namespace("shop").create_database("main")
    async with guarded(client, limits=GatewayLimits(database_bytes=100)) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("root", "admin")
        ann = await place.bearer("ann")
        backup = "GET /v2/namespaces/shop/databases/main/backup"
        assert await api.code(backup, **ann) == (404, "NO_SUCH_DATABASE")
        assert (await api.code("PUT /v2/namespaces/shop/databases/new/backup", b"x", **ann))[0] == 403
        await place.grant("token:ann", "shop", "create")
        assert await api.code(backup, **ann) == (403, "FORBIDDEN")
        large = await api.code("PUT /v2/namespaces/shop/databases/new/backup", b"x" * 101, **root)
        assert large == (413, "TOO_LARGE")


async def test_the_audit_trail_has_no_character_that_a_terminal_obeys(api: Api, client: Client) -> None:
    hostile = "key /x\n2026-01-01  token:bob\x1b[2J\x9b31m\u202e\u2028\x7f\ud800"
    events = AuditLog(production_runtime().clock, NullStats())
    events.add(events.event("token:größer", "delete", hostile, "shop"))
    writer = AuditWriter(client, client.services.store, events, "b1")
    await writer._prepare()
    await writer.write()
    (event,) = (await api.value("GET /v2/audit"))["events"]
    assert (event["what"], event["principal"], event["number"]) == (hostile, "token:größer", 1)
    assert "token:größer" in api.last.body.decode()
    assert api.last.body.decode().isprintable()
    assert (await api.value("GET /v2/audit?action=create"))["events"] == []
