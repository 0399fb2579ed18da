"""Tokens, grants and TLS of a server of databases."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import jwt
import pytest
from tests.serve.hrana.kit import Hrana, execute, serving
from tests.serve.hrana.socket_kit import Socket
from tests.serve.http.kit import Raw
from tests.support.polling import until
from tests.support.secure_kit import Files

from buckram.cluster import Client
from buckram.config import TlsConfig
from buckram.core.security.principal import Principal
from buckram.errors import AccessRefused, ConfigError
from buckram.metadata.records.security import SecurityStore
from buckram.metadata.tree.layout import DATABASE_SERVERS
from buckram.runtime.net.security.certificate_files import TlsFiles
from buckram.serve.hrana.database_access import TokenAccess
from buckram.serve.hrana.forwarding import DatabaseServerRegistry
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.server import DatabaseServer
from buckram.serve.http.origins import Origins
from buckram.serve.http.server_registry import ServerRegistry


@asynccontextmanager
async def guarded(
    client: Client, limits: HranaLimits | None = None
) -> AsyncIterator[tuple[DatabaseServer, TokenAccess, SecurityStore]]:
    store = client.services.store
    async with (
        TokenAccess(store, client.services.clocks) as access,
        serving(
            client,
            "shop/main",
            "shop/other",
            access=access,
            origins=Origins(["example.org"]),
            limits=limits,
        ) as server,
    ):
        yield server, access, SecurityStore(store)


async def token_of(security: SecurityStore, subject: str, *roles: str, lasts_s: float = 3600) -> dict[str, str]:
    now = time.time()
    return {"Authorization": f"Bearer {(await security.create_token(subject, roles, now, now + lasts_s))[1]}"}


async def granted(access: TokenAccess, security: SecurityStore, who: str, what: str, *permissions: str) -> None:
    """In force when it returns."""
    wanted = await security.change_acl(lambda acl: acl.granting(who, what, permissions))
    await until(lambda: access._security.state.acl == wanted)


async def code(hrana: Hrana, sql: str, headers: dict[str, str]) -> object:
    """200, the HTTP status of a refusal, or the code of the statement's error."""
    answer = await hrana.post("v3/pipeline", {"requests": [execute(sql), {"type": "close"}]}, **headers)
    if answer.status != 200:
        return answer.status
    first = answer.value["results"][0]
    return 200 if first["type"] == "ok" else first["error"]["code"]


async def test_a_token_and_its_grants_decide(client: Client) -> None:
    async with guarded(client) as (server, access, security):
        hrana = await Hrana.to(server.url)
        alice, root = await token_of(security, "alice"), await token_of(security, "root", "admin")
        expired = await token_of(security, "alice", lasts_s=-1)
        assert await code(hrana, "SELECT 1", {}) == 401
        assert await code(hrana, "SELECT 1", {"Authorization": "Bearer x.y.z"}) == 401
        assert await code(hrana, "SELECT 1", {"Authorization": "Basic eDp5"}) == 401
        assert await code(hrana, "SELECT 1", expired) == 401
        assert await code(hrana, "CREATE TABLE t (x)", root) == 200
        assert await code(hrana, "SELECT 1", alice) == 404
        await granted(access, security, "token:alice", "shop/main", "read")
        assert await code(hrana, "SELECT * FROM t", alice) == 200
        for sql in ("INSERT INTO t VALUES (1)", "CREATE TABLE u (x)", "DROP TABLE t", "PRAGMA user_version = 5"):
            assert await code(hrana, sql, alice) == "SQLITE_READONLY", sql
        other = await Hrana.to(server.url, "/shop/other")
        assert await code(other, "SELECT 1", alice) == 404
        await granted(access, security, "token:alice", "shop/main", "append")
        assert await code(hrana, "INSERT INTO t VALUES (1)", alice) == 200
        await security.revoke_subject("alice", time.time() + 1)
        await until(lambda: bool(access._security.state.revoked.subjects))
        assert await code(hrana, "SELECT 1", alice) == 401


