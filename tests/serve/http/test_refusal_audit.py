"""What gateways and servers of databases refuse is counted by principal, and told the audit trail."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from tests.serve.gateway.kit import Api
from tests.serve.gateway.shared.test_authentication import guarded
from tests.serve.hrana.kit import Hrana, execute
from tests.serve.hrana.socket_kit import Socket
from tests.serve.hrana.test_database_access import granted as granted_on_databases
from tests.serve.hrana.test_database_access import guarded as serving_databases
from tests.serve.hrana.test_database_access import token_of
from tests.serve.webhdfs.kit import Remote, Web

from buckram.cluster import Client
from buckram.core.tenants.audit_trail import OTHERS, REFUSALS, REFUSED
from buckram.errors import MetadataUnavailable
from buckram.metadata.records.pending_audit_events import notes, turn_on
from buckram.runtime.production import production_runtime
from buckram.serve.http.refusal_audit import MOST_PRINCIPALS, Refusals
from buckram.testing import Cluster


@pytest.fixture
async def client(three_bookies: Cluster) -> AsyncIterator[Client]:
    async with three_bookies.client() as connected:
        await connected.namespaces.create("shop")
        await turn_on(connected.services.store)
        yield connected


async def told(client: Client, refusals: Refusals) -> dict[str, str]:
    """What is told now, by principal."""
    await refusals.tell()
    store = client.services.store
    found = await notes(store)
    for key in found:
        await store.keys.delete(key, 0)
    events = [event for event in found.values() if event is not None]
    assert {(event.action, event.result) for event in events} <= {(REFUSALS, REFUSED)}
    assert all(event.peer.startswith("http://") for event in events)
    return {event.principal: event.detail for event in events}


async def test_each_kind_of_refusal_at_a_gateway(client: Client) -> None:
    async with guarded(client) as place:
        refusals = place.gateway._refusals
        api, ann = await Api.to(place.gateway.url), await place.bearer("ann")
        await place.grant("token:ann", "shop", "create")
        assert await told(client, refusals) == {}
        for head, who in (
            ("GET /v2/namespaces/shop", ann),  # without the permission
            ("GET /v2/namespaces/other", ann),  # as if it were not there
            ("GET /v2/tokens", ann),  # for administrators
            ("GET /v2/namespaces/shop", {}),
            ("GET /v2/namespaces/shop", {"Authorization": "Bearer no.to.ken"}),
            ("POST /v2/namespaces/shop/streams/a/truncate", {**ann, "Idempotency_Key": "k"}),
        ):
            assert (await api.ask(head, b"", **who)).status in (401, 403, 404), head
        assert await told(client, refusals) == {
            "token:ann": "FORBIDDEN 3, NO_SUCH_NAMESPACE 1",
            "anonymous": "UNAUTHORIZED 2",
        }
        assert (await api.ask("GET /v2/namespaces", **ann)).status == 200
        assert await api.code("POST /v2/namespaces/shop/streams", {"nonsense": 1}, **ann) == (400, "INVALID_ARGUMENT")
        assert await told(client, refusals) == {}
        await api.raw.close()


async def test_files_of_hadoops_clients(client: Client) -> None:
    async with guarded(client) as place:
        await place.grant("token:ann", "shop", "create")
        web = await Web.to(place.gateway.url, **await place.bearer("ann"))
        stranger = await Web.to(place.gateway.url)
        for one, path in ((web, "/shop/a"), (web, "/other/a"), (stranger, "/shop/a")):
            with pytest.raises(Remote):
                await one.status(path)
        found = await told(client, place.gateway._refusals)
        assert set(found) == {"token:ann", "anonymous"}
        assert found["token:ann"].count(" 1") == 2
        await web.close()
        await stranger.close()


async def test_statements_and_sockets_of_databases(client: Client) -> None:
    async with serving_databases(client) as (server, access, security):
        ann, root = await token_of(security, "ann"), await token_of(security, "root", "admin")
        await granted_on_databases(access, security, "token:ann", "shop/main", "read")
        hrana = await Hrana.to(server.url)
        made = await hrana.post("v3/pipeline", {"requests": [execute("CREATE TABLE t (x)")]}, **root)
        assert made.status == 200
        refusals = server._refusals
        assert await told(client, refusals) == {}
        insert = {"requests": [execute("INSERT INTO t VALUES (1)"), execute("SELECT 1")]}
        assert (await hrana.post("v3/pipeline", insert, **ann)).status == 200
        assert await told(client, refusals) == {"token:ann": "SQLITE_READONLY 1"}
        socket = await Socket.to(server.url, jwt=ann["Authorization"].removeprefix("Bearer "))
        await socket.ask("open_stream", stream_id=1)
        assert (await socket.rows("DELETE FROM t"))["code"] == "SQLITE_READONLY"
        assert await told(client, refusals) == {"token:ann": "SQLITE_READONLY 1"}
        other = await Hrana.to(server.url, "/shop/other")
        assert (await other.post("v3/pipeline", insert, **ann)).status == 404
        assert (await other.post("v3/pipeline", insert)).status == 401
        stranger = await Socket.to(server.url, hello=False)
        await stranger.send({"type": "hello", "jwt": "x"})
        assert "error" in json.dumps(await stranger.receive())
        found = await told(client, refusals)
        assert set(found) == {"token:ann", "anonymous"}
        assert found["anonymous"] == "UNAUTHORIZED 2"


async def test_who_is_refused_without_end_makes_one_event_and_takes_no_room_of_others(client: Client) -> None:
    refusals = Refusals(client.services.store, "http://g:1", production_runtime().clock)
    for number in range(10_000):
        refusals.count("token:mallory", "FORBIDDEN")
        refusals.count(f"token:{number}", "FORBIDDEN")
    found = await told(client, refusals)
    assert found["token:mallory"] == "FORBIDDEN 10000"
    assert len(found) == MOST_PRINCIPALS + 1
    assert sum(int(one.rpartition(" ")[2]) for one in found.values()) == 20_000
    assert OTHERS in found


async def test_what_cannot_be_told_is_told_later(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = Refusals(client.services.store, "http://g:1", production_runtime().clock)

    async def away(*_: object, **__: object) -> None:
        raise MetadataUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr("buckram.serve.http.refusal_audit.leave_note", away)
        for round_ in range(3):
            for number in range(MOST_PRINCIPALS):
                refusals.count(f"token:{round_}-{number}", "FORBIDDEN")
            with pytest.raises(MetadataUnavailable):
                await refusals.tell()
    found = await told(client, refusals)
    assert sum(int(one.rpartition(" ")[2]) for one in found.values()) == 3 * MOST_PRINCIPALS
    assert len(found) <= MOST_PRINCIPALS + 1
