"""A tenant with every permission on its own namespace attacks another one's through each door of a gateway.

Each case is judged by what the other tenant has and sees afterwards, and by what its secrets are found in.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.serve.gateway.hostile_kit import ALL, MALL, SECRET, SHOP, SQL, Game, playing
from tests.serve.gateway.kit import Api, Events
from tests.serve.gateway.shared.test_authentication import Guarded, guarded
from tests.serve.hrana.kit import execute
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.gateway.streams.writers import MARK
from buckram.state.db.settings import DatabaseLimits

FOREVER = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT count(*) FROM t"


@pytest.fixture
async def game(client: Client) -> AsyncIterator[Game]:
    async with playing(client) as made:
        yield made


# -- spellings of a path ---------------------------------------------------------------------------------------

ORDERS = "streams/orders/records"
PATHS = {
    "an escaped slash in the namespace": f"/v2/namespaces/mall%2F..%2Fshop/{ORDERS}",
    "two escaped slashes": f"/v2/namespaces/mall%252F..%252Fshop/{ORDERS}",
    "dots": f"/v2/namespaces/mall/../shop/{ORDERS}",
    "escaped dots": f"/v2/namespaces/mall/%2e%2e/shop/{ORDERS}",
    "dots in the stream": "/v2/namespaces/mall/streams/..%2F..%2Fshop%2Fstreams%2Forders/records",
    "a full name for the stream": "/v2/namespaces/mall/streams/shop%2Forders/records",
    "a backslash": f"/v2/namespaces/mall%5C..%5Cshop/{ORDERS}",
    "a null": f"/v2/namespaces/shop%00mall/{ORDERS}",
    "overlong UTF-8": f"/v2/namespaces/mall%C0%AF..%C0%AFshop/{ORDERS}",
    "wide letters, which NFKC makes plain": f"/v2/namespaces/%EF%BD%93hop/{ORDERS}",
    "another case": f"/v2/namespaces/SHOP/{ORDERS}",
    "a blank": f"/v2/namespaces/shop%20/{ORDERS}",
    "a parameter of the path": f"/v2/namespaces/mall;/../shop/{ORDERS}",
    "two slashes": f"/v2//namespaces/shop/{ORDERS}",
    "an absolute form": f"http://localhost/v2/namespaces/shop/{ORDERS}",
    "a very long name": f"/v2/namespaces/{'shop' * 3000}/{ORDERS}",
    "a query in the path": f"/v2/namespaces/mall/streams/x%3F/../../shop/{ORDERS}",
}


async def test_no_spelling_of_a_path_leads_to_another_namespace(game: Game) -> None:
    for case, path in PATHS.items():
        for method, body in (("GET", b""), ("POST", b'{"value": "x"}')):
            await game.refused(f"{method} {path}", body)
        await game.refused(f"DELETE {path.removesuffix('/records')}")
        await game.unharmed(case)


# -- headers ---------------------------------------------------------------------------------------------------

HEADERS: dict[str, dict[str, str]] = {
    "a forwarded address": {"X_Forwarded_For": "127.0.0.1", "X_Real_IP": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
    "a forwarded user": {"X_Forwarded_User": "alice", "X_Remote_User": "token:alice", "Remote_User": "token:alice"},
    "a forwarded host": {"X_Forwarded_Host": "shop", "X_Forwarded_Prefix": SHOP, "X_Original_URL": f"{SHOP}/streams"},
    "a method that overrides": {"X_HTTP_Method_Override": "GET", "X_HTTP_Method": "GET"},
    "another host": {"Host": "books.shop.example"},
    "a request that claims to be sent on": {"Buckram_Forwarded": "1", "Buckram_Rights": "write"},
    "another principal": {
        "Buckram_Principal": "token:alice",
        "Buckram_Namespace": "shop",
        "Buckram_Database": "shop/books",
    },
    "the place of an event": {"Last_Event_ID": "0"},
    "a range": {"Range": "bytes=0-0", "If_Range": '"1"'},
    "conditions": {"If_None_Match": "*"},
    "a cookie that is none": {"Cookie": "buckram_session=; buckram_session=x"},
}
READS = (f"{SHOP}/{ORDERS}", f"{SHOP}/streams/orders/tail?start=earliest", f"{SHOP}/objects/a/plan", f"{SHOP}/streams")


async def test_no_header_gives_more_than_the_token(game: Game) -> None:
    for case, headers in HEADERS.items():
        for path in READS:
            await game.refused(f"GET {path}", **headers)
        await game.refused(f"POST {SHOP}/{ORDERS}", b'{"value": "x"}', **headers)
        await game.refused(f"DELETE {SHOP}/objects/a/plan", **headers)
        await game.unharmed(case)
    # A session of a browser counts where no token is given, and where one is, that alone counts.
    await game.refused(f"GET {SHOP}/{ORDERS}", Cookie=game.cookie)
    await game.refused("DELETE /v2/session", Cookie=game.cookie)
    await game.unharmed("the end of another's session")


# -- keys and numbers of another's -----------------------------------------------------------------------------


async def test_keys_producers_and_numbers_of_another_mean_nothing(game: Game) -> None:
    api, mallory = game.api, game.mallory
    await api.value(f"POST {MALL}/streams", {"stream": "orders"}, status=201, **mallory)
    # The key of a request that alice sent is another one of mallory's, and tells nothing of hers.
    first = await api.ask(f"POST {MALL}/{ORDERS}", b'{"value": "mine"}', Idempotency_Key="k", **mallory)
    assert (first.status, "idempotency-repeated" in first.headers) == (200, False)
    await game.refused(f"POST {SHOP}/{ORDERS}?producer=p1&sequence=0", b'{"value": "s3cret"}', Idempotency_Key="k")
    again = await api.ask(
        f"POST {SHOP}/{ORDERS}?producer=p1&sequence=0", b'{"value": "s3cret"}', Idempotency_Key="k", **game.alice
    )
    assert (again.status, again.headers.get("idempotency-repeated")) == (200, "true")
    await game.unharmed("an idempotency key")
    mine = await api.value(f"POST {MALL}/{ORDERS}?producer=p1&sequence=0", b'{"value": "m"}', **mallory)
    assert mine["records"] == 1
    await game.refused(f"POST {SHOP}/{ORDERS}?producer=p1&sequence=1", b'{"value": "m"}')
    next_one = await api.value(f"POST {SHOP}/{ORDERS}?producer=p1&sequence=0", b'{"value": "s3cret"}', **game.alice)
    assert next_one["records"] == 0, "alice's producer is where it was"
    await game.unharmed("a producer")
    for head in (
        f"PUT {MALL}/uploads/a/part?upload={game.upload}&part=0",
        f"POST {MALL}/complete-upload/a/part",
        f"DELETE {SHOP}/uploads/a/part?upload={game.upload}",
        f"GET {SHOP}/uploads/a/part?upload={game.upload}",
    ):
        await game.refused(head, b'{"upload": %d, "parts": 1}' % game.upload if head[0] == "P" else b"")
    await game.unharmed("an upload")
    for head in ("GET ", "DELETE ", "POST /close", "POST /recover", "POST /entries", "GET /entries"):
        method, _, end = head.partition(" ")
        await game.refused(
            f"{method} /v2/ledgers/{game.ledger}{end}", b"x" if end == "/entries" and method == "POST" else b""
        )
    await game.unharmed("a ledger")
    marks: Sequence[dict[str, str]] = (
        {"buckram.namespace": "shop"},
        {"buckram.stream": "shop/orders", "buckram.stream.uid": game.before["orders"]["uid"]},
        {"buckram.birth": "0" * 16},
        {MARK: "x"},
    )
    for mark in marks:
        await api.code("POST /v2/ledgers", {"namespace": "mall", "custom_metadata": mark}, **mallory)
    assert await api.code("POST /v2/ledgers", {"namespace": "shop"}, **mallory) == (403, "FORBIDDEN")
    await game.unharmed("a ledger with another's mark")
    assert await api.code("POST /v2/namespaces", {"namespace": "shop"}, **mallory) == (403, "FORBIDDEN")
    for body in ({"policy": {"retention_s": 0.001}}, {"policy": {"offload_to": "file:///tmp"}}):
        assert (await api.code(f"PATCH {SHOP}", body, **mallory))[0] in (403, 404)
    await game.unharmed("a policy")


async def test_places_of_a_stream_and_of_a_query_are_of_that_one_alone(game: Game) -> None:
    api, mallory = game.api, game.mallory
    await api.value(f"POST {MALL}/streams", {"stream": "orders"}, status=201, **mallory)
    await api.value(f"POST {MALL}/{ORDERS}", b'{"value": "mine"}', **mallory)
    # The id of an event of alice's stream is a place in mallory's.
    theirs = await Events.of(game.url, f"{SHOP}/streams/orders/tail?start=earliest", **game.alice)
    identity = (await theirs.next())["id"]
    mine = await Events.of(game.url, f"{MALL}/streams/orders/tail?start=earliest", **mallory)
    assert SECRET.decode() not in (await mine.next())["data"]
    for events in (theirs, mine):
        await events.close()
    answer = await game.attack(f"GET {SHOP}/streams/orders/tail", Last_Event_ID=identity)
    assert answer.status == 404
    # A baton of alice's stream of statements belongs to her.
    opened = await api.value(f"POST {SQL}", {"requests": [execute("BEGIN"), execute("SELECT x FROM t")]}, **game.alice)
    await game.place.grant("token:mallory", "shop/other", *ALL)
    for path in (SQL, "/v2/databases/mall/books/v3/pipeline", "/v2/databases/shop/other/v3/pipeline"):
        body = {"baton": opened["baton"], "requests": [execute("DELETE FROM t"), execute("COMMIT")]}
        assert (await api.code(f"POST {path}", body, **mallory))[0] in (400, 404)
    going = await api.value(
        f"POST {SQL}", {"baton": opened["baton"], "requests": [execute("COMMIT"), {"type": "close"}]}, **game.alice
    )
    assert going["results"][0]["type"] == "ok", "alice's transaction goes on"
    await game.unharmed("a baton")


async def test_what_follows_an_at_sign_is_part_of_a_database_s_name(game: Game, client: Client) -> None:
    """`main@stale` is a reading of `main`, and `main@2` another database: a grant on the one is none on the other."""
    api, mallory = game.api, game.mallory
    await client.namespace("shop").create_database("books@2")
    await client.namespace("shop").create_database("open")
    made = [execute("CREATE TABLE t (x)"), execute("INSERT INTO t VALUES ('s3cret')"), {"type": "close"}]
    await api.value("POST /v2/databases/shop/books@2/v3/pipeline", {"requests": made}, **game.alice)
    await game.place.grant("token:mallory", "shop/open", *ALL)
    await game.place.grant("token:mallory", "shop/books", "read")
    for version in ("v2", "v3"):
        body = {"requests": [execute("SELECT x FROM t"), execute("DELETE FROM t"), {"type": "close"}]}
        assert (await api.code(f"POST /v2/databases/shop/books@2/{version}/pipeline", body, **mallory))[0] == 404
    for head in (
        "GET /v2/namespaces/shop/databases/books@2",
        "GET /v2/namespaces/shop/databases/books@2/backup",
        "GET /v2/databases/shop/books@2/backup",
        "PUT /v2/databases/shop/open@2/load",
        "PUT /v2/namespaces/shop/databases/open@3/backup",
    ):
        await game.refused(head, b"x" if head[:3] == "PUT" else b"")
    kept = await api.value(
        "POST /v2/databases/shop/books@2/v3/pipeline", {"requests": [execute("SELECT x FROM t")]}, **game.alice
    )
    assert kept["results"][0]["response"]["result"]["rows"] == [[{"type": "text", "value": "s3cret"}]]
    # A consistency is still none of the name.
    fine = await api.value(
        "POST /v2/databases/shop/open@leader/v3/pipeline", {"requests": [execute("SELECT 1")]}, **mallory
    )
    assert fine["results"][0]["type"] == "ok"


# -- statements of SQL -----------------------------------------------------------------------------------------

STATEMENTS = (
    "ATTACH DATABASE '{file}' AS other",
    "ATTACH DATABASE 'file:{file}?mode=ro' AS other",
    "VACUUM INTO '{file}.copy'",
    "VACUUM main INTO '{file}.copy'",
    "SELECT load_extension('{file}')",
    "SELECT readfile('{file}')",
    "SELECT writefile('{file}.copy', 'x')",
    "SELECT edit('x', 'touch {file}.copy')",
    "SELECT fts3_tokenizer('simple', x'4141414141414141')",
    "SELECT file FROM pragma_database_list",
    "SELECT file FROM pragma_database_list()",
    'SELECT "file" AS x FROM (SELECT * FROM pragma_database_list)',
    "CREATE VIEW v AS SELECT * FROM pragma_database_list",
    "CREATE VIRTUAL TABLE c USING csv(filename='{file}')",
    "CREATE VIRTUAL TABLE c USING dbpage",
    "SELECT data FROM sqlite_dbpage",
    "PRAGMA temp_store_directory = '{folder}'",
    "PRAGMA data_store_directory = '{folder}'",
    "PRAGMA writable_schema = 1",
    "PRAGMA trusted_schema = 1",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA mmap_size = 1",
    "PRAGMA hard_heap_limit = 1",
    "PRAGMA soft_heap_limit = 1",
    "PRAGMA threads = 100",
    "PRAGMA cache_size = -100000000",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA main.locking_mode = EXCLUSIVE",
    "CREATE TEMP TABLE x AS SELECT 1",
    "CREATE TRIGGER temp.x AFTER INSERT ON t BEGIN SELECT 1; END",
)


async def test_statements_reach_no_file_and_no_setting_of_the_server(
    game: Game, client: Client, tmp_path: Path
) -> None:
    """Also not those that a file brings along which a tenant loads: views and triggers are checked where they run."""
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as made:
        made.executescript("CREATE TABLE secret (x); INSERT INTO secret VALUES ('s3cret')")
    crafted = tmp_path / "crafted.db"
    with closing(sqlite3.connect(crafted)) as made:
        made.executescript(
            "CREATE TABLE t (x); CREATE VIEW files AS SELECT * FROM pragma_database_list; "
            "CREATE VIEW loads AS SELECT load_extension('x'); "
            "CREATE TRIGGER tr AFTER INSERT ON t BEGIN SELECT load_extension('x'); END"
        )
    put = await game.attack("PUT /v2/namespaces/mall/databases/books/backup", crafted.read_bytes())
    assert put.status == 201
    before = sorted(os.listdir(tmp_path))
    path = "/v2/databases/mall/books/v3/pipeline"
    more = ("SELECT * FROM files", "SELECT file FROM files", "SELECT * FROM loads", "INSERT INTO t VALUES (1)")
    statements = [one.format(file=file, folder=tmp_path) for one in STATEMENTS]
    for wrapped in (lambda sql: sql, lambda sql: f"EXPLAIN {sql}"):
        for sql in (*statements, *more):
            answer = await game.api.value(
                f"POST {path}", {"requests": [execute(wrapped(sql)), {"type": "close"}]}, **game.mallory
            )
            found = str(answer["results"][0])
            told = found.replace(sql, "")
            assert SECRET.decode() not in told, sql
            assert "/buckram" not in told, (sql, told)
            if sql in statements and not sql.startswith(("PRAGMA wal", "CREATE VIEW")) and wrapped(sql) == sql:
                assert answer["results"][0]["type"] == "error", (sql, answer)
    assert sorted(os.listdir(tmp_path)) == before
    # The temporary directory of files, and settings, are the process's: alice's database shares them.
    await game.unharmed("statements")


async def test_transactions_that_never_end_take_no_threads_of_others(client: Client) -> None:
    """Statements that read in a transaction may run for a minute, and a process has few threads for everybody."""
    for name in ("mall", "quiet"):
        await client.namespaces.create(name)
    await client.namespace("mall").create_database("main")
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    async with guarded(client, database_limits=DatabaseLimits(query_s=4.0)) as place:
        for name, space in (("alice", "quiet"), ("mallory", "mall")):
            await place.grant(f"token:{name}", space, *ALL)
        alice, mallory = await place.bearer("alice"), await place.bearer("mallory")

        async def endless() -> None:
            api = await Api.to(place.gateway.url)
            body = {"requests": [execute("BEGIN"), execute(FOREVER), {"type": "close"}]}
            await api.ask("POST /v2/databases/mall/main/v3/pipeline", body, **mallory)
            await api.raw.close()

        hogs = [asyncio.create_task(endless()) for _ in range(3)]
        await until(lambda: _reading(place) == len(hogs))
        api = await Api.to(place.gateway.url)
        large = bytes(5 << 20)
        await api.value("PUT /v2/namespaces/quiet/objects/large", large, status=201, **alice)
        assert (await api.ask("GET /v2/namespaces/quiet/objects/large", **alice)).body == large
        assert not any(one.done() for one in hogs), "alice waited for mallory's statements"
        await api.raw.close()
        await asyncio.gather(*hogs)


def _reading(place: Guarded) -> int:
    opened = place.gateway.sql.databases.opened().get("mall/main")
    return 0 if opened is None else opened._open.reading
