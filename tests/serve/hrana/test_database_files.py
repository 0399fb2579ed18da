"""Backups over the network, and files that are loaded into empty databases."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.serve.hrana.kit import Hrana, execute, serving
from tests.serve.hrana.test_database_access import granted, guarded, token_of
from tests.serve.http.kit import Raw
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.server import DatabaseServer
from buckram.testing import Cluster


def rows_of(content: bytes, path: Path) -> list[tuple[object, ...]]:
    path.write_bytes(content)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return connection.execute("SELECT x FROM t ORDER BY rowid").fetchall()


def file_with(path: Path, count: int, size: int = 10) -> bytes:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [(f"{n:0{size}}",) for n in range(count)])
    return path.read_bytes()


async def test_a_backup_has_all_that_was_committed_whichever_server_is_asked(
    server: DatabaseServer, three_bookies: Cluster, tmp_path: Path
) -> None:
    leader = await Hrana.to(server.url)
    await leader.run("CREATE TABLE t (x)")
    async with three_bookies.client() as other, serving(other, "shop/main") as following:
        for number in range(5):
            await leader.run(f"INSERT INTO t VALUES ({number})")
            for url in (server.url, following.url):
                raw = await Raw.to(url)
                answer = await raw.ask("GET /shop/main/backup")
                assert (answer.status, answer.headers["content-type"]) == (200, "application/vnd.sqlite3")
                assert int(answer.headers["content-length"]) == len(answer.body)
                assert rows_of(answer.body, tmp_path / "got.db") == [(n,) for n in range(number + 1)]
                assert answer.headers["buckram-offset"] == (await leader.rows("SELECT buckram_offset()"))[0][0]


async def test_a_file_fills_an_empty_database_once_and_it_goes_on(server: DatabaseServer, tmp_path: Path) -> None:
    """More pages than one group has."""
    content = file_with(tmp_path / "new.db", 4500, 3900)
    raw, hrana = await Raw.to(server.url), await Hrana.to(server.url)
    # A schema that was dropped is no obstacle, and readers that were there before see what is new.
    await hrana.run("CREATE TABLE t (y)", "INSERT INTO t VALUES (1)", "DROP TABLE t", "SELECT 1")
    answer = await raw.ask("PUT /shop/main/load", content)
    assert answer.status == 201, answer.body
    assert (answer.value["database"], answer.value["bytes"]) == ("shop/main", len(content))
    assert await hrana.rows("SELECT count(*), max(length(x)) FROM t") == [["4500", "3900"]]
    await hrana.run("INSERT INTO t VALUES ('more')", "CREATE INDEX i ON t (x)")
    assert len(rows_of((await raw.ask("GET /shop/main/backup")).body, tmp_path / "got.db")) == 4501
    again = await raw.ask("PUT /shop/main/load", content)
    assert (again.status, again.value["code"]) == (409, "NOT_EMPTY")
    assert await hrana.rows("SELECT count(*) FROM t") == [["4501"]]


async def test_what_is_no_whole_database_leaves_it_empty(client: Client, tmp_path: Path) -> None:
    content = file_with(tmp_path / "new.db", 100)
    async with serving(client, "shop/main", limits=HranaLimits(load_bytes=50_000, transfers=1)) as server:
        await (await server.databases.get("shop/main")).lead()
        raw, hrana = await Raw.to(server.url), await Hrana.to(server.url)
        for body, status, code in (
            (b"no database", 400, "ARGS_INVALID"),
            (content[:100] + b"x" * 1000, 400, "ARGS_INVALID"),
            (b"x" * 50_001, 413, "TOO_LARGE"),
        ):
            answer = await (await Raw.to(server.url)).ask("PUT /shop/main/load", body)
            assert (answer.status, answer.value["code"]) == (status, code)
        cut = await Raw.to(server.url)
        head = f"PUT /shop/main/load HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
        await cut.send(head + content[:5000])
        await until(lambda: server.service.exchange._transfers.running == 1)
        busy = await raw.ask("GET /shop/main/backup")
        assert (busy.status, busy.value["code"]) == (503, "TOO_MANY_TRANSFERS")
        await cut.close()
        await until(lambda: server.service.exchange._transfers.running == 0)
        assert await hrana.rows("SELECT count(*) FROM sqlite_schema") == [["0"]]
        assert (await raw.ask("PUT /shop/main/load", content)).status == 201
        assert await hrana.rows("SELECT count(*) FROM t") == [["100"]]


async def test_a_follower_says_where_a_file_is_to_be_sent(
    server: DatabaseServer, three_bookies: Cluster, tmp_path: Path
) -> None:
    content = file_with(tmp_path / "new.db", 3)
    async with three_bookies.client() as other, serving(other, "shop/main") as following:
        answer = await (await Raw.to(following.url)).ask("PUT /shop/main/load", content)
        assert (answer.status, answer.headers["location"]) == (307, f"{server.url}/shop/main/load")
        path = answer.headers["location"].removeprefix(server.url)
        assert (await (await Raw.to(server.url)).ask(f"PUT {path}", content)).status == 201
        stale = await Hrana.to(following.url, "/shop/main@stale=0")
        assert await stale.rows("SELECT count(*) FROM t") == [["3"]]


async def test_grants_decide_who_gets_a_backup_and_who_loads(client: Client, tmp_path: Path) -> None:
    content = file_with(tmp_path / "new.db", 3)
    async with guarded(client) as (server, access, security):
        raw = await Raw.to(server.url)
        assert (await raw.ask("GET /shop/main/backup")).status == 401
        header = await token_of(security, "ann")
        assert (await raw.ask("GET /shop/main/backup", **header)).status == 404
        await granted(access, security, "token:ann", "shop/main", "read")
        assert (await raw.ask("GET /shop/main/backup", **header)).status == 200
        assert (await (await Raw.to(server.url)).ask("PUT /shop/main/load", content, **header)).status == 403
        await granted(access, security, "token:ann", "shop/main", "append")
        await (await server.databases.get("shop/main")).lead()
        assert (await raw.ask("PUT /shop/main/load", content, **header)).status == 201


async def test_a_backup_ends_with_its_grant(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("buckram.serve.http.streamed_answers.LOOK_S", 0.0)
    async with guarded(client) as (server, access, security):
        hrana, root = await Hrana.to(server.url), await token_of(security, "root", "admin")
        filled = {"requests": [execute("CREATE TABLE t (x)"), execute("INSERT INTO t VALUES (zeroblob(30000000))")]}
        assert (await hrana.post("v3/pipeline", filled, **root)).status == 200
        await granted(access, security, "token:ann", "shop/main", "read")
        header = await token_of(security, "ann")
        raw = await Raw.to(server.url)
        await raw.send(f"GET /shop/main/backup HTTP/1.1\r\nAuthorization: {header['Authorization']}\r\n\r\n".encode())
        assert b"200" in await raw.reader.readuntil(b"\r\n\r\n")
        wanted = await security.change_acl(lambda acl: acl.revoking("token:ann", "shop/main", ("read",)))
        await until(lambda: access.acl == wanted)
        received = 0
        with suppress(ConnectionError):
            while piece := await raw.reader.read(1_000_000):
                received += len(piece)
        assert received < 30_000_000


@pytest.mark.share(3)
async def test_a_client_that_takes_nothing_of_a_backup_is_cut_off(client: Client, tmp_path: Path) -> None:
    async with serving(client, "shop/main", limits=HranaLimits(unread_s=0.3, transfers=1)) as server:
        hrana = await Hrana.to(server.url)
        await hrana.run("CREATE TABLE t (x)", "INSERT INTO t VALUES (zeroblob(30000000))")
        slow = await Raw.to(server.url)
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await slow.send(b"GET /shop/main/backup HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await until(lambda: server.service.exchange._transfers.running == 1)
        await until(lambda: server.service.exchange._transfers.running == 0)
        slow.writer.transport.abort()


async def test_other_paths_are_not_served(server: DatabaseServer) -> None:
    for head in ("PUT /shop/main/other", "GET /shop/main/other", "PUT /load/x"):
        answer = await (await Raw.to(server.url)).ask(head, b"x" if head.startswith("PUT") else b"")
        assert (answer.status, answer.value["code"]) == (404, "NOT_FOUND"), head


@pytest.mark.share(3)
async def test_writers_wait_while_a_file_is_loaded_and_nothing_of_them_is_lost(
    server: DatabaseServer, tmp_path: Path
) -> None:
    content = file_with(tmp_path / "new.db", 3000, 4000)
    database = await server.databases.get("shop/main")
    loading = asyncio.ensure_future((await Raw.to(server.url)).ask("PUT /shop/main/load", content))
    await until(lambda: database.groups > 0)
    writers = [await Hrana.to(server.url) for _ in range(3)]
    found = await asyncio.gather(*(one.pipeline(execute("INSERT INTO t VALUES ('w')")) for one in writers))
    assert [one[0].get("code") for one in found] == [None] * 3
    assert (await loading).status == 201
    assert await writers[0].rows("SELECT count(*) FROM t") == [["3003"]]
