"""The Hrana protocol on a real database: every request, values, streams, batches, cursors, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.serve.hrana.kit import AUTOCOMMIT, CLOSE, Hrana, execute, integer, serving, text, values
from tests.serve.http.kit import Raw
from tests.support.clock import pass_time
from tests.support.polling import until

from buckram.cluster import Client
from buckram.serve.hrana.database_access import Everybody, Granted
from buckram.serve.hrana.limits import HranaLimits
from buckram.serve.hrana.server import DatabaseServer
from buckram.serve.http.application import Principal
from buckram.serve.http.problems import HttpProblem
from buckram.state.db.settings import DatabaseLimits


async def test_values_of_all_types_there_and_back(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("CREATE TABLE t (n, i INTEGER, f REAL, s TEXT, b BLOB)")
    given = [
        {"type": "null"},
        integer(-(2**63)),
        {"type": "float", "value": 0.1},
        text("é\u0000\U0001f600"),
        {"type": "blob", "base64": "AP8"},
    ]
    inserted, selected = await hrana.pipeline(
        execute("INSERT INTO t VALUES (?, ?, ?, ?, ?)", *given),
        execute("SELECT *, i AS again, 1 + 1 FROM t"),
    )
    result = inserted["result"]
    assert (result["affected_row_count"], result["last_insert_rowid"], result["cols"]) == (1, "1", [])
    result = selected["result"]
    assert result["rows"] == [[*given, given[1], integer(2)]]
    assert [(one["name"], one["decltype"]) for one in result["cols"]] == [
        *(("n", None), ("i", "INTEGER"), ("f", "REAL"), ("s", "TEXT"), ("b", "BLOB"), ("again", "INTEGER")),
        ("1 + 1", None),
    ]
    (skipped,) = await hrana.pipeline(execute("SELECT * FROM t", want_rows=False))
    assert skipped["result"]["rows"] == []
    named = {"sql": "SELECT :a, @b, $c", "named_args": [{"name": n, "value": integer(1)} for n in (":a", "b", "$c")]}
    (found,) = await hrana.pipeline({"type": "execute", "stmt": named})
    assert values(found["result"]) == [["1", "1", "1"]]


async def test_an_interactive_transaction_over_several_requests(server: DatabaseServer) -> None:
    hrana, other = await Hrana.to(server.url), await Hrana.to(server.url)
    await other.run("CREATE TABLE t (x)")
    begun = await hrana.pipeline(execute("BEGIN IMMEDIATE"), execute("INSERT INTO t VALUES (1)"), AUTOCOMMIT)
    assert begun[2] == {"type": "get_autocommit", "is_autocommit": False}
    first = hrana.baton
    await hrana.run("INSERT INTO t VALUES (2)")
    assert hrana.baton != first
    waiting = asyncio.ensure_future(other.run("INSERT INTO t VALUES (3)"))
    await hrana.run("SAVEPOINT s", "INSERT INTO t VALUES (9)", "ROLLBACK TO s", "COMMIT")
    await waiting
    assert await hrana.rows("SELECT x FROM t ORDER BY x") == [["1"], ["2"], ["3"]]
    await hrana.run("BEGIN", "DELETE FROM t")
    await hrana.pipeline(CLOSE)
    assert hrana.baton is None
    assert await other.rows("SELECT count(*) FROM t") == [["3"]]


async def test_a_failed_request_does_not_keep_later_ones_from_running(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    found = await hrana.pipeline(
        execute("CREATE TABLE t (x UNIQUE)"),
        execute("INSERT INTO t VALUES (1)"),
        execute("INSERT INTO t VALUES (1)"),
        execute("SELEKT"),
        execute("SELECT ?, ?", integer(1)),
        execute("ATTACH 'x' AS y"),
        execute("INSERT INTO t VALUES (2)"),
        {"type": "describe", "sql_id": 7},
        CLOSE,
        execute("SELECT 1"),
    )
    errors = [one.get("code") for one in found]
    assert errors == [
        *(None, None, "SQLITE_CONSTRAINT", "SQLITE_ERROR", "ARGS_INVALID", "BLOCKED"),
        *(None, "SQL_NOT_FOUND", None, "STREAM_CLOSED"),
    ]
    assert found[2] == {
        "message": "UNIQUE constraint failed: t.x",
        "code": "SQLITE_CONSTRAINT",
        "extended_code": "SQLITE_CONSTRAINT_UNIQUE",
    }


async def test_stored_texts_scripts_and_descriptions(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    script = "CREATE TABLE t (x INTEGER, y TEXT); INSERT INTO t VALUES (1, ';'); -- no\nINSERT INTO t VALUES (2, '');"
    found = await hrana.pipeline(
        {"type": "sequence", "sql": script},
        {"type": "store_sql", "sql_id": 1, "sql": "SELECT x, y, x + :a FROM t WHERE x > ?2"},
        {"type": "store_sql", "sql_id": 1, "sql": "SELECT 1"},
        {"type": "describe", "sql_id": 1},
        {"type": "execute", "stmt": {"sql_id": 1, "args": [integer(10), integer(1)]}},
        {"type": "close_sql", "sql_id": 1},
        {"type": "close_sql", "sql_id": 1},
        {"type": "describe", "sql": "EXPLAIN DELETE FROM t"},
        {"type": "sequence", "sql": "INSERT INTO t VALUES (3, 'c'); SELEKT; INSERT INTO t VALUES (4, 'd')"},
    )
    assert found[2]["code"] == "SQL_STORE_EXISTS"
    assert found[3]["result"] == {
        "params": [{"name": ":a"}, {"name": "?2"}],
        "cols": [
            {"name": "x", "decltype": "INTEGER"},
            {"name": "y", "decltype": "TEXT"},
            {"name": "x + :a", "decltype": None},
        ],
        "is_explain": False,
        "is_readonly": True,
    }
    assert values(found[4]["result"]) == [["2", "", "12"]]
    assert found[7]["result"]["is_explain"]
    assert found[8]["code"] == "SQLITE_ERROR"
    assert await hrana.rows("SELECT x FROM t") == [["1"], ["2"], ["3"]]


def step(sql: str, condition: Any = None, *args: Any) -> dict[str, Any]:
    return {"stmt": {"sql": sql, "args": list(args)}, "condition": condition}


def ok(at: int) -> dict[str, Any]:
    return {"type": "ok", "step": at}


def transaction(*statements: str, begin: str = "BEGIN") -> dict[str, Any]:
    """As clients of libSQL write a batch."""
    steps = [step(begin), *(step(sql, ok(at)) for at, sql in enumerate(statements))]
    commit = len(steps)
    steps += [step("COMMIT", ok(commit - 1)), step("ROLLBACK", {"type": "not", "cond": ok(commit)})]
    return {"type": "batch", "batch": {"steps": steps}}


async def test_a_batch_with_conditions(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("CREATE TABLE t (x UNIQUE)", "INSERT INTO t VALUES (1)")
    steps = [
        step("INSERT INTO t VALUES (1)"),
        step("INSERT INTO t VALUES (2)", ok(0)),
        step("INSERT INTO t VALUES (3)", {"type": "error", "step": 0}),
        step("BEGIN", {"type": "is_autocommit"}),
        step("SELECT 1", {"type": "is_autocommit"}),
        step("SELECT x FROM t", {"type": "and", "conds": [ok(2), {"type": "not", "cond": {"type": "is_autocommit"}}]}),
    ]
    (found,) = await hrana.pipeline({"type": "batch", "batch": {"steps": steps}})
    results, errors = found["result"]["step_results"], found["result"]["step_errors"]
    assert [one is not None for one in results] == [False, False, True, True, False, True]
    assert [one and one["code"] for one in errors] == ["SQLITE_CONSTRAINT", None, None, None, None, None]
    assert values(results[5]) == [["1"], ["3"]]


@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN IMMEDIATE", "BEGIN TRANSACTION READONLY"])
async def test_a_batch_that_is_a_transaction_is_all_or_nothing(server: DatabaseServer, begin: str) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("CREATE TABLE t (x UNIQUE)", "INSERT INTO t VALUES (0)")
    if begin == "BEGIN TRANSACTION READONLY":
        (found,) = await hrana.pipeline(transaction("SELECT x FROM t", "INSERT INTO t VALUES (1)", begin=begin))
        assert [one and one["code"] for one in found["result"]["step_errors"]] == [
            *(None, None, "SQLITE_READONLY", None, None)
        ]
        return
    (found,) = await hrana.pipeline(
        transaction("INSERT INTO t VALUES (1)", "SELECT x FROM t", "INSERT INTO t VALUES (2)", begin=begin)
    )
    results = found["result"]["step_results"]
    assert [one and one["affected_row_count"] for one in results] == [0, 1, 0, 1, 0, None]
    assert values(results[2]) == [["0"], ["1"]]
    assert results[3]["last_insert_rowid"] == "3"
    (found,) = await hrana.pipeline(transaction("INSERT INTO t VALUES (3)", "INSERT INTO t VALUES (1)", begin=begin))
    assert [one and one["code"] for one in found["result"]["step_errors"]] == [
        *(None, None, "SQLITE_CONSTRAINT", None, None)
    ]
    assert found["result"]["step_results"][-1] is not None
    assert await hrana.rows("SELECT max(x) FROM t") == [["2"]]


async def test_a_batch_that_makes_a_table_anew_keeps_the_rows_that_name_it(server: DatabaseServer) -> None:
    """As `migrate()` of the client for JavaScript writes it: one batch, with a pragma on each side."""
    hrana = await Hrana.to(server.url)
    await hrana.run(
        "CREATE TABLE author (id INTEGER PRIMARY KEY)",
        "CREATE TABLE book (author INTEGER REFERENCES author ON DELETE CASCADE)",
        "INSERT INTO author VALUES (1)",
        "INSERT INTO book VALUES (1)",
    )

    def migration(*statements: str) -> dict[str, Any]:
        steps = [step("PRAGMA foreign_keys=off"), step("BEGIN DEFERRED")]
        steps += [step(sql, ok(at)) for at, sql in enumerate(statements, 1)]
        commit = len(steps)
        steps += [step("COMMIT", ok(commit - 1)), step("ROLLBACK", {"type": "not", "cond": ok(commit)})]
        return {"type": "batch", "batch": {"steps": [*steps, step("PRAGMA foreign_keys=on")]}}

    change = ("CREATE TABLE new (id INTEGER PRIMARY KEY, name)", "INSERT INTO new (id) SELECT id FROM author")
    change += ("DROP TABLE author", "ALTER TABLE new RENAME TO author")
    (found,) = await hrana.pipeline(migration(*change))
    assert not any(found["result"]["step_errors"])
    assert await hrana.rows("SELECT author FROM book JOIN author ON id = author") == [["1"]]
    (found,) = await hrana.pipeline(migration("DELETE FROM author"))
    codes = [one and one["code"] for one in found["result"]["step_errors"]]
    assert codes == [None, None, None, "SQLITE_CONSTRAINT", None, None]
    assert await hrana.rows("SELECT id FROM author") == [["1"]]
    await hrana.run("DELETE FROM author")
    assert await hrana.rows("SELECT count(*) FROM book") == [["0"]]


async def test_a_cursor_gives_the_same_in_lines(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("CREATE TABLE t (x INTEGER)")
    numbers = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 5000) INSERT INTO t SELECT x FROM n"
    found = await hrana.cursor(
        [step(numbers), step("SELECT x FROM t ORDER BY x"), step("SELEKT"), step("SELECT 1", ok(2)), step("SELECT 2")]
    )
    assert found[:2] == [
        {"type": "step_begin", "step": 0, "cols": []},
        {"type": "step_end", "affected_row_count": 5000, "last_insert_rowid": "5000"},
    ]
    assert found[2] == {"type": "step_begin", "step": 1, "cols": [{"name": "x", "decltype": "INTEGER"}]}
    assert found[3:5003] == [{"type": "row", "row": [integer(n)]} for n in range(1, 5001)]
    assert [one["type"] for one in found[5003:]] == ["step_end", "step_error", "step_begin", "row", "step_end"]
    assert (found[5004]["step"], found[5004]["error"]["code"]) == (2, "SQLITE_ERROR")
    assert found[5005]["step"] == 4
    assert await hrana.rows("SELECT count(*) FROM t") == [["5000"]]


async def test_version_1_has_no_streams(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    found = await hrana.post("v1/execute", {"stmt": {"sql": "SELECT 7 AS seven"}})
    assert values(found.value["result"]) == [["7"]]
    batch = transaction("CREATE TABLE t (x)", "INSERT INTO t VALUES (1)")["batch"]
    found = await hrana.post("v1/batch", {"batch": batch})
    assert found.value["result"]["step_errors"] == [None] * 5
    await hrana.post("v1/execute", {"stmt": {"sql": "BEGIN"}})  # rolled back when the request ends
    wrong = await hrana.post("v1/execute", {"stmt": {"sql": "SELEKT"}})
    assert (wrong.status, wrong.value["code"]) == (400, "SQLITE_ERROR")
    await hrana.post("v1/execute", {"stmt": {"sql": "INSERT INTO t VALUES (2)"}})
    assert await hrana.rows("SELECT count(*) FROM t") == [["2"]]


async def test_a_baton_is_good_once_and_for_one_database(server: DatabaseServer) -> None:
    hrana = await Hrana.to(server.url)
    await hrana.run("SELECT 1")
    used = hrana.baton
    await hrana.run("SELECT 1")
    body = {"requests": [execute("SELECT 1")]}
    for prefix, baton, code in (
        ("/shop/main", used, "BATON_REUSED"),
        ("/shop/main@leader", hrana.baton, "BATON_INVALID"),
        ("/shop/main", "AAAA", "BATON_INVALID"),
        ("/shop/main", "\u00e9", "BATON_INVALID"),
    ):
        hrana.prefix = prefix
        answer = await hrana.post("v3/pipeline", {**body, "baton": baton})
        assert (answer.status, answer.value["code"]) == (400, code)
    hrana.prefix = "/shop/main"
    await hrana.run("SELECT 1")


async def test_an_idle_stream_is_closed_and_its_transaction_rolled_back(client: Client) -> None:
    database_limits = DatabaseLimits(transaction_s=60)
    limits = HranaLimits(stream_idle_s=6.0)
    async with serving(client, "shop/main", limits=limits, database_limits=database_limits) as server:
        hrana, other = await Hrana.to(server.url), await Hrana.to(server.url)
        await other.run("CREATE TABLE t (x)")
        await hrana.run("BEGIN IMMEDIATE", "INSERT INTO t VALUES (1)")
        assert len(server.service.streams) == 2
        await pass_time(3.0)
        await hrana.run("INSERT INTO t VALUES (2)")
        await pass_time(3.0)
        await until(lambda: len(server.service.streams) == 1)
        await pass_time(3.0)
        await until(lambda: len(server.service.streams) == 0)
        answer = await hrana.post("v3/pipeline", {"baton": hrana.baton, "requests": [execute("COMMIT")]})
        assert (answer.status, answer.value["code"]) == (400, "STREAM_EXPIRED")
        assert await (await Hrana.to(server.url)).rows("SELECT count(*) FROM t") == [["0"]]


async def test_a_client_that_goes_takes_its_transaction_with_it(server: DatabaseServer) -> None:
    holder, gone, other = [await Hrana.to(server.url) for _ in range(3)]
    await other.run("CREATE TABLE t (x)")
    await gone.run("SELECT 1")
    await holder.run("BEGIN IMMEDIATE")
    requests = [execute("BEGIN IMMEDIATE"), execute("INSERT INTO t VALUES (1)")]
    body = json.dumps({"baton": gone.baton, "requests": requests}).encode()
    await gone.raw.send(b"POST /shop/main/v3/pipeline HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    await until(lambda: sum(stream.busy for stream in server.service.streams._streams.values()) == 1)
    await gone.raw.close()
    await until(lambda: len(server.service.streams) == 2)
    await holder.run("COMMIT")
    assert await other.rows("SELECT count(*) FROM t") == [["0"]]


async def test_limits_of_streams_texts_and_answers(client: Client) -> None:
    limits = HranaLimits(streams=2, stored_texts=2, stored_bytes=100, answer_bytes=10_000)
    async with serving(client, "shop/main", limits=limits) as server:
        first, second, third = [await Hrana.to(server.url) for _ in range(3)]
        await first.run("SELECT 1")
        found = await second.pipeline(
            {"type": "store_sql", "sql_id": 1, "sql": "x" * 60},
            {"type": "store_sql", "sql_id": 2, "sql": "x" * 60},
            {"type": "store_sql", "sql_id": 2, "sql": "x"},
            {"type": "store_sql", "sql_id": 3, "sql": "x"},
            execute("SELECT zeroblob(4000)"),
            execute("SELECT zeroblob(7000)"),
        )
        assert [one.get("code") for one in found] == [
            *(None, "SQL_STORE_TOO_LARGE", None, "SQL_STORE_TOO_LARGE", None, "RESPONSE_TOO_LARGE")
        ]
        answer = await third.post("v3/pipeline", {"requests": []})
        assert (answer.status, answer.value["code"], answer.value["limit"]) == (503, "TOO_MANY_STREAMS", 2)
        await first.pipeline(CLOSE)
        await third.run("SELECT 1")


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("v3/pipeline", b"not json", 400, "PROTOCOL_ERROR"),
        ("v3/pipeline", b"[" * 100_000, 400, "PROTOCOL_ERROR"),
        ("v3/pipeline", b"[]", 400, "PROTOCOL_ERROR"),
        ("v3/cursor", b'{"batch": 7}', 400, "PROTOCOL_ERROR"),
        ("v1/execute", b'{"stmt": 7}', 400, "PROTOCOL_ERROR"),
        ("v1/batch", b"7", 400, "PROTOCOL_ERROR"),
        ("v2/cursor", b"{}", 404, "NOT_FOUND"),
        ("v3-protobuf/pipeline", b"{}", 404, "NOT_FOUND"),
    ],
)
async def test_what_is_no_request_is_refused(
    server: DatabaseServer, path: str, body: bytes, status: int, code: str
) -> None:
    answer = await (await Raw.to(server.url)).ask(f"POST /shop/main/{path}", body)
    assert (answer.status, answer.value["code"]) == (status, code)


async def test_authentication_and_authorisation_come_before_the_body(client: Client) -> None:
    class Ann(Everybody):
        async def authenticate(self, request: Any) -> Principal:
            name = request.headers.get("authorization", "").removeprefix("Bearer ")
            if not name:
                raise HttpProblem(401, "WHO_ARE_YOU", "send a token")
            return Principal(name)

        def allowed(self, principal: Principal) -> Granted:
            permissions = frozenset({"read", "append"} if principal.name == "ann" else ())
            return lambda database: permissions if database == "shop/main" else frozenset()

    async with serving(client, "shop/main", access=Ann()) as server:
        hrana = await Hrana.to(server.url)
        body = {"requests": [execute("SELECT 1")]}
        assert (await hrana.post("v3/pipeline", body)).status == 401
        assert (await hrana.post("v3/pipeline", body, Authorization="Bearer bob")).status == 404
        answer = await hrana.post("v3/pipeline", body, Authorization="Bearer ann")
        assert answer.status == 200
        assert (await hrana.raw.ask("GET /")).status == 401
        assert (await hrana.raw.ask("GET /health")).value == {"status": "ok"}