async def test_a_stranger_is_told_the_same_of_what_is_there_and_of_what_is_not(client: Client) -> None:
    """For each path, for what is served, what is not there, and what is there and not served here."""
    async with guarded(client) as (server, access, security):
        await granted(access, security, "token:eve", "mine", "read", "append")
        eve = await token_of(security, "eve")
        raw = await Raw.to(server.url)
        body = json.dumps({"requests": [], "stmt": {"sql": "SELECT 1"}, "batch": {"steps": []}}).encode()
        asked = [(f"POST /~/{path}", body) for path in ("v3/pipeline", "v3/cursor", "v2/pipeline", "v1/execute")]
        asked += [("POST /~/v1/batch", body), ("GET /~/backup", b""), ("PUT /~/load", b"x")]
        for head, sent in asked:
            told = set()
            for name in ("shop/main", "shop/other", "shop/none", "none/main"):
                answer = await raw.ask(head.replace("~", name), sent, **eve)
                assert answer.status == 404, (head, name)
                told.add(answer.body.decode().replace(name, "~"))
            assert len(told) == 1, (head, told)
            assert "shop" not in told.pop()
        for host in ("main.shop.example.org", "none.shop.example.org", "main.none.example.org"):
            answer = await raw.ask("POST /v3/pipeline", body, Host=host, **eve)
            assert (answer.status, answer.value["code"]) == (404, "NO_DATABASE")
            assert "served here: nothing that you may use" in answer.value["message"]
        assert (await raw.ask("GET /", **eve)).value == {"databases": {}, "namespaces": []}
        assert set((await raw.ask("GET /", **await token_of(security, "r", "admin"))).value["databases"]) == {
            *("shop/main", "shop/other")
        }
        await granted(access, security, "token:eve", "shop/main", "append")
        assert list((await raw.ask("GET /", **eve)).value["databases"]) == ["shop/main"]
        answer = await raw.ask("POST /shop/main/v3/pipeline", body, **eve)
        assert (answer.status, answer.value["code"]) == (403, "FORBIDDEN")
        assert "no permission `read` on database shop/main" in answer.value["message"]
        await raw.close()


async def test_a_websocket_says_of_a_database_only_to_who_may_see_it(client: Client) -> None:
    """Not before it is known who asks, nor to a stranger."""
    async with guarded(client) as (server, access, security):
        await granted(access, security, "token:eve", "mine", "read")
        token = (await token_of(security, "eve"))["Authorization"].removeprefix("Bearer ")
        for sent, expected in ((None, "UNAUTHORIZED"), (token, "NO_SUCH_DATABASE")):
            told = set()
            for name in ("shop/main", "shop/none", "none/main"):
                socket = await Socket.to(server.url, f"/{name}/", hello=False)
                assert socket.answer.status == 101
                await socket.send({"type": "hello", "jwt": sent})
                error = (await socket.receive())["error"]
                assert error["code"] == expected
                told.add(error["message"].replace(name, "~"))
            assert len(told) == 1
        await granted(access, security, "token:eve", "shop/main", "read")
        for path, host in (("/shop/main/", "localhost"), ("/", "main.shop.example.org")):
            socket = await Socket.to(server.url, path, jwt=token, Host=host)
            await socket.ask("open_stream", stream_id=1)
            assert await socket.rows("SELECT 1") == [["1"]]


