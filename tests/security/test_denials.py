"""A denial at each door: bookies' metadata and entries, a gateway, its files of Hadoop, and databases over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.bookie.service.security.test_entry_access import AUTH, QUIET, client_of
from tests.serve.gateway.kit import Api
from tests.serve.gateway.shared.test_authentication import Guarded, guarded
from tests.serve.hrana.kit import Hrana
from tests.serve.hrana.test_database_access import code, token_of
from tests.serve.hrana.test_database_access import guarded as serving_databases
from tests.serve.webhdfs.kit import Remote, Web
from tests.support.polling import until
from tests.support.secure_kit import guarded as guarded_bookie

from buckram.cluster import Client
from buckram.core.security.acl import ACL_PROPERTY, LOGIN_PROPERTY, Acl
from buckram.core.wire.messages import Read, ReadLac
from buckram.errors import AccessRefused, BuckramError, Code, InvalidArgument
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.tree.layout import DATABASE_SERVERS, GATEWAYS
from buckram.serve.http.server_registry import ServerRegistry
from buckram.types import BookieInfo

assert QUIET.local_read_bytes == 0


@pytest.fixture
async def client(client: Client) -> Client:
    await client.namespaces.create("shop", ensemble="1/1/1")
    return client


async def changed(security: SecurityStore, in_force: Callable[[], Acl], change: Callable[[Acl], Acl]) -> None:
    wanted = await security.change_acl(change)
    await until(lambda: in_force() == wanted)


async def test_a_bookie_refuses_a_denied_stream_and_its_entries_on_open_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKRAM_SOCKETS", "tcp")
    async with guarded_bookie(tmp_path, auth=AUTH) as running:
        guard = running.bookie._guard
        assert guard is not None
        bookie = running.bookie.info
        assert bookie is not None
        async with client_of(running, "root", "admin") as admin:
            await admin.namespaces.create("shop", ensemble="1/1/1")
            rows = {}
            for name in ("orders", "salaries"):
                async with admin.namespace("shop").writer(name) as writer:
                    await writer.append(b"secret")
                (rows[name],) = [row async for row in admin.namespace("shop").segments(name)]
            in_force = lambda: guard.state.acl  # noqa: E731
            await changed(
                running.security, in_force, lambda acl: acl.granting("role:staff", "shop", ["read", "append"])
            )
            async with client_of(running, "alice", "staff") as alice:
                ask = Read(rows["salaries"].ledger, 0)
                assert (await alice.services.pool.call(bookie.bookie_id, ask)).code is Code.OK
                await changed(
                    running.security, in_force, lambda acl: acl.denying("role:staff", "shop/salaries", ["read"])
                )
                assert await alice.namespace("shop").list() == ["orders"]
                for request in (ask, ReadLac(ask.ledger_id)):
                    reply = await alice.services.pool.call(bookie.bookie_id, request)
                    assert reply.code is Code.UNAUTHORIZED, request
                with pytest.raises(AccessRefused):
                    await alice.services.store.read_ledger(ask.ledger_id)
                with pytest.raises(BuckramError):
                    await alice.namespace("shop").get("salaries", 0)
                assert (await alice.namespace("shop").get("orders", 0)).value == b"secret"
            assert (await admin.namespace("shop").get("salaries", 0)).value == b"secret"


async def test_a_denial_is_refused_while_a_bookie_of_an_earlier_release_judges_grants(
    tmp_path: Path,
) -> None:
    async with guarded_bookie(tmp_path, auth=AUTH) as running:
        info = running.bookie.info
        assert info is not None
        registered = (await running.store.bookies()).writable[info.bookie_id]
        assert registered.properties[ACL_PROPERTY] == "2"
        old = BookieInfo("old:1", info.address, {LOGIN_PROPERTY: "token"})
        asks_nobody = BookieInfo("apache:1", info.address, {})
        for one in (asks_nobody, old):
            await running.store.register(one, readonly=False)
        with pytest.raises(InvalidArgument, match="old:1: of an earlier release"):
            await running.security.change_acl(lambda acl: acl.denying("token:a", "shop", ["read"]))
        await running.store.register(replace(old, properties=registered.properties), readonly=False)
        assert (await running.security.change_acl(lambda acl: acl.denying("token:a", "shop", ["read"]))).denials


@pytest.mark.parametrize("folder", [GATEWAYS, DATABASE_SERVERS])
async def test_a_denial_waits_until_all_servers_over_http_know_of_it(tmp_path: Path, folder: str) -> None:
    """They show which releases of grants they read, beside where they are."""
    async with guarded_bookie(tmp_path, auth=AUTH) as running:
        shown = ServerRegistry(running.store, folder, "http://new:8080")
        await shown.start()
        old = f"{running.store.own}/{folder}/{'0' * 12}"
        security = running.security

        async def denied() -> Acl:
            return await security.change_acl(lambda acl: acl.denying("token:a", "shop", ["read"]))

        for value in (b'{"url": "http://old:8080"}', b'{"url": "http://old:8080", "buckram.acl": "1"}', b"nonsense"):
            await running.store.keys.create(old, value)
            with pytest.raises(InvalidArgument, match="of an earlier release, which knows no denials") as error:
                await denied()
            assert ("http://old:8080" in str(error.value)) == (value != b"nonsense")
            assert "http://new" not in str(error.value)
            # What takes rights away by the record that all know is not held up.
            await security.change_acl(lambda acl: acl.granting("token:a", "shop", ["read"]))
            await running.store.keys.delete(old, 0)
        assert (await denied()).denials
        await shown.close()


async def deny(place: Guarded, who: str, what: str, *permissions: str) -> None:
    await changed(place.security, lambda: place._tokens.acl, lambda acl: acl.denying(who, what, permissions))


async def test_a_gateway_refuses_and_hides_what_is_denied(client: Client) -> None:
    async with guarded(client) as place:
        api, root, ann = (
            await Api.to(place.gateway.url),
            await place.bearer("root", "admin"),
            await place.bearer("ann", "staff"),
        )
        for name in ("orders", "salaries"):
            await api.value("POST /v2/namespaces/shop/streams", {"stream": name}, status=201, **root)
            assert await api.value(f"POST /v2/namespaces/shop/streams/{name}/records", b'{"value": "x"}', **root)
        await place.grant("token:ann", "shop", "read", "append", "delete")
        await deny(place, "role:staff", "shop/salaries", "read")
        assert await api.code("GET /v2/namespaces/shop/streams/salaries/records", **ann) == (403, "FORBIDDEN")
        assert (await api.value("GET /v2/namespaces/shop/streams", **ann))["streams"] == ["orders"]
        assert (await api.value("GET /v2/namespaces/shop/streams", **root))["streams"] == ["orders", "salaries"]
        told = await api.value("GET /v2/grants", **root)
        assert told["denials"] == [{"principal": "role:staff", "namespace": "shop/salaries", "permissions": ["read"]}]
        body = {"principal": "token:ann", "namespace": "shop/orders", "permissions": ["read"]}
        assert await api.code("POST /v2/denials", body, **ann) == (403, "FORBIDDEN")
        assert len((await api.value("POST /v2/denials", body, **root))["denials"]) == 2
        assert len((await api.value("POST /v2/denials/remove", body, **root))["denials"]) == 1


OBJECTS = "/v2/namespaces/shop/objects"


async def test_denied_objects_are_holes_in_lists_and_stop_what_would_reach_them(client: Client) -> None:
    async with guarded(client) as place:
        api, root, ann = (
            await Api.to(place.gateway.url),
            await place.bearer("root", "admin"),
            await place.bearer("ann"),
        )
        for name in ("a/1", "a/2", "a/secret/1", "a/secret/2", "a/secret/3", "a/z", "b"):
            await api.value(f"PUT {OBJECTS}/{name}", b"x", status=201, **root)
        await place.grant("token:ann", "shop", "read", "append", "delete")
        await deny(place, "token:ann", "shop/objects/a/secret/*", "read", "delete")
        seen, after = [], ""
        while True:
            page = await api.value(f"GET {OBJECTS}?limit=2&after={after}", **ann)
            seen += [one["object"] for one in page["objects"]]
            if not page["next"]:
                break
            after = page["next"]
        assert [one.rpartition("shop/")[2] for one in seen] == ["a/1", "a/2", "a/z", "b"]
        assert await api.code(f"GET {OBJECTS}/a/secret/1", **ann) == (403, "FORBIDDEN")
        for refused in (
            f"DELETE {OBJECTS}?prefix=a/",
            f"DELETE {OBJECTS}/a?recursive=true",
            f"DELETE {OBJECTS}/a/secret/1",
        ):
            assert await api.code(refused, **ann) == (403, "FORBIDDEN"), refused
        moved = {"source": "a", "name": "c"}
        assert await api.code("POST /v2/namespaces/shop/rename-object", moved, **ann) == (403, "FORBIDDEN")
        copied = {"source": "a/secret/1", "name": "mine"}
        assert await api.code("POST /v2/namespaces/shop/copy-object", copied, **ann) == (403, "FORBIDDEN")
        web = await Web.to(place.gateway.url, **ann)
        for what in (
            web.open("/shop/a/secret/1"), web.list("/shop/a/secret"), web.delete("/shop/a", recursive=True),
            web.rename("/shop/a", "/shop/c"), web.rename("/shop/a/secret/1", "/shop/mine"),
        ):  # fmt: skip
            with pytest.raises(Remote) as refusal:
                await what
            assert refusal.value.status == 403
        assert sorted(await web.list("/shop/a")) == ["1", "2", "z"]
        await web.create("/shop/a/new", b"y")
        await web.close()
        await deny(place, "token:ann", "shop/buckram.objects", "read")
        assert await api.code(f"GET {OBJECTS}/b", **ann) == (403, "FORBIDDEN")
        assert len((await api.value(f"GET {OBJECTS}", **root))["objects"]) == 8


async def test_a_server_of_databases_refuses_a_denied_database(client: Client) -> None:
    async with serving_databases(client) as (server, access, security):
        alice = await token_of(security, "alice")
        main, other = await Hrana.to(server.url), await Hrana.to(server.url, "/shop/other")
        in_force = lambda: access._security.state.acl  # noqa: E731
        await changed(security, in_force, lambda acl: acl.granting("token:alice", "shop", ["read", "append"]))
        assert await code(main, "CREATE TABLE t (x)", alice) == 200
        await changed(security, in_force, lambda acl: acl.denying("token:alice", "shop/main", ["append"]))
        assert await code(main, "INSERT INTO t VALUES (1)", alice) == "SQLITE_READONLY"
        assert await code(main, "SELECT 1", alice) == 200
        await changed(security, in_force, lambda acl: acl.denying("token:alice", "shop/main", ["read"]))
        assert await code(main, "SELECT 1", alice) == 404
        assert await code(other, "CREATE TABLE t (x)", alice) == 200
