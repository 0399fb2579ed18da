"""A tenant attacks another's objects and files: requests of Hadoop's clients, names, and metadata no program writes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from tests.serve.gateway.hostile_kit import MALL, SHOP, Game, playing
from tests.serve.hrana.kit import execute
from tests.serve.http.kit import Raw

from buckram.cluster import Client
from buckram.core.streams.names import StreamName


@pytest.fixture
async def game(client: Client) -> AsyncIterator[Game]:
    async with playing(client) as made:
        yield made


# -- files of Hadoop's clients ---------------------------------------------------------------------------------

FILES = {
    "user.name": "GET /shop/a/plan?op=OPEN&user.name=alice",
    "doas": "GET /shop/a/plan?op=OPEN&doas=alice&user.name=mallory",
    "proxyuser": "GET /shop/a/plan?op=OPEN&data=true&proxyuser=alice",
    "the second step at once": "GET /shop/a/plan?op=OPEN&data=true",
    "a token twice": "GET /shop/a/plan?op=OPEN&delegation=x&delegation=y",
    "a delegation token that is none": "GET /shop/a/plan?op=OPEN&delegation=AAAA",
    "dots": "GET /mall/../shop/a/plan?op=OPEN",
    "escaped dots": "GET /mall/%2e%2e/shop/a/plan?op=OPEN",
    "an escaped slash": "GET /mall%2F..%2Fshop/a/plan?op=OPEN",
    "a null": "GET /shop%00/a/plan?op=OPEN",
    "wide letters": "GET /%EF%BD%93hop/a/plan?op=OPEN",
    "two slashes": "GET //shop/a/plan?op=OPEN",
    "status": "GET /shop/a/plan?op=GETFILESTATUS",
    "status of the namespace": "GET /shop?op=GETFILESTATUS",
    "list": "GET /shop?op=LISTSTATUS",
    "list in pages": "GET /shop/a?op=LISTSTATUS_BATCH&startAfter=..%2F..%2Fshop",
    "summary": "GET /shop?op=GETCONTENTSUMMARY",
    "checksum": "GET /shop/a/plan?op=GETFILECHECKSUM",
    "locations": "GET /shop/a/plan?op=GETFILEBLOCKLOCATIONS",
    "access": "GET /shop/a/plan?op=CHECKACCESS&fsaction=rw-",
    "trash": "GET /shop?op=GETTRASHROOT",
    "snapshots": "PUT /shop?op=CREATESNAPSHOT",
    "create": "PUT /shop/a/new?op=CREATE&data=true",
    "create over it": "PUT /shop/a/plan?op=CREATE&data=true&overwrite=true",
    "append": "POST /shop/a/plan?op=APPEND&data=true",
    "concat": "POST /mall/x?op=CONCAT&sources=/shop/a/plan",
    "truncate": "POST /shop/a/plan?op=TRUNCATE&newlength=0",
    "directory": "PUT /shop/b?op=MKDIRS",
    "delete": "DELETE /shop/a/plan?op=DELETE",
    "delete all": "DELETE /shop?op=DELETE&recursive=true",
    "rename out of it": "PUT /shop/a/plan?op=RENAME&destination=/mall/plan",
    "rename out of it, anew": "PUT /shop/a/plan?op=RENAME&destination=/mall/plan&renameoptions=OVERWRITE",
    "rename into it": "PUT /mall/own?op=RENAME&destination=/shop/a/plan&renameoptions=OVERWRITE",
    "rename into it by dots": "PUT /mall/own?op=RENAME&destination=/mall/../shop/a/plan",
    "rename into it by an address": "PUT /mall/own?op=RENAME&destination=webhdfs://x/shop/a/plan",
    "rename a namespace": "PUT /mall?op=RENAME&destination=/shop",
    "a link": "PUT /mall/own?op=CREATESYMLINK&destination=/shop/a/plan",
    "owner": "PUT /shop/a/plan?op=SETOWNER&owner=mallory",
    "permission": "PUT /shop/a/plan?op=SETPERMISSION&permission=777",
    "times": "PUT /shop/a/plan?op=SETTIMES&modificationtime=1",
    "replication": "PUT /shop/a/plan?op=SETREPLICATION&replication=9",
    "attributes": "PUT /shop/a/plan?op=SETXATTR&xattr.name=user.x",
}


async def test_no_request_of_hadoop_reaches_files_of_another_namespace(game: Game) -> None:
    await game.api.value(f"PUT {MALL}/objects/own", b"mine", status=201, **game.mallory)
    for case, request in FILES.items():
        method, _, path = request.partition(" ")
        head = f"{method} /webhdfs/v1{path}"
        marks = {"Buckram_Attempt": "a-1", "Buckram_Repeated": "true"} if method != "GET" else {}
        answer = await game.attack(head, b"x" if "data=true" in path and method != "GET" else b"", **marks)
        assert 400 <= answer.status < 500, (case, answer)
        await game.unharmed(case)
    root = await game.attack("GET /webhdfs/v1/?op=LISTSTATUS")
    assert [one["pathSuffix"] for one in root.value["FileStatuses"]["FileStatus"]] == ["mall"]
    top = await game.attack("GET /webhdfs/v1/?op=GETFILESTATUS")
    assert top.value["FileStatus"]["childrenNum"] == 1
    own = await game.attack("GET /webhdfs/v1/mall/own?op=OPEN&data=true")
    assert own.body == b"mine", "a rename that is refused leaves the source"
    # What `delegation` gives is the token of whoever asks.
    said = await game.attack("GET /webhdfs/v1/?op=GETDELEGATIONTOKEN&renewer=alice&user.name=alice")
    handed = said.value["Token"]["urlString"]
    raw = await Raw.to(game.url)
    answer = await raw.ask(f"GET /webhdfs/v1/shop/a/plan?op=OPEN&data=true&delegation={handed}")
    await raw.close()
    assert answer.status == 404


# -- objects ---------------------------------------------------------------------------------------------------


async def test_objects_of_another_namespace_are_in_no_name_and_no_source(game: Game) -> None:
    await game.api.value(f"PUT {MALL}/objects/own", b"mine", status=201, **game.mallory)
    names = (
        "../../shop/objects/a/plan",
        "/shop/a/plan",
        "shop/a/plan",
        "..",
        "a/../../shop/a/plan",
        "a\u0000b",
        "x" * 5000,
    )
    for name in names:
        for page in ("copy-object", "rename-object"):
            for body in ({"source": name, "name": "got"}, {"source": "own", "name": name}):
                answer = await game.attack(
                    f"POST {MALL}/{page}", json.dumps(body).encode(), Content_Type="application/json"
                )
                assert answer.status in (200, 201, 400, 404), (name, page, answer)
                if answer.status < 300:  # a plain name of its own, such as shop/a/plan
                    back = {"source": body["name"], "name": "own"}
                    await game.api.value(f"POST {MALL}/rename-object", back, **game.mallory)
        await game.unharmed(name)
    for head in (
        f"GET {SHOP}/objects?prefix=a",
        f"GET {SHOP}/objects?directory=a",
        f"GET {MALL}/objects?prefix=../shop",
        f"GET {MALL}/objects?after=../../shop",
        f"HEAD {SHOP}/objects/a/plan",
        f"DELETE {SHOP}/objects/a?recursive=true",
        f"DELETE {MALL}/objects/..?recursive=true",
        f"POST {SHOP}/delete-objects?prefix=a",
        f"POST {SHOP}/copy-object",
        f"DELETE {SHOP}/streams/buckram.objects?purpose=objects",
        f"PATCH {SHOP}/streams/buckram.objects",
        f"POST {SHOP}/streams/buckram.objects/truncate",
        f"POST {SHOP}/streams/buckram.objects/seal",
    ):
        answer = await game.attack(head)
        assert answer.status in (200, 400, 404, 405), (head, answer)
        assert b"plan" not in answer.body
        await game.unharmed(head)


async def test_an_index_that_names_ledgers_of_another_gives_none_of_their_bytes(
    game: Game, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may append to a namespace's objects writes any command into the log of their index."""
    monkeypatch.setattr("buckram.state.objects.index_client.TURN_S", 0.1)
    rows = await game.api.value(f"GET {SHOP}/streams/orders/segments", **game.alice)
    victims = [game.ledger, *(one["ledger"] for one in rows["segments"])]
    async with client.objects("shop") as objects:
        victims += await objects._index.look(lambda state: list(state.space.open))
    assert len(victims) >= 3
    names: list[str] = []
    async with client.objects("mall") as objects:
        for ledger in victims:
            await objects._index.execute(["begin", ledger, "mallory"])
            for chunk in (0, 1 << 20):
                names.append(f"got-{ledger}-{chunk}")
                put = {"size": 6, "digest": "sha256:x", "extents": [[ledger, 0, 0, 6, chunk]], "metadata": []}
                await objects._index.execute(["put", names[-1], {**put, "expires_us": None, "sealed": []}, None])
        for name in names:
            for head in (f"GET {MALL}/objects/{name}", f"GET /webhdfs/v1/mall/{name}?op=OPEN&data=true"):
                answer = await game.attack(head)
                assert answer.status in (403, 409), answer
        await game.unharmed("an index of objects")
        for name in names:
            assert (await game.attack(f"DELETE {MALL}/objects/{name}")).status == 200
    async with client.objects("mall") as objects:
        await objects._index.execute(["purge"])
        await objects._sweeper.sweep(0.0, at_once=True)  # As every server that leads the index does.
        await game.unharmed("an index of objects whose ledgers are swept")


