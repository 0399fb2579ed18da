"""A gateway as a whole: its document, its console, limits, repeated requests, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from scripts import gateway_page
from tests.serve.gateway.kit import Api, serving
from tests.serve.http.kit import Raw
from tests.support.polling import until
from tests.support.secure_kit import Files

from buckram.cluster import Client
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.serve.gateway.openapi import document
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.limits import HttpLimits

RECORDS = "/v2/namespaces/shop/streams/orders/records?create=true"
VALUE = {"Content_Type": "application/octet-stream"}


def test_the_document_has_every_operation_once(api: Api, gateway: Gateway) -> None:
    found = document(gateway.parts)
    operations = [one for methods in found["paths"].values() for one in methods.values()]
    names = [one["operationId"] for one in operations]
    assert len(names) == len(set(names)) > 40
    assert json.loads(json.dumps(found)) == api.document
    for path, methods in found["paths"].items():
        for method, one in methods.items():
            placed = [row["name"] for row in one["parameters"] if row["in"] == "path"]
            assert placed == re.findall(r"{(\w+)}", path)
            assert one["summary"].endswith("."), path
            assert ("requestBody" in one) <= (method != "get"), path
            assert set(one["responses"]) > {"default"}


def test_the_page_of_operations_has_every_operation_that_is_served(gateway: Gateway) -> None:
    """The page's script lists the groups a second time, without a cluster: none may be missing there."""
    served = {(part.title, one.method, one.path) for part in gateway.parts for one in part.operations()}
    assert served == {(part.title, one.method, one.path) for part in gateway_page.parts() for one in part.operations()}
    titles = [line for line in gateway_page.page("").splitlines() if line.startswith("## ")]
    assert len(titles) == len(set(titles)) == len({part.title for part in gateway.parts})


async def test_a_request_with_a_key_is_carried_out_once(api: Api, gateway: Gateway) -> None:
    key = {"Idempotency_Key": "a", **VALUE}
    first = await api.value(f"POST {RECORDS}", b"x", **key)
    assert await api.value(f"POST {RECORDS}", b"x", **key) == first
    assert api.last.headers["idempotency-repeated"] == "true"
    assert await api.code(f"POST {RECORDS}", b"y", **key) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert (await api.value(f"POST {RECORDS}", b"x", Idempotency_Key="b", **VALUE))["first_offset"] == 1
    assert await api.code(f"POST {RECORDS}", b"x", Idempotency_Key="k" * 201, **VALUE) == (400, "INVALID_ARGUMENT")


async def test_what_failed_is_tried_again_with_its_key(api: Api, client: Client) -> None:
    path = "POST /v2/namespaces/shop/streams/late/records"
    key = {"Idempotency_Key": "a", **VALUE}
    assert await api.code(path, b"x", **key) == (404, "NO_SUCH_STREAM")
    await client.namespace("shop").create("late")
    assert (await api.value(path, b"x", **key))["records"] == 1


async def test_a_request_is_for_one_process_if_it_says_so(api: Api, gateway: Gateway, client: Client) -> None:
    await api.value(f"POST {RECORDS}", b"x", **VALUE)
    own = api.last.headers["buckram-gateway"]
    await api.value(f"POST {RECORDS}", b"x", Buckram_Gateway=own, **VALUE)
    async with serving(client) as other:
        elsewhere = await Api.to(other.url)
        refused = await elsewhere.code(f"POST {RECORDS}", b"x", Buckram_Gateway=own, **VALUE)
        assert refused == (421, "OTHER_GATEWAY")
        assert elsewhere.last.headers["buckram-gateway"] not in ("", own)
    assert (await client.namespace("shop").info("orders")).end == 2


async def test_a_repeat_that_comes_early_waits_for_the_first(gateway: Gateway) -> None:
    apis = [await Api.to(gateway.url) for _ in range(3)]
    found = await asyncio.gather(*(api.value(f"POST {RECORDS}", b"x", Idempotency_Key="a", **VALUE) for api in apis))
    assert found[0] == found[1] == found[2]


