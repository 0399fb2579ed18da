"""Statements of SQL through a gateway: the protocol, who may use what, two gateways, limits, and backups."""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing, suppress
from pathlib import Path

import pytest
from tests.serve.gateway.kit import Api, serving
from tests.serve.gateway.shared.test_authentication import guarded
from tests.serve.hrana import kit
from tests.serve.hrana.kit import AUTOCOMMIT, CLOSE, Hrana, execute
from tests.serve.hrana.socket_kit import Socket
from tests.serve.http.kit import Raw
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.gateway.server import Gateway
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.hrana.database_access import TokenAccess
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.server import DatabaseServer
from buckram.state.db.settings import DatabaseLimits
from buckram.testing import Cluster

MAIN = "/v2/databases/shop/main"


@pytest.fixture
async def database(client: Client) -> None:
    await client.namespace("shop").create_database("main")


async def stream(url: str, prefix: str = MAIN) -> Hrana:
    return await Hrana.to(url, prefix)


pytestmark = pytest.mark.usefixtures("database")


async def test_statements_batches_and_cursors(api: Api, gateway: Gateway) -> None:
    hrana = await stream(gateway.url)
    await hrana.run("CREATE TABLE t (x UNIQUE)", "INSERT INTO t VALUES (1)")
    assert hrana.last.headers["buckram-offset"]
    assert hrana.last.headers["buckram-gateway"] == gateway.peers.me.id
    (wrong,) = await hrana.pipeline(execute("INSERT INTO t VALUES (1)"))
    assert wrong["code"] == "SQLITE_CONSTRAINT"
    await hrana.pipeline(CLOSE)
    assert len(gateway.sql.streams) == 0
    entries = await (await stream(gateway.url)).cursor([{"stmt": {"sql": "SELECT x FROM t"}}])
    assert [one["type"] for one in entries] == ["step_begin", "row", "step_end"]
    # Each of them as the document says.
    body = {"requests": [execute("SELECT 1"), CLOSE]}
    for version in ("v2", "v3"):
        answer = await api.value(f"POST {MAIN}/{version}/pipeline", body)
        assert answer["baton"] is None
    counted = await api.value(f"POST {MAIN}/v1/execute", {"stmt": {"sql": "SELECT count(*) FROM t"}})
    assert kit.values(counted["result"]) == [["1"]]
    await api.value(f"POST {MAIN}/v1/batch", {"batch": {"steps": [{"stmt": {"sql": "SELECT 1"}}]}})
    assert await api.code(f"POST {MAIN}/v1/execute", {"stmt": {"sql": "SELEKT"}}) == (400, "SQLITE_ERROR")
    for version in ("v1", "v2", "v3"):
        assert await api.value(f"GET {MAIN}/{version}") == {"version": version}
    assert await api.code(f"GET {MAIN}/v3-protobuf") == (404, "NOT_FOUND")


async def test_what_clients_append_may_begin_with_another_slash(gateway: Gateway) -> None:
    for prefix in (f"{MAIN}/", f"{MAIN}@leader", f"{MAIN}%40leader/"):
        hrana = await stream(gateway.url, prefix)
        assert await hrana.rows("SELECT 1") == [["1"]]
        await hrana.pipeline(CLOSE)
    assert (await (await Raw.to(gateway.url)).ask(f"GET {MAIN}//v3")).status == 200


async def test_a_transaction_lasts_over_requests_and_is_its_streams(gateway: Gateway) -> None:
    hrana, other = await stream(gateway.url), await stream(gateway.url)
    await hrana.run("CREATE TABLE t (x)", "BEGIN", "INSERT INTO t VALUES (1)")
    used = hrana.baton
    assert await other.rows("SELECT count(*) FROM t") == [["0"]]
    assert (await hrana.pipeline(AUTOCOMMIT))[0]["is_autocommit"] is False
    again = await hrana.post("v3/pipeline", {"baton": used, "requests": [execute("COMMIT")]})
    assert (again.status, again.value["code"]) == (400, "BATON_REUSED")
    await hrana.run("COMMIT")
    assert await other.rows("SELECT count(*) FROM t") == [["1"]]
    made_up = await hrana.post("v3/pipeline", {"baton": "x", "requests": []})
    assert (made_up.status, made_up.value["code"]) == (400, "BATON_INVALID")