async def test_a_tenant_that_spoils_its_own_things_spoils_none_of_others(game: Game, client: Client) -> None:
    """What is written past all programs, as whoever has a token of a bookie could: the gateway reads it."""
    api, mallory = game.api, game.mallory
    await api.value(f"PUT {MALL}/objects/own", b"mine", status=201, **mallory)
    mall = client.namespace("mall")
    await mall.create_database("bad")
    await api.value(
        "POST /v2/databases/mall/bad/v3/pipeline",
        {"requests": [execute("CREATE TABLE t (x)"), {"type": "close"}]},
        **mallory,
    )
    for name in ("buckram.objects", "bad"):
        key = mall.store.layout.head(StreamName("mall", name))
        for value in HEADS:
            found = await mall.store.keys.get(key)
            await mall.store.keys.set(key, value(found.value), found.version)
            for head in (
                f"GET {MALL}/objects",
                f"PUT {MALL}/objects/new",
                f"GET {MALL}/streams",
                f"GET {MALL}/streams/{name}",
                f"GET {MALL}/streams/{name}/segments",
                f"GET {MALL}/databases",
                f"GET {MALL}/databases/{name}",
                f"GET {MALL}/databases/{name}/backup",
                f"GET {MALL}/streams/{name}/records",
                "GET /webhdfs/v1/mall?op=LISTSTATUS",
            ):
                await game.attack(head, b"x" if head[:3] == "PUT" else b"")
            await game.unharmed((name, value(b"{}")[:60]))


HEADS: Sequence[Callable[[bytes], bytes]] = (
    lambda head: head.replace(b'"end":', b'"end":9'),
    lambda head: head.replace(b'"epoch":', b'"epoch":99999999999999999999'),
    lambda head: b"\xff\xfe",
    lambda head: b"[" * 100_000,
    lambda head: b'{"a": ' * 50_000,
    lambda head: b"1e999",
    lambda head: b"",
)