async def test_a_reader_changes_nothing_in_a_batch_or_a_transaction(client: Client) -> None:
    async with guarded(client) as (server, access, security):
        hrana = await Hrana.to(server.url)
        root, alice = await token_of(security, "root", "admin"), await token_of(security, "alice")
        assert await code(hrana, "CREATE TABLE t (x)", root) == 200
        await granted(access, security, "token:alice", "shop", "read")
        steps = [{"stmt": {"sql": sql}} for sql in ("BEGIN", "INSERT INTO t VALUES (1)", "COMMIT")]
        batch = {"requests": [{"type": "batch", "batch": {"steps": steps}}]}
        assert (await hrana.post("v3/pipeline", batch, **alice)).status == 200
        begun = {"requests": [execute("BEGIN IMMEDIATE"), execute("INSERT INTO t VALUES (2)"), execute("COMMIT")]}
        assert (await hrana.post("v3/pipeline", begun, **alice)).status == 200
        sequence = {"requests": [{"type": "sequence", "sql": "INSERT INTO t VALUES (3); INSERT INTO t VALUES (4)"}]}
        assert (await hrana.post("v3/pipeline", sequence, **alice)).status == 200
        assert (await hrana.post("v1/execute", {"stmt": {"sql": "INSERT INTO t VALUES (5)"}}, **alice)).status == 400
        counted = await hrana.post("v1/execute", {"stmt": {"sql": "SELECT count(*) FROM t"}}, **alice)
        assert counted.value["result"]["rows"] == [[{"type": "integer", "value": "0"}]]


async def test_a_stream_is_of_the_principal_that_began_it(client: Client) -> None:
    async with guarded(client) as (server, access, security):
        await granted(access, security, "token:alice", "shop", "read", "append")
        await granted(access, security, "token:mallory", "shop", "read", "append")
        alice, mallory = await token_of(security, "alice"), await token_of(security, "mallory")
        hrana = await Hrana.to(server.url)
        begun = await hrana.post("v3/pipeline", {"requests": [execute("BEGIN")]}, **alice)
        taken = {"baton": begun.value["baton"], "requests": [execute("SELECT 1")]}
        assert (await hrana.post("v3/pipeline", taken, **mallory)).status == 400
        assert (await hrana.post("v3/pipeline", taken, **alice)).status == 200


async def test_it_speaks_tls_with_the_certificate_of_the_moment(client: Client, tmp_path: Path) -> None:
    files = Files(tmp_path / "ca")
    tls = TlsConfig("required", files.bookie.ca, files.bookie.certificate, files.bookie.key)
    trust = TlsFiles(files.client, server_side=False)
    async with serving(client, "shop/main", tls=tls) as server:
        assert server.url.startswith("https://")
        first = await Hrana.to(server.url, tls=trust.context())
        assert await code(first, "SELECT 1", {}) == 200
        before = first.raw.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        files.authority.bookie("bookie", ["127.0.0.1", "localhost"])
        second = await Hrana.to(server.url, tls=trust.context())
        assert await code(second, "SELECT 1", {}) == 200
        assert second.raw.writer.get_extra_info("ssl_object").getpeercert()["serialNumber"] != before
        assert await code(first, "SELECT 1", {}) == 200


async def test_followers_send_requests_on_through_tls_and_say_who_asks(client: Client, tmp_path: Path) -> None:
    files = Files(tmp_path / "ca")
    tls = TlsConfig("required", files.bookie.ca, files.bookie.certificate, files.bookie.key)
    async with TokenAccess(client.services.store, client.services.clocks) as access:
        security = SecurityStore(client.services.store)
        settings = {"tls": tls, "access": access}
        async with serving(client, "shop/main", **settings) as leader, serving(client, "shop/main", **settings) as next:
            await (await leader.databases.get("shop/main")).lead()
            root = await token_of(security, "root", "admin")
            hrana = await Hrana.to(next.url, tls=TlsFiles(files.client, server_side=False).context())
            assert await code(hrana, "CREATE TABLE t (x)", root) == 200
            assert await code(hrana, "CREATE TABLE u (x)", {}) == 401
            ann = await token_of(security, "ann")
            await granted(access, security, "token:ann", "shop/main", "read")
            assert await code(hrana, "SELECT * FROM t", ann) == 200
            assert await code(hrana, "INSERT INTO t VALUES (1)", ann) == "SQLITE_READONLY"


