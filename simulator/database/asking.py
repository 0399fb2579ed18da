"""Queries to replicas from outside their processes; a client finds the leader by trying hosts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from buckram.errors import BuckramError, CommitUnknown, SqlError
from buckram.state.db.database import Database
from simulator.database.stage import Stage
from simulator.engine.world import Died

T = TypeVar("T")


class Asking:
    """The questions of one client to replicas: it remembers which host led last."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage, self.world, self.rules, self.name = stage, stage.world, stage.rules, name
        self.rng = random.Random(f"{stage.database.seed} {name}")
        self.applied = 0
        """Offset below which lies everything that this client was told."""
        self._last = ""
        """The host to ask first, which answered the last question; empty if that failed."""

    async def ask(self, question: Callable[[Database], Awaitable[T]], within_s: float = 0.0) -> T:
        """Ask the host that led last, or another one.

        Raises the question's own error, Died if the process dies, or TimeoutError if no answer comes within `within_s`
        (0: a random choice of 1 or 5 seconds) or no replica is open.
        """
        hosts = self.stage.living()
        if not hosts:
            raise TimeoutError
        if self._last not in hosts or self.rng.random() < 0.1:
            self._last = self.rng.choice(hosts)
        try:
            return await self.ask_at(self._last, question, within_s or self.rng.choice((1.0, 5.0)))
        except (CommitUnknown, SqlError):
            raise
        except (BuckramError, TimeoutError, Died):
            self._last = ""
            raise

    async def ask_at(self, host: str, question: Callable[[Database], Awaitable[T]], within_s: float) -> T:
        database = self.stage.open[host]

        async def ask() -> tuple[T | BuckramError, int]:
            # Errors are returned as values: after a time-out no task is left to retrieve an exception.
            try:
                return await question(database), database.applied
            except BuckramError as error:
                return error, 0

        async with asyncio.timeout(within_s):
            answer, applied = await self.world.join(self.world.processes[host], ask(), "ask")
        if isinstance(answer, BuckramError):
            raise answer
        self.applied = max(self.applied, applied)
        return answer

    async def outcome(self, token: str) -> str:
        """Return a transaction's outcome: "committed", "aborted", or "pending" if no replica could say."""
        self.world.report.situation("an outcome was asked for")
        for _ in range(30):
            try:
                found = await self.ask(lambda database: database.outcome(token))
                if found != "pending":
                    if ":" in token:  # of a CommitUnknown
                        self.rules.own_outcome(token, found)
                    return found
            except (BuckramError, TimeoutError, Died) as error:
                self.world.trace.note(self.name, repr(error))
            await asyncio.sleep(self.rng.random() * 0.3)
        return "pending"


__all__ = ["Asking"]
