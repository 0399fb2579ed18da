"""Change data capture: what the log says of rows is what committed transactions did to them, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.state.db.change_copy import Copy, rows
from tests.support.soak import soak

from buckram import sync
from buckram.cluster import Client
from buckram.core.db.changes import (
    INSERT,
    Change,
    Noted,
    RowChange,
    SchemaChange,
    TableShape,
    as_changes,
    decode_changes,
    joined,
    separated,
)
from buckram.core.db.sql import SqlResult, Statement
from buckram.core.streams.records.codecs import Codec
from buckram.db import connect
from buckram.errors import (
    ChangesGone,
    ChangesNotKept,
    HandleClosed,
    InvalidArgument,
    NotDatabase,
    SqlError,
    StatementRefused,
    TransactionTooLarge,
    UnknownCommand,
)
from buckram.namespace import Namespace
from buckram.state.db.settings import DatabaseLimits
from buckram.state.db.table_engine.row_images import RowImages
from buckram.state.db.table_engine.statements import Executor
from buckram.state.machine.settings import MachineSettings
from buckram.testing import ThreadedCluster

# -- the hook, on a connection of its own ------------------------------------------------------------------------------


class Capture:
    """A connection of SQLite's whose transactions are captured, and a copy of what comes of it."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.executor = Executor("db", apsw.Connection(":memory:"), 1 << 20, 5.0)
        self.rows, self.copy, self.codec, self.number = RowImages("db", limit), Copy(), Codec(), 0
        self.rows.watch(self.executor.connection)

    def begin(self) -> None:
        self.rows.begin()
        self.executor.inside("BEGIN IMMEDIATE")

    def execute(self, sql: str, parameters: Any = ()) -> bool:
        """Execute a statement in the transaction; False after an error of SQLite's."""
        try:
            self.rows.execute(self.executor, Statement(sql, parameters))
        except SqlError:
            return False
        return True

    def end(self, *, commit: bool = True) -> list[Change]:
        """The changes, after their way through the log."""
        if not self.executor.connection.in_transaction:
            return []
        changes, group = separated(self.rows.with_changes(b"\1\1group", self.codec))
        assert group == b"\1\1group"
        self.executor.inside("COMMIT" if commit else "ROLLBACK")
        if not commit or not changes:
            return []
        self.number += 1
        found = list(as_changes(decode_changes(changes, self.codec), self.number, self.number, 0.0))
        for change in found:
            self.copy.apply(change)
        return found

    def transact(self, *statements: Any, commit: bool = True) -> list[Change]:
        self.begin()
        for one in statements:
            self.execute(*((one,) if isinstance(one, str) else one))
            if not self.executor.connection.in_transaction:
                return []  # SQLite has rolled it back
        return self.end(commit=commit)

    def check(self) -> None:
        assert rows(self.copy.db) == rows(self.executor.connection)