async def test_bodies_have_limits(client: Client) -> None:
    limits = HttpLimits(body_bytes=1000, patience_s=0.2, body_bytes_per_s=10_000)
    async with serving(client, http_limits=limits, limits=GatewayLimits(buffered_bytes=1500)) as gateway:
        api, slow = await Api.to(gateway.url), await Raw.to(gateway.url)
        assert await api.code(f"POST {RECORDS}", b"x" * 1001, **VALUE) == (413, "TOO_LARGE")
        api = await Api.to(gateway.url)
        head = f"POST {RECORDS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
        await slow.send(f"{head}Content-Length: 900\r\n\r\nabc".encode())
        await until(lambda: _room(gateway) == 900)
        assert await api.code(f"POST {RECORDS}", b"x" * 700, **VALUE) == (503, "GATEWAY_FULL")
        answer = await slow.answer()
        assert (answer.status, answer.value["code"]) == (408, "BODY_TOO_SLOW")
        assert _room(gateway) == 0
        cut = await Raw.to(gateway.url)
        await cut.send(f"{head}Content-Length: 900\r\n\r\nabc".encode())
        await cut.close()
        await until(lambda: _room(gateway) == 0)
        assert await api.code(f"POST {RECORDS}", b"not json\n") == (400, "INVALID_ARGUMENT")


def _room(gateway: Gateway) -> int:
    return gateway.room.used


async def test_an_answer_counts_until_it_is_taken(client: Client) -> None:
    async with serving(client, limits=GatewayLimits(stuck_s=0.3)) as gateway:
        api, stuck = await Api.to(gateway.url), await Raw.to(gateway.url)
        for _ in range(8):
            await api.value(f"POST {RECORDS}", b"x" * 1_000_000, **VALUE)
        await api.value("POST /v2/namespaces/shop/streams/orders/seal")
        stuck.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await stuck.send(b"GET /v2/namespaces/shop/streams/orders/records HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: gateway.room.used > 16_000_000)
        await until(lambda: gateway.room.used == 0)
        assert len((await api.ask("GET /v2/namespaces/shop/streams/orders/records")).body) > 8_000_000
        await until(lambda: gateway.room.used == 0)


async def test_bad_json_is_named(api: Api) -> None:
    json_body = {"Content_Type": "application/json"}
    assert await api.code("POST /v2/namespaces", b"{", **json_body) == (400, "NOT_JSON")
    assert await api.code("POST /v2/namespaces", b"[]", **json_body) == (400, "INVALID_ARGUMENT")
    assert await api.code("POST /v2/namespaces", b"[" * 100_000, **json_body) == (400, "NOT_JSON")
    assert await api.code("POST /v2/namespaces", {"name": "x"}) == (400, "INVALID_ARGUMENT")
    assert "has no namespace" in api.last.value["message"]
    assert await api.code("GET /v2/nothing") == (404, "NOT_FOUND")
    assert (await api.code("PUT /v2/namespaces", {}))[0] == 405


async def test_the_console_is_files_that_load_nothing_from_elsewhere(api: Api) -> None:
    page = await api.raw.ask("GET /")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    named = re.findall(r'(?:src|href)="(/console/[^"]+)"', page.body.decode())
    assert named
    seen: set[str] = set()
    while named:
        path = named.pop()
        if path in seen:
            continue
        seen.add(path)
        found = await api.raw.ask(f"GET {path}")
        assert found.status == 200, path
        assert b"http://" not in found.body.replace(b"http://www.w3.org/", b"")
        assert b"https://" not in found.body
        named += [f"/console/{name}" for name in re.findall(r'from "\./([\w.]+)"', found.body.decode())]
        await api.raw.send(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: {found.headers['etag']}\r\n\r\n".encode()
        )
        assert (await api.raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 304")
    assert len(seen) > 5
    for path in ("/console/..%2fserver.py", "/console/../server.py", "/console/none.js", "/console/"):
        assert (await api.raw.ask(f"GET {path}")).status == 404


async def test_a_gateway_that_ends_answers_what_it_has_begun_and_seals_its_streams(client: Client) -> None:
    async with serving(client) as gateway:
        api = await Api.to(gateway.url)
        await api.value(f"POST {RECORDS}", b"x", **VALUE)
        waiting = asyncio.ensure_future(api.value(f"POST {RECORDS}", b"y", **VALUE))
        await until(lambda: gateway.writers._streams.opened()["shop/orders"].pending_bytes > 0 or waiting.done())
    assert (await waiting)["last_offset"] == 1
    info = await client.namespace("shop").info("orders")
    assert (info.end, info.writer) == (2, None)


async def test_tls(client: Client, tmp_path_factory: pytest.TempPathFactory) -> None:
    files = Files(tmp_path_factory.mktemp("tls"))
    async with serving(client, tls=files.bookie) as gateway:
        assert gateway.url.startswith("https://")
        api = await Api.to(gateway.url, TlsFiles(files.client, server_side=False).context())
        assert (await api.value("GET /health")) == {"status": "ok"}
