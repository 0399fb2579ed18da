"""Transactions of several calls: reads and appends, with time between them, savepoints and what spills."""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.core.db.sql import SqlResult
from buckram.db.database import Database
from buckram.db.transactions import OpenTransaction
from buckram.errors import BuckramError, CommitUnknown
from buckram.sim.database.asking import Asking
from buckram.sim.database.rules import Attempt
from buckram.sim.engine.checkers.serializability import Append, Read
from buckram.sim.engine.world import Died

_KEYS = 3


def appending(one: Append) -> tuple[str, tuple[Any, ...]]:
    """The statement of an append."""
    return "INSERT INTO lists (key, value) VALUES (?, ?)", (one.key, one.value)


def lists_of(result: SqlResult, keys: int) -> list[Read]:
    """The reads that one statement over all lists is."""
    return [Read(key, tuple(row[1] for row in result.rows if row[0] == key)) for key in (f"l{n}" for n in range(keys))]


class Interactive:
    """One such transaction."""

    def __init__(self, asking: Asking, attempt: Attempt) -> None:
        self._asking, self._attempt, self._rng = asking, attempt, asking.rng
        self._committing = False

    async def run(self) -> None:
        """Execute it once; what became of it is asked for if the answer does not come."""
        attempt, asking, token = self._attempt, self._asking, self._attempt.token
        assert token is not None
        try:
            done = await asking.ask(self._transact, 15.0)
            attempt.outcome = "ok" if done else "aborted"
        except CommitUnknown as error:
            asking.world.report.situation("a commit was unknown")
            outcome = await asking.outcome(error.token)
            attempt.outcome = {"committed": "ok", "aborted": "aborted"}.get(outcome, "unknown")  # type: ignore[assignment]  # one of the three
        except (TimeoutError, Died):
            if await asking.outcome(token) == "committed":
                attempt.outcome = "ok"
        except BuckramError as error:
            asking.world.trace.note(asking.name, f"{attempt.name}: {error}")
            attempt.outcome = "aborted"
        if attempt.outcome == "unknown":
            return
        asking.rules.told(attempt)
        if attempt.outcome == "ok":
            asking.rules.acknowledged(attempt, asking.applied)

    async def _transact(self, database: Database) -> bool:
        """In the process of the replica. Returns whether it was committed."""
        rng, attempt = self._rng, self._attempt
        transaction = await database.begin(rng.choice(("deferred", "immediate")))
        try:
            for n in range(rng.choice((1, 2, 3))):
                if rng.random() < 0.4:
                    result = await transaction.execute("SELECT key, value FROM lists ORDER BY id")
                    attempt.operations += lists_of(result, _KEYS)
                if rng.random() < 0.3:
                    await self._roll_back_a_part(transaction)
                one = Append(f"l{rng.randrange(_KEYS)}", f"{attempt.name}.{n}")
                await transaction.execute(*appending(one))
                attempt.operations.append(one)
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() * rng.choice((0.05, 1.0, 3.0)))
            if rng.random() < 0.15:
                return False
            await transaction.commit(token=attempt.token)
            return True
        finally:
            await transaction.rollback()

    async def _roll_back_a_part(self, transaction: OpenTransaction) -> None:
        """More than the cache holds, so that frames are written that count for nothing."""
        await transaction.execute("SAVEPOINT part")
        await transaction.execute("INSERT INTO bulk (data) VALUES (?)", (self._rng.randbytes(120_000),))
        await transaction.execute("INSERT INTO lists (key, value) VALUES ('l0', 'rolled back')")
        await transaction.execute("ROLLBACK TO part")
        await transaction.execute("RELEASE part")
        self._asking.world.report.situation("a spill was rolled back")


__all__ = ["Interactive", "appending", "lists_of"]
