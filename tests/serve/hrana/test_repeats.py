"""A token and an offset through Hrana: what is repeated under a token is done once, also over a lost leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.serve.hrana.kit import CLOSE, Hrana, execute, integer, serving, text, values
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.hrana.database_access import Everybody, Granted
from buckram.serve.hrana.server import DatabaseServer
from buckram.serve.http.application import Principal
from buckram.state.db.settings import DatabaseLimits
from buckram.testing import Cluster

AFTER = [{"type": "ok", "step": at} for at in range(9)]


def transaction(*statements: dict[str, Any]) -> dict[str, Any]:
    """A batch that is one transaction, as clients of libSQL write it."""
    steps: list[dict[str, Any]] = [{"stmt": {"sql": "BEGIN IMMEDIATE"}}]
    for one in statements:
        steps.append({"stmt": one, "condition": AFTER[len(steps) - 1]})
    steps.append({"stmt": {"sql": "COMMIT"}, "condition": AFTER[len(steps) - 1]})
    steps.append({"stmt": {"sql": "ROLLBACK"}, "condition": {"type": "not", "cond": AFTER[len(steps) - 1]}})
    return {"type": "batch", "batch": {"steps": steps}}


INSERT = {"sql": "INSERT INTO t VALUES (1)"}


async def test_a_header_makes_one_statement_one_batch_and_one_commit_happen_once(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("CREATE TABLE t (x)")
    await hrana.pipeline(CLOSE)
    for _ in range(3):
        body = {"requests": [execute("INSERT INTO t VALUES (1)"), CLOSE]}
        found = (await hrana.post("v3/pipeline", body, Buckram_Token="one")).value["results"][0]
        assert found["response"]["result"]["affected_row_count"] == 1
        body = {"requests": [transaction(INSERT, INSERT), CLOSE]}
        found = (await hrana.post("v2/pipeline", body, Buckram_Token="two")).value["results"][0]
        counts = [one and one["affected_row_count"] for one in found["response"]["result"]["step_results"]]
        assert counts == [0, 1, 1, 0, None]
        assert (await hrana.post("v1/execute", {"stmt": INSERT}, Buckram_Token="three")).status == 200
        batch = {"batch": {"steps": [{"stmt": INSERT}]}}
        assert (await hrana.post("v1/batch", batch, Buckram_Token="four")).status == 200
        hrana.baton = None
        await hrana.run("BEGIN", "INSERT INTO t VALUES (1)")
        body = {"baton": hrana.baton, "requests": [execute("COMMIT"), CLOSE]}
        assert (await hrana.post("v3/pipeline", body, Buckram_Token="five")).value["results"][0]["type"] == "ok"
        entries = transaction(INSERT)["batch"]
        assert (await hrana.post("v3/cursor", {"batch": entries}, Buckram_Token="six")).status == 200
    hrana.baton = None
    assert await hrana.rows("SELECT count(*) FROM t") == [["7"]]
    # A token that came with a request is not for the next one.
    for _ in range(2):
        body = {"baton": hrana.baton, "requests": [execute("SELECT 1")]}
        hrana.baton = (await hrana.post("v3/pipeline", body, Buckram_Token="read")).value["baton"]
        await hrana.run("INSERT INTO t VALUES (2)")
    assert await hrana.rows("SELECT count(*) FROM t") == [["9"]]


async def test_a_function_gives_the_token_where_a_driver_has_no_headers(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("CREATE TABLE t (x UNIQUE)")
    ask = execute("SELECT buckram_token(?) AS before", text("a"))
    for before, rows in (("aborted", "1"), ("committed", "1")):
        (found, _) = await hrana.pipeline(ask, execute("INSERT INTO t VALUES (1)"))
        assert (found["result"]["cols"][0]["name"], values(found["result"])) == ("before", [[before]])
        assert await hrana.rows("SELECT count(*) FROM t") == [[rows]]
    for before in ("aborted", "committed"):
        await hrana.run("BEGIN")
        (found,) = await hrana.pipeline(execute("SELECT buckram_token('b')"))
        assert values(found["result"]) == [[before]]
        await hrana.run("INSERT OR IGNORE INTO t VALUES (2)", "COMMIT")
    batch = transaction({"sql": "SELECT buckram_token('c')"}, {"sql": "INSERT INTO t VALUES (3)"})
    for before in ("aborted", "committed"):
        (found,) = await hrana.pipeline(batch)
        results = found["result"]["step_results"]
        assert (values(results[1]), results[2]["affected_row_count"]) == ([[before]], 1)
        assert found["result"]["step_errors"] == [None] * 5
    assert await hrana.rows("SELECT x FROM t ORDER BY x") == [["1"], ["2"], ["3"]]
    # One attempt takes a token: nothing that is done later is under it.
    await hrana.pipeline(execute("SELECT buckram_token('d')"), execute("INSERT INTO t VALUES (3)"))
    await hrana.run("INSERT INTO t VALUES (4)")
    await hrana.run("BEGIN", "SELECT buckram_token('e')", "ROLLBACK", "INSERT INTO t VALUES (5)")
    for token in ("d", "e"):
        assert await hrana.rows(f"SELECT buckram_outcome('{token}')") == [["aborted"]]


async def test_a_batch_that_fails_under_a_token_says_where_and_is_done_when_it_is_right(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("CREATE TABLE t (x UNIQUE)", "INSERT INTO t VALUES (1)")
    await hrana.pipeline(CLOSE)
    wrong = {"requests": [transaction({"sql": "INSERT INTO t VALUES (2)"}, INSERT), CLOSE]}
    found = (await hrana.post("v3/pipeline", wrong, Buckram_Token="a")).value["results"][0]["response"]["result"]
    assert [one and one["code"] for one in found["step_errors"]] == [None, None, "SQLITE_CONSTRAINT", None, None]
    right = {"requests": [transaction({"sql": "INSERT INTO t VALUES (2)"}), CLOSE]}
    for _ in range(2):
        found = (await hrana.post("v3/pipeline", right, Buckram_Token="a")).value["results"][0]["response"]["result"]
        assert found["step_errors"] == [None] * 4
    longer = {"requests": [transaction(INSERT, INSERT), CLOSE]}
    found = (await hrana.post("v3/pipeline", longer, Buckram_Token="a")).value["results"][0]["response"]["result"]
    assert found["step_errors"][1]["code"] == "TOKEN_REUSED"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("v3/pipeline", {"requests": [execute("SELECT 1"), execute("SELECT 1")]}, 400, "TOKEN_AMBIGUOUS"),
        ("v3/pipeline", {"requests": []}, 400, "TOKEN_AMBIGUOUS"),
        ("v1/batch", {"batch": {"steps": [{"stmt": INSERT}, {"stmt": INSERT}]}}, 400, "TOKEN_AMBIGUOUS"),
        ("v1/execute", {"stmt": INSERT}, 400, "ARGS_INVALID"),
    ],
)
async def test_a_token_that_cannot_be_meant_is_refused_and_nothing_done(
    server: DatabaseServer, path: str, body: Any, status: int, code: str
) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("CREATE TABLE t (x)")
    token = "x" * 201 if code == "ARGS_INVALID" else "a"
    answer = await hrana.post(path, body, Buckram_Token=token)
    assert (answer.status, answer.value["code"]) == (status, code)
    found = await hrana.post("v3/pipeline", {"requests": [{"type": "sequence", "sql": "SELECT 1"}]}, Buckram_Token="a")
    assert found.value["results"][0]["error"]["code"] == "TOKEN_AMBIGUOUS"
    hrana.baton = None
    assert await hrana.rows("SELECT count(*) FROM t") == [["0"]]
    assert len(server.service.streams) == 3


async def test_who_may_only_read_leaves_no_tokens(client: Client) -> None:
    class Readers(Everybody):
        def allowed(self, principal: Principal) -> Granted:
            return lambda database: frozenset({"read"})

    async with serving(client, "shop/main", access=Readers()) as server:
        hrana = await Hrana.to(server.url)
        answer = await hrana.post("v1/execute", {"stmt": {"sql": "SELECT 1"}}, Buckram_Token="a")
        assert (answer.status, answer.value["code"]) == (403, "SQLITE_READONLY")
        (refused,) = await hrana.pipeline(execute("SELECT buckram_token('a')"))
        assert refused["code"] == "SQLITE_READONLY"
        assert len(server.service.streams) == 1


async def test_an_offset_comes_with_answers_and_a_follower_waits_for_it(
    server: DatabaseServer, three_bookies: Cluster
) -> None:
    leader = await Hrana.to(server.url)
    await leader.run("CREATE TABLE t (x)", "INSERT INTO t VALUES (1)")
    async with three_bookies.client() as other, serving(other, "shop/main") as following:
        follower = await Hrana.to(following.url)
        for count in range(2, 6):
            sent = await follower.post("v1/execute", {"stmt": {"sql": f"INSERT INTO t VALUES ({count})"}})
            offset = sent.headers["buckram-offset"]
            assert await leader.rows("SELECT buckram_offset()") == [[offset]]
            stale = await Hrana.to(following.url, "/shop/main@stale")
            body = {"requests": [execute("SELECT count(*) FROM t"), CLOSE]}
            found = await stale.post("v3/pipeline", body, Buckram_After=offset)
            assert values(found.value["results"][0]["response"]["result"]) == [[str(count)]]
            assert int(found.headers["buckram-offset"]) >= int(offset)
            (_, found) = await stale.pipeline(
                execute("SELECT buckram_after(?)", integer(int(offset))), execute("SELECT count(*) FROM t")
            )
            assert values(found["result"]) == [[str(count)]]
        wrong = await stale.post("v1/execute", {"stmt": {"sql": "SELECT 1"}}, Buckram_After="-1")
        assert (wrong.status, wrong.value["code"]) == (400, "ARGS_INVALID")


async def test_an_offset_that_does_not_come_is_not_waited_for_for_ever(client: Client) -> None:
    async with serving(client, "shop/main", database_limits=DatabaseLimits(query_s=0.1)) as server:
        stale = await Hrana.to(server.url, "/shop/main@stale")
        (late,) = await stale.pipeline(execute("SELECT buckram_after(1000000)"))
        assert late["code"] == "TOO_STALE"
        answer = await stale.post("v1/execute", {"stmt": {"sql": "SELECT 1"}}, Buckram_After="1000000")
        assert (answer.status, answer.value["code"]) == (400, "TOO_STALE")
        (wrong,) = await stale.pipeline(execute("SELECT buckram_after('x')"))
        assert wrong["code"] == "SQLITE_ERROR"


class Relay:
    """Passes bytes on to a server; while `mute` is set the answers are dropped, and the connection with them."""

    def __init__(self) -> None:
        self.mute, self.muted = False, 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = self.to = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Relay]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection("127.0.0.1", self.to)

        async def forth() -> None:
            while data := await reader.read(65536):
                ours.write(data)
            ours.close()

        sending = asyncio.ensure_future(forth())
        with suppress(OSError):
            while data := await theirs.read(65536):
                if self.mute:
                    self.muted += 1
                    break
                writer.write(data)
        sending.cancel()
        writer.transport.abort()
        ours.close()


async def test_a_retry_after_outcome_unknown_applies_once(client: Client, three_bookies: Cluster) -> None:
    """The leader executes what a follower sent on, and its answer is lost; the same is asked again."""
    async with Relay().running() as relay, three_bookies.client() as other:
        leading = serving(other, "shop/main", advertise=f"http://127.0.0.1:{relay.port}")
        async with leading as leader:
            relay.to = int(leader.url.rpartition(":")[2])
            database = await leader.databases.get("shop/main")
            await database.lead()
            await database.execute("CREATE TABLE t (x)")
            async with serving(client, "shop/main") as follower:
                hrana = await Hrana.to(follower.url)
                for token in ("a", "b"):
                    relay.mute = True
                    lost = await hrana.post("v1/execute", {"stmt": INSERT}, Buckram_Token=token)
                    assert (lost.status, lost.value["code"]) == (502, "OUTCOME_UNKNOWN")
                    relay.mute = False
                    again = await hrana.post("v1/execute", {"stmt": INSERT}, Buckram_Token=token)
                    assert (again.status, again.value["result"]["affected_row_count"]) == (200, 1)
                assert relay.muted == 2
                lost_offset = int(again.headers["buckram-offset"])
                assert lost_offset <= database.applied
                # The leader goes, and whoever takes over knows the tokens as well.
                relay.mute = True
                assert (await hrana.post("v1/execute", {"stmt": INSERT}, Buckram_Token="c")).status == 502
                await leader.close()
                taking_over = await follower.databases.get("shop/main")
                await until(lambda: taking_over.role == "leader")
                for token in ("a", "b", "c"):
                    assert (await hrana.post("v1/execute", {"stmt": INSERT}, Buckram_Token=token)).status == 200
                assert await hrana.rows("SELECT count(*) FROM t") == [["3"]]
