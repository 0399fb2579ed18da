"""Who may do what: tokens, grants, sessions of browsers, and gateways without tokens."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from tests.serve.gateway.kit import Api, Events, serving
from tests.support.polling import eventually, until
from tests.support.secure_kit import Files

from buckram.cluster import Client
from buckram.core.streams.external.history import parse_offload_places
from buckram.core.streams.names import StreamName
from buckram.metadata.records.security import SecurityStore
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.authentication import is_local
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.tokens import ClusterTokens
from buckram.serve.webhdfs import access
from buckram.streams.maintain.offload import offload_stream

RECORDS = "/v2/namespaces/shop/streams/orders/records"


class Guarded:
    """A gateway that asks for tokens."""

    def __init__(self, gateway: Gateway, tokens: ClusterTokens, security: SecurityStore) -> None:
        self.gateway, self._tokens, self.security = gateway, tokens, security

    async def token(self, subject: str, *roles: str, lasts_s: float = 3600) -> str:
        now = time.time()
        return (await self.security.create_token(subject, roles, now, now + lasts_s))[1]

    async def bearer(self, subject: str, *roles: str, lasts_s: float = 3600) -> dict[str, str]:
        return {"Authorization": f"Bearer {await self.token(subject, *roles, lasts_s=lasts_s)}"}

    async def grant(self, who: str, what: str, *permissions: str) -> None:
        wanted = await self.security.change_acl(lambda acl: acl.granting(who, what, permissions))
        await until(lambda: self._tokens.acl == wanted)

    async def revoke(self, who: str, what: str, *permissions: str) -> None:
        wanted = await self.security.change_acl(lambda acl: acl.revoking(who, what, permissions))
        await until(lambda: self._tokens.acl == wanted)


@asynccontextmanager
async def guarded(client: Client, **settings: Any) -> AsyncIterator[Guarded]:
    store = client.services.store
    async with (
        ClusterTokens(store, client.services.clocks) as tokens,
        serving(client, tokens=tokens, **settings) as gateway,
    ):
        yield Guarded(gateway, tokens, SecurityStore(store))


async def test_grants_decide_who_may_do_what(client: Client) -> None:
    async with guarded(client) as place:
        api, alice, root = (
            await Api.to(place.gateway.url),
            await place.bearer("alice"),
            await place.bearer("r", "admin"),
        )
        body = {"stream": "orders"}
        assert await api.code("GET /v2/namespaces/shop/streams") == (401, "UNAUTHORIZED")
        assert await api.code("GET /v2/status", Authorization="Bearer x.y.z") == (401, "UNAUTHORIZED")
        expired = await place.bearer("alice", lasts_s=-1)
        assert await api.code("GET /v2/status", **expired) == (401, "UNAUTHORIZED")
        assert await api.code("GET /v2/namespaces/shop/streams", **alice) == (404, "NO_SUCH_NAMESPACE")
        assert (await api.value("GET /v2/namespaces", **alice))["namespaces"] == []
        await place.grant("token:alice", "shop", "read")
        assert (await api.value("GET /v2/namespaces", **alice))["namespaces"] == ["shop"]
        assert (await api.value("GET /v2/namespaces/shop/streams", **alice))["streams"] == []
        assert await api.code("POST /v2/namespaces/shop/streams", body, **alice) == (403, "FORBIDDEN")
        await api.value("POST /v2/namespaces/shop/streams", body, status=201, **root)
        assert await api.code(f"POST {RECORDS}", b"x", **alice) == (403, "FORBIDDEN")
        await place.grant("token:alice", "shop", "append")
        assert (await api.value(f"POST {RECORDS}", b'{"value": "x"}', **alice))["records"] == 1
        new = "POST /v2/namespaces/shop/streams/new/records?create=true"
        assert await api.code(new, b'{"value": "x"}', **alice) == (403, "FORBIDDEN")
        await place.grant("token:bob", "shop/orders", "read")
        bob = await place.bearer("bob")

        async def readable() -> bool:  # That is some milliseconds after the acknowledgement.
            return len(await api.lines(f"GET {RECORDS}", **bob)) == 1

        await eventually(readable)
        assert await api.code(f"POST {RECORDS}", b"x", **bob) == (403, "FORBIDDEN")
        assert await api.code("GET /v2/namespaces/shop/streams/other/records", **bob) == (404, "NO_SUCH_STREAM")
        for path in ("GET /v2/tokens", "GET /v2/grants", "GET /v2/jobs", "GET /v2/audit"):
            assert await api.code(path, **alice) == (403, "FORBIDDEN"), path
        assert await api.code("DELETE /v2/namespaces/shop/streams/orders", **alice) == (403, "FORBIDDEN")


@pytest.mark.parametrize("listed", ["nowhere", "elsewhere", "here"])
async def test_history_is_read_where_the_operator_lists_it(client: Client, tmp_path: Path, listed: str) -> None:
    """A tenant's policy and segment list name any place, and a gateway would go there with its own rights."""
    places = {"nowhere": None, "elsewhere": parse_offload_places(f"shop={tmp_path}/elsewhere")}
    settings = {"history": places.get(listed, parse_offload_places(f"shop={tmp_path}/history"))}
    ns = client.namespace("shop")
    for value in (b"old", b"newer"):
        async with ns.writer("orders") as writer:
            await writer.append(value)
    done = await offload_stream(client, ns.store, StreamName("shop", "orders"), to=str(tmp_path / "history"))
    assert done.segments
    async with guarded(client, **settings) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("r", "admin")
        if listed == "here":
            assert len(await api.lines(f"GET {RECORDS}", **root)) == 2
            return
        status, code = await api.code(f"GET {RECORDS}", **root)
        assert status >= 500, code
        assert "offload_places" in str(api.last)


