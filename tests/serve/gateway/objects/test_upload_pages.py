"""Objects in parts over HTTP: from several clients, parts that come twice or elsewhere, ends, grants, bad input."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest
from tests.serve.gateway.kit import Api, serving
from tests.serve.gateway.shared.test_authentication import guarded
from tests.serve.http.kit import Raw
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.limits import MIB, HttpLimits

SPACE = "/v2/namespaces/shop"
UPLOADS, OBJECTS = f"{SPACE}/uploads", f"{SPACE}/objects"


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways and test lead the index in turns."""
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)


async def begun(api: Api, name: str, **headers: str) -> int:
    found = await api.value(f"POST {UPLOADS}/{name}", status=201, **headers)
    assert found["object"] == f"shop/{name}"
    return int(found["upload"])


async def put(api: Api, name: str, upload: int, part: int, body: bytes, **headers: str) -> dict[str, Any]:
    path = f"PUT {UPLOADS}/{name}?upload={upload}&part={part}"
    found: dict[str, Any] = await api.value(path, body, status=201, **headers)
    return found


def completion(name: str, query: str = "") -> str:
    return f"POST {SPACE}/complete-upload/{name}{query}"


async def parts(api: Api, name: str, upload: int, query: str = "", **headers: str) -> list[int]:
    found = await api.value(f"GET {UPLOADS}/{name}?upload={upload}{query}", **headers)
    return [one["part"] for one in found["parts"]]


async def test_parts_from_two_gateways_become_one_object(api: Api, client: Client) -> None:
    pieces = [b"a" * (MIB + 7), b"b" * 10, b""]
    async with serving(client) as second:
        other = await Api.to(second.url)
        upload = await begun(api, "2026/large")
        said = await put(other, "2026/large", upload, 1, pieces[1])
        assert said == {"part": 1, "bytes": 10, "digest": f"sha256:{hashlib.sha256(pieces[1]).hexdigest()}"}
        await put(api, "2026/large", upload, 0, pieces[0])
        await put(other, "2026/large", upload, 2, pieces[2], Content_Length="0")
        assert await parts(api, "2026/large", upload) == [0, 1, 2]
        assert await api.code(f"GET {OBJECTS}/2026/large") == (404, "NO_SUCH_OBJECT")
        made = await other.value(
            completion("2026/large", "?expires_s=3600"),
            {"upload": upload, "parts": 3},
            status=201,
            Buckram_Metadata='{"of": "two"}',
        )
    digests = "".join(f"sha256:{hashlib.sha256(piece).hexdigest()}" for piece in pieces)
    assert made["digest"] == f"parts:{hashlib.sha256(digests.encode()).hexdigest()}-3"
    assert (made["bytes"], made["metadata"]) == (MIB + 17, {"of": "two"})
    assert made["expires"] == made["time"] + 3600 * 1_000_000
    assert (await api.ask(f"GET {OBJECTS}/2026/large")).body == b"".join(pieces)
    part = await api.ask(f"GET {OBJECTS}/2026/large", Range=f"bytes={MIB + 5}-{MIB + 8}")
    assert (part.status, part.body) == (206, b"aabb")


async def test_a_part_that_comes_twice_counts_as_it_came_last(api: Api) -> None:
    upload = await begun(api, "a")
    for body in (b"one", b"two!"):
        await put(api, "a", upload, 0, body)
    assert await parts(api, "a", upload) == [0]
    await api.value(completion("a"), {"upload": upload, "parts": 1}, status=201)
    assert (await api.ask(f"GET {OBJECTS}/a")).body == b"two!"


