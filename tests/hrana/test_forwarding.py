"""Two servers of one database: the one that follows sends requests on, and takes over when the leader goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from tests.hrana.kit import AUTOCOMMIT, CLOSE, Hrana, execute, serving, values
from tests.support.polling import until

from buckram.client.client import Client
from buckram.hrana.limits import HranaLimits
from buckram.hrana.server import DatabaseServer
from buckram.http.server import bind
from buckram.testing import Cluster


class Pair:
    """A server that leads shop/main, and one that follows."""

    def __init__(self, leader: DatabaseServer, follower: DatabaseServer) -> None:
        self.leader, self.follower = leader, follower


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
    assert (len(pair.follower.streams), len(pair.leader.streams)) == (0, 1)
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
    assert len(pair.follower.streams) == 1
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
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        async with three_bookies.client() as other, other.namespace("shop").database("main", announce=address) as one:
            await one.lead()
            async with serving(client, "shop/main", limits=HranaLimits(answer_wait_s=0.3)) as server:
                hrana = await Hrana.to(server.url)
                answer = await hrana.post("v3/pipeline", {"requests": [execute("SELECT 1")]})
                assert (answer.status, answer.value["code"]) == (502, "OUTCOME_UNKNOWN")


async def test_what_was_sent_on_is_not_sent_on_again(pair: Pair) -> None:
    hrana = await Hrana.to(pair.follower.url)
    answer = await hrana.post("v3/pipeline", {"requests": []}, Buckram_Forwarded="1")
    assert (answer.status, answer.value["code"]) == (421, "NOT_LEADER")
