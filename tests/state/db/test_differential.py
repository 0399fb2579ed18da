"""Random schemas and transactions against SQLite alone; afterwards every follower has the same bytes."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.state.db.kit import check_equal, image_of
from tests.support.soak import soak

from buckram.cluster import Client
from buckram.errors import SqlError
from buckram.state.db.commits.transactions import OpenTransaction
from buckram.state.db.database import Database
from buckram.testing import cluster

_TABLES = st.sampled_from(["a", "b", "c"])
_VALUES = st.one_of(st.none(), st.integers(-5, 5), st.text(max_size=8), st.binary(max_size=6000), st.floats(-1, 1))
_KEYS = st.integers(1, 12)
_SCHEMAS = [
    "CREATE TABLE {} (k INTEGER PRIMARY KEY, v, w UNIQUE)",
    "CREATE TABLE {} (k TEXT PRIMARY KEY COLLATE NOCASE, v, w CHECK (w IS NULL OR w <> 3)) WITHOUT ROWID",
    "CREATE TABLE {} (k PRIMARY KEY, v, w DEFAULT 7, x AS (length(v)) STORED)",
    "CREATE VIRTUAL TABLE {} USING fts5 (k, v, w)",
    "CREATE TABLE {} (k, v, w, FOREIGN KEY (w) REFERENCES a (k) DEFERRABLE INITIALLY DEFERRED)",
]
_STATEMENTS = st.one_of(
    st.tuples(
        st.builds("INSERT INTO {} (k, v, w) VALUES (?, ?, ?)".format, _TABLES), st.tuples(_KEYS, _VALUES, _VALUES)
    ),
    st.tuples(
        st.builds("REPLACE INTO {} (k, v, w) VALUES (?, ?, ?)".format, _TABLES), st.tuples(_KEYS, _VALUES, _VALUES)
    ),
    st.tuples(st.builds("UPDATE {} SET v = ?, k = k + 1 WHERE k > ?".format, _TABLES), st.tuples(_VALUES, _KEYS)),
    st.tuples(st.builds("DELETE FROM {} WHERE k = ?".format, _TABLES), st.tuples(_KEYS)),
    st.tuples(st.builds("DELETE FROM {}".format, _TABLES), st.just(())),
    st.tuples(st.builds("SELECT k, v FROM {} ORDER BY 1, 2".format, _TABLES), st.just(())),
    st.tuples(st.builds("DROP TABLE IF EXISTS {}".format, _TABLES), st.just(())),
    st.tuples(st.builds("CREATE INDEX IF NOT EXISTS i_{0} ON {0} (v)".format, _TABLES), st.just(())),
    st.tuples(
        st.builds(
            "CREATE TRIGGER IF NOT EXISTS t_{0} AFTER DELETE ON {0} BEGIN DELETE FROM a WHERE k = old.k; END".format,
            _TABLES,
        ),
        st.just(()),
    ),
    st.tuples(st.builds("ALTER TABLE {} ADD COLUMN y DEFAULT 'new'".format, _TABLES), st.just(())),
    st.tuples(st.just("PRAGMA user_version = 7"), st.just(())),
    st.tuples(st.builds(lambda form, table: form.format(table), st.sampled_from(_SCHEMAS), _TABLES), st.just(())),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("one"), _STATEMENTS),
        st.tuples(st.just("batch"), st.lists(_STATEMENTS, min_size=1, max_size=6)),
        st.tuples(st.just("transaction"), st.lists(_STATEMENTS, max_size=6)),
        st.tuples(st.just("rolled back"), st.lists(_STATEMENTS, max_size=6)),
        st.just(("vacuum", None)),
        st.just(("snapshot", None)),
        st.just(("take over", None)),
    ),
    min_size=3,
    max_size=25,
)


class Plain:
    """SQLite alone, doing what the database is asked to do."""

    def __init__(self) -> None:
        self.db = apsw.Connection(":memory:")
        self.db.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
        self.db.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)

    def one(self, statement: tuple[str, Any]) -> list[Any] | None:
        """The rows, or None after an error."""
        try:
            return self.db.execute(*statement).fetchall()
        except apsw.Error:
            return None

    def batch(self, statements: list[tuple[str, Any]]) -> bool:
        self.db.execute("BEGIN")
        done = all(self.one(statement) is not None for statement in statements)
        return self.end(done) if done else self.end(False)

    def end(self, commit: bool) -> bool:
        """End the transaction; returns whether it was committed."""
        if commit:
            try:
                self.db.execute("COMMIT")
                return True
            except apsw.Error:
                pass
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        return False


def dumped(connection: apsw.Connection) -> list[Any]:
    """Everything that SQL can see: the schema, and the rows of each table."""
    schema = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY 1, 2").fetchall()
    found: list[Any] = [schema, connection.pragma("user_version")]
    for kind, name, _, _ in schema:
        if kind == "table":
            found.append(sorted(map(repr, connection.execute(f'SELECT * FROM "{name}"').fetchall())))
    return found


def opened(image: bytes, path: Path) -> apsw.Connection:
    """An image as a database of SQLite's."""
    path.write_bytes(image[:18] + b"\1\1" + image[20:])
    return apsw.Connection(str(path))


