"""Hrana over WebSockets by raw frames: streams, cursors, who asks, limits, and clients that do not keep the rules."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest
from tests.serve.hrana.kit import Hrana, serving
from tests.serve.hrana.socket_kit import BYTES, TEXT, Socket, frame
from tests.serve.hrana.test_database_access import granted, guarded, token_of
from tests.serve.http.kit import Raw
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.server import DatabaseServer
from buckram.serve.http.limits import LOGIN_BYTES, HttpLimits
from buckram.state.db.settings import DatabaseLimits
from buckram.testing import Cluster


async def opened(url: str, *streams: int, **more: Any) -> Socket:
    ws = await Socket.to(url, **more)
    for number in streams or (1,):
        assert await ws.ask("open_stream", stream_id=number) == {"type": "open_stream"}
    return ws


async def test_streams_with_transactions_of_their_own(server: DatabaseServer) -> None:
    ws = await opened(server.url, 1, 2)
    assert ws.answer.headers["sec-websocket-protocol"] == "hrana3"
    assert await ws.rows("CREATE TABLE t (x UNIQUE)") == []
    assert await ws.ask("get_autocommit", stream_id=1) == {"type": "get_autocommit", "is_autocommit": True}
    for sql in ("BEGIN", "INSERT INTO t VALUES (1)"):
        assert await ws.rows(sql) == []
    assert (await ws.ask("get_autocommit", stream_id=1))["is_autocommit"] is False
    assert await ws.rows("SELECT count(*) FROM t", 2) == [["0"]]
    assert await ws.rows("COMMIT") == []
    assert await ws.rows("SELECT count(*) FROM t", 2) == [["1"]]
    assert (await ws.rows("INSERT INTO t VALUES (1)", 2))["code"] == "SQLITE_CONSTRAINT"
    assert await ws.ask("sequence", stream_id=1, sql="INSERT INTO t VALUES (2); INSERT INTO t VALUES (3)") == {
        "type": "sequence"
    }
    described = await ws.ask("describe", stream_id=1, sql="SELECT x FROM t WHERE x = ?")
    assert (described["result"]["is_readonly"], len(described["result"]["params"])) == (True, 1)
    steps = [{"stmt": {"sql": "SELECT count(*) FROM t"}}, {"stmt": {"sql": "SELEKT"}}]
    batch = (await ws.ask("batch", stream_id=1, batch={"steps": steps}))["result"]
    assert (batch["step_results"][0]["rows"][0][0]["value"], batch["step_errors"][1]["code"]) == ("3", "SQLITE_ERROR")
    # What a stream has open ends with it, and with the connection.
    assert await ws.rows("BEGIN IMMEDIATE") == []
    assert await ws.rows("DELETE FROM t") == []
    assert await ws.ask("close_stream", stream_id=1) == {"type": "close_stream"}
    assert (await ws.rows("SELECT 1"))["code"] == "STREAM_NOT_FOUND"
    assert await ws.rows("BEGIN IMMEDIATE", 2) == []
    assert await ws.rows("DELETE FROM t", 2) == []
    await ws.raw.close()
    await until(lambda: len(server.service.streams) == 0 and len(server.service.sockets) == 0)
    assert await (await Hrana.to(server.url)).rows("SELECT count(*) FROM t") == [["3"]]


async def test_requests_are_answered_in_order_although_they_are_sent_at_once(server: DatabaseServer) -> None:
    ws = await Socket.to(server.url, hello=False)
    asked = [{"type": "hello", "jwt": None}, ws.request("open_stream", stream_id=1)]
    asked += [ws.request("store_sql", sql_id=7, sql="INSERT INTO t VALUES (?) RETURNING x")]
    asked += [ws.request("execute", stream_id=1, stmt={"sql": "CREATE TABLE t (x)"})]
    for number in range(20):
        args = [{"type": "integer", "value": str(number)}]
        asked.append(ws.request("execute", stream_id=1, stmt={"sql_id": 7, "args": args}))
    # The texts are those of the moment when something is asked.
    asked += [ws.request("close_sql", sql_id=7), ws.request("store_sql", sql_id=7, sql="SELECT 'another'")]
    await ws.send(*asked)
    found = [await ws.receive() for _ in asked]
    assert found[0] == {"type": "hello_ok"}
    assert {one["type"] for one in found[1:]} == {"response_ok"}
    rows = [one["response"]["result"]["rows"] for one in found[1:] if one["response"]["type"] == "execute"]
    assert [row[0][0]["value"] for row in rows if row] == [str(number) for number in range(20)]
    assert (await ws.ask("execute", stream_id=1, stmt={"sql_id": 8}))["code"] == "SQL_NOT_FOUND"
    assert (await ws.ask("store_sql", sql_id=7, sql="x"))["code"] == "SQL_STORE_EXISTS"
    assert (await ws.ask("describe", stream_id=1, sql_id=7))["result"]["cols"][0]["name"] == "'another'"


async def test_a_cursor_is_fetched_piece_by_piece(server: DatabaseServer) -> None:
    ws = await opened(server.url)
    await ws.rows("CREATE TABLE t (x)")
    many = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 500) SELECT x FROM n"
    steps = [{"stmt": {"sql": many}}, {"stmt": {"sql": "SELEKT"}}]
    assert await ws.ask("open_cursor", stream_id=1, cursor_id=3, batch={"steps": steps}) == {"type": "open_cursor"}
    assert (await ws.rows("SELECT 1"))["code"] == "CURSOR_OPEN"
    entries, done = [], False
    while not done:
        found = await ws.ask("fetch_cursor", cursor_id=3, max_count=200)
        assert len(found["entries"]) <= 200
        entries += found["entries"]
        done = found["done"]
    kinds = [one["type"] for one in entries]
    assert (kinds[0], kinds.count("row"), kinds[-2:]) == ("step_begin", 500, ["step_end", "step_error"])
    assert await ws.ask("close_cursor", cursor_id=3) == {"type": "close_cursor"}
    assert (await ws.ask("fetch_cursor", cursor_id=3, max_count=1))["code"] == "CURSOR_NOT_FOUND"
    assert await ws.rows("SELECT 1") == [["1"]]


async def test_a_follower_sends_a_stream_on_and_takes_over(client: Client, three_bookies: Cluster) -> None:
    async with three_bookies.client() as other, serving(other, "shop/main") as leader:
        await (await leader.databases.get("shop/main")).lead()
        async with serving(client, "shop/main") as follower:
            ws = await opened(follower.url, 1, 2)
            for sql in ("CREATE TABLE t (x)", "BEGIN", "INSERT INTO t VALUES (1)"):
                assert await ws.rows(sql) == []
            assert await ws.rows("SELECT count(*) FROM t", 2) == [["0"]]
            assert await ws.rows("COMMIT") == []
            await ws.ask("store_sql", sql_id=1, sql="SELECT count(*) FROM t")
            assert (await ws.ask("execute", stream_id=2, stmt={"sql_id": 1}))["result"]["rows"][0][0]["value"] == "1"
            steps = [{"stmt": {"sql_id": 1}}, {"stmt": {"sql": "SELEKT"}}]
            await ws.ask("open_cursor", stream_id=2, cursor_id=1, batch={"steps": steps})
            found = await ws.ask("fetch_cursor", cursor_id=1, max_count=9)
            kinds = [one["type"] for one in found["entries"]]
            assert (kinds, found["done"]) == (["step_begin", "row", "step_end", "step_error"], True)
            await ws.ask("close_cursor", cursor_id=1)
            assert (await ws.ask("close_stream", stream_id=2))["type"] == "close_stream"
            stale = await opened(follower.url, path="/shop/main@stale/")
            assert await stale.rows("SELECT count(*) FROM t") == [["1"]]
            assert (await stale.rows("DELETE FROM t"))["code"] == "SQLITE_READONLY"
            # With the leader goes what is open at it; what was idle goes on.
            await ws.ask("open_stream", stream_id=3)
            for sql in ("BEGIN", "INSERT INTO t VALUES (2)"):
                assert await ws.rows(sql, 3) == []
            await leader.close()
            database = await follower.databases.get("shop/main")
            await until(lambda: database.role == "leader")
            assert (await ws.rows("INSERT INTO t VALUES (3)", 3))["code"] == "STREAM_EXPIRED"
            assert (await ws.rows("SELECT 1", 3))["code"] == "STREAM_EXPIRED"
            assert await ws.rows("INSERT INTO t VALUES (4)") == []
            assert await ws.rows("SELECT x FROM t ORDER BY x") == [["1"], ["4"]]


async def test_hello_says_who_asks_and_each_request_looks_again(client: Client) -> None:
    async with guarded(client) as (server, access, security):
        nobody = await Socket.to(server.url, hello=False)
        await nobody.send({"type": "hello", "jwt": None})
        assert (await nobody.receive())["error"]["code"] == "UNAUTHORIZED"
        assert await nobody.receive() == 1008
        token = (await token_of(security, "ann"))["Authorization"].removeprefix("Bearer ")
        stranger = await Socket.to(server.url, hello=False)
        await stranger.send({"type": "hello", "jwt": token})
        assert (await stranger.receive())["error"]["code"] == "NO_SUCH_DATABASE"
        await granted(access, security, "token:ann", "shop", "read")
        ws = await opened(server.url, jwt=token)
        assert (await ws.rows("CREATE TABLE t (x)"))["code"] == "SQLITE_READONLY"
        await granted(access, security, "token:ann", "shop", "append")
        assert await ws.rows("CREATE TABLE t (x)") == []
        wanted = await security.change_acl(lambda acl: acl.revoking("token:ann", "shop", ["read", "append"]))
        await until(lambda: access._security.state.acl == wanted)
        assert (await ws.rows("SELECT 1"))["code"] == "NO_SUCH_DATABASE"


async def test_a_server_without_tokens_ignores_none_that_is_given(server: DatabaseServer) -> None:
    ws = await Socket.to(server.url, hello=False)
    await ws.send({"type": "hello", "jwt": "eyJhbGciOiJIUzI1NiJ9.e30.x"})
    assert (await ws.receive())["error"]["code"] == "UNAUTHORIZED"
    assert await (await opened(server.url, jwt="any")).rows("SELECT 1") == [["1"]]


async def test_pages_of_other_sites_and_wrong_places_are_refused_before_the_handshake(server: DatabaseServer) -> None:
    page = await Socket.to(server.url, Origin="https://evil.example.org")
    assert (page.answer.status, page.answer.value["code"]) == (403, "FOREIGN_ORIGIN")
    name = await Socket.to(server.url, Host="evil.example.org")
    assert (name.answer.status, name.answer.value["code"]) == (403, "UNKNOWN_HOST")
    place = await Socket.to(server.url, "/shop/nowhere/")
    assert (place.answer.status, place.answer.value["code"]) == (404, "NO_SUCH_DATABASE")
    protobuf = await Socket.to(server.url, protocol="hrana3-protobuf")
    assert (protobuf.answer.status, protobuf.answer.value["code"]) == (400, "NO_PROTOCOL")
    second = await opened(server.url, protocol="hrana2")
    assert second.answer.headers["sec-websocket-protocol"] == "hrana2"
    first = await opened(server.url, path="/", protocol="")
    assert "sec-websocket-protocol" not in first.answer.headers
    assert await first.rows("SELECT 1") == [["1"]]


WRONG = [
    (frame(TEXT, b"not json"), 1002, "not JSON"),
    (frame(TEXT, b"[" * 1990), 1002, "not JSON"),
    (frame(TEXT, b"7"), 1002, "needs to be an object"),
    (frame(TEXT, b'{"type": "goodbye"}'), 1002, "'goodbye' is neither"),
    (frame(TEXT, b'{"type": "request", "request_id": "x", "request": {}}'), 1002, "request_id: 'x'"),
    (frame(TEXT, b'{"type": "request", "request_id": 1, "request": 7}'), 1002, "needs an object"),
    (frame(TEXT, b'{"type": "request", "request_id": 1, "request": {"type": "dance"}}'), 1002, "'dance' is none"),
    (frame(TEXT, b'{"type": "request", "request_id": 1, "request": {"type": "execute"}}'), 1002, "stream_id: None"),
    (frame(TEXT, b'{"type": "hello", "jwt": 7}'), 1002, "hello.jwt"),
    (frame(BYTES, b"\x00"), 1003, "need to be text"),
    (frame(TEXT, b"x" * 3000), 1009, "2000 bytes"),
    (frame(TEXT, b"x" * 1500, last=False) + frame(0, b"x" * 1500), 1009, "2000 bytes"),
    (b"\xff\xff\xff\xff", 0, ""),
]
"""What a client sends, the code with which the connection is closed, and words of the reason."""


async def test_what_is_no_message_closes_the_connection(client: Client) -> None:
    async with serving(client, "shop/main", limits=HranaLimits(frame_bytes=2000)) as server:
        for sent, code, reason in WRONG:
            ws = await opened(server.url)
            await ws.raw.send(sent)
            assert (await ws.receive(), reason in ws.reason) == (code, True), (sent[:100], ws.reason)
            await until(lambda: len(server.service.streams) == 0)
        assert await (await opened(server.url)).rows("SELECT 1") == [["1"]]


async def test_a_wrong_request_of_a_stream_is_its_error_alone(server: DatabaseServer) -> None:
    ws = await opened(server.url)
    assert (await ws.ask("execute", stream_id=1))["code"] == "PROTOCOL_ERROR"
    assert (await ws.ask("batch", stream_id=1, batch={"steps": [7]}))["code"] == "PROTOCOL_ERROR"
    assert (await ws.ask("open_stream", stream_id=1))["code"] == "STREAM_EXISTS"
    assert await ws.rows("SELECT 1") == [["1"]]


async def test_without_hello_nothing_is_served(client: Client) -> None:
    async with serving(client, "shop/main", http_limits=HttpLimits(patience_s=0.3)) as server:
        ws = await Socket.to(server.url, hello=False)
        await ws.send(ws.request("open_stream", stream_id=1))
        assert await ws.receive() == 1002
        silent = await Socket.to(server.url, hello=False)
        assert await silent.receive() == 1002
        assert "no hello" in silent.reason


async def test_the_first_message_is_no_larger_than_a_login(server: DatabaseServer) -> None:
    for last in (True, False):
        ws = await Socket.to(server.url, hello=False)
        await ws.raw.send(frame(TEXT, b'{"type": "hello", "jwt": "' + b"x" * LOGIN_BYTES, last=last))
        assert await ws.receive() == 1009
        assert f"({LOGIN_BYTES} bytes)" in ws.reason
    ws = await opened(server.url)
    assert await ws.rows(f"SELECT length('{'x' * 3 * LOGIN_BYTES}')") == [[str(3 * LOGIN_BYTES)]]


async def test_one_principal_leaves_streams_to_others(client: Client) -> None:
    async with guarded(client, HranaLimits(streams=8)) as (server, access, security):
        for who in ("mallory", "alice"):
            await granted(access, security, f"token:{who}", "shop/main", "read")
        words = {who: (await token_of(security, who))["Authorization"].split()[1] for who in ("mallory", "alice")}
        mallory = await opened(server.url, *range(7), jwt=words["mallory"])
        found = await mallory.ask("open_stream", stream_id=7)
        assert (found["code"], "7 of them of token:mallory" in found["message"]) == ("TOO_MANY_STREAMS", True)
        alice = await opened(server.url, jwt=words["alice"])
        assert await alice.rows("SELECT 1") == [["1"]]
        await alice.raw.close()
        await mallory.raw.close()
        await until(lambda: len(server.service.streams) == 0)
        await (await opened(server.url, *range(7), jwt=words["mallory"])).raw.close()


async def test_limits_of_streams_and_cursors(client: Client) -> None:
    limits = HranaLimits(streams=3, connection_streams=2, cursors=1, stored_texts=1, steps=2)
    async with serving(client, "shop/main", limits=limits) as server:
        ws = await opened(server.url, 1, 2)
        found = await ws.ask("open_stream", stream_id=3)
        assert found["code"] == "TOO_MANY_STREAMS"
        assert "connection_streams" in found["message"]
        other = await opened(server.url)
        found = await other.ask("open_stream", stream_id=2)
        assert (found["code"], "--limit streams=" in found["message"]) == ("TOO_MANY_STREAMS", True)
        assert (await other.rows("SELECT 1", 2))["code"] == "STREAM_CLOSED"
        one = {"steps": [{"stmt": {"sql": "SELECT 1"}}]}
        await ws.ask("open_cursor", stream_id=1, cursor_id=1, batch=one)
        assert (await ws.ask("open_cursor", stream_id=2, cursor_id=2, batch=one))["code"] == "TOO_MANY_CURSORS"
        found = await ws.ask("batch", stream_id=2, batch={"steps": one["steps"] * 3})
        assert "--limit steps=" in found["message"]
        await ws.ask("store_sql", sql_id=1, sql="x")
        assert (await ws.ask("store_sql", sql_id=2, sql="x"))["code"] == "SQL_STORE_TOO_LARGE"


@pytest.mark.share(3)
async def test_who_sends_and_does_not_read_is_not_read_any_more_and_then_cut_off(client: Client) -> None:
    limits = HranaLimits(requests=4, unread_s=0.5)
    async with serving(client, "shop/main", limits=limits) as server:
        ws = await opened(server.url)
        transport = ws.raw.writer.transport
        own: socket.socket = transport.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        transport.pause_reading()  # type: ignore[attr-defined]
        big = ws.request("execute", stream_id=1, stmt={"sql": "SELECT zeroblob(4000000)"})
        asked = frame(TEXT, json.dumps(big).encode())
        (connection,) = server.service.sockets._open
        for _ in range(50):
            ws.raw.writer.write(asked)
        await until(lambda: connection._waiting >= 4)
        assert connection._waiting <= 5
        await until(lambda: len(server.service.sockets) == 0 and len(server.service.streams) == 0)
        assert await (await opened(server.url)).rows("SELECT 1") == [["1"]]
        transport.abort()


async def test_a_server_that_stops_answers_what_was_asked(client: Client) -> None:
    async with serving(client, "shop/main", database_limits=DatabaseLimits(transaction_s=0.5)) as server:
        ws = await opened(server.url, 1, 2)
        await ws.rows("CREATE TABLE t (x)")
        await ws.rows("BEGIN IMMEDIATE", 2)  # it has the database until its time is over
        await ws.send(ws.request("execute", stream_id=1, stmt={"sql": "INSERT INTO t VALUES (1)"}))
        await until(lambda: any(one._waiting for one in server.service.sockets._open))
        closing = asyncio.ensure_future(server.close())
        assert (await ws.receive())["type"] == "response_ok"
        assert await ws.receive() == 1012
        await closing


async def test_http_goes_on_beside_it(server: DatabaseServer) -> None:
    """An upgrade to something else is a request like others."""
    raw = await Raw.to(server.url)
    answer = await raw.ask("GET /health", Connection="Upgrade", Upgrade="h2c")
    assert answer.status == 200