_TABLES = ["a", "b", "c", "d"]
_SCHEMA = [
    "CREATE TABLE a (k INTEGER PRIMARY KEY, v, w UNIQUE, x AS (length(v)) STORED)",
    "CREATE TABLE b (v, k TEXT COLLATE NOCASE, w, PRIMARY KEY (k, w)) WITHOUT ROWID",
    "CREATE TABLE c (k PRIMARY KEY, v CHECK (v IS NOT 3), w DEFAULT 7)",
    "CREATE TABLE d (k, v, w)",
    "CREATE TRIGGER t_a AFTER DELETE ON a BEGIN INSERT INTO d (k, v) VALUES (old.k, old.v);"
    " UPDATE c SET v = old.w WHERE k = old.k; END",
    "CREATE TRIGGER t_d BEFORE INSERT ON d WHEN new.k = 2 BEGIN SELECT raise(fail, 'two'); END",
]
_TABLE, _KEYS = st.sampled_from(_TABLES), st.integers(1, 6)
_VALUES = st.one_of(st.none(), st.integers(-3, 3), st.text(max_size=3), st.binary(max_size=4), st.floats(-1, 1))
_OR = st.sampled_from(["INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "INSERT OR FAIL", "INSERT OR ABORT"])
_NAMES = st.sampled_from(["one", '"One"', "two"])
_STATEMENTS = st.one_of(
    st.tuples(
        st.builds("{} INTO {} (k, v, w) VALUES (?1, ?2, ?3), (?1 + 1, ?3, ?2)".format, _OR, _TABLE),
        st.tuples(_KEYS, _VALUES, _VALUES),
    ),
    st.tuples(st.builds("INSERT INTO {0} (k, v, w) SELECT v, k, w FROM {1}".format, _TABLE, _TABLE), st.just(())),
    st.tuples(st.builds("UPDATE {} SET k = k + 1, v = ? WHERE k > ?".format, _TABLE), st.tuples(_VALUES, _KEYS)),
    st.tuples(st.builds("UPDATE OR REPLACE {} SET w = ?, k = k WHERE k < ?".format, _TABLE), st.tuples(_VALUES, _KEYS)),
    st.tuples(st.builds("UPDATE {} SET rowid = rowid + 20 WHERE k = ?".format, _TABLE), st.tuples(_KEYS)),
    st.tuples(st.builds("DELETE FROM {} WHERE k = ?".format, _TABLE), st.tuples(_KEYS)),
    st.tuples(st.builds("DELETE FROM {}".format, _TABLE), st.just(())),
    st.tuples(st.builds("SAVEPOINT {}".format, _NAMES), st.just(())),
    st.tuples(st.builds("ROLLBACK TO {}".format, _NAMES), st.just(())),
    st.tuples(st.builds("/* a remark */ rollback transaction to savepoint {} -- end".format, _NAMES), st.just(())),
    st.tuples(st.builds("RELEASE {}".format, _NAMES), st.just(())),
    st.tuples(st.builds("ALTER TABLE {} ADD COLUMN y DEFAULT 'new'".format, _TABLE), st.just(())),
    st.tuples(st.builds("ALTER TABLE {} DROP COLUMN y".format, _TABLE), st.just(())),
    st.tuples(st.builds("DROP TABLE IF EXISTS {}".format, _TABLE), st.just(())),
    st.tuples(st.builds("CREATE TABLE {} AS SELECT k, v, w FROM {}".format, _TABLE, _TABLE), st.just(())),
    st.tuples(st.just("INSERT OR ROLLBACK INTO a (k) VALUES (1)"), st.just(())),
)
_TRANSACTIONS = st.lists(st.tuples(st.booleans(), st.lists(_STATEMENTS, max_size=8)), min_size=1, max_size=8)


@settings(max_examples=soak(40, 20), deadline=None, suppress_health_check=list(HealthCheck))
@given(_TRANSACTIONS)
def test_changes_folded_into_an_empty_copy_are_the_tables(transactions: list[tuple[bool, list[Any]]]) -> None:
    capture = Capture()
    capture.transact(*_SCHEMA)
    for rolled_back, statements in transactions:
        capture.transact(*statements, commit=not rolled_back)
        capture.check()


def _said(changes: Iterable[Change]) -> list[tuple[Any, ...]]:
    return [(one.operation, one.table, one.key, one.old, one.new) for one in changes]


def test_a_change_has_key_values_and_row_id() -> None:
    capture = Capture()
    schema = capture.transact(_SCHEMA[0], _SCHEMA[1])
    assert [(one.operation, one.sql, one.last) for one in schema] == [
        ("schema", _SCHEMA[0], False),
        ("schema", _SCHEMA[1], True),
    ]
    (added,) = capture.transact(("INSERT INTO a (k, v) VALUES (3, ?)", (b"\0x",)))
    assert _said([added]) == [("insert", "a", {"k": 3}, None, {"k": 3, "v": b"\0x", "w": None})]
    assert (added.rowid, added.new_rowid, added.last, added.sql) == (3, 3, True, None)
    (moved,) = capture.transact("UPDATE a SET k = 9")
    assert (moved.key, moved.rowid, moved.new_rowid) == ({"k": 3}, 3, 9)
    assert (moved.old, moved.new) == ({"k": 3, "v": b"\0x", "w": None}, {"k": 9, "v": b"\0x", "w": None})
    (other,) = capture.transact("INSERT INTO b (k, v, w) VALUES ('p', 1e400, 2)")
    assert (other.key, other.rowid, other.new_rowid) == ({"k": "p", "w": 2}, None, None)
    (gone,) = capture.transact("DELETE FROM b")
    assert _said([gone]) == [("delete", "b", {"k": "p", "w": 2}, {"v": float("inf"), "k": "p", "w": 2}, None)]


def test_what_is_rolled_back_leaves_nothing() -> None:
    capture = Capture()
    capture.transact("CREATE TABLE t (k INTEGER PRIMARY KEY, v UNIQUE)")
    kept = capture.transact(
        "INSERT INTO t VALUES (1, 1)",
        'SAVEPOINT "a b"',
        "INSERT INTO t VALUES (2, 2)",
        "SAVEPOINT inner",
        "CREATE TABLE u (x)",
        "INSERT INTO t VALUES (3, 3)",
        'ROLLBACK TO "A B"',
        "INSERT INTO t VALUES (4, 4), (5, 1)",  # fails at its second row
        "INSERT OR FAIL INTO t VALUES (6, 6), (7, 1)",  # keeps its first one
        'RELEASE "a b"',
    )
    assert [one.key for one in kept] == [{"k": 1}, {"k": 6}]
    assert capture.transact("INSERT INTO t VALUES (8, 8)", "INSERT OR ROLLBACK INTO t VALUES (9, 1)") == []
    assert capture.transact("DELETE FROM t", commit=False) == []
    capture.check()


@pytest.mark.parametrize("table", ["(k INTEGER PRIMARY KEY, v)", "(v, k, PRIMARY KEY (k, v)) WITHOUT ROWID"])
def test_what_triggers_did_of_a_statement_that_fails_is_undone_or_kept_with_it(table: str) -> None:
    """SQLite counts what triggers change in both cases."""
    capture = Capture()
    capture.transact(
        f"CREATE TABLE t {table}",
        "CREATE TABLE log (rowid, oid, _rowid_)",
        "CREATE TABLE said (x PRIMARY KEY)",
        "CREATE TRIGGER b BEFORE INSERT ON t BEGIN INSERT INTO log VALUES (new.k, 1, 1);"
        " INSERT INTO said VALUES (new.k); SELECT RAISE(FAIL, 'no') WHERE new.k > 90;"
        " SELECT RAISE(ABORT, 'no') WHERE new.k < 0; END",
    )
    kept = capture.transact(
        "INSERT INTO t (k, v) VALUES (1, 1), (-2, 2)",  # all of it is undone
        "INSERT INTO t (k, v) VALUES (-3, 3)",
        "INSERT INTO t (k, v) VALUES (91, 1)",  # what was done before the row is kept
        "INSERT INTO t (k, v) VALUES (5, 5), (92, 2)",
        "INSERT INTO t (k, v) VALUES (6, 6), (92, 2)",  # undone: it was said before
        "INSERT OR FAIL INTO t (k, v) VALUES (7, 7), (92, 2)",
    )
    said = [one.new["x"] for one in kept if one.table == "said" and one.new is not None]
    assert said == [91, 5, 92, 7]
    assert [one.new["k"] for one in kept if one.table == "t" and one.new is not None] == [5, 7]
    capture.check()


def test_savepoints_of_one_name_are_those_of_sqlite() -> None:
    capture = Capture()
    capture.transact("CREATE TABLE t (k INTEGER PRIMARY KEY, v)")
    found = capture.transact(
        "SAVEPOINT a",
        "INSERT INTO t VALUES (1, 1)",
        "SAVEPOINT a",
        "INSERT INTO t VALUES (2, 2)",
        "ROLLBACK TO a",
        "RELEASE a",
        "INSERT INTO t VALUES (3, 3)",
        "ROLLBACK TO a",
        "INSERT INTO t VALUES (4, 4)",
    )
    assert [one.key for one in found] == [{"k": 4}]
    capture.check()


def test_a_table_that_changes_within_a_transaction_is_known_at_each_moment() -> None:
    capture = Capture()
    capture.transact("CREATE TABLE t (k INTEGER PRIMARY KEY, v)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    found = capture.transact(
        "UPDATE t SET v = 5 WHERE k = 1",
        "ALTER TABLE t ADD COLUMN w DEFAULT 9",
        "UPDATE t SET v = 6 WHERE k = 1",
        "ALTER TABLE t DROP COLUMN v",
        "INSERT INTO t VALUES (3, 3)",
        "CREATE TABLE q AS SELECT k AS rowid, w FROM t",
        "CREATE TABLE IF NOT EXISTS q (z)",
        "UPDATE q SET w = 8 WHERE oid = 2",
        "DROP TABLE t",
        "CREATE TABLE t (z PRIMARY KEY) WITHOUT ROWID",
        "INSERT INTO t VALUES (7)",
    )
    assert [one.new for one in found if one.new is not None] == [
        {"k": 1, "v": 5},
        {"k": 1, "v": 6, "w": 9},
        {"k": 3, "w": 3},
        *({"rowid": key, "w": value} for key, value in ((1, 9), (2, 9), (3, 3))),
        {"rowid": 2, "w": 8},
        {"z": 7},
    ]
    assert sum(one.operation == "schema" for one in found) == 5
    assert capture.transact("DELETE FROM t")[0].key == {"z": 7}


def test_virtual_tables_and_how_they_are_stored_are_no_rows() -> None:
    capture = Capture()
    found = capture.transact("CREATE VIRTUAL TABLE ft USING fts5 (x)", "INSERT INTO ft VALUES ('hello')")
    assert [one.operation for one in found] == ["schema"]


@pytest.mark.parametrize(
    ("sql", "parameters", "error"),
    [
        ("CREATE TABLE v (a, b AS (a + 1))", (), StatementRefused),
        ("INSERT INTO d (k) VALUES (CAST(x'ff' AS TEXT))", (), StatementRefused),
        ("INSERT INTO d (k) VALUES (zeroblob(30000))", (), TransactionTooLarge),
    ],
)
def test_what_cannot_be_noted_is_refused_and_its_transaction_must_end(sql: str, parameters: Any, error: Any) -> None:
    capture = Capture(limit=20_000)
    capture.transact(*_SCHEMA)
    capture.begin()
    capture.execute("INSERT INTO d (k) VALUES (1)")
    with pytest.raises(error):
        capture.execute(sql, parameters)
    assert capture.rows.spoiled
    capture.end(commit=False)
    assert [one.operation for one in capture.transact("INSERT INTO d (k) VALUES (1)")] == ["insert"]
    assert not capture.rows.spoiled


def test_changes_as_bytes_are_what_they_were_and_nothing_else_is_taken() -> None:
    codec, shape = Codec(), TableShape("t", ("k", "v"), ("k",), True)
    noted: list[Noted] = [
        SchemaChange("CREATE TABLE t (k, v)"),
        RowChange(INSERT, shape, -(2**63), 2**63 - 1, None, (b"", "ü")),
        RowChange(INSERT, shape, 1, 1, (1.5, None), (float("-inf"), "x" * 500)),
    ]
    whole = joined(noted, b"\1\1rest", codec)
    changes, group = separated(whole)
    assert (decode_changes(changes, codec), group) == (noted, b"\1\1rest")
    assert separated(b"\1\1rest") == (b"", b"\1\1rest")
    for cut in (changes[:-1], changes[:5], changes[:11] + b"?" * (len(changes) - 11)):
        with pytest.raises(UnknownCommand):
            decode_changes(cut, codec)
    with pytest.raises(UnknownCommand):
        separated(whole[:4])


# -- in a cluster ------------------------------------------------------------------------------------------------------


async def test_a_reader_gets_what_is_committed_in_order_and_goes_on_where_it_was(ns: Namespace) -> None:
    await ns.create_database("main", cdc=True)
    async with ns.database("main") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v)")
        await db.batch([("INSERT INTO t VALUES (?, ?)", (number, "x" * 400)) for number in range(3)])
        with pytest.raises(SqlError):
            await db.batch(["INSERT INTO t VALUES (9, 9)", "INSERT INTO t VALUES (1, 1)"])
        async with db.transaction() as t:
            await t.execute("UPDATE t SET v = 'new' WHERE k = 1")
            await t.execute("SAVEPOINT s")
            await t.execute("DELETE FROM t")
            await t.execute("ROLLBACK TO s")
        await db.execute("PRAGMA user_version = 4")
        await db.execute("VACUUM")
        copy = Copy()
        async for change in db.changes():
            copy.apply(change)
        said = [(one.operation, one.key) for one in copy.seen]
        assert said == [
            ("schema", None),
            *(("insert", {"k": number}) for number in range(3)),
            ("update", {"k": 1}),
            ("schema", None),
        ]
        assert [one.last for one in copy.seen] == [True, False, False, True, True, True]
        wanted = (await db.query("SELECT k, v FROM t ORDER BY k")).rows
        assert list(copy.db.execute("SELECT k, v FROM t ORDER BY k")) == wanted
        first = copy.seen[0]
        assert [one async for one in db.changes(after=first.offset)] == copy.seen[1:]
        assert [one async for one in db.changes(after=-1)] == copy.seen
        assert [one async for one in ns.database_changes("main", copy.seen[-1].offset)] == copy.seen[-1:]
        with pytest.raises(InvalidArgument, match="beyond the end"):
            await anext(ns.database_changes("main", 10_000))


async def test_whoever_follows_gets_what_comes_also_of_another_leader(client: Client, ns: Namespace) -> None:
    await ns.create_database("main", cdc=True)
    async with ns.database("main") as one, ns.database("main", stand=False) as two:
        await one.lead()
        await one.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v)")
        changes = ns.database_changes("main", follow=True)
        assert (await anext(changes)).operation == "schema"
        await one.execute("INSERT INTO t VALUES (1, ?)", (b"\1" * 600_000,))  # in two parts
        assert (await anext(changes)).key == {"k": 1}
        await two.lead(takeover=True)
        await two.execute("ALTER TABLE t ADD COLUMN w")
        await two.execute("INSERT INTO t VALUES (2, 2, 3)")
        assert (await anext(changes)).sql == "ALTER TABLE t ADD COLUMN w"
        assert (await anext(changes)).new == {"k": 2, "v": 2, "w": 3}
        await two.step_down()
        await one.lead()
        await one.execute("INSERT INTO t VALUES (3, 3, 4)")  # its connection is of before the column
        assert (await anext(changes)).new == {"k": 3, "v": 3, "w": 4}
        await changes.aclose()  # type: ignore[attr-defined]  # a generator


