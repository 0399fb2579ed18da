"""What one may do with a database is decided by the effect of what is asked, in each form of Hrana."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from tests.serve.hrana.kit import Hrana, execute
from tests.serve.hrana.socket_kit import Socket
from tests.serve.hrana.test_database_access import granted, guarded, token_of
from tests.serve.http.kit import Raw

from buckram.cluster import Client
from buckram.core.security.required_permissions import Effect, lacking
from buckram.serve.hrana import server as hrana_server
from buckram.serve.hrana.database_access import TokenAccess
from buckram.serve.hrana.protocol import messages, requests
from buckram.serve.hrana.server import DatabaseServer

R, W = (Effect.READ,), (Effect.READ, Effect.WRITE)
READS = (
    "SELECT x FROM t",
    "EXPLAIN SELECT 1",
    "PRAGMA user_version",
    "PRAGMA table_info(t)",
    "WITH a AS (SELECT 1) SELECT * FROM a",
    "VALUES (1)",
)
WRITES = (
    "INSERT INTO t VALUES (1)",
    "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
    "UPDATE t SET x = 2",
    "DELETE FROM t",
    "CREATE TABLE IF NOT EXISTS u (x)",
    "PRAGMA user_version = 5",
    "SELECT buckram_token('unused')",
    "/* a comment */ DELETE FROM t",
    "INSERT INTO t VALUES (1) RETURNING x",
    "PRAGMA optimize",
    "PRAGMA optimize(65538)",
    "REINDEX",
    "ANALYZE",
    "PRAGMA incremental_vacuum",
)
OTHERS = ("delete", "create")
SUBSETS = [{*some, *others} for some in ((), ("read",), ("append",), ("read", "append")) for others in ((), OTHERS)]
TRIED = {"close", "execute", "batch", "sequence", "describe", "store_sql", "close_sql", "get_autocommit"}
"""Requests of a stream, each of which is tried below."""
TRIED_ON_SOCKETS = (TRIED - {"close"}) | {"open_stream", "close_stream", "open_cursor", "fetch_cursor", "close_cursor"}
TRIED_OVER_HTTP = {"v1": ("execute", "batch"), "v2": ("pipeline",), "v3": ("pipeline", "cursor")}


def test_each_request_is_tried() -> None:
    assert set(requests._REQUESTS) == TRIED, "what does it do with a database? Have it tried here"
    assert {*messages._OF_STREAMS, *messages._OF_TEXTS, *messages._OF_CURSORS} == TRIED_ON_SOCKETS
    assert hrana_server._OPERATIONS == TRIED_OVER_HTTP


def refused(found: Mapping[str, Any]) -> bool:
    """Whether a result, an error, or an answer with one in it is a refusal."""
    text = json.dumps(found)
    return "SQLITE_READONLY" in text or "FORBIDDEN" in text or "without the permission" in text


Way = Callable[[str], Awaitable[bool]]
"""Has a statement executed; whether it was refused."""


class Door:
    """The ways of one principal to shop/main."""

    def __init__(self, hrana: Hrana, who: dict[str, str], url: str) -> None:
        self._hrana, self._who, self._url = hrana, who, url

    @property
    def ways(self) -> Mapping[str, Way]:
        batch: Callable[[str], Any] = lambda sql: {"steps": [{"stmt": {"sql": sql}}]}  # noqa: E731
        return {
            "v3 execute": lambda sql: self._pipeline(execute(sql)),
            "v2 execute": lambda sql: self._pipeline(execute(sql), version="v2"),
            "batch": lambda sql: self._pipeline({"type": "batch", "batch": batch(sql)}),
            "sequence": lambda sql: self._pipeline({"type": "sequence", "sql": f"SELECT 1; {sql}"}),
            "stored": lambda sql: self._pipeline(
                {"type": "store_sql", "sql_id": 1, "sql": sql},
                {"type": "execute", "stmt": {"sql_id": 1}},
                {"type": "close_sql", "sql_id": 1},
            ),
            "in a transaction": lambda sql: self._pipeline(execute("BEGIN"), execute(sql), execute("ROLLBACK")),
            "cursor": lambda sql: self._post("v3/cursor", {"batch": batch(sql)}),
            "v1 execute": lambda sql: self._post("v1/execute", {"stmt": {"sql": sql}}),
            "v1 batch": lambda sql: self._post("v1/batch", {"batch": batch(sql)}),
            "socket": self._socket,
            "socket batch": lambda sql: self._socket(sql, "batch", batch=batch(sql)),
            "socket sequence": lambda sql: self._socket(sql, "sequence", sql=sql),
            "socket cursor": self._socket_cursor,
        }

    async def _post(self, path: str, body: Any) -> bool:
        answer = await self._hrana.post(path, body, **self._who)
        assert answer.status in (200, 400, 403, 404), answer.body
        return answer.status in (403, 404) or b"SQLITE_READONLY" in answer.body

    async def _pipeline(self, *asked: Any, version: str = "v3") -> bool:
        return await self._post(f"{version}/pipeline", {"requests": [*asked, {"type": "close"}]})

    async def _opened(self) -> Socket | None:
        socket = await Socket.to(self._url, hello=False)
        await socket.send({"type": "hello", "jwt": self._who["Authorization"].removeprefix("Bearer ")})
        if (await socket.receive())["type"] != "hello_ok":
            return None
        await socket.ask("open_stream", stream_id=1)
        return socket

    async def _socket(self, text: str, kind: str = "execute", **more: Any) -> bool:
        socket = await self._opened()
        if socket is None:
            return True
        found = await socket.ask(kind, stream_id=1, **(more or {"stmt": {"sql": text}}))
        await socket.ask("close_stream", stream_id=1)
        await socket.raw.close()
        return refused(found)

    async def _socket_cursor(self, sql: str) -> bool:
        socket = await self._opened()
        if socket is None:
            return True
        await socket.ask("open_cursor", stream_id=1, cursor_id=1, batch={"steps": [{"stmt": {"sql": sql}}]})
        found = await socket.ask("fetch_cursor", cursor_id=1, max_count=100)
        await socket.ask("close_cursor", cursor_id=1)
        await socket.raw.close()
        return refused(found)

    async def describe(self, sql: str) -> bool:
        """Nothing is executed, so only reading is needed."""
        return await self._pipeline({"type": "describe", "sql": sql}, {"type": "get_autocommit"})


async def tried(door: Door, granted_: set[str], sqls: tuple[str, ...], effects: tuple[Effect, ...]) -> None:
    allowed = all(not lacking(effect, granted_) for effect in effects)
    for number, (name, way) in enumerate(door.ways.items()):
        for sql in sqls if number == 0 else sqls[number % 3 :: 3]:
            assert await way(sql) == (not allowed), f"{name}: {sql} with {sorted(granted_)}"


async def given(
    client: Client, access: TokenAccess, security: Any, server: DatabaseServer, some: set[str]
) -> tuple[Door, dict[str, str]]:
    root, ann = await token_of(security, "root", "admin"), await token_of(security, "ann")
    hrana = await Hrana.to(server.url)
    made = await hrana.post("v3/pipeline", {"requests": [execute("CREATE TABLE IF NOT EXISTS t (x)")]}, **root)
    assert made.status == 200
    if some:
        await granted(access, security, "token:ann", "shop/main", *some)
    return Door(hrana, ann, server.url), ann


@pytest.mark.parametrize("some", SUBSETS, ids=lambda some: "+".join(sorted(some)) or "nothing")
async def test_statements(client: Client, some: set[str]) -> None:
    async with guarded(client) as (server, access, security):
        door, ann = await given(client, access, security, server, some)
        await tried(door, some, READS, R)
        await tried(door, some, WRITES if "append" in some else WRITES[:3], W)
        for sql in (*READS, *WRITES[:5]):
            assert await door.describe(sql) == bool(lacking(Effect.READ, some)), sql
        raw = await Raw.to(server.url)
        assert ((await raw.ask("GET /shop/main/backup", **ann)).status == 200) == (not lacking(Effect.READ, some))
        loaded = (await raw.ask("PUT /shop/main/load", b"no file of SQLite's", **ann)).status
        assert (loaded in (403, 404)) == any(lacking(effect, some) for effect in W)
        seen = (await raw.ask("GET /", **ann)).value["databases"]
        assert list(seen) == (["shop/main"] if some else [])
        await raw.close()


async def test_what_sqlite_takes_for_reading_and_changes_a_database_is_refused_to_readers(client: Client) -> None:
    """`PRAGMA optimize` analyses tables, also where it is read as one."""
    async with guarded(client) as (server, access, security):
        _, ann = await given(client, access, security, server, {"read"})
        root = await token_of(security, "root", "admin")
        hrana = await Hrana.to(server.url)
        rows = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 5000) SELECT x % 7 FROM c"
        made = [
            "CREATE INDEX i ON t (x)",
            f"INSERT INTO t {rows}",
            "CREATE VIEW v AS SELECT (SELECT count(*) FROM PRAGMA_optimize(65538)) AS n",
        ]
        answer = await hrana.post("v3/pipeline", {"requests": [execute(sql) for sql in made]}, **root)
        assert [one["type"] for one in answer.value["results"]][:2] == ["ok", "ok"]
        for sql in (
            "PRAGMA optimize",
            "PRAGMA main.optimize(65538)",
            "SELECT * FROM pragma_optimize",
            "SELECT 1 FROM Pragma_Optimize(65538)",
            "SELECT (SELECT optimize FROM main.pragma_optimize(65538))",
            "SELECT * FROM v",
        ):
            answer = await hrana.post("v3/pipeline", {"requests": [execute("SELECT x FROM t"), execute(sql)]}, **ann)
            assert answer.value["results"][1]["type"] == "error", sql
            tables = {"requests": [execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]}
            found = (await hrana.post("v3/pipeline", tables, **root)).value["results"][0]["response"]["result"]["rows"]
            assert [one[0]["value"] for one in found] == ["t"], sql
        analysed = await hrana.post("v3/pipeline", {"requests": [execute("PRAGMA optimize(65538)")]}, **root)
        assert analysed.value["results"][0]["type"] == "ok"


@pytest.mark.parametrize("some", [{"read"}, {"append"}, {"read", "append"}], ids=lambda some: "+".join(sorted(some)))
async def test_statements_that_a_follower_sends_on(client: Client, some: set[str]) -> None:
    """What one may not do at the leader one may not do by another server either."""
    async with guarded(client) as (leader, _, _), guarded(client) as (follower, access, security):
        await (await leader.databases.get("shop/main")).lead()
        door, _ = await given(client, access, security, follower, some)
        assert (await follower.databases.get("shop/main")).role != "leader"
        await tried(door, some, READS[:2], R)
        await tried(door, some, WRITES[:3], W)