async def test_under_a_token_a_request_is_done_once_and_no_key_is_looked_at(gateway: Gateway) -> None:
    hrana = await stream(gateway.url)
    await hrana.run("CREATE TABLE t (x)")
    body = {"stmt": {"sql": "INSERT INTO t VALUES (1)"}}
    for _ in range(2):
        assert (await hrana.post("v1/execute", body, Buckram_Token="a")).status == 200
    for _ in range(2):
        answer = await hrana.post("v1/execute", body, Idempotency_Key="a")
        assert "idempotency-repeated" not in answer.headers
    assert await hrana.rows("SELECT count(*) FROM t") == [["3"]]


async def test_only_databases_that_are_there_are_opened(api: Api, gateway: Gateway, client: Client) -> None:
    await client.namespace("shop").create("orders")
    body = {"requests": [execute("SELECT 1")]}
    for path in ("shop/none", "none/main", "shop/orders", "shop/a%20b", "shop/%40leader"):
        status, code = await api.code(f"POST /v2/databases/{path}/v3/pipeline", body)
        assert status == 404, (path, code)
        assert code in ("NO_SUCH_DATABASE", "NO_DATABASE"), (path, code)
    assert not gateway.sql.databases.opened()
    assert (await api.ask("POST /v2/databases/shop/main/v3/execute", body)).status == 404


async def test_websockets(gateway: Gateway) -> None:
    socket = await Socket.to(gateway.url, f"{MAIN}/")
    await socket.ask("open_stream", stream_id=1)
    for sql in ("CREATE TABLE t (x)", "BEGIN", "INSERT INTO t VALUES (1)", "COMMIT"):
        assert await socket.rows(sql) == []
    assert await socket.rows("SELECT x FROM t") == [["1"]]
    nowhere = await Socket.to(gateway.url, "/v2/databases", hello=False)
    assert nowhere.answer.status in (403, 404)
    foreign = await Socket.to(gateway.url, MAIN, hello=False, Origin="https://evil.example")
    assert (foreign.answer.status, foreign.answer.value["code"]) == (403, "FOREIGN_ORIGIN")


# -- who may ------------------------------------------------------------------------------------------------


async def code(hrana: Hrana, sql: str, headers: dict[str, str]) -> object:
    """200, the HTTP status of a refusal, or the code of the statement's error."""
    answer = await hrana.post("v3/pipeline", {"requests": [execute(sql), CLOSE]}, **headers)
    if answer.status != 200:
        return answer.status
    first = answer.value["results"][0]
    return 200 if first["type"] == "ok" else first["error"]["code"]


async def test_a_token_and_its_grants_decide(client: Client) -> None:
    await client.namespace("shop").create_database("other")
    async with guarded(client) as place:
        hrana, other = await stream(place.gateway.url), await stream(place.gateway.url, "/v2/databases/shop/other")
        alice, root = await place.bearer("alice"), await place.bearer("root", "admin")
        assert await code(hrana, "SELECT 1", {}) == 401
        assert await code(hrana, "SELECT 1", {"Authorization": "Bearer x.y.z"}) == 401
        assert await code(hrana, "SELECT 1", await place.bearer("alice", lasts_s=-1)) == 401
        assert await code(hrana, "SELECT 1", alice) == 404
        assert await code(await stream(place.gateway.url, "/v2/databases/shop/none"), "SELECT 1", alice) == 404
        assert not place.gateway.sql.databases.opened()
        assert await code(hrana, "CREATE TABLE t (x)", root) == 200
        await place.grant("token:alice", "shop/main", "read")
        assert await code(hrana, "SELECT * FROM t", alice) == 200
        assert await code(hrana, "INSERT INTO t VALUES (1)", alice) == "SQLITE_READONLY"
        assert await code(other, "SELECT 1", alice) == 404
        await place.grant("token:alice", "shop", "append")
        assert await code(hrana, "INSERT INTO t VALUES (1)", alice) == 200
        assert await code(other, "SELECT 1", alice) == 403
        await place.revoke("token:alice", "shop/main", "read")
        assert await code(hrana, "SELECT 1", alice) == 403