async def test_a_part_of_another_upload_is_refused(api: Api) -> None:
    mine, others = await begun(api, "mine"), await begun(api, "others")
    target = f"PUT {UPLOADS}/mine?part=0&upload="
    for wrong in (others, others + 1000):
        assert await api.code(f"{target}{wrong}", b"x") == (404, "NO_SUCH_OBJECT")
        assert "another object" in api.last.value["message"]
        assert await api.code(completion("mine"), {"upload": wrong, "parts": 1}) == (404, "NO_SUCH_OBJECT")
        assert await api.code(f"GET {UPLOADS}/mine?upload={wrong}") == (404, "NO_SUCH_OBJECT")
    assert await api.code(f"DELETE {UPLOADS}/mine?upload={others}") == (404, "NO_SUCH_OBJECT")
    await put(api, "mine", mine, 0, b"m")
    await put(api, "others", others, 0, b"o")
    for name, upload in (("mine", mine), ("others", others)):
        await api.value(completion(name), {"upload": upload, "parts": 1}, status=201)
        assert (await api.ask(f"GET {OBJECTS}/{name}")).body == name[:1].encode()


async def test_an_upload_without_all_of_its_parts_is_not_completed(api: Api) -> None:
    upload = await begun(api, "a")
    whole = {"upload": upload, "parts": 2}
    assert await api.code(completion("a"), whole) == (409, "UPLOAD_INCOMPLETE")
    await put(api, "a", upload, 1, b"b")
    assert await api.code(completion("a"), whole) == (409, "UPLOAD_INCOMPLETE")
    for bad in (0, 10_001):
        assert await api.code(completion("a"), {"upload": upload, "parts": bad}) == (400, "INVALID_ARGUMENT")
    await put(api, "a", upload, 0, b"a")
    await api.value(completion("a"), whole, status=201)
    # It is over now.
    assert await api.code(completion("a"), whole) == (404, "NO_SUCH_OBJECT")
    assert await api.code(f"PUT {UPLOADS}/a?upload={upload}&part=0", b"x") == (404, "NO_SUCH_OBJECT")
    assert (await api.ask(f"GET {OBJECTS}/a")).body == b"ab"


async def test_what_is_given_up_is_gone_and_stays_so(api: Api) -> None:
    upload = await begun(api, "a")
    await put(api, "a", upload, 0, b"x")
    for was in (True, False):
        said = await api.value(f"DELETE {UPLOADS}/a?upload={upload}")
        assert said == {"upload": upload, "object": "shop/a", "aborted": was}
    assert await api.code(completion("a"), {"upload": upload, "parts": 1}) == (404, "NO_SUCH_OBJECT")
    assert await api.code(f"GET {OBJECTS}/a") == (404, "NO_SUCH_OBJECT")


async def test_conditions_of_completing(api: Api) -> None:
    first = await api.value(f"PUT {OBJECTS}/a", b"old", status=201)
    upload = await begun(api, "a")
    await put(api, "a", upload, 0, b"new")
    whole = {"upload": upload, "parts": 1}
    assert await api.code(completion("a"), whole, If_None_Match="*") == (412, "OBJECT_EXISTS")
    assert await api.code(completion("a"), whole, If_Match='"999"') == (412, "OBJECT_CHANGED")
    await api.value(completion("a"), whole, status=201, If_Match=f'"{first["version"]}"')
    assert (await api.ask(f"GET {OBJECTS}/a")).body == b"new"


