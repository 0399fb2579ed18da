"""Clients: transactions of every kind on whoever leads, repeated under their tokens; reads in every way.

A client is no process: it survives the replicas that it asks, as a program that wrote its tokens down does. Not here:
transactions of several calls (`interactive.py`), finding the leader (`asking.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.core.db.sql import SqlResult
from buckram.db.database import Database
from buckram.errors import (
    BuckramError,
    CommitUnknown,
    DatabaseBusy,
    NotLeader,
    SqlError,
    TooStale,
    TransactionTooLarge,
)
from buckram.sim.database.asking import Asking
from buckram.sim.database.interactive import Interactive, appending, lists_of
from buckram.sim.database.rules import Attempt
from buckram.sim.database.stage import Stage
from buckram.sim.engine.checkers.linearizability import UNKNOWN
from buckram.sim.engine.checkers.serializability import Append
from buckram.sim.engine.world import Died

KEYS = 3
ABORTED = "aborted"
READ = "SELECT key, value FROM lists ORDER BY id"
SCHEMA = (
    "CREATE TABLE registers (key TEXT PRIMARY KEY, value TEXT)",
    "CREATE TABLE lists (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT, value TEXT)",
    "CREATE INDEX by_key ON lists (key)",
    "CREATE TABLE taken (number INTEGER PRIMARY KEY)",
    "CREATE TABLE bulk (number INTEGER PRIMARY KEY, data BLOB)",
    "INSERT INTO taken VALUES (1)",
    "INSERT INTO registers VALUES ('r0', NULL), ('r1', NULL), ('r2', NULL)",
)


class ClientActor:
    """One client."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.world, self.name, self.rules = stage, stage.world, name, stage.rules
        self.asking = Asking(stage, f"database {name}")
        self.rng = self.asking.rng
        self._serial = 0
        self._values: list[str] = []

    async def prepare(self) -> None:
        """Make the tables."""
        await self._execute(list(SCHEMA), "schema", 200)

    async def run(self) -> None:
        for _ in range(self.stage.machines.commands):
            if self.stage.over:
                return
            await self.act()
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.01, 0.3, 0.8)))

    async def act(self) -> None:
        """One call, or a few at once."""
        kind = self.rng.random()
        if kind < 0.25:
            await asyncio.gather(*(self.register() for _ in range(self.rng.choice((1, 1, 4)))))
        elif kind < 0.5:
            await asyncio.gather(*(self.unit() for _ in range(self.rng.choice((1, 1, 4)))))
        elif kind < 0.7:
            await Interactive(self.asking, self.attempt(token=True)).run()
        elif kind < 0.85:
            await self.read()
        elif kind < 0.95:
            await self.stale_read()
        else:
            await self._execute("VACUUM", None, 1)

    def attempt(self, *, token: bool) -> Attempt:
        """The next transaction in the history."""
        name = f"{self.name}.{self._serial}"
        self._serial += 1
        attempt = Attempt(name, self.world.loop.time(), token=f"token {name}" if token else None)
        self.rules.attempts.append(attempt)
        return attempt

    # -- statements ---------------------------------------------------------------------------------------

    async def register(self) -> None:
        """A statement on a register, alone."""
        rng, name, key = self.rng, f"{self.name}.{self._serial}", f"r{self.rng.randrange(KEYS)}"
        self._serial += 1
        began, token = self.world.loop.time(), f"token {name}" if rng.random() < 0.6 else None
        kind = rng.random()
        if kind < 0.3:
            result = await self._execute(("SELECT value FROM registers WHERE key = ?", (key,)), None, 5)
            if isinstance(result, list):
                self.rules.call(self.name, ("read",), key, result[0].rows[0][0], began)
            return
        if kind < 0.7:
            operation: tuple[Any, ...] = ("write", name)
            statement = "UPDATE registers SET value = ? WHERE key = ?", (name, key)
        else:
            old = rng.choice([None, *self._values[-2:]])
            operation = ("cas", old, name)
            statement = "UPDATE registers SET value = ? WHERE key = ? AND value IS ?", (name, key, old)  # type: ignore[assignment]  # three values
        self._values.append(name)
        result = await self._execute(statement, token, rng.choice((3, 40)))
        if result == ABORTED:
            return
        given: Any = UNKNOWN
        if isinstance(result, list):
            given = None if operation[0] == "write" else bool(result[0].rows_affected)
        self.rules.call(self.name, operation, key, given, began)

    async def unit(self) -> None:
        """A batch: appends to lists, sometimes with much data, sometimes one that fails at its end."""
        rng, attempt = self.rng, self.attempt(token=self.rng.random() < 0.6)
        statements: list[Any] = []
        for n in range(rng.choice((1, 1, 2, 3))):
            one = Append(f"l{rng.randrange(KEYS)}", f"{attempt.name}.{n}")
            attempt.operations.append(one)
            statements.append(appending(one))
        if rng.random() < 0.25:
            statements.append(("INSERT INTO bulk (data) VALUES (?)", (rng.randbytes(rng.choice((9000, 90000))),)))
        if rng.random() < 0.1:
            statements.append(("DELETE FROM bulk", ()))
        fails = rng.random() < 0.15
        if fails:
            statements.append(("INSERT INTO taken VALUES (1)", ()))
        result = await self._execute(statements, attempt.token, rng.choice((3, 40, 40)))
        if result is UNKNOWN:
            return
        if fails and result == ABORTED:
            self.world.report.situation("a transaction failed alone")
        attempt.outcome = "aborted" if result == ABORTED else "ok"
        counts = [one.rows_affected for one in result] if isinstance(result, list) else None
        self.rules.told(attempt, counts)
        if attempt.outcome == "ok":
            self.rules.acknowledged(attempt, self.asking.applied)

    async def _execute(self, statements: Any, token: str | None, attempts: int) -> list[SqlResult] | Any:
        """Return the results, "aborted", None if they are committed and nobody knows the results, or UNKNOWN."""

        async def execute(database: Database) -> list[SqlResult]:
            if isinstance(statements, list):
                return await database.batch(statements, token=token)
            sql, values = (statements, ()) if isinstance(statements, str) else statements
            return [await database.execute(sql, values, token=token)]

        for attempt in range(attempts):
            if attempt and token:
                self.world.report.situation("a transaction was repeated")
            try:
                return await self.asking.ask(execute)
            except (SqlError, TransactionTooLarge) as error:
                if not isinstance(error, DatabaseBusy):
                    self.world.trace.note(self.name, str(error))
                    return ABORTED
            except NotLeader:
                pass
            except CommitUnknown as error:
                self.world.report.situation("a commit was unknown")
                if token is None:
                    outcome = await self.asking.outcome(error.token)
                    return {"committed": None, "aborted": ABORTED}.get(outcome, UNKNOWN)
            except (BuckramError, TimeoutError, Died) as error:
                self.world.trace.note(self.name, f"{error!r}")
                if token is None:
                    return UNKNOWN
            await asyncio.sleep(self.rng.random() * 0.3)
        return UNKNOWN if token else ABORTED

    # -- reads --------------------------------------------------------------------------------------------

    async def read(self) -> None:
        """All lists, linearizable; an attempt without an answer is not in the history."""
        attempt = Attempt(f"{self.name}.{self._serial} reads", self.world.loop.time())
        self._serial += 1
        result = await self._execute((READ, ()), None, 5)
        if isinstance(result, list):
            attempt.operations += lists_of(result[0], KEYS)
            attempt.outcome, attempt.ended = "ok", self.world.loop.time()
            self.rules.attempts.append(attempt)

    async def stale_read(self) -> None:
        """A read on any replica that says how old it may be, or what must be in it."""
        hosts = self.stage.living()
        if not hosts:
            return
        host, at_most_s = self.rng.choice(hosts), self.rng.choice((0.0, 0.05, 1.0, None))
        after, began = self.asking.applied if at_most_s is None else None, self.world.loop.time()

        async def question(database: Database) -> SqlResult:
            return await database.query(READ, consistency="stale", at_most_s=at_most_s, after=after)

        try:
            result = await self.asking.ask_at(host, question, 6.0)
        except TooStale:
            return
        except (BuckramError, TimeoutError, Died) as error:
            self.world.trace.note(self.name, f"stale read: {error!r}")
            return
        reads = lists_of(result, KEYS)
        moment = began - at_most_s if at_most_s is not None else -1.0
        self.rules.fresh(host, {str(value) for one in reads for value in one.values}, moment, after)
        # In the history without its time: it may be old, but it is one of the states.
        self.rules.attempts.append(Attempt(f"{self.name} stale", -1.0, [*reads], None, "ok"))


__all__ = ["READ", "ClientActor"]