async def test_one_without_tls_sends_requests_on_to_a_leader_with_it(client: Client, tmp_path: Path) -> None:
    """As `db serve` beside the gateway of `buckram up --secure` does."""
    files = Files(tmp_path / "ca")
    tls = TlsConfig("required", files.bookie.ca, files.bookie.certificate, files.bookie.key)
    async with (
        serving(client, "shop/main", tls=tls) as leader,
        serving(client, "shop/main", ca=files.bookie.ca) as next,
        serving(client, "shop/main", limits=HranaLimits(leader_wait_s=0.2)) as strange,
    ):
        await (await leader.databases.get("shop/main")).lead()
        assert await code(await Hrana.to(next.url), "CREATE TABLE t (x)", {}) == 200
        assert await code(await Hrana.to(strange.url), "INSERT INTO t VALUES (1)", {}) == 503


async def test_a_leader_is_told_who_asks_and_gets_no_token_of_the_caller(client: Client) -> None:
    heads: list[bytes] = []
    store = client.services.store

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 28\r\n\r\n" + b'{"baton":null,"results":[]} ')
        writer.close()

    async with (
        await asyncio.start_server(lead, "127.0.0.1", 0) as leader,
        TokenAccess(store, client.services.clocks) as access,
    ):
        address, security = f"http://127.0.0.1:{leader.sockets[0].getsockname()[1]}", SecurityStore(store)
        one = ServerRegistry(store, DATABASE_SERVERS, address)
        await one.start()
        given = {"access": access}
        async with (
            client.namespace("shop").database("main", announce=address) as database,
            serving(client, "shop/main", origins=Origins(), **given) as server,
        ):
            await database.lead()
            hrana, root = await Hrana.to(server.url), await token_of(security, "root", "admin")
            answer = await hrana.post("v3/pipeline", {"requests": []}, **root)
            assert (answer.status, answer.value["results"]) == (200, [])
        await one.close()
    (head,) = heads
    assert root["Authorization"].encode() not in head
    assert b"authorization: buckram-forwarded " in head


async def test_what_says_who_asks_is_for_one_request_to_one_path(client: Client) -> None:
    async with guarded(client) as (server, access, security):
        await granted(access, security, "token:ann", "shop", "read")
        ann, wrong = Principal("token:ann"), "/shop/other/v3/pipeline"
        hrana = await Hrana.to(server.url)

        async def vouched(path: str) -> dict[str, str]:
            return {"Authorization": await access.vouch(ann, path), "Buckram_Forwarded": "1"}

        once = await vouched("/shop/main/v3/pipeline")
        assert await code(hrana, "SELECT 1", once) in (200, 421)
        assert await code(hrana, "SELECT 1", once) == 401
        assert await code(hrana, "SELECT 1", await vouched(wrong)) == 401
        # It is no token of the cluster's, and those do not say who asks somebody else.
        text = (await vouched("/shop/main/v3/pipeline"))["Authorization"].partition(" ")[2]
        assert await code(hrana, "SELECT 1", {"Authorization": f"Bearer {text}"}) == 401
        own = (await token_of(security, "root", "admin"))["Authorization"].partition(" ")[2]
        assert await code(hrana, "SELECT 1", {"Authorization": f"buckram-forwarded {own}"}) == 401


async def test_what_says_who_asks_is_signed_with_the_newest_key(client: Client) -> None:
    """Which is read once, and again when there is a newer one."""
    async with guarded(client) as (_, access, security):
        now, keys = time.time(), [""]
        for _ in range(2):
            for _ in range(2):
                text = (await access.vouch(Principal("token:ann"), "/shop/main/v3/pipeline")).partition(" ")[2]
                assert jwt.get_unverified_header(text)["kid"] == (await security.signing_key())[0] != keys[-1]
            keys.append((await security.signing_key())[0])
            await security.create_token("root", (), now, now + 60, new_key=True)
            await until(lambda: max(access._security.state.keys) != keys[-1])