async def test_uploads_and_parts_are_listed_in_pages(api: Api) -> None:
    assert (await api.value(f"GET {UPLOADS}"))["uploads"] == []
    numbers = [await begun(api, name) for name in ("b", "a/1", "a/2")]
    for part in (5, 0, 9999):
        await put(api, "a/1", numbers[1], part, b"xyz")
    assert await parts(api, "a/1", numbers[1], "&limit=2") == [0, 5]
    assert (await api.value(f"GET {UPLOADS}/a/1?upload={numbers[1]}&limit=2"))["next"] == 5
    assert await parts(api, "a/1", numbers[1], "&limit=2&after=5") == [9999]
    page = await api.value(f"GET {UPLOADS}?limit=2")
    assert [(one["object"], one["parts"], one["bytes"]) for one in page["uploads"]] == [
        ("shop/b", 0, 0),
        ("shop/a/1", 3, 9),
    ]
    rest = await api.value(f"GET {UPLOADS}?limit=2&after={page['next']}")
    assert ([one["upload"] for one in rest["uploads"]], rest["next"]) == ([numbers[2]], None)
    assert [one["object"] for one in (await api.value(f"GET {UPLOADS}?prefix=a/"))["uploads"]] == [
        "shop/a/1",
        "shop/a/2",
    ]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (f"PUT {UPLOADS}/a", b"x"),
        (f"PUT {UPLOADS}/a?upload=1", b"x"),
        (f"PUT {UPLOADS}/a?part=1", b"x"),
        (f"PUT {UPLOADS}/a?upload=1&part=10000", b"x"),
        (f"PUT {UPLOADS}/a?upload=1&part=-1", b"x"),
        (f"PUT {UPLOADS}/a?upload=x&part=1", b"x"),
        (f"PUT {UPLOADS}/a?upload=1&part=1&part=2", b"x"),
        (f"PUT {UPLOADS}/a?upload=99999999999999999999&part=1", b"x"),
        (f"PUT {UPLOADS}/../a?upload=1&part=1", b"x"),
        (f"POST {UPLOADS}/a//b", b""),
        (f"POST {UPLOADS}/", b""),
        (f"GET {UPLOADS}/a", b""),
        (f"DELETE {UPLOADS}/a", b""),
        (completion("a"), b"{}"),
        (completion("a"), b'{"upload": 1}'),
        (completion("a"), b'{"upload": "1", "parts": 1}'),
        (completion("a"), b'{"upload": 1, "parts": 1, "more": 1}'),
    ],
)
async def test_what_cannot_be_meant_is_refused(api: Api, head: str, body: bytes) -> None:
    await begun(api, "a")
    headers = {"Content_Type": "application/json"} if body[:1] == b"{" else {}
    assert await api.code(head, body, **headers) == (400, "INVALID_ARGUMENT")


async def test_nothing_is_there_where_there_are_no_objects(api: Api, client: Client) -> None:
    assert await api.code(f"PUT {UPLOADS}/a?upload=1&part=0", b"x") == (404, "NO_SUCH_OBJECT")
    assert await api.code(completion("a"), {"upload": 1, "parts": 1}) == (404, "NO_SUCH_OBJECT")
    assert await client.namespace("shop").list() == []
    assert await api.code("POST /v2/namespaces/none/uploads/a") == (404, "NO_SUCH_NAMESPACE")


