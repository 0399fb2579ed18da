"""One caller's transaction: the same states as a connection of SQLite has, and what is more strict."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from buckram.core.db.caller_transaction import CallerTransaction, Do, TransactionGone, TransactionMisuse
from buckram.core.db.sql_text import ClassifiedStatement, Kind, classify

STATEMENTS = st.lists(
    st.sampled_from(
        [
            "BEGIN",
            "BEGIN IMMEDIATE",
            "COMMIT",
            "ROLLBACK",
            "SAVEPOINT a",
            "SAVEPOINT b",
            "RELEASE a",
            "RELEASE b",
            "ROLLBACK TO a",
            "ROLLBACK TO b",
            "INSERT INTO t VALUES (1)",
            "SELECT count(*) FROM t",
            "",
        ]
    ),
    max_size=14,
)


@given(STATEMENTS)
@example(["", "COMMIT", ""])
def test_states_are_those_of_sqlite(script: list[str]) -> None:
    """The machine carries out what it planned on one connection; another one is SQLite alone."""
    # In Python 3.13 and 3.14 an empty statement that the module kept fails with the error of the statement before it.
    alone, planned = (sqlite3.connect(":memory:", isolation_level=None, cached_statements=0) for _ in range(2))
    for connection in (alone, planned):
        connection.execute("CREATE TABLE t (x)")
    caller = CallerTransaction()
    for sql in script:
        statement = classify(sql)
        try:
            alone.execute(sql)
            failed = False
        except sqlite3.OperationalError:
            failed = True
        try:
            did = caller.plan(statement)
            for one in {
                Do.BEGIN: ["BEGIN"],
                Do.BEGIN_AND_RUN: ["BEGIN", sql],
                Do.COMMIT: ["COMMIT"],
                Do.ROLLBACK: ["ROLLBACK"],
                Do.NOTHING: [],
            }.get(did, [sql]):
                planned.execute(one)
            caller.done(statement, did)
            assert not failed, sql
        except (TransactionMisuse, sqlite3.OperationalError):
            assert failed, sql
        assert caller.autocommit is not alone.in_transaction, sql
        assert caller.autocommit is not planned.in_transaction, sql
    rows = [connection.execute("SELECT count(*) FROM t").fetchone() for connection in (alone, planned)]
    assert rows[0] == rows[1]


def test_statements_after_a_lost_transaction_are_refused_until_rollback() -> None:
    caller = CallerTransaction()
    caller.done(ClassifiedStatement(Kind.BEGIN, "deferred"), caller.plan(ClassifiedStatement(Kind.BEGIN, "deferred")))
    caller.lost("it took more than 5 s")
    assert not caller.autocommit
    for sql in ("UPDATE t SET x = 1", "COMMIT", "BEGIN"):
        with pytest.raises(TransactionGone, match="it took more than 5 s"):
            caller.plan(classify(sql))
    rollback = classify("ROLLBACK")
    caller.done(rollback, caller.plan(rollback))
    assert caller.autocommit
    assert caller.plan(classify("UPDATE t SET x = 1")) is Do.RUN_ALONE


def test_a_transaction_that_sqlite_rolled_back_is_over() -> None:
    caller = CallerTransaction()
    begin = classify("BEGIN READONLY")
    caller.done(begin, caller.plan(begin))
    assert caller.readonly
    caller.ended()
    assert caller.autocommit
    assert not caller.readonly
    with pytest.raises(TransactionMisuse, match="cannot commit - no transaction is active"):
        caller.plan(classify("COMMIT"))
