"""Clients: they execute transactions of every kind on the leader, and repeat them under their tokens.

A client is no process: it survives the replicas that it asks, as a program that wrote its tokens down does. Not here:
transactions of several calls (`interactive.py`), reads (`reading.py`), repeated tokens and outcome queries
(`doubting.py`), finding the leader (`asking.py`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError, CommitUnknown, DatabaseBusy, NotLeader, SqlError, TransactionTooLarge
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.doubting import Doubting
from simulator.database.interactive import Interactive, appending
from simulator.database.reading import KEYS, READ, Reading
from simulator.database.rules import Attempt
from simulator.database.stage import Stage
from simulator.engine.checkers.linearizability import UNKNOWN
from simulator.engine.checkers.serializability import Append
from simulator.engine.world import Died

ABORTED = "aborted"
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
        self.reading, self.doubting = Reading(self.asking), Doubting(self.asking)
        self._serial = 0
        self._values: list[str] = []

    async def prepare(self) -> None:
        """Create the tables."""
        await self._execute(list(SCHEMA), "schema", 200)

    async def run(self) -> None:
        for _ in range(self.stage.machines.commands):
            if self.stage.over:
                return
            await self.act()
            await asyncio.sleep(self.rng.random() * self.rng.choice((0.01, 0.3, 0.8)))

    async def act(self) -> None:
        """Make one call, or a few at once."""
        kind = self.rng.random()
        if kind < 0.22:
            await asyncio.gather(*(self.register() for _ in range(self.rng.choice((1, 1, 4)))))
        elif kind < 0.44:
            await asyncio.gather(*(self.unit() for _ in range(self.rng.choice((1, 1, 4)))))
        elif kind < 0.58:
            await self.interactive()
        elif kind < 0.66:
            await self.read()
        elif kind < 0.74:
            await self.reading.everywhere(self._name("reads everywhere"))
        elif kind < 0.80:
            await self.reading.stale()
        elif kind < 0.90:
            await self.doubting.repeat()
        elif kind < 0.95:
            await self.doubting.ask_meanwhile(self.attempt(token=True))
        else:
            await self.shrink()

    def _name(self, what: str = "") -> str:
        name = f"{self.name}.{self._serial} {what}".rstrip()
        self._serial += 1
        return name

    async def interactive(self) -> None:
        """Run a transaction of several calls, sometimes under a token that was used before."""
        used = self.doubting.used() if self.rng.random() < 0.15 else None
        attempt = self.attempt(token=used is None and self.rng.random() < 0.6)
        transaction = Interactive(self.asking, attempt, used)
        await transaction.run()
        if attempt.token is not None and transaction.counts is not None:
            self.doubting.remember(None, attempt.token, transaction.counts)

    async def shrink(self) -> None:
        """Run VACUUM, which drops free pages at the end of the file; often after filling and emptying a table."""
        if self.rng.random() < 0.7:
            data = self.rng.randbytes(self.rng.choice((10_000, 20_000)))
            await self._execute([("INSERT INTO bulk (data) VALUES (?)", (data,))], None, 1)
            await self._execute(["DELETE FROM bulk"], None, 1)
        await self._execute("VACUUM", None, 2)

    def attempt(self, *, token: bool) -> Attempt:
        """Add the next transaction to the history and return it."""
        name = self._name()
        attempt = Attempt(name, self.world.loop.time(), token=f"token {name}" if token else None)
        self.rules.attempts.append(attempt)
        return attempt

    # -- statements ---------------------------------------------------------------------------------------

    async def register(self) -> None:
        """Execute a single statement on a register."""
        rng, name, key = self.rng, self._name(), f"r{self.rng.randrange(KEYS)}"
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
            changed = result[0].rows_affected
            given = None if operation[0] == "write" else bool(changed)
            if token is not None:
                self.rules.answered(token)
                self.doubting.remember(statement, token, [changed])
                if not changed:
                    self.world.report.situation("a call that changed nothing left a receipt")
        self.rules.call(self.name, operation, key, given, began)

    async def unit(self) -> None:
        """Execute a batch: appends to lists, sometimes with much data, sometimes with a last statement that fails."""
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
        if fails:
            self.world.report.check("D4", result == ABORTED, "{} failed, and is told to be committed", attempt.name)
        if fails and result == ABORTED:
            self.world.report.situation("a transaction failed alone")
        attempt.outcome = "aborted" if result == ABORTED else "ok"
        counts = [one.rows_affected for one in result] if isinstance(result, list) else None
        self.rules.told(attempt, counts)
        if attempt.token is not None and counts is not None:
            self.doubting.remember(statements, attempt.token, counts)
        if attempt.outcome == "ok":
            self.rules.acknowledged(attempt, self.asking.applied, self.asking.answered)

    async def _execute(self, statements: Any, token: str | None, attempts: int) -> list[SqlResult] | Any:
        """Return the results, "aborted", None if it is committed and the results are not known, or UNKNOWN."""

        async def execute(database: Database) -> list[SqlResult]:
            if isinstance(statements, list):
                return await database.batch(statements, token=token)
            sql, values = (statements, ()) if isinstance(statements, str) else statements
            return [await database.execute(sql, values, token=token)]

        for attempt in range(attempts):
            if attempt and token:
                self.world.report.situation("a transaction was repeated")
            try:
                # A call without a token may wait until its leader reports CommitUnknown.
                return await self.asking.ask(execute, 0.0 if token else self.rng.choice((0.0, 12.0)))
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
        """Read all lists, linearizable; an attempt without an answer is not in the history."""
        attempt = Attempt(self._name("reads"), self.world.loop.time())
        result = await self._execute((READ, ()), None, 5)
        if isinstance(result, list):
            self.reading.note(attempt, result[0])


__all__ = ["ClientActor"]