async def test_what_cannot_be_noted_fails_alone_or_with_its_transaction(ns: Namespace) -> None:
    await ns.create_database("main", cdc=True)
    async with ns.database("main", limits=DatabaseLimits(transaction_bytes=64 * 1024)) as db:
        await db.lead()
        await db.execute("CREATE TABLE t (k)")
        bad, good = "INSERT INTO t VALUES (CAST(x'ff' AS TEXT))", "INSERT INTO t VALUES (1)"
        given = await asyncio.gather(*(db.execute(sql) for sql in (good, bad, good)), return_exceptions=True)
        assert [type(one) for one in given] == [SqlResult, StatementRefused, SqlResult]
        await db.execute("UPDATE t SET k = hex(zeroblob(9000))")
        transaction = await db.begin("immediate")
        await transaction.execute("INSERT INTO t VALUES (3)")
        with pytest.raises(TransactionTooLarge):
            await transaction.execute("UPDATE t SET k = k || k")  # more in both images than the pages have
        with pytest.raises(HandleClosed):
            await transaction.execute("SELECT 1")
        await transaction.rollback()
        copy = Copy()
        async for change in db.changes():
            copy.apply(change)
        assert list(copy.db.execute("SELECT k FROM t")) == (await db.query("SELECT k FROM t")).rows
        assert len(copy.seen) == 5


