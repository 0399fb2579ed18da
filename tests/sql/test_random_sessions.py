"""Random statements of one caller beside SQLite: rows, errors, and whether a transaction is open, after each of them.

Every second database keeps what happens to rows, and a copy that is made of that alone has the same rows in the end.
"""

from __future__ import annotations

import random
from typing import Any

import apsw
from scripts.share import share_of_this_run
from tests.state.db.change_copy import Copy, rows
from tests.support.soak import soak

from buckram.cluster import Client
from buckram.errors import SqlError
from buckram.sql.session import SqlSession
from buckram.state.db.database import Database

_SEEDS, _STATEMENTS = soak(400, 12), 60
_SCHEMA = (
    "CREATE TABLE p (id INTEGER PRIMARY KEY CHECK (id < 50), v UNIQUE)",
    "CREATE TABLE c (p REFERENCES p ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED, w NOT NULL)",
    "CREATE TRIGGER fails BEFORE INSERT ON c WHEN new.w = 3 BEGIN SELECT RAISE(FAIL, 'fails'); END",
    "CREATE TRIGGER rolls BEFORE INSERT ON c WHEN new.w = 4 BEGIN SELECT RAISE(ROLLBACK, 'rolls'); END",
    "CREATE TRIGGER adds AFTER INSERT ON p BEGIN INSERT INTO c VALUES (new.id, 2); END",
)
_FORMS = {
    "BEGIN": 5,
    "BEGIN IMMEDIATE": 5,
    "COMMIT": 5,
    "ROLLBACK": 3,
    "SAVEPOINT {s}": 10,
    "ROLLBACK TO {s}": 6,
    "RELEASE {s}": 6,
    "INSERT {o} INTO p VALUES ({v}, {w}), ({x}, {y}){r}": 14,
    "INSERT {o} INTO c VALUES ({v}, {w}), ({x}, {y}){r}": 12,
    "UPDATE {o} p SET id = {v} WHERE v = {w}{r}": 6,
    "DELETE FROM p WHERE id > {v}{r}": 6,
    "WITH x (i) AS (VALUES ({v})) DELETE FROM c WHERE p IN (SELECT i FROM x){r}": 3,
    "PRAGMA foreign_keys": 3,
    "PRAGMA defer_foreign_keys = ON": 2,
    "CREATE TABLE IF NOT EXISTS z (a)": 1,
    "DROP TABLE IF EXISTS z": 1,
    "INSERT INTO z (a) VALUES (1)": 1,
    "ALTER TABLE z ADD COLUMN b": 1,
    "SELEKT": 1,
    "-- nothing": 1,
    "SELECT * FROM p ORDER BY 1, 2": 4,
    "SELECT * FROM c ORDER BY 1, 2": 4,
    "WITH q AS (SELECT * FROM c) SELECT count(*) FROM q": 2,
}
_WORDS = {
    "s": ("s", "t"),
    "o": ("", "OR FAIL", "OR ROLLBACK", "OR IGNORE", "OR REPLACE", "OR ABORT"),
    "r": ("", " RETURNING *"),
    **dict.fromkeys("vwxy", ("1", "2", "3", "4", "NULL", "-1", "'a'", "99")),
}


async def test_what_a_caller_does_gives_what_sqlite_gives(client: Client) -> None:
    ns, first, succeeded = client.namespace("shop"), (share_of_this_run() or 0) * _SEEDS, 0
    for seed in range(first, first + _SEEDS):
        await ns.create_database(f"random{seed}", cdc=bool(seed % 2))
        async with ns.database(f"random{seed}") as database:
            await database.lead()
            succeeded += await _play(seed, database)
            if seed % 2:
                await _check_changes(seed, database)
    assert succeeded > _SEEDS * _STATEMENTS // 3


async def _play(seed: int, database: Database) -> int:
    """How many statements succeeded."""
    rng, session, plain, succeeded = (
        random.Random(f"session {seed}"),
        SqlSession(database),
        apsw.Connection(":memory:"),
        0,
    )
    plain.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, 1)
    texts = [*_SCHEMA, *(_drawn(rng) for _ in range(_STATEMENTS))]
    for at, sql in enumerate(texts):
        given, wanted = await _rows(session, sql), _rows_of_sqlite(plain, sql)
        before = "\n".join(texts[:at])
        assert given == wanted, f"seed {seed}: {sql} after\n{before}"
        assert session.autocommit is not plain.in_transaction, f"seed {seed}: {sql} after\n{before}"
        succeeded += isinstance(given, list)
    await session.close()
    return succeeded


def _drawn(rng: random.Random) -> str:
    (form,) = rng.choices(list(_FORMS), list(_FORMS.values()))
    return form.format(**{name: rng.choice(words) for name, words in _WORDS.items()})


async def _rows(session: SqlSession, sql: str) -> Any:
    try:
        return (await session.execute(sql)).rows
    except SqlError as error:
        return error.message


def _rows_of_sqlite(plain: apsw.Connection, sql: str) -> Any:
    try:
        return plain.execute(sql).fetchall()
    except apsw.Error as error:
        return str(error)


async def _check_changes(seed: int, database: Database) -> None:
    copy = Copy()
    async for change in database.changes():
        copy.apply(change)
    for table, found in rows(copy.db).items():
        rowid = "rowid, " if found else ""
        there = (await database.query(f'SELECT {rowid}* FROM "{table}"')).rows
        assert sorted(map(repr, there)) == found, f"seed {seed}: table {table}"