async def test_pages_of_databases_know_grants_on_one_database(client: Client) -> None:
    async with guarded(client) as place:
        api, alice = await Api.to(place.gateway.url), await place.bearer("alice")
        page = "GET /v2/namespaces/shop/databases/main"
        assert await api.code(page, **alice) == (404, "NO_SUCH_DATABASE")
        await place.grant("token:alice", "shop/main", "read")
        assert (await api.value(page, **alice))["database"] == "shop/main"
        assert await api.code("GET /v2/namespaces/shop/databases/other", **alice) == (404, "NO_SUCH_DATABASE")
        assert await api.code("GET /v2/namespaces/shop/databases", **alice) == (403, "FORBIDDEN")


async def test_a_browsers_session_is_no_token(client: Client) -> None:
    async with guarded(client) as place:
        api = await Api.to(place.gateway.url)
        shown = await api.value("POST /v2/session", {"token": await place.token("root", "admin")}, status=201)
        session = {"Cookie": api.last.headers["set-cookie"].partition(";")[0], "Buckram_CSRF": shown["csrf"]}
        assert await code(await stream(place.gateway.url), "SELECT 1", session) == 401


async def test_a_stream_is_of_who_began_it(client: Client) -> None:
    async with guarded(client) as place:
        for who in ("alice", "mallory"):
            await place.grant(f"token:{who}", "shop", "read", "append")
        alice, mallory = await place.bearer("alice"), await place.bearer("mallory")
        hrana = await stream(place.gateway.url)
        begun = await hrana.post("v3/pipeline", {"requests": [execute("BEGIN")]}, **alice)
        taken = {"baton": begun.value["baton"], "requests": [execute("SELECT 1")]}
        assert (await hrana.post("v3/pipeline", taken, **mallory)).status == 400
        assert (await hrana.post("v3/pipeline", taken, **alice)).status == 200


async def test_a_websockets_grants_count_with_each_request(client: Client) -> None:
    async with guarded(client) as place:
        nobody = await Socket.to(place.gateway.url, MAIN, hello=False)
        await nobody.send({"type": "hello", "jwt": None})
        assert (await nobody.receive())["type"] == "hello_error"
        await place.grant("token:alice", "shop/main", "read")
        socket = await Socket.to(place.gateway.url, MAIN, jwt=await place.token("alice"))
        await socket.ask("open_stream", stream_id=1)
        assert await socket.rows("SELECT 1") == [["1"]]
        assert (await socket.rows("CREATE TABLE t (x)"))["code"] == "SQLITE_READONLY"
        await place.revoke("token:alice", "shop/main", "read")
        assert (await socket.rows("SELECT 1"))["code"] == "NO_SUCH_DATABASE"