async def test_changes_that_are_gone_or_were_never_kept_are_clear_errors(ns: Namespace) -> None:
    async with ns.database("plain") as db:
        await db.lead()
        await db.execute("CREATE TABLE t (k)")
        with pytest.raises(ChangesNotKept, match="--cdc"):
            await anext(db.changes())
    await ns.create("stream")
    with pytest.raises(NotDatabase):
        await anext(ns.database_changes("stream"))
    await ns.create_database("main", cdc=True)
    async with ns.database("main", settings=MachineSettings(keep_snapshots=2)) as db:
        await db.lead()
        await db.execute("CREATE TABLE t (k)")
        for number in range(3):
            await db.execute("INSERT INTO t VALUES (?)", (number,))
            await db.snapshot()
        with pytest.raises(ChangesGone, match="copy the database") as caught:
            await anext(db.changes(after=-1))
        kept = [one async for one in db.changes()]
        assert [one.new for one in kept] == [{"k": 2}]
        assert [one async for one in ns.database_changes("main", caught.value.earliest)] == kept
        for bad in (-2, True, "0"):
            with pytest.raises(InvalidArgument, match="an offset"):
                db.changes(after=bad)  # type: ignore[arg-type]  # what is tested
        with pytest.raises(InvalidArgument, match="an offset"):
            await anext(ns.database_changes("main", -1))


def test_the_blocking_twin_gets_the_same() -> None:
    with ThreadedCluster(bookies=3) as running, sync.connect(running.uri) as client:
        ns = client.namespace()
        ns.create_database("main", cdc=True)
        with closing(connect(running.uri, "default/main")) as connection:
            connection.execute("CREATE TABLE t (k INTEGER PRIMARY KEY)")
            connection.execute("INSERT INTO t VALUES (1), (2)")
            connection.commit()
        found = list(ns.database_changes("main"))
        assert [(one.operation, one.key) for one in found] == [
            ("schema", None),
            ("insert", {"k": 1}),
            ("insert", {"k": 2}),
        ]
        follower = ns.database_changes("main", found[1].offset, follow=True)
        assert [next(follower) for _ in found] == found  # they are of one transaction
        del follower
        ns.create_database("plain")
        with pytest.raises(ChangesNotKept):
            next(ns.database_changes("plain"))