async def test_with_tokens_requests_are_sent_on_through_tls_or_to_this_machine(client: Client) -> None:
    async def vouch(principal: Principal, path: str) -> str:
        return "x"

    for address, sent in (("http://10.0.0.7:80", False), ("https://10.0.0.7", True), ("http://127.0.0.1:1", True)):
        for asks in (vouch, None):
            others = DatabaseServerRegistry(client.services.store, address, asks)
            await others.start()
            assert (await others.why_not(f"{address}/") == "") == (sent or asks is None)
            await others.close()


async def test_keys_and_grants_are_for_who_opens_the_store(client: Client) -> None:
    class Served:
        """A store as a bookie serves it, as far as keys are concerned."""

        uri = "buckram://h/"
        own = client.services.store.own

        async def instance_id(self) -> str:
            return "x"

        @property
        def keys(self) -> object:
            raise AccessRefused("/buckram/security", "in the store itself only")

    with pytest.raises(ConfigError, match="needs the metadata store itself"):
        async with TokenAccess(Served(), client.services.clocks):  # type: ignore[arg-type]
            pass


async def test_pages_in_browsers_are_not_the_servers_clients(client: Client) -> None:
    async with serving(client, "shop/main", origins=Origins(["db.example.org"], ["https://admin.example.org"])) as one:
        hrana = await Hrana.to(one.url)
        port = one.url.rpartition(":")[2]
        assert await code(hrana, "SELECT 1", {"Origin": "http://evil.example"}) == 403
        assert await code(hrana, "SELECT 1", {"Origin": "null"}) == 403
        assert await code(hrana, "SELECT 1", {"Host": f"rebound.evil.example:{port}"}) == 403
        assert await code(hrana, "SELECT 1", {"Origin": "https://admin.example.org"}) == 200
        assert await code(hrana, "SELECT 1", {"Host": f"127.0.0.1:{port}", "Origin": f"http://127.0.0.1:{port}"}) == 200
        for host in ("localhost", "[::1]:80", "db.example.org", "main.shop.db.example.org:81", "10.1.2.3"):
            assert await code(hrana, "SELECT 1", {"Host": host}) == 200, host
        assert (await hrana.raw.ask("GET /", Host="evil.example")).status == 403


async def test_turns_to_write_go_round_by_principal(client: Client) -> None:
    async with guarded(client) as (server, _, security):
        alice, bob = await token_of(security, "alice", "admin"), await token_of(security, "bob", "admin")
        first = await Hrana.to(server.url)
        assert await code(first, "CREATE TABLE t (x)", alice) == 200
        held = await first.post("v3/pipeline", {"requests": [execute("BEGIN IMMEDIATE")]}, **alice)
        order: list[str] = []

        async def write(who: str, headers: dict[str, str]) -> None:
            hrana = await Hrana.to(server.url)
            begun = await hrana.post("v3/pipeline", {"requests": [execute("BEGIN IMMEDIATE")]}, **headers)
            order.append(who)
            end = {"baton": begun.value["baton"], "requests": [execute("ROLLBACK"), {"type": "close"}]}
            assert (await hrana.post("v3/pipeline", end, **headers)).status == 200

        (use,) = [stream.use for stream in server.service.streams._streams.values()]
        assert use is not None
        queue = use.database._writer._queue
        many = [asyncio.create_task(write("alice", alice)) for _ in range(4)]
        await until(lambda: sum(map(len, queue.queues.values())) == 4)
        few = asyncio.create_task(write("bob", bob))
        await until(lambda: len(queue.queues) == 2)
        end = {"baton": held.value["baton"], "requests": [execute("ROLLBACK"), {"type": "close"}]}
        await first.post("v3/pipeline", end, **alice)
        await asyncio.gather(*many, few)
        assert order == ["alice", "bob", "alice", "alice", "alice"]
