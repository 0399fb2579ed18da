"""Transactions of several calls: reads and appends with pauses between them, savepoints, and spills of the cache."""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError, CommitUnknown
from buckram.state.db.commits.transactions import OpenTransaction
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.rules import Attempt
from simulator.engine.checkers.serializability import Append, Read
from simulator.engine.world import Died

KEYS = 3


def appending(one: Append) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL statement of an append, with its parameters."""
    return "INSERT INTO lists (key, value) VALUES (?, ?)", (one.key, one.value)


def lists_of(result: SqlResult, keys: int) -> list[Read]:
    """Return the result of one statement over all lists as one read for each list."""
    return [Read(key, tuple(row[1] for row in result.rows if row[0] == key)) for key in (f"l{n}" for n in range(keys))]


class Interactive:
    """One transaction of several calls."""

    def __init__(self, asking: Asking, attempt: Attempt, used: tuple[str, list[int]] | None = None) -> None:
        """`used` is an already committed token with its counts; a commit under it must change nothing."""
        self._asking, self._attempt, self._rng, self._used = asking, attempt, asking.rng, used
        self.counts: list[int] | None = None
        """Counts of affected rows that the commit returned; None until it is committed."""

    async def run(self) -> None:
        """Execute the transaction once; if no answer comes, ask for its outcome."""
        attempt, asking, token = self._attempt, self._asking, self._attempt.token
        try:
            done = await asking.ask(self._transact, 15.0)
            attempt.outcome = "ok" if done else "aborted"
        except CommitUnknown as error:
            asking.world.report.situation("a commit was unknown")
            outcome = await asking.outcome(error.token)
            attempt.outcome = {"committed": "ok", "aborted": "aborted"}.get(outcome, "unknown")  # type: ignore[assignment]  # one of the three
        except (TimeoutError, Died):
            if token is not None and await asking.outcome(token) == "committed":
                attempt.outcome = "ok"
            elif self._used is not None:
                attempt.outcome = "aborted"
        except BuckramError as error:
            asking.world.trace.note(asking.name, f"{attempt.name}: {error}")
            attempt.outcome = "aborted"
        if attempt.outcome == "unknown":
            return
        asking.rules.told(attempt, self.counts)
        if attempt.outcome == "ok":
            asking.rules.acknowledged(attempt, asking.applied, asking.answered)

    async def _transact(self, database: Database) -> bool:
        """Execute the transaction in the replica's process. Return whether it was committed."""
        rng, attempt = self._rng, self._attempt
        transaction = await database.begin(rng.choice(("deferred", "immediate")))
        try:
            for n in range(rng.choice((1, 2, 3))):
                if rng.random() < 0.4:
                    result = await transaction.execute("SELECT key, value FROM lists ORDER BY id")
                    attempt.operations += lists_of(result, KEYS)
                if rng.random() < 0.3:
                    await self._roll_back_a_part(transaction)
                one = Append(f"l{rng.randrange(KEYS)}", f"{attempt.name}.{n}")
                await transaction.execute(*appending(one))
                attempt.operations.append(one)
                if rng.random() < 0.3:
                    await asyncio.sleep(rng.random() * rng.choice((0.05, 1.0, 3.0)))
            if rng.random() < 0.15:
                return False
            return await self._commit(transaction)
        finally:
            await transaction.rollback()

    async def _commit(self, transaction: OpenTransaction) -> bool:
        rules, token = self._asking.rules, self._attempt.token
        told = await transaction.commit(token=self._used[0] if self._used is not None else token)
        counts = [one.rows_affected for one in told]
        if self._used is None:
            self.counts = counts
            return True
        rules.report.situation("a transaction was committed under a used token")
        rules.repeated(*self._used, counts)
        return False

    async def _roll_back_a_part(self, transaction: OpenTransaction) -> None:
        """Write more than a small cache holds (so that SQLite spills frames), then roll back to a savepoint."""
        await transaction.execute("SAVEPOINT part")
        await transaction.execute("INSERT INTO bulk (data) VALUES (?)", (self._rng.randbytes(120_000),))
        await transaction.execute("INSERT INTO lists (key, value) VALUES ('l0', 'rolled back')")
        await transaction.execute("ROLLBACK TO part")
        await transaction.execute("RELEASE part")
        self._asking.world.report.situation("a spill was rolled back")


__all__ = ["KEYS", "Interactive", "appending", "lists_of"]