def test_random_transactions_are_those_of_sqlite_and_equal_on_every_replica(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        world = runner.run(World.begin(tmp_path))

        @settings(max_examples=soak(40, 15), deadline=None, suppress_health_check=list(HealthCheck))
        @given(_STEPS)
        def check(steps: list[Any]) -> None:
            runner.run(world.play(steps))

        try:
            check()
        finally:
            runner.run(world.end())


class World:
    """One cluster for all examples; each has a database of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stack = AsyncExitStack()
        self.one: Client
        self.two: Client
        self.number = 0

    @classmethod
    async def begin(cls, path: Path) -> World:
        world = cls(path)
        running = await world.stack.enter_async_context(cluster(bookies=1))
        world.one = await world.stack.enter_async_context(running.client())
        world.two = await world.stack.enter_async_context(running.client())
        await world.one.namespaces.create("shop", ensemble="1/1/1")
        return world

    async def end(self) -> None:
        await self.stack.aclose()

    async def play(self, steps: list[Any]) -> None:
        self.number += 1
        name = f"db{self.number}"
        plain = Plain()
        leader = await self.one.namespace("shop").database(name)
        follower = await self.two.namespace("shop").database(name, stand=False)
        try:
            await leader.lead()
            for kind, what in steps:
                if kind == "take over":
                    await leader.step_down()
                    await follower.lead()
                    leader, follower = follower, leader
                elif kind == "snapshot":
                    await leader.snapshot()
                    home = self.two if follower._replica.place.client is self.two else self.one
                    await follower.aclose()
                    follower = await home.namespace("shop").database(name, stand=False)
                else:
                    await _step(leader, plain, kind, what)
                await check_equal(leader, [follower])
            path = self.path / f"{name}.db"
            with opened(await image_of(leader), path) as copy:
                assert dumped(copy) == dumped(plain.db)
        finally:
            await leader.aclose()
            await follower.aclose()


async def _step(leader: Database, plain: Plain, kind: str, what: Any) -> None:
    if kind == "one":
        assert await _rows(leader, what) == plain.one(what)
    elif kind == "batch":
        try:
            await leader.batch(what)
            done = True
        except SqlError:
            done = False
        assert done == plain.batch(what)
    elif kind == "vacuum":
        await leader.execute("VACUUM")
        plain.db.execute("VACUUM")
    else:
        await _transaction(leader, plain, what, kind == "transaction")


async def _rows(executes: Database | OpenTransaction, statement: Any) -> Any:
    try:
        return (await executes.execute(*statement)).rows
    except SqlError:
        return None


async def _transaction(leader: Database, plain: Plain, statements: list[tuple[str, Any]], commit: bool) -> None:
    plain.db.execute("BEGIN")
    transaction = await leader.begin()
    for statement in statements:
        assert await _rows(transaction, statement) == plain.one(statement)
    done = commit
    if commit:
        try:
            await transaction.commit()
        except SqlError:
            done = False
    await transaction.rollback()
    assert plain.end(commit) == done
