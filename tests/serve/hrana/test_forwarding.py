"""Two servers of one database: the one that follows sends requests on, and takes over when the leader goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.replication.restoring import backed_up, restored
from tests.serve.hrana.kit import AUTOCOMMIT, CLOSE, Hrana, execute, serving, values
from tests.serve.hrana.socket_kit import Socket
from tests.support.polling import until

from buckram.cluster import Client
from buckram.metadata.tree.layout import DATABASE_SERVERS
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.server import DatabaseServer
from buckram.serve.http.server import bind
from buckram.serve.http.server_registry import ServerRegistry
from buckram.testing import Cluster


class Pair:
    """A server that leads shop/main, and one that follows."""

    def __init__(self, leader: DatabaseServer, follower: DatabaseServer) -> None:
        self.leader, self.follower = leader, follower


@asynccontextmanager
async def shown(client: Client, address: str) -> AsyncIterator[None]:
    """As a server of databases at this address shows itself."""
    one = ServerRegistry(client.services.store, DATABASE_SERVERS, address)
    await one.start()
    try:
        yield
    finally:
        await one.close()


@pytest.fixture
async def pair(three_bookies: Cluster, client: Client) -> AsyncIterator[Pair]:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(three_bookies.client())
        leader = await stack.enter_async_context(serving(other, "shop/main"))
        await (await leader.databases.get("shop/main")).lead()
        follower = await stack.enter_async_context(serving(client, "shop/main"))
        yield Pair(leader, follower)


async def test_a_follower_sends_requests_on_and_says_where_a_stream_is(pair: Pair) -> None:
    hrana = await Hrana.to(pair.follower.url)
    await hrana.run("CREATE TABLE t (x)", "BEGIN", "INSERT INTO t VALUES (1)")
    assert hrana.last.value["base_url"] == f"{pair.leader.url}/shop/main/"
    assert (len(pair.follower.service.streams), len(pair.leader.service.streams)) == (0, 1)
    # A client that does not go there is served all the same.
    (found,) = await hrana.pipeline(AUTOCOMMIT)
    assert found["is_autocommit"] is False
    direct = await Hrana.to(pair.leader.url)
    direct.baton = hrana.baton
    await direct.run("COMMIT")
    assert direct.last.value["base_url"] is None
    await direct.pipeline(CLOSE)
    entries = await (await Hrana.to(pair.follower.url)).cursor([{"stmt": {"sql": "SELECT x FROM t"}}])
    assert [one["type"] for one in entries] == ["step_begin", "row", "step_end"]
    found = await hrana.post("v1/execute", {"stmt": {"sql": "SELECT count(*) FROM t"}})
    assert values(found.value["result"]) == [["1"]]
    wrong = await hrana.post("v1/execute", {"stmt": {"sql": "SELEKT"}})
    assert (wrong.status, wrong.value["code"]) == (400, "SQLITE_ERROR")


async def test_stale_reads_are_a_followers_own_and_write_nothing(pair: Pair) -> None:
    await (await Hrana.to(pair.leader.url)).run("CREATE TABLE t (x)", "INSERT INTO t VALUES (1)")
    stale = await Hrana.to(pair.follower.url, "/shop/main@stale=0")
    assert await stale.rows("SELECT x FROM t") == [["1"]]
    assert len(pair.follower.service.streams) == 1
    (refused,) = await stale.pipeline(execute("INSERT INTO t VALUES (2)"))
    assert refused["code"] == "SQLITE_READONLY"
    leader = await Hrana.to(pair.follower.url, "/shop/main@leader")
    assert await leader.rows("SELECT x FROM t") == [["1"]]
    assert leader.last.value["base_url"] == f"{pair.leader.url}/shop/main%40leader/"
    assert await leader.rows("SELECT x FROM t") == [["1"]]


async def test_a_follower_takes_over_and_clients_go_on(pair: Pair) -> None:
    hrana = await Hrana.to(pair.follower.url)
    await hrana.run("CREATE TABLE t (x)")
    hrana.baton = None
    interactive = await Hrana.to(pair.follower.url)
    await interactive.run("BEGIN", "INSERT INTO t VALUES (9)")
    closing = asyncio.ensure_future(pair.leader.close())
    await hrana.run("INSERT INTO t VALUES (1)")
    await closing
    hrana.baton = None
    await hrana.run("INSERT INTO t VALUES (2)")
    assert hrana.last.value["base_url"] is None
    answer = await interactive.post("v3/pipeline", {"baton": interactive.baton, "requests": [execute("COMMIT")]})
    assert (answer.status, answer.value["code"]) == (400, "BATON_INVALID")
    assert await hrana.rows("SELECT x FROM t") == [["1"], ["2"]]


async def test_without_a_leader_a_request_waits_and_is_then_refused(client: Client, three_bookies: Cluster) -> None:
    limits = HranaLimits(leader_wait_s=0.3)
    async with three_bookies.client() as other, other.namespace("shop").database("main", announce="no address") as one:
        await one.lead()
        async with serving(client, "shop/main", limits=limits) as server:
            hrana = await Hrana.to(server.url)
            answer = await hrana.post("v3/pipeline", {"requests": [execute("SELECT 1")]})
            assert (answer.status, answer.value["code"]) == (503, "NO_LEADER")
            assert "its leader no address cannot be reached" in answer.value["message"]
            await one.aclose()
            database = await server.databases.get("shop/main")
            await until(lambda: database.role == "leader")
            await hrana.run("SELECT 1")


async def test_a_leader_that_does_not_answer_leaves_the_outcome_open(client: Client, three_bookies: Cluster) -> None:
    with bind("127.0.0.1", 0) as silent:
        address = f"http://127.0.0.1:{silent.address[1]}"
        async with three_bookies.client() as other, other.namespace("shop").database("main", announce=address) as one:
            await one.lead()
            async with (
                shown(other, address),
                serving(client, "shop/main", limits=HranaLimits(answer_wait_s=0.3)) as server,
            ):
                hrana = await Hrana.to(server.url)
                answer = await hrana.post("v3/pipeline", {"requests": [execute("SELECT 1")]})
                assert (answer.status, answer.value["code"]) == (502, "OUTCOME_UNKNOWN")


async def test_nothing_is_sent_where_no_server_of_the_cluster_is(client: Client, three_bookies: Cluster) -> None:
    """Whoever may append to a database writes what its leader announces."""
    came: list[str] = []

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append("somebody")
        writer.close()

    async with await asyncio.start_server(heard, "127.0.0.1", 0) as attacker, three_bookies.client() as other:
        address = f"http://127.0.0.1:{attacker.sockets[0].getsockname()[1]}"
        async with (
            other.namespace("shop").database("main", announce=address) as one,
            serving(client, "shop/main", limits=HranaLimits(leader_wait_s=0.3)) as server,
        ):
            await one.lead()
            hrana = await Hrana.to(server.url)
            asked = {"Authorization": "Bearer secret"}
            answer = await hrana.post("v3/pipeline", {"requests": [execute("SELECT 1")]}, **asked)
            assert (answer.status, answer.value["code"]) == (503, "NO_LEADER")
            assert "is registered by no server of this cluster" in answer.value["message"]
            loaded = await hrana.raw.ask("PUT /shop/main/load", b"", **asked)
            assert loaded.status == 503
            socket = await Socket.to(server.url, jwt="secret")
            assert await socket.ask("open_stream", stream_id=1)
            assert "NO_LEADER" in str(await socket.ask("execute", stream_id=1, stmt={"sql": "SELECT 1"}))
            assert came == []


async def test_what_was_sent_on_is_not_sent_on_again(pair: Pair) -> None:
    hrana = await Hrana.to(pair.follower.url)
    answer = await hrana.post("v3/pipeline", {"requests": []}, Buckram_Forwarded="1")
    assert (answer.status, answer.value["code"]) == (421, "NOT_LEADER")


async def test_what_may_be_done_here_is_not_done_again_by_the_next_leader(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    hrana = await Hrana.to(pair.leader.url)
    await hrana.run("CREATE TABLE t (x CHECK (x < 10))")
    here, next_one = [await server.databases.get("shop/main") for server in (pair.leader, pair.follower)]
    execute_here = here.execute

    async def and_hand_over(sql: str, *parameters: Any, **more: Any) -> Any:
        try:
            return await execute_here(sql, *parameters, **more)
        finally:
            await next_one.lead(takeover=True)
            await until(lambda: here.role == "follower")

    monkeypatch.setattr(here, "execute", and_hand_over)
    hrana.baton = None
    failed, refused = await hrana.pipeline(
        execute("INSERT OR FAIL INTO t VALUES (1), (10)"), execute("INSERT INTO t VALUES (2)")
    )
    assert (failed["code"], refused["code"]) == ("SQLITE_CONSTRAINT", "NOT_LEADER")
    assert await (await Hrana.to(pair.follower.url)).rows("SELECT x FROM t") == [["1"]]


async def marks(hrana: Hrana) -> set[str | None]:
    """What the answers to requests of all kinds say of the history of the metadata."""
    asked: list[tuple[str, Any]] = [
        ("v3/pipeline", {"requests": [execute("SELECT 1"), CLOSE]}),
        ("v3/cursor", {"batch": {"steps": [{"stmt": {"sql": "SELECT 1"}}]}}),
        ("v1/execute", {"stmt": {"sql": "SELECT 1"}}),
        ("v1/execute", {"stmt": {"sql": "SELEKT"}}),
        ("v1/batch", {"batch": {"steps": [{"stmt": {"sql": "SELECT 1"}}]}}),
    ]
    return {(await hrana.post(path, body)).headers.get("buckram-history") for path, body in asked}


async def test_answers_say_in_which_history_of_the_metadata_they_were_given(
    pair: Pair, three_bookies: Cluster, client: Client
) -> None:
    """A leader that sat through a restore stays in the history that it began in, whoever sends requests on to it."""
    mark = client.services.identities.history_mark
    direct, sent_on = await Hrana.to(pair.leader.url), await Hrana.to(pair.follower.url)
    assert len(mark) == 8
    assert await marks(direct) == await marks(sent_on) == {mark}
    await direct.run("CREATE TABLE t (x)")
    await restored(three_bookies, await backed_up(three_bookies))
    await direct.run("INSERT INTO t VALUES (1)")
    assert await marks(direct) == {mark}
    async with three_bookies.client() as again, serving(again, "shop/main") as server:
        now = again.services.identities.history_mark
        database = await server.databases.get("shop/main")
        await until(lambda: database.applied >= 3)
        assert database.role == "follower"
        assert await marks(await Hrana.to(server.url)) == {mark}, "the leader's"
        assert await marks(await Hrana.to(server.url, "/shop/main@stale")) == {now}
        assert now != mark
        await database.lead(takeover=True)
        assert await marks(await Hrana.to(server.url)) == {now}
