"""Clients that doubt: they repeat calls under used tokens, and query the outcomes of calls that are running."""

from __future__ import annotations

import asyncio
from typing import Any

from buckram.core.db.sql import SqlResult
from buckram.errors import BuckramError
from buckram.state.db.database import Database
from simulator.database.asking import Asking
from simulator.database.interactive import KEYS, appending
from simulator.database.rules import Attempt
from simulator.engine.checkers.serializability import Append
from simulator.engine.world import Died

_TROUBLE = (BuckramError, TimeoutError, Died)


class Doubting:
    """The repeated calls and outcome queries of one client, which remembers acknowledged calls under tokens."""

    def __init__(self, asking: Asking) -> None:
        self._asking, self._world, self._rules, self._rng = asking, asking.world, asking.rules, asking.rng
        self._used: list[tuple[Any, str, list[int]]] = []
        """Statements (None for a transaction of several calls), token, counts."""

    def remember(self, statements: Any, token: str, counts: list[int]) -> None:
        """Remember an acknowledged call for later repeats: its statements, token and counts of affected rows."""
        self._used.append((statements, token, counts))

    def used(self) -> tuple[str, list[int]] | None:
        """Return a random token that was used, and its counts; None if there is none."""
        return self._rng.choice(self._used)[1:] if self._used else None

    async def repeat(self) -> None:
        """Ask for the outcome of a random acknowledged call, and repeat the call under its token."""
        if not self._used:
            return
        statements, token, counts = self._rng.choice(self._used)

        async def execute(database: Database) -> list[SqlResult]:
            if isinstance(statements, list):
                return await database.batch(statements, token=token)
            return [await database.execute(*statements, token=token)]

        try:
            self._rules.outcome(token, await self._asking.ask(lambda database: database.outcome(token)))
            if statements is not None:
                told = await self._asking.ask(execute)
                self._rules.repeated(token, counts, [one.rows_affected for one in told])
        except _TROUBLE as error:
            self._world.trace.note(self._asking.name, f"repeats {token}: {error!r}")

    async def ask_meanwhile(self, attempt: Attempt) -> None:
        """Ask for the outcome of a call once it has begun. A call reported as aborted must never be committed."""
        token, asking, began = attempt.token, self._asking, asyncio.Event()
        assert token is not None
        one = Append(f"l{self._rng.randrange(KEYS)}", attempt.name)
        attempt.operations.append(one)

        async def execute(database: Database) -> list[SqlResult]:
            began.set()
            return await database.batch([appending(one)], token=token)

        calling = asyncio.create_task(_quiet(asking.ask(execute)), name="call")
        beginning = asyncio.create_task(began.wait(), name="begun")
        await asyncio.wait((calling, beginning), return_when=asyncio.FIRST_COMPLETED)
        beginning.cancel()
        said = ""
        try:
            await asyncio.sleep(self._rng.choice((0.0, 0.0, 0.003, 0.3)))
            said = await asking.ask(lambda database: database.outcome(token))
        except _TROUBLE as error:
            self._world.trace.note(asking.name, f"asks for {token}: {error!r}")
        acknowledged = isinstance(await calling, list)
        if said:
            self._rules.said_meanwhile(token, said, acknowledged)
        if acknowledged or said in ("committed", "aborted"):
            attempt.outcome = "ok" if acknowledged or said == "committed" else "aborted"
            self._rules.told(attempt)


async def _quiet(asked: Any) -> Any:
    try:
        return await asked
    except _TROUBLE as error:
        return error


__all__ = ["Doubting"]