async def test_ledgers_are_their_namespaces(client: Client) -> None:
    async with guarded(client) as place:
        api, alice = await Api.to(place.gateway.url), await place.bearer("alice")
        await place.grant("token:alice", "shop", "read", "append")
        assert await api.code("POST /v2/ledgers", {"namespace": "default"}, **alice) == (403, "FORBIDDEN")
        made = (await api.value("POST /v2/ledgers", {"namespace": "shop"}, status=201, **alice))["ledger"]
        await api.value(f"POST /v2/ledgers/{made}/entries", b"x", Content_Type="application/octet-stream", **alice)
        assert await api.code(f"DELETE /v2/ledgers/{made}", **alice) == (403, "FORBIDDEN")
        bob = await place.bearer("bob")
        assert await api.code(f"GET /v2/ledgers/{made}/entries", **bob) == (404, "NO_SUCH_LEDGER")
        assert (await api.value("GET /v2/ledgers", **bob))["ledgers"] == []


async def test_a_browser_logs_in_once(client: Client) -> None:
    async with guarded(client) as place:
        api, token = await Api.to(place.gateway.url), await place.token("root", "admin")
        assert await api.code("POST /v2/session", {"token": "x"}) == (401, "UNAUTHORIZED")
        shown = await api.value("POST /v2/session", {"token": token}, status=201)
        cookie = api.last.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        session = {"Cookie": cookie.partition(";")[0]}
        assert (await api.value("GET /v2/session", **session))["csrf"] == shown["csrf"]
        body = {"namespace": "new"}
        assert await api.code("POST /v2/namespaces", body, **session) == (403, "CSRF_TOKEN_WRONG")
        assert await api.code("POST /v2/namespaces", body, Buckram_CSRF="x", **session) == (403, "CSRF_TOKEN_WRONG")
        await api.value("POST /v2/namespaces", body, status=201, Buckram_CSRF=shown["csrf"], **session)
        assert await api.code("DELETE /v2/session", **session) == (403, "CSRF_TOKEN_WRONG")
        await api.value("DELETE /v2/session", Buckram_CSRF=shown["csrf"], **session)
        assert await api.code("GET /v2/session", **session) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize("advertise", [None, "http://gateway.example", "https://gateway.example"])
async def test_the_cookie_of_one_with_tls_is_for_tls_alone(
    client: Client, tmp_path: Path, advertise: str | None
) -> None:
    """Whatever it is called, where it speaks TLS; and where what stands before it does."""
    files = Files(tmp_path)
    for tls in (files.bookie, None):
        trusted = None if tls is None else TlsFiles(files.client, server_side=False).context()
        async with guarded(client, tls=tls, advertise=advertise) as place:
            api, token = await Api.to(place.gateway.url, trusted), await place.token("root", "admin")
            shown = await api.value("POST /v2/session", {"token": token}, status=201)
            begun = api.last.headers["set-cookie"].split("; ")
            session = {"Cookie": begun[0], "Buckram_CSRF": shown["csrf"]}
            await api.value("DELETE /v2/session", **session)
            ended = api.last.headers["set-cookie"].split("; ")
            secure = tls is not None or str(advertise).startswith("https:")
            for words in (begun, ended):
                assert {"HttpOnly", "SameSite=Strict"} <= set(words)
                assert ("Secure" in words) == secure


async def test_a_session_ends_with_its_token_and_its_time(client: Client) -> None:
    async with guarded(client, limits=GatewayLimits(session_s=1000)) as place:
        api, token = await Api.to(place.gateway.url), await place.token("alice")
        await api.value("POST /v2/session", {"token": token}, status=201)
        session = {"Cookie": api.last.headers["set-cookie"].partition(";")[0]}
        assert "Max-Age=999" in api.last.headers["set-cookie"]
        await place.security.revoke_subject("alice", time.time())

        async def refused() -> bool:
            return (await api.ask("GET /v2/session", **session)).status == 401

        await eventually(refused, seconds=15)


