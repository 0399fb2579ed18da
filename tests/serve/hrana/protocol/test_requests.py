"""Requests as the specification writes them, conditions, and what is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from buckram.serve.hrana.protocol.requests import (
    Batch,
    Close,
    CloseSql,
    Condition,
    Describe,
    Execute,
    GetAutocommit,
    Script,
    SqlRef,
    Step,
    Stmt,
    StoreSql,
    parse_cursor,
    parse_pipeline,
)
from buckram.serve.hrana.protocol.values import Malformed


def test_all_requests_of_the_specification() -> None:
    stmt = {"sql": "SELECT ?", "args": [{"type": "integer", "value": "1"}], "want_rows": False}
    named = {"sql_id": 3, "named_args": [{"name": ":a", "value": {"type": "null"}}], "args": []}
    found = parse_pipeline(
        {
            "baton": "b",
            "requests": [
                {"type": "execute", "stmt": stmt},
                {"type": "batch", "batch": {"steps": [{"stmt": named}, {"condition": None, "stmt": {"sql": "x"}}]}},
                {"type": "sequence", "sql": "a; b"},
                {"type": "describe", "sql_id": -1},
                {"type": "store_sql", "sql_id": 3, "sql": "SELECT :a"},
                {"type": "close_sql", "sql_id": 3},
                {"type": "get_autocommit"},
                {"type": "close"},
            ],
        }
    )
    assert found.baton == "b"
    assert found.requests == (
        Execute(Stmt(SqlRef("SELECT ?", None), (1,), (), False)),
        Batch((Step(Stmt(SqlRef(None, 3), (), ((":a", None),))), Step(Stmt(SqlRef("x", None))))),
        Script(SqlRef("a; b", None)),
        Describe(SqlRef(None, -1)),
        StoreSql(3, "SELECT :a"),
        CloseSql(3),
        GetAutocommit(),
        Close(),
    )
    assert [request.kind for request in found.requests] == [
        *("execute", "batch", "sequence", "describe", "store_sql", "close_sql", "get_autocommit", "close")
    ]
    assert parse_cursor({"batch": {"steps": []}}).batch == Batch(())


def test_names_lose_their_prefix() -> None:
    stmt = Stmt(SqlRef("x", None), named=((":a", 1), ("@b", 2), ("$c", 3), ("d", 4)))
    assert stmt.parameters == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert Stmt(SqlRef("x", None), (1, 2)).parameters == (1, 2)


def condition(raw: Any, before: int = 3) -> Condition:
    steps: list[Any] = [{"stmt": {"sql": "x"}}] * before
    steps.append({"stmt": {"sql": "x"}, "condition": raw})
    found = parse_cursor({"batch": {"steps": steps}}).batch.steps[-1].condition
    assert found is not None
    return found


def test_conditions() -> None:
    ok, error = ({"type": kind, "step": 0} for kind in ("ok", "error"))
    for outcome, is_ok, is_error in ((True, True, False), (False, False, True), (None, False, False)):
        assert condition(ok).holds([outcome], False) is is_ok
        assert condition(error).holds([outcome], False) is is_error
        assert condition({"type": "not", "cond": ok}).holds([outcome], False) is not is_ok
        both = [ok, {"type": "is_autocommit"}]
        assert condition({"type": "and", "conds": both}).holds([outcome], True) is is_ok
        assert not condition({"type": "and", "conds": both}).holds([outcome], False)
        assert condition({"type": "or", "conds": both}).holds([outcome], True)
        assert condition({"type": "or", "conds": both}).holds([outcome], False) is is_ok
    assert condition({"type": "and", "conds": []}).holds([], False)
    assert not condition({"type": "or", "conds": []}).holds([], False)


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "is_autocommit"}
    for _ in range(depth):
        found = {"type": "not", "cond": found}
    return found


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ([], "the body: needs an object"),
        ({}, "requests: needs a list"),
        ({"baton": 7, "requests": []}, "baton: needs the string"),
        ({"requests": [{"type": "close"}] * 1025}, "requests: has 1025 elements, the limit is 1024"),
        ({"requests": [{"type": "drop"}]}, r"requests\[0\].type: 'drop' is none of close, execute"),
        ({"requests": [{"type": []}]}, r"requests\[0\].type: \[\] is none of"),
        ({"requests": [{"type": "execute"}]}, r"requests\[0\].stmt: needs an object"),
        ({"requests": [{"type": "execute", "stmt": {}}]}, "needs sql or sql_id"),
        ({"requests": [{"type": "execute", "stmt": {"sql": "x", "sql_id": 1}}]}, "needs sql or sql_id"),
        ({"requests": [{"type": "execute", "stmt": {"sql": 1}}]}, "stmt.sql: needs a string"),
        ({"requests": [{"type": "execute", "stmt": {"sql": "\udfff"}}]}, "surrogate"),
        ({"requests": [{"type": "execute", "stmt": {"sql": "x", "args": {}}}]}, "need lists"),
        ({"requests": [{"type": "execute", "stmt": {"sql": "x", "want_rows": "no"}}]}, "needs true or false"),
        ({"requests": [{"type": "execute", "stmt": {"sql": "x", "named_args": [{"name": ""}]}}]}, "needs a name"),
        (
            {"requests": [{"type": "execute", "stmt": {"sql": "x", "args": [1], "named_args": [1]}}]},
            "all arguments by position or all by name",
        ),
        ({"requests": [{"type": "store_sql", "sql_id": 2**31, "sql": "x"}]}, "no integer of 32 bits"),
    ],
)
def test_what_is_no_request_is_refused(raw: Any, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        parse_pipeline(raw)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"type": "ok", "step": 3}, "3 is none of the 3 steps before"),
        ({"type": "ok", "step": -1}, "-1 is none of the 3 steps before"),
        ({"type": "ok", "step": True}, "True is none of"),
        ({"type": "xor"}, "'xor' is none of ok"),
        ({"type": "and"}, "conds: needs a list"),
        (nested(70), "deeper than 64"),
    ],
)
def test_what_is_no_condition_is_refused(raw: Any, reason: str) -> None:
    with pytest.raises(Malformed, match=reason):
        condition(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.sampled_from(["execute", "batch", "ok"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "stmt", "sql", "batch", "steps", "condition", "args", "value", "name", "step"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(st.lists(JSON, max_size=3))
def test_random_json_is_parsed_or_malformed(requests: list[Any]) -> None:
    with contextlib.suppress(Malformed):
        parse_pipeline({"requests": requests})