async def test_parts_that_are_cut_slow_or_too_large_leave_nothing(client: Client) -> None:
    limits = GatewayLimits(object_bytes=3 * MIB)
    async with serving(client, limits=limits, http_limits=HttpLimits(patience_s=0.5)) as gateway:
        api = await Api.to(gateway.url)
        upload = await begun(api, "a")
        head = f"PUT {UPLOADS}/a?upload={upload}&part=0 HTTP/1.1\r\nHost: localhost\r\n"
        cut, slow = await Raw.to(gateway.url), await Raw.to(gateway.url)
        await cut.send(f"{head}Content-Length: {2 * MIB}\r\n\r\n".encode() + b"x" * (MIB + MIB // 2))
        await until(lambda: gateway.room.used > 0)
        await cut.close()
        await until(lambda: gateway.room.used == 0)
        await slow.send(f"{head}Content-Length: 900\r\n\r\nabc".encode())
        assert (await slow.answer()).value["code"] == "BODY_TOO_SLOW"
        api = await Api.to(gateway.url)
        target = f"PUT {UPLOADS}/a?upload={upload}&part=0"
        assert await api.code(target, b"x" * (3 * MIB + 1)) == (413, "TOO_LARGE")
        assert await parts(await Api.to(gateway.url), "a", upload) == []
        assert gateway.room.used == 0


async def test_changes_with_a_key_are_carried_out_once(api: Api) -> None:
    key = {"Idempotency_Key": "begin"}
    upload = await begun(api, "a", **key)
    assert await begun(api, "a", **key) == upload
    part = {"Idempotency_Key": "part"}
    first = await put(api, "a", upload, 0, b"x", **part)
    assert await put(api, "a", upload, 0, b"x", **part) == first
    other = f"PUT {UPLOADS}/a?upload={upload}&part=0"
    assert await api.code(other, b"y", **part) == (422, "IDEMPOTENCY_KEY_REUSED")
    end, whole = {"Idempotency_Key": "end"}, {"upload": upload, "parts": 1}
    made = await api.value(completion("a"), whole, status=201, **end)
    assert await api.value(completion("a"), whole, status=201, **end) == made
    assert api.last.headers["idempotency-repeated"] == "true"


async def test_a_gateway_without_room_takes_no_part(client: Client) -> None:
    async with serving(client, limits=GatewayLimits(buffered_bytes=1000)) as gateway:
        api = await Api.to(gateway.url)
        upload = await begun(api, "a")
        await put(api, "a", upload, 0, b"x" * 1000)
        assert await api.code(f"PUT {UPLOADS}/a?upload={upload}&part=1", b"x" * 1001) == (503, "GATEWAY_FULL")
        assert gateway.room.used == 0


async def test_many_parts_at_once(api: Api, gateway: Gateway) -> None:
    upload = await begun(api, "many")
    clients = [await Api.to(gateway.url) for _ in range(4)]

    async def some(client: Api, first: int) -> None:
        for part in range(first, 20, 4):
            await put(client, "many", upload, part, b"%02d" % part)

    await asyncio.gather(*(some(client, first) for first, client in enumerate(clients)))
    await api.value(completion("many"), {"upload": upload, "parts": 20}, status=201)
    assert (await api.ask(f"GET {OBJECTS}/many")).body == b"".join(b"%02d" % part for part in range(20))


async def test_what_one_may_do_with_an_upload_is_what_one_may_do_with_its_object(client: Client) -> None:
    async with guarded(client) as place:
        api, root, alice = (
            await Api.to(place.gateway.url),
            await place.bearer("r", "admin"),
            await place.bearer("alice"),
        )
        mine, secret = await begun(api, "logs/a", **root), await begun(api, "secret", **root)
        await api.value(f"PUT {OBJECTS}/logs/a", b"old", status=201, **root)
        target = f"PUT {UPLOADS}/logs/a?upload={mine}&part=0"
        whole = {"upload": mine, "parts": 1}
        await place.grant("token:alice", "shop/objects/logs/*", "read")
        for head, body in (
            (f"POST {UPLOADS}/logs/b", b""),
            (target, b"x"),
            (f"GET {UPLOADS}/logs/a?upload={mine}", b""),
            (f"GET {UPLOADS}", b""),
            (f"DELETE {UPLOADS}/logs/a?upload={mine}", b""),
        ):
            assert await api.code(head, body, **alice) == (403, "FORBIDDEN")
        assert await api.code(completion("logs/a"), whole, **alice) == (403, "FORBIDDEN")
        await place.grant("token:alice", "shop/objects/logs/*", "append")
        await api.value(target, b"x", status=201, **alice)
        assert [one["upload"] for one in (await api.value(f"GET {UPLOADS}", **alice))["uploads"]] == [mine]
        # The other upload is reached neither by its own name nor by that of one's own object.
        assert await api.code(f"PUT {UPLOADS}/secret?upload={secret}&part=0", b"x", **alice) == (404, "NO_SUCH_OBJECT")
        assert await api.code(f"PUT {UPLOADS}/logs/a?upload={secret}&part=0", b"x", **alice) == (404, "NO_SUCH_OBJECT")
        # Replacing is deleting.
        assert await api.code(completion("logs/a"), whole, **alice) == (403, "FORBIDDEN")
        await place.grant("token:alice", "shop/objects/logs/*", "delete")
        await api.value(completion("logs/a"), whole, status=201, **alice)
