"""Writer: who may write next. Autocommit statements that wait share a transaction; others have it one after another.

Not here: executing (`db/engine.py`), the log (`db/committing.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from buckram.client.write.completions import fail_future
from buckram.core.db.sql import SqlResult, Statement, decode_counts
from buckram.db.committing import Committing
from buckram.db.engine import Engine
from buckram.db.execution import Unit
from buckram.errors import BuckramError, CommitUnknown, DatabaseBusy, HandleClosed
from buckram.net.tasks import TaskScope

_MOST_UNITS = 256


@dataclass(slots=True, eq=False)
class Waiting:
    """Somebody who waits for a turn: with units, with one statement that stands alone, or for as long as it likes."""

    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle | None = None
    unit: Unit | None = None
    alone: Statement | None = None
    ended: asyncio.Future[None] | None = None
    """Of a transaction of one caller: resolved when it gives its turn back."""


@dataclass(slots=True)
class _Taken:
    waiting: list[Waiting] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)


class Writer:
    """The queue of one database in one process. Turns are given in the order of arrival."""

    def __init__(self, engine: Engine, committing: Committing, scope: TaskScope) -> None:
        self._engine, self._committing, self._scope = engine, committing, scope
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Waiting] = deque()
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def execute(self, unit: Unit) -> list[SqlResult]:
        """Execute statements in one transaction; committed on return."""
        waiting = Waiting(self._loop.create_future(), unit=unit)
        result: list[SqlResult] = await self._turn(waiting)
        return result

    async def execute_alone(self, statement: Statement) -> SqlResult:
        """Execute a statement that must not stand in a transaction."""
        result: SqlResult = await self._turn(Waiting(self._loop.create_future(), alone=statement))
        return result

    async def turn(self) -> asyncio.Future[None]:
        """Wait for a turn of one's own; it ends when the future that is returned is resolved. Raises DatabaseBusy."""
        waiting = Waiting(self._loop.create_future(), ended=self._loop.create_future())
        assert waiting.ended is not None
        try:
            await self._turn(waiting)
        except BaseException:
            if not waiting.ended.done():
                waiting.ended.set_result(None)
            raise
        return waiting.ended

    async def _turn(self, waiting: Waiting) -> Any:
        if self._closed:
            raise self._gone()
        waiting.timer = self._loop.call_later(self._engine.limits.wait_s, self._waited, waiting)
        self._queue.append(waiting)
        if self._running is None:
            self._running = self._scope.spawn(self._run(), "turns")
        return await waiting.future

    def _gone(self) -> HandleClosed:
        return HandleClosed(f"database {self._engine.database}: it is closed; open it again")

    def _waited(self, waiting: Waiting) -> None:
        limit = self._engine.limits.wait_s
        text = f"others had the database for more than {limit:g} s; try again (limit: DatabaseLimits.wait_s)"
        if waiting in self._queue:
            self._queue.remove(waiting)
            fail_future(waiting.future, DatabaseBusy(self._engine.database, text))

    async def _run(self) -> None:
        try:
            while self._queue:
                taken = self._take()
                if taken:
                    await self._serve(taken)
        finally:
            self._running = None
            if self._queue and not self._closed:
                self._running = self._scope.spawn(self._run(), "turns")

    def _take(self) -> list[Waiting]:
        """Those whose turn it is now: one, or several units."""
        taken = _Taken()
        while self._queue and len(taken.waiting) < _MOST_UNITS:
            waiting = self._queue[0]
            unit = waiting.unit
            if taken.waiting and unit is None:
                break
            if unit is not None and unit.token is not None:
                if unit.token in taken.tokens:
                    break  # A repetition has its turn when the outcome of the first one is known.
                taken.tokens.add(unit.token)
            self._queue.popleft()
            if waiting.timer is not None:
                waiting.timer.cancel()
            if waiting.future.done():
                continue
            taken.waiting.append(waiting)
            if unit is None:
                break
        return taken.waiting

    async def _serve(self, taken: Sequence[Waiting]) -> None:
        try:
            first = taken[0]
            if first.ended is not None:
                first.future.set_result(None)
                await asyncio.wait((first.ended,))
            elif first.alone is not None:
                await self._alone(first, first.alone)
            else:
                await self._group([waiting for waiting in taken if not self._repeated(waiting)])
        except BuckramError as error:
            for waiting in taken:
                fail_future(waiting.future, self._own(error, waiting))
        except BaseException as error:
            for waiting in taken:
                if not waiting.future.done():
                    waiting.future.set_exception(self._gone() if isinstance(error, asyncio.CancelledError) else error)
            if isinstance(error, asyncio.CancelledError):
                raise

    def _repeated(self, waiting: Waiting) -> bool:
        """Answer a call whose token was used before."""
        unit = waiting.unit
        counts = self._committing.counts(unit.token) if unit is not None and unit.token is not None else None
        if counts is None:
            return False
        waiting.future.set_result(decode_counts(counts))
        return True

    def _own(self, error: BuckramError, waiting: Waiting) -> BuckramError:
        """The error with the caller's own token."""
        token = waiting.unit.token if waiting.unit is not None else None
        if isinstance(error, CommitUnknown) and token is not None:
            return CommitUnknown(error.database, token, error.reason)
        return error

    async def _group(self, taken: Sequence[Waiting]) -> None:
        units = [waiting.unit for waiting in taken if waiting.unit is not None]
        if not units:
            return
        leadership = await self._committing.leadership()
        results, wrote = await self._engine.run(lambda: self._engine.execution.group(leadership, units))
        if not wrote:
            await self._committing.prove()
        for waiting, result in zip(taken, results, strict=True):
            if waiting.future.done():
                continue
            if isinstance(result, BuckramError):
                fail_future(waiting.future, result)
            elif isinstance(result, Exception):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result(result)

    async def _alone(self, waiting: Waiting, statement: Statement) -> None:
        leadership = await self._committing.leadership()
        result, wrote = await self._engine.run(lambda: self._engine.execution.alone(leadership, statement))
        if not wrote:
            await self._committing.prove()
        if not waiting.future.done():
            waiting.future.set_result(result)

    def close(self) -> None:
        """Nobody gets a turn any more."""
        self._closed = True
        queue, self._queue = self._queue, deque()
        for waiting in queue:
            if waiting.timer is not None:
                waiting.timer.cancel()
            fail_future(waiting.future, self._gone())


__all__ = ["Writer"]