async def test_a_tail_ends_with_its_token_and_with_its_grant(client: Client) -> None:
    async with guarded(client) as place:
        await client.namespace("shop").create("orders")
        tail = "/v2/namespaces/shop/streams/orders/tail"
        for who in ("alice", "bob"):
            await place.grant(f"token:{who}", "shop/orders", "read")
        of_alice = await Events.of(place.gateway.url, tail, **await place.bearer("alice"))
        of_bob = await Events.of(place.gateway.url, tail, **await place.bearer("bob"))
        await place.security.revoke_subject("alice", time.time())
        told = await asyncio.wait_for(of_alice.next(), 10)
        assert (told["event"], json.loads(told["data"])["code"]) == ("error", "UNAUTHORIZED")
        await place.security.change_acl(lambda acl: acl.revoking("token:bob", "shop/orders", ["read"]))
        told = await asyncio.wait_for(of_bob.next(), 10)
        assert "no permission `read` on shop/orders any more" in json.loads(told["data"])["message"]
        await until(lambda: place.gateway.tails.count == 0)
        for events in (of_alice, of_bob):
            await events.close()


async def test_a_gateway_without_tokens_is_for_this_machine(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(client) as gateway:
        api = await Api.to(gateway.url)
        assert (await api.value("GET /v2/session"))["changes"] is True
        monkeypatch.setattr("buckram.serve.gateway.shared.authentication.is_local", lambda request: False)
        assert (await api.value("GET /v2/session"))["changes"] is False
        assert await api.code("POST /v2/namespaces", {"namespace": "new"}) == (403, "READ_ONLY")
        assert (await api.value("GET /v2/namespaces/shop"))["namespace"] == "shop"
        assert await api.code("GET /v2/audit") == (403, "FORBIDDEN")
        assert await api.code("POST /v2/session", {"token": "x"}) == (409, "NO_SECURITY")
    async with serving(client, open_to_all=True) as gateway:
        api = await Api.to(gateway.url)
        await api.value("POST /v2/namespaces", {"namespace": "new"}, status=201)


async def test_a_gateway_without_tokens_ignores_none_that_is_given(client: Client) -> None:
    """Who sends one believes to be held to his grants."""
    now = time.time()
    token = (await SecurityStore(client.services.store).create_token("alice", (), now, now + 60))[1]
    shown, dummy = {"Authorization": f"Bearer {token}"}, {"Authorization": "Bearer any"}
    statement = {"requests": [{"type": "execute", "stmt": {"sql": "SELECT 1"}}]}
    sql = "POST /v2/databases/shop/main/v3/pipeline"
    async with serving(client, open_to_all=True) as gateway:
        api = await Api.to(gateway.url)
        assert await api.code("GET /v2/namespaces/shop/streams", **shown) == (401, "UNAUTHORIZED")
        assert "without --tokens" in str(api.last)
        assert await api.code("POST /v2/namespaces", {"namespace": "new"}, **shown) == (401, "UNAUTHORIZED")
        assert await api.code(sql, statement, **shown) == (401, "UNAUTHORIZED")
        files = "GET /webhdfs/v1/shop?op=LISTSTATUS"
        assert (await api.raw.ask(files, **shown)).status in (401, 403)
        delegation = access.encode(token, "alice")
        assert (await api.raw.ask(f"{files}&delegation={delegation}")).status in (401, 403)
        assert (await api.raw.ask(files)).status == 200
        assert "streams" in await api.value("GET /v2/namespaces/shop/streams", **dummy)


async def test_names_that_nobody_gave_are_refused_with_tokens_too(client: Client) -> None:
    async with guarded(client, hosts=("streams.example",)) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("root", "admin")
        assert await api.code("GET /v2/status", Host="evil.example", **root) == (403, "UNKNOWN_HOST")
        assert (await api.raw.ask("GET /webhdfs/v1/?op=LISTSTATUS", Host="evil.example", **root)).status == 403
        assert (await api.ask("GET /v2/status", Host="streams.example", **root)).status == 200


async def test_what_has_a_secret_is_kept_by_nobody_on_the_way(client: Client) -> None:
    async with guarded(client) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("root", "admin")
        made = await api.ask("POST /v2/tokens", {"subject": "bob"}, **root)
        assert (made.status, made.headers["cache-control"]) == (201, "no-store")
        files = "/webhdfs/v1/shop/page.html?op="
        await api.ask("PUT /v2/namespaces/shop/objects/page.html", b"<script>", **root)
        opened = await api.raw.ask(f"GET {files}OPEN&data=true", **root)
        assert (opened.status, opened.headers["content-disposition"]) == (200, "attachment")
        assert opened.headers["x-content-type-options"] == "nosniff"
        given = await api.raw.ask("GET /webhdfs/v1/?op=GETDELEGATIONTOKEN", **root)
        assert (given.status, given.headers["cache-control"]) == (200, "no-store")


async def test_pages_of_other_sites_and_unknown_names_are_refused(api: Api) -> None:
    assert await api.code("GET /v2/status", Origin="http://evil.example") == (403, "FOREIGN_ORIGIN")
    assert await api.code("GET /v2/status", Host="evil.example") == (403, "UNKNOWN_HOST")
    assert (await api.raw.ask("GET /", Host="evil.example")).status == 403
    own = {"Host": "localhost:80", "Origin": "http://localhost:80"}
    assert (await api.ask("GET /v2/session", **own)).status == 200


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_which_addresses_are_this_machine(address: str, local: bool) -> None:
    request = Request({"type": "http", "client": (address, 1), "headers": []})
    assert is_local(request) is local
