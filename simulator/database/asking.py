"""Queries of one client to replicas of a database, and for the outcome of a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from buckram.errors import BuckramError, CommitUnknown, SqlError
from buckram.state.db.database import Database
from simulator.database.stage import Stage
from simulator.engine.world import Died
from simulator.machine import asking

T = TypeVar("T")


class Asking(asking.Asking[Database]):
    """The questions of one client to replicas."""

    answers = (CommitUnknown, SqlError)

    def __init__(self, stage: Stage, name: str) -> None:
        super().__init__(stage, name)
        self.stage, self.rules = stage, stage.rules
        self.answered = ""
        """The handle of the replica that answered last."""

    async def ask_at(self, host: str, question: Callable[[Database], Awaitable[T]], within_s: float) -> T:
        handle = self.rules.histories.handles.get(host)
        answer = await super().ask_at(host, question, within_s)
        self.answered = handle.name if handle is not None else ""
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
