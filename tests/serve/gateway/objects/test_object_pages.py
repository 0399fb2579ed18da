"""Objects over HTTP: what is put is got, whole or not at all; conditions, ranges, pages, grants, and bad input."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from tests.serve.gateway.kit import Api, serving
from tests.serve.gateway.shared.test_authentication import guarded
from tests.serve.http.kit import Raw
from tests.support.polling import until

from buckram.cluster import Client
from buckram.errors import ObjectDamaged
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.limits import MIB, HttpLimits
from buckram.state.objects.objects import Objects
from buckram.testing import Cluster

SPACE = "/v2/namespaces/shop"
OBJECTS = f"{SPACE}/objects"


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateway and test both lead the index."""
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)


async def put(api: Api, name: str, body: bytes = b"x", status: int = 201, **headers: str) -> dict[str, object]:
    found: dict[str, object] = await api.value(f"PUT {OBJECTS}/{name}", body, status=status, **headers)
    return found


async def names(api: Api, query: str = "", **headers: str) -> list[str]:
    found = await api.value(f"GET {OBJECTS}?{query}", **headers)
    return [one["object"].removeprefix("shop/") for one in found["objects"]]


async def test_what_is_put_is_got(api: Api) -> None:
    said = await put(
        api, "2026/r%20%C3%BC.txt", b"hello", Content_Type="text/html", Buckram_Metadata='{"author": "Zo\\u00eb"}'
    )
    assert (said["object"], said["bytes"], said["metadata"]) == ("shop/2026/r ü.txt", 5, {"author": "Zoë"})
    assert said["digest"] == f"sha256:{hashlib.sha256(b'hello').hexdigest()}"
    for name in ("2026/r%20%C3%BC.txt", "2026%2Fr%20%C3%BC.txt"):
        got = await api.ask(f"GET {OBJECTS}/{name}")
        assert (got.status, got.body) == (200, b"hello")
    assert got.headers["etag"] == f'"{said["version"]}"'
    assert got.headers["buckram-digest"] == said["digest"]
    assert json.loads(got.headers["buckram-metadata"]) == {"author": "Zoë"}
    head = await api.ask(f"HEAD {OBJECTS}/2026/r%20%C3%BC.txt")
    assert (head.status, head.headers["content-length"], head.headers["etag"]) == (200, "5", got.headers["etag"])
    # Somebody's page is no page of the gateway.
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"] == "attachment"
    assert "sandbox" in got.headers["content-security-policy"]
    assert got.headers["x-content-type-options"] == "nosniff"