async def test_other_machines_read_from_a_gateway_without_tokens(
    client: Client, three_bookies: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the gateway that they ask sends them on to one on its own machine, which lets that one do all."""
    async with serving(client) as leader, three_bookies.client() as connected, serving(connected) as follower:
        assert await code(await stream(leader.url), "CREATE TABLE t (x)", {}) == 200
        local = await stream(follower.url)
        assert await code(local, "INSERT INTO t VALUES (1)", {}) == 200
        monkeypatch.setattr(
            "buckram.serve.gateway.shared.authentication.is_local",
            lambda request: "buckram-forwarded" in request.headers,
        )
        hrana = await stream(follower.url)
        assert await hrana.rows("SELECT x FROM t") == [["1"]]
        assert await code(hrana, "INSERT INTO t VALUES (2)", {}) == "SQLITE_READONLY"
        socket = await Socket.to(follower.url, MAIN)
        await socket.ask("open_stream", stream_id=1)
        assert await socket.rows("SELECT x FROM t") == [["1"]]
        assert (await socket.rows("INSERT INTO t VALUES (3)"))["code"] == "SQLITE_READONLY"
        filled = await (await Raw.to(follower.url)).ask(f"PUT {MAIN}/load", b"x")
        assert filled.status == 403


# -- more than one gateway ----------------------------------------------------------------------------------


@pytest.fixture
async def pair(three_bookies: Cluster, client: Client) -> AsyncIterator[tuple[Gateway, Gateway]]:
    """One that leads shop/main, and one that follows."""
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(three_bookies.client())
        leader = await stack.enter_async_context(serving(other))
        await (await leader.sql.databases.get("shop/main")).lead()
        follower = await stack.enter_async_context(serving(client))
        yield leader, follower


async def test_a_transaction_goes_through_either_gateway(pair: tuple[Gateway, Gateway]) -> None:
    leader, follower = pair
    hrana, direct = await stream(follower.url), await stream(leader.url)
    await hrana.run("CREATE TABLE t (x)", "BEGIN", "INSERT INTO t VALUES (1)")
    assert hrana.last.value["base_url"] == f"{leader.url}{MAIN}/"
    assert (len(follower.sql.streams), len(leader.sql.streams)) == (0, 1)
    await hrana.run("INSERT INTO t VALUES (2)")
    direct.baton = hrana.baton
    await direct.run("INSERT INTO t VALUES (3)")
    hrana.baton = direct.baton
    await hrana.run("COMMIT")
    direct.baton = None
    assert await direct.rows("SELECT count(*) FROM t") == [["3"]]
    stale = await stream(follower.url, f"{MAIN}@stale=0")
    assert await stale.rows("SELECT count(*) FROM t") == [["3"]]
    assert len(follower.sql.streams) == 1
    socket = await Socket.to(follower.url, MAIN)
    await socket.ask("open_stream", stream_id=1)
    assert await socket.rows("DELETE FROM t") == []


async def test_a_gateway_takes_over_and_clients_go_on(pair: tuple[Gateway, Gateway]) -> None:
    leader, follower = pair
    hrana = await stream(follower.url)
    await hrana.run("CREATE TABLE t (x)")
    closing_now = asyncio.ensure_future(leader.close())
    hrana.baton = None
    await hrana.run("INSERT INTO t VALUES (1)")
    await closing_now
    hrana.baton = None
    assert await hrana.rows("SELECT count(*) FROM t") == [["1"]]
    assert len(follower.sql.streams) == 1


async def test_gateways_and_servers_of_databases_send_each_other_requests(
    gateway: Gateway, three_bookies: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
    await (await gateway.sql.databases.get("shop/main")).lead()
    async with three_bookies.client() as other, kit.serving(other, "shop/main", "shop/second") as server:
        await (await server.databases.get("shop/second")).lead()
        told = await (await Raw.to(server.url)).ask("PUT /shop/main/load", path.read_bytes())
        assert (told.status, told.headers["location"]) == (307, f"{gateway.url}{MAIN}/load")
        loaded = await (await Raw.to(gateway.url)).ask(f"PUT {MAIN}/load", path.read_bytes())
        assert (loaded.status, loaded.value["database"]) == (201, "shop/main")
        await one_transaction(await Hrana.to(server.url, "/shop/main"))
        second = await stream(gateway.url, "/v2/databases/shop/second")
        await second.run("CREATE TABLE t (x)")
        await one_transaction(second)
        await one_has_it(server, gateway)


async def one_transaction(hrana: Hrana) -> None:
    await hrana.run("BEGIN", "INSERT INTO t VALUES (1)")
    assert hrana.last.value["base_url"]
    await hrana.run("COMMIT")


async def one_has_it(server: DatabaseServer, gateway: Gateway) -> None:
    assert await (await stream(gateway.url)).rows("SELECT x FROM t") == [["1"]]
    assert await (await Hrana.to(server.url, "/shop/second")).rows("SELECT x FROM t") == [["1"]]


async def test_with_tokens_a_leader_is_told_who_asks(client: Client, three_bookies: Cluster) -> None:
    """By gateways and servers of databases alike; and a token of the caller is not sent on."""
    store = client.services.store
    async with (
        guarded(client) as place,
        three_bookies.client() as second,
        guarded(second) as other,
        three_bookies.client() as third,
        TokenAccess(store, client.services.clocks) as access,
        kit.serving(third, "shop/main", access=access) as server,
    ):
        alice, root = await place.bearer("alice"), await place.bearer("root", "admin")
        await place.grant("token:alice", "shop/main", "read")
        for leader, url, prefix in (
            (place.gateway.sql.databases, other.gateway.url, MAIN),
            (other.gateway.sql.databases, server.url, "/shop/main"),
            (server.databases, place.gateway.url, MAIN),
        ):
            await (await leader.get("shop/main")).lead(takeover=True)
            hrana = await stream(url, prefix)
            assert await code(hrana, "CREATE TABLE IF NOT EXISTS t (x)", root) == 200
            assert await code(hrana, "SELECT * FROM t", alice) == 200
            assert await code(hrana, "INSERT INTO t VALUES (1)", alice) == "SQLITE_READONLY"


async def test_money_is_neither_made_nor_lost_through_two_gateways(pair: tuple[Gateway, Gateway]) -> None:
    setup = await stream(pair[0].url)
    await setup.run("CREATE TABLE account (id INTEGER PRIMARY KEY, money INTEGER NOT NULL CHECK (money >= 0))")
    await setup.run("WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i+1 FROM n WHERE i<9) "
                    "INSERT INTO account SELECT i, 100 FROM n")  # fmt: skip

    async def teller(number: int) -> int:
        chance, moved = random.Random(number), 0
        for turn in range(8):
            hrana = await stream(pair[(number + turn) % 2].url)
            source, target = chance.sample(range(10), 2)
            await hrana.run("BEGIN IMMEDIATE")
            ((money,),) = await hrana.rows(f"SELECT money FROM account WHERE id = {source}")
            amount = chance.randint(0, int(money))
            await hrana.run(f"UPDATE account SET money = {int(money) - amount} WHERE id = {source}")
            await hrana.run(f"UPDATE account SET money = money + {amount} WHERE id = {target}")
            if turn % 4 == 3:
                await hrana.run("ROLLBACK")
            else:
                await hrana.run("COMMIT")
                moved += amount
            await hrana.pipeline(CLOSE)
            await hrana.raw.close()
        return moved

    assert sum(await asyncio.gather(*map(teller, range(4)))) > 0
    for gateway in pair:
        assert await (await stream(gateway.url)).rows("SELECT sum(money), count(*) FROM account") == [["1000", "10"]]


# -- limits and files ---------------------------------------------------------------------------------------


async def test_limits_name_their_option(client: Client) -> None:
    limits = HranaLimits(streams=1, answer_bytes=2048, requests=3, steps=2)
    async with serving(client, hrana_limits=limits, database_limits=DatabaseLimits(result_bytes=65_536)) as gateway:
        hrana, second = await stream(gateway.url), await stream(gateway.url)
        two_blobs = "SELECT zeroblob(40000) UNION ALL SELECT zeroblob(40000)"
        await hrana.run("BEGIN")
        refused = await second.post("v3/pipeline", {"requests": [execute("SELECT 1")]})
        assert (refused.status, refused.value["code"]) == (503, "TOO_MANY_STREAMS")
        assert "--limit streams=" in refused.value["message"]
        for sql, option in (("SELECT zeroblob(3000)", "answer_bytes"), (two_blobs, "result_bytes")):
            (found,) = await hrana.pipeline(execute(sql))
            assert (found["code"], option in found["message"]) == ("RESPONSE_TOO_LARGE", True), found
        many = await hrana.post("v3/pipeline", {"baton": hrana.baton, "requests": [AUTOCOMMIT] * 4})
        assert many.status == 400


async def test_a_transaction_ends_with_its_time(client: Client) -> None:
    async with serving(client, hrana_limits=HranaLimits(stream_idle_s=0.2)) as gateway:
        hrana = await stream(gateway.url)
        await hrana.run("CREATE TABLE t (x)", "BEGIN", "INSERT INTO t VALUES (1)")
        await until(lambda: len(gateway.sql.streams) == 0)
        late = await hrana.post("v3/pipeline", {"baton": hrana.baton, "requests": [execute("COMMIT")]})
        assert (late.status, late.value["code"]) == (400, "STREAM_EXPIRED")
        assert await (await stream(gateway.url)).rows("SELECT count(*) FROM t") == [["0"]]


async def test_bodies_and_answers_count_with_those_of_all_others(client: Client) -> None:
    async with serving(client, limits=GatewayLimits(buffered_bytes=100_000)) as gateway:
        hrana = await stream(gateway.url)
        refused = await hrana.post("v3/pipeline", {"requests": [execute(f"SELECT '{'x' * 100_000}'")]})
        assert (refused.status, refused.value["code"]) == (503, "GATEWAY_FULL")
        # What was executed is answered, and counts until it is taken.
        slow = await stream(gateway.url)
        slow.raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        body = json.dumps({"requests": [execute("SELECT hex(zeroblob(5000000))")]}).encode()
        await slow.raw.send(f"POST {MAIN}/v3/pipeline HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await until(lambda: gateway.room.used > 10_000_000)
        again = await hrana.post("v3/pipeline", {"requests": [execute("SELECT 1")]})
        assert (again.status, again.value["code"]) == (503, "GATEWAY_FULL")
        slow.raw.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len((await slow.raw.answer()).body) > 10_000_000
        await until(lambda: gateway.room.used == 0)


@pytest.mark.parametrize("path", [MAIN, "/v2/namespaces/shop/databases/main"])
async def test_a_backup_ends_with_its_grant(client: Client, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.serve.http.streamed_answers.LOOK_S", 0.0)
    async with guarded(client) as place:
        root, alice = await place.bearer("root", "admin"), await place.bearer("alice")
        hrana = await stream(place.gateway.url)
        for sql in ("CREATE TABLE t (x)", "INSERT INTO t VALUES (zeroblob(30000000))"):
            assert await code(hrana, sql, root) == 200
        await place.grant("token:alice", "shop/main", "read")
        down = await Raw.to(place.gateway.url)
        whole = await down.ask(f"GET {path}/backup", **alice)
        assert (whole.status, len(whole.body) > 30_000_000) == (200, True)
        await down.send(f"GET {path}/backup HTTP/1.1\r\nAuthorization: {alice['Authorization']}\r\n\r\n".encode())
        assert b"200" in await down.reader.readuntil(b"\r\n\r\n")
        await place.revoke("token:alice", "shop/main", "read")
        assert await rest_of(down) < 30_000_000


async def test_a_load_ends_with_its_grant(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.serve.http.streamed_answers.LOOK_S", 0.0)
    pages = (MAIN, "load", "append"), ("/v2/namespaces/shop/databases/new", "backup", "create")
    async with guarded(client) as place:
        alice = await place.bearer("alice")
        for path, last, permission in pages:
            await place.grant("token:alice", "shop", "read", permission)
            up = await Raw.to(place.gateway.url)
            head = f"PUT {path}/{last} HTTP/1.1\r\nAuthorization: {alice['Authorization']}\r\nContent-Length: 3000000"
            await up.send(f"{head}\r\n\r\n".encode() + b"x" * 1_000_000)
            await place.revoke("token:alice", "shop", permission)
            await up.send(b"x" * 1_000_000)
            answer = await up.answer()
            assert (answer.status, answer.value["code"]) == (403, "FORBIDDEN")
            assert "nothing of the file was loaded" in answer.value["message"]


async def test_a_cursor_ends_with_its_grant(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.serve.http.streamed_answers.LOOK_S", 0.0)
    async with guarded(client) as place:
        await place.grant("token:alice", "shop/main", "read")
        hrana, alice = await stream(place.gateway.url), await place.bearer("alice")
        sql = (
            "WITH RECURSIVE n(i) AS (VALUES (0) UNION ALL SELECT i+1 FROM n WHERE i<30) SELECT zeroblob(1000000) FROM n"
        )
        body = json.dumps({"batch": {"steps": [{"stmt": {"sql": sql}}]}}).encode()
        lines = [f"POST {MAIN}/v3/cursor HTTP/1.1", f"Authorization: {alice['Authorization']}"]
        await hrana.raw.send("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body)
        await hrana.raw.reader.readuntil(b"\r\n\r\n")
        await place.revoke("token:alice", "shop/main", "read")
        end = b""
        while not end.endswith(b"\r\n0\r\n\r\n"):
            end = end[-1000:] + await hrana.raw.reader.read(1_000_000)
        assert b'"code":"FORBIDDEN"' in end[-1000:]
        assert await code(hrana, "SELECT 1", alice) == 404
        await until(lambda: len(place.gateway.sql.streams) == 0)


async def rest_of(raw: Raw) -> int:
    received = 0
    with suppress(ConnectionError):
        while piece := await raw.reader.read(1_000_000):
            received += len(piece)
    return received