async def test_an_empty_object_and_one_of_many_pieces(api: Api, gateway: Gateway) -> None:
    large = bytes(range(256)) * (5 * MIB // 256 + 1)
    await put(api, "empty", b"", Content_Length="0")
    await put(api, "large", large)
    assert (await api.ask(f"GET {OBJECTS}/empty")).body == b""
    assert (await api.ask(f"GET {OBJECTS}/large")).body == large
    part = await api.ask(f"GET {OBJECTS}/large", Range="bytes=1048570-3000000")
    assert (part.status, part.body) == (206, large[1048570:3000001])
    assert part.headers["content-range"] == f"bytes 1048570-3000000/{len(large)}"
    assert (await api.ask(f"GET {OBJECTS}/large", Range="bytes=-5")).body == large[-5:]
    assert await api.code(f"GET {OBJECTS}/large", Range="bytes=999999999-") == (416, "RANGE_NOT_SATISFIABLE")
    assert await api.code(f"GET {OBJECTS}/empty", Range="bytes=0-") == (416, "RANGE_NOT_SATISFIABLE")
    assert gateway.room.used == 0


async def test_a_body_without_a_length_comes_in_chunks(api: Api, gateway: Gateway) -> None:
    head = f"PUT {OBJECTS}/chunked HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    await api.raw.send(head.encode() + b"3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n")
    assert (await api.raw.answer()).status == 201
    assert (await api.ask(f"GET {OBJECTS}/chunked")).body == b"abcdefg"
    assert gateway.room.used == 0


async def test_conditions_of_puts_and_deletions(api: Api) -> None:
    first = await put(api, "a", If_None_Match="*")
    assert await api.code(f"PUT {OBJECTS}/a", b"y", If_None_Match="*") == (412, "OBJECT_EXISTS")
    tag = {"If_Match": f'"{first["version"]}"'}
    second = await put(api, "a", b"y", **tag)
    assert await api.code(f"PUT {OBJECTS}/a", b"z", **tag) == (412, "OBJECT_CHANGED")
    assert await api.code(f"DELETE {OBJECTS}/a", **tag) == (412, "OBJECT_CHANGED")
    assert (await api.ask(f"GET {OBJECTS}/a")).body == b"y"
    assert (await api.ask(f"GET {OBJECTS}/a", If_None_Match=f'"{second["version"]}"')).status == 304
    assert (await api.ask(f"HEAD {OBJECTS}/a", If_None_Match=f'"{second["version"]}"')).status == 304
    assert (await api.ask(f"HEAD {OBJECTS}/a", **tag)).status == 412
    gone = await api.value(f"DELETE {OBJECTS}/a", If_Match=f'"{second["version"]}"')
    assert gone == {"object": "shop/a", "deleted": True}
    for method in ("GET", "DELETE"):
        assert await api.code(f"{method} {OBJECTS}/a") == (404, "NO_SUCH_OBJECT")
    assert (await api.ask(f"HEAD {OBJECTS}/a")).status == 404
    assert await api.code(f"PUT {OBJECTS}/a", b"y", **tag) == (412, "OBJECT_CHANGED")


async def test_lists_are_paged_and_by_prefix_or_directory(api: Api) -> None:
    for name in ("b/1", "a", "b/2/x", "b/2/y", "b/3", "c"):
        await put(api, name)
    assert await names(api) == ["a", "b/1", "b/2/x", "b/2/y", "b/3", "c"]
    assert await names(api, "prefix=b/2") == ["b/2/x", "b/2/y"]
    page = await api.value(f"GET {OBJECTS}?limit=4")
    assert page["next"] == "b/2/y"
    page = await api.value(f"GET {OBJECTS}?limit=4&after={page['next']}")
    assert ([one["object"] for one in page["objects"]], page["next"]) == (["shop/b/3", "shop/c"], None)
    found, after = [], ""
    while after is not None:
        page = await api.value(f"GET {OBJECTS}?directory=b&limit=1&after={after}")
        found += [one["object"] for one in page["objects"]] + page["directories"]
        after = page["next"]
    assert found == ["shop/b/1", "b/2", "shop/b/3"]
    root = await api.value(f"GET {OBJECTS}?directory=")
    assert ([one["object"] for one in root["objects"]], root["directories"]) == (["shop/a", "shop/c"], ["b"])
    assert await api.code(f"GET {OBJECTS}?directory=nowhere") == (404, "NO_SUCH_OBJECT")
    assert await api.code(f"GET {OBJECTS}?directory=b&prefix=b") == (400, "INVALID_ARGUMENT")


async def test_copies_and_renames(api: Api) -> None:
    await put(api, "a", b"bytes")
    await put(api, "d/x", b"in it")
    copied = await api.value(f"POST {SPACE}/copy-object", {"source": "a", "name": "b"}, status=201)
    assert copied["object"] == "shop/b"
    taken = {"source": "a", "name": "b", "if_absent": True}
    for path in ("copy-object", "rename-object"):
        assert await api.code(f"POST {SPACE}/{path}", taken) == (409, "OBJECT_EXISTS")
        assert await api.code(f"POST {SPACE}/{path}", {"source": "?", "name": "c"}) == (404, "NO_SUCH_OBJECT")
        assert await api.code(f"POST {SPACE}/{path}", {"source": "a", "name": "../c"}) == (400, "INVALID_ARGUMENT")
    await api.value(f"POST {SPACE}/rename-object", {"source": "b", "name": "c"})
    await api.value(f"POST {SPACE}/rename-object", {"source": "d", "name": "e"})
    assert await names(api) == ["a", "c", "e/x"]
    assert (await api.ask(f"GET {OBJECTS}/c")).body == b"bytes"


async def test_what_expires_is_gone(api: Api, client: Client) -> None:
    said = await put(api, "short?expires_s=3600")
    assert said["expires"] == said["time"] + 3600 * 1_000_000  # type: ignore[operator]
    assert (await api.ask(f"HEAD {OBJECTS}/short")).headers["buckram-expires-us"] == str(said["expires"])
    for bad in ("0", "x", "99999999999"):
        assert await api.code(f"PUT {OBJECTS}/short?expires_s={bad}", b"x") == (400, "INVALID_ARGUMENT")


async def test_reading_makes_nothing_where_there_are_no_objects(api: Api, client: Client) -> None:
    assert await names(api) == []
    assert await api.code(f"GET {OBJECTS}/a") == (404, "NO_SUCH_OBJECT")
    assert await api.code(f"DELETE {OBJECTS}/a") == (404, "NO_SUCH_OBJECT")
    assert await client.namespace("shop").list() == []
    assert await api.code("GET /v2/namespaces/none/objects") == (404, "NO_SUCH_NAMESPACE")
    assert await api.code("PUT /v2/namespaces/none/objects/a", b"x") == (404, "NO_SUCH_NAMESPACE")


@pytest.mark.parametrize("name", ["a/../b", "%2e%2e/b", "a//b", "", ".", "a%00", "a%ff", "a" * 1025, "d/"])
async def test_names_that_cannot_be_are_refused(api: Api, name: str) -> None:
    for method in ("GET", "DELETE"):
        assert await api.code(f"{method} {OBJECTS}/{name}") == (400, "INVALID_ARGUMENT")
    assert await api.code(f"PUT {OBJECTS}/{name}", b"x") == (400, "INVALID_ARGUMENT")


async def test_a_name_is_an_object_or_a_directory(api: Api) -> None:
    await put(api, "d/x")
    assert await api.code(f"PUT {OBJECTS}/d", b"x") == (400, "NAME_BLOCKED")
    assert await api.code(f"PUT {OBJECTS}/d/x/y", b"x") == (400, "NAME_BLOCKED")
    assert await api.code(f"GET {OBJECTS}/d") == (404, "NO_SUCH_OBJECT")


async def test_bodies_that_are_cut_slow_or_too_large_leave_nothing(client: Client) -> None:
    limits = GatewayLimits(object_bytes=3 * MIB)
    async with serving(client, limits=limits, http_limits=HttpLimits(patience_s=0.5)) as gateway:
        api = await Api.to(gateway.url)
        await put(api, "before")
        cut = await Raw.to(gateway.url)
        head = f"PUT {OBJECTS}/half HTTP/1.1\r\nHost: localhost\r\n"
        await cut.send(f"{head}Content-Length: {2 * MIB}\r\n\r\n".encode() + b"x" * (MIB + MIB // 2))
        await until(lambda: gateway.room.used > 0)
        await cut.close()
        await until(lambda: gateway.room.used == 0)
        slow = await Raw.to(gateway.url)
        await slow.send(f"{head}Content-Length: 900\r\n\r\nabc".encode())
        answer = await slow.answer()
        assert (answer.status, answer.value["code"]) == (408, "BODY_TOO_SLOW")
        api, large = await Api.to(gateway.url), await Raw.to(gateway.url)
        assert await api.code(f"PUT {OBJECTS}/half", b"x" * (3 * MIB + 1)) == (413, "TOO_LARGE")
        chunk = b"100000\r\n" + b"x" * MIB + b"\r\n"
        await large.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunk * 4 + b"0\r\n\r\n")
        answer = await large.answer()
        assert (answer.status, answer.value["limit"]) == (413, 3 * MIB)
        assert "client library" in answer.value["message"]
        assert await names(await Api.to(gateway.url)) == ["before"]
        assert gateway.room.used == 0


async def test_a_put_with_a_key_is_carried_out_once(api: Api) -> None:
    key = {"Idempotency_Key": "a"}
    first = await put(api, "a", b"once", **key)
    assert await put(api, "a", b"once", **key) == first
    assert api.last.headers["idempotency-repeated"] == "true"
    assert await api.code(f"PUT {OBJECTS}/a", b"twice", **key) == (422, "IDEMPOTENCY_KEY_REUSED")
    other = {**key, "Buckram_Metadata": '{"a": "b"}'}
    assert await api.code(f"PUT {OBJECTS}/a", b"once", **other) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert (await api.ask(f"GET {OBJECTS}/a")).headers["etag"] == f'"{first["version"]}"'


async def test_without_acknowledgement_in_time_the_outcome_is_unknown(three_bookies: Cluster) -> None:
    limits = GatewayLimits(append_wait_s=2.0)
    async with three_bookies.client() as client, serving(client, limits=limits) as gateway:
        api = await Api.to(gateway.url)
        await client.namespaces.create("shop")
        await put(api, "a")
        for number in range(3):
            await three_bookies.pause(number)
        rename, key = {"source": "a", "name": "b"}, {"Idempotency_Key": "k"}
        for head, body, more in (
            (f"PUT {OBJECTS}/c", b"x", {}),
            (f"POST {SPACE}/rename-object", rename, key),
        ):
            assert await api.code(head, body, **more) == (504, "OUTCOME_UNKNOWN")
            assert api.last.headers["buckram-outcome"] == "unknown"
        for number in range(3):
            await three_bookies.resume(number)
        # Whether it was renamed is not known, so that it must not be done again.
        assert await api.code(f"POST {SPACE}/rename-object", rename, **key) == (504, "OUTCOME_UNKNOWN")
        assert api.last.headers["idempotency-repeated"] == "true"


async def test_a_gateway_without_room_says_so(client: Client) -> None:
    async with serving(client, limits=GatewayLimits(buffered_bytes=1000)) as gateway:
        api = await Api.to(gateway.url)
        await put(api, "a", b"x" * 1000)
        assert await api.code(f"PUT {OBJECTS}/b", b"x" * 1001) == (503, "GATEWAY_FULL")
        api = await Api.to(gateway.url)
        assert await api.code(f"GET {OBJECTS}/a") == (503, "GATEWAY_FULL")
        assert gateway.room.used == 0


async def test_what_breaks_on_the_way_ends_the_connection(
    api: Api, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(api, "a", b"x")

    async def pieces(self: Objects, name: str, **wanted: object) -> AsyncIterator[bytes]:
        yield b"x"
        raise ObjectDamaged("shop/a", "its bytes have another digest")

    monkeypatch.setattr(Objects, "read", pieces)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await api.ask(f"GET {OBJECTS}/a")
    assert gateway.room.used == 0


async def test_a_version_that_changes_meanwhile_is_never_mixed(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(api, "a", b"one")
    info = Objects.info
    changes = iter([b"longer"])

    async def changing(self: Objects, name: str) -> object:
        found = await info(self, name)
        for data in changes:
            await self.put(name, data)
        return found

    monkeypatch.setattr(Objects, "info", changing)
    assert (await api.ask(f"GET {OBJECTS}/a")).body == b"longer"


async def test_two_gateways_serve_the_same_objects(api: Api, client: Client) -> None:
    async with serving(client) as second:
        other = await Api.to(second.url)
        await put(api, "a", b"one")
        await put(other, "b", b"two")
        assert await names(api) == await names(other) == ["a", "b"]
        assert (await api.ask(f"GET {OBJECTS}/b")).body == b"two"


# -- grants ----------------------------------------------------------------------------------------------

_NEEDED = [
    ("GET", "objects/logs/a", None, {"read"}),
    ("HEAD", "objects/logs/a", None, {"read"}),
    ("PUT", "objects/logs/new", b"x", {"append"}),
    ("PUT", "objects/logs/a", b"x", {"append", "delete"}),
    ("DELETE", "objects/logs/a", None, {"delete"}),
    ("POST", "copy-object", {"source": "logs/a", "name": "logs/c"}, {"read", "append"}),
    ("POST", "copy-object", {"source": "logs/a", "name": "logs/b"}, {"read", "append", "delete"}),
    ("POST", "rename-object", {"source": "logs/a", "name": "logs/c"}, {"read", "append", "delete"}),
    ("POST", "rename-object", {"source": "logs", "name": "logs2"}, {"read", "append", "delete"}),
]


@pytest.mark.parametrize(("method", "path", "body", "needed"), _NEEDED)
async def test_every_operation_needs_its_permissions_on_the_prefix(
    client: Client, method: str, path: str, body: bytes | dict[str, object] | None, needed: set[str]
) -> None:
    async with guarded(client) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("root", "admin")
        for name in ("logs/a", "logs/b", "other/a"):
            await put(api, name, b"old", **root)
        alice = await place.bearer("alice")

        async def status() -> int:
            answer = await api.ask(f"{method} {SPACE}/{path}", body or b"", **alice)
            return answer.status

        unseen = 403 if method == "PUT" else 404  # What is put is made, and nobody learns from that what is there.
        assert await status() == unseen
        for missing in sorted(needed):
            granted = sorted(needed - {missing})
            if granted:
                await place.grant("token:alice", "shop/objects/logs*", *granted)
                assert await status() == 403, granted
                await place.revoke("token:alice", "shop/objects/logs*", *granted)
        await place.grant("token:alice", "shop/objects/other/*", "admin")
        assert await status() == unseen
        await place.grant("token:alice", "shop/objects/logs*", *needed)
        assert await status() < 300


async def test_one_sees_and_reaches_what_was_granted_and_nothing_else(client: Client) -> None:
    async with guarded(client) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("root", "admin")
        for name in ("logs/a", "logs/b/c", "logs2/x", "one", "secret/y"):
            await put(api, name, **root)
        bob, alice = await place.bearer("bob"), await place.bearer("alice")
        for query in ("", "directory=", "prefix=logs"):
            assert await api.code(f"GET {OBJECTS}?{query}", **alice) == (404, "NO_SUCH_NAMESPACE")
        await place.grant("token:alice", "shop/objects/logs/*", "read")
        await place.grant("token:alice", "shop/objects/one", "read")
        assert await names(api, **alice) == ["logs/a", "logs/b/c", "one"]
        assert await names(api, "prefix=l&limit=1", **alice) == ["logs/a"]
        assert await names(api, "after=logs/a&limit=2", **alice) == ["logs/b/c", "one"]
        assert await names(api, "prefix=secret", **alice) == []
        assert await names(api, **root) == ["logs/a", "logs/b/c", "logs2/x", "one", "secret/y"]
        root_of = await api.value(f"GET {OBJECTS}?directory=", **alice)
        assert (root_of["directories"], [one["object"] for one in root_of["objects"]]) == (["logs"], ["shop/one"])
        assert await api.code(f"GET {OBJECTS}/secret/y", **alice) == (404, "NO_SUCH_OBJECT")
        assert await api.code(f"GET {OBJECTS}/nothing", **alice) == (404, "NO_SUCH_OBJECT")
        assert await api.code(f"GET {SPACE}/streams", **alice) == (403, "FORBIDDEN")
        assert (await api.value("GET /v2/namespaces", **alice))["namespaces"] == []
        assert (await api.value("GET /v2/namespaces?partly=true", **alice))["namespaces"] == ["shop"]
        assert (await api.value("GET /v2/namespaces?partly=true", **bob))["namespaces"] == []
        # A directory is renamed by those only who may do so with all that is in it.
        await place.grant("token:bob", "shop/objects/logs", "admin")
        await place.grant("token:bob", "shop/objects/new*", "admin")
        moved = {"source": "logs", "name": "new"}
        assert await api.code(f"POST {SPACE}/rename-object", moved, **bob) == (403, "FORBIDDEN")
        await place.revoke("token:alice", "shop/objects/logs/*", "read")
        assert await api.code(f"GET {OBJECTS}/logs/a", **alice) == (404, "NO_SUCH_OBJECT")


async def test_uploads_and_downloads_end_with_their_grant(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.serve.http.streamed_answers.LOOK_S", 0.0)
    async with guarded(client) as place:
        api, alice = await Api.to(place.gateway.url), await place.bearer("alice")
        await place.grant("token:alice", "shop/objects/*", "read", "append")
        await put(api, "large", b"x" * (20 * MIB), **alice)
        up, down = await Raw.to(place.gateway.url), await Raw.to(place.gateway.url)
        bearer = f"Host: localhost\r\nAuthorization: {alice['Authorization']}\r\n"
        await down.send(f"GET {OBJECTS}/large HTTP/1.1\r\n{bearer}\r\n".encode())
        assert b"200" in await down.reader.readuntil(b"\r\n\r\n")
        await up.send(f"PUT {OBJECTS}/other HTTP/1.1\r\n{bearer}Content-Length: {3 * MIB}\r\n\r\n".encode())
        await up.send(b"x" * MIB)
        await place.revoke("token:alice", "shop/objects/*", "read", "append")
        await up.send(b"x" * MIB)
        answer = await up.answer()
        assert (answer.status, answer.value["code"]) == (403, "FORBIDDEN")
        assert "any more" in answer.value["message"]
        received = 0
        with suppress(ConnectionError):
            while piece := await down.reader.read(MIB):
                received += len(piece)
        assert received < 20 * MIB
        await until(lambda: place.gateway.room.used == 0)


async def test_a_grant_is_checked_before_it_is_made(client: Client) -> None:
    async with guarded(client) as place:
        api, root = await Api.to(place.gateway.url), await place.bearer("root", "admin")
        grant = {"principal": "token:alice", "namespace": "shop/objects/a*b", "permissions": ["read"]}
        assert await api.code("POST /v2/grants", grant, **root) == (400, "INVALID_ARGUMENT")
        made = await api.value("POST /v2/grants", {**grant, "namespace": "shop/objects/a*"}, **root)
        assert made["grants"] == [{**grant, "namespace": "shop/objects/a*"}]
