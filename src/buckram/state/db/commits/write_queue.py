"""The queue of calls that write to a database. Waiting autocommit statements share a transaction.

Other calls run one by one. Callers are served in turn (round-robin), however many calls each of them has; the calls of
one caller keep their order. Not here: executing (`state/db/table_engine/engine.py`), the log
(`state/db/commits/committing.py`), how many may wait (`state/db/table_engine/call_limits.py`).
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from buckram.client.write.completions import fail_future
from buckram.core.db.sql import SqlResult, Statement, decode_counts
from buckram.errors import BuckramError, CommitUnknown, DatabaseBusy, HandleClosed, NotLeader
from buckram.errors.state import limit_named
from buckram.runtime.process.tasks import TaskScope
from buckram.state.db.commits.committing import Committing
from buckram.state.db.table_engine.call_limits import CallLimits
from buckram.state.db.table_engine.engine import Engine
from buckram.state.db.table_engine.execution import Unit
from buckram.state.machine.leader import Leader

T = TypeVar("T")
_MOST_UNITS = 256
CALLER: ContextVar[str] = ContextVar("buckram_caller", default="")
"""Name of the client for which a server writes. Callers take turns; everything without a name is one caller."""


@dataclass(slots=True, eq=False)
class QueuedCall:
    """A call in the queue: a unit of statements, one statement without a transaction, or an open transaction."""

    future: asyncio.Future[Any]
    leader: Leader
    """Leader when the call came. Under another one it is not executed: it may have been reported as aborted."""
    size: int
    until: float
    """Deadline (loop time) after which the call gets DatabaseBusy."""
    unit: Unit | None = None
    alone: bool = False
    """True if the unit is one statement that must not stand in a transaction."""
    ended: asyncio.Future[None] | None = None
    """For an open transaction, the future that is resolved when it gives its turn back; else None."""
    caller: str = ""
    """Name of the client for which a server writes (`CALLER`)."""
    token: str | None = None
    """Token of the unit."""


@dataclass(slots=True)
class _Taken:
    waiting: list[QueuedCall] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)


class WriteQueue:
    """The queue of one database in one process. Callers have turns in rotation, each in the order of its arrivals."""

    def __init__(self, engine: Engine, committing: Committing, scope: TaskScope) -> None:
        self._engine, self._committing, self._scope = engine, committing, scope
        self._loop = asyncio.get_running_loop()
        self._queue: RoundRobin[QueuedCall] = RoundRobin()
        self._timer: asyncio.TimerHandle | None = None
        self._room = CallLimits(engine.database, engine.limits, "calls")
        self._using: Counter[str] = Counter()
        self._running: asyncio.Task[None] | None = None
        self._closed = False

    async def execute(self, unit: Unit) -> list[SqlResult]:
        """Execute statements in one transaction; committed on return."""
        result: list[SqlResult] = await self._turn(unit)
        return result

    async def execute_alone(self, statement: Statement, token: str | None = None) -> SqlResult:
        """Execute a statement that must not stand in a transaction."""
        result: list[SqlResult] = await self._turn(Unit((statement,), token), alone=True)
        return result[0]

    async def turn(self) -> asyncio.Future[None]:
        """Wait for a turn of one's own; it ends when the future that is returned is resolved. Raises DatabaseBusy."""
        ended = self._loop.create_future()
        try:
            await self._turn(None, ended=ended)
        except BaseException:
            if not ended.done():
                ended.set_result(None)
            raise
        return ended

    # -- tokens -------------------------------------------------------------------------------------------

    def is_using(self, token: str) -> bool:
        """Return whether a call under this token waits, or is being executed. Any thread."""
        return token in self._using

    def use(self, token: str) -> None:
        """Count a call that begins under this token."""
        self._using[token] += 1

    def unuse(self, token: str) -> None:
        """Count a call under this token as ended."""
        self._using[token] -= 1
        if self._using[token] <= 0:
            del self._using[token]

    # -- the queue ----------------------------------------------------------------------------------------

    async def _turn(self, unit: Unit | None, *, alone: bool = False, ended: asyncio.Future[None] | None = None) -> Any:
        leader = await self._committing.leader()
        if self._closed:
            raise self._gone()
        size = self._room.take(unit.statements if unit is not None else ())
        until = self._loop.time() + self._engine.limits.wait_s
        waiting = QueuedCall(self._loop.create_future(), leader, size, until, unit=unit, alone=alone, ended=ended)
        waiting.caller = CALLER.get()
        waiting.token = None if unit is None else unit.token
        if waiting.token is not None:
            self.use(waiting.token)
        self._queue.add(waiting.caller, waiting)
        if self._timer is None:
            self._timer = self._loop.call_at(until, self._give_up)
        if self._running is None:
            self._running = self._scope.spawn(self._run(), "turns")
        return await waiting.future

    def _left(self, waiting: QueuedCall) -> None:
        """Release the room and the token of a call that neither waits nor is in flight any more."""
        self._room.give(waiting.size)
        if waiting.token is not None:
            self.unuse(waiting.token)

    def _gone(self) -> HandleClosed:
        return HandleClosed(f"database {self._engine.database}: it is closed; open it again")

    def _give_up(self) -> None:
        """Fail the calls that waited for too long. One timer serves all, because all have the same maximum wait."""
        self._timer = None
        limit, now = self._engine.limits.wait_s, self._loop.time()
        text = f"others had the database for more than {limit:g} s; try again ({limit_named('wait_s')})"
        while (oldest := min(self._queue.oldest(), key=lambda one: one[1].until, default=None)) is not None:
            if oldest[1].until > now:
                break
            waiting = self._queue.drop_first(oldest[0])
            self._left(waiting)
            fail_future(waiting.future, DatabaseBusy(self._engine.database, text))
        if oldest is not None:
            self._timer = self._loop.call_at(oldest[1].until, self._give_up)

    async def _run(self) -> None:
        try:
            while self._queue.queues:
                taken = self._take()
                if taken:
                    await self._serve(taken)
        finally:
            self._running = None
            if self._queue.queues and not self._closed:
                self._running = self._scope.spawn(self._run(), "turns")

    def _take(self) -> list[QueuedCall]:
        """Take the calls whose turn it is from the queue: a single one, or several units."""
        taken = _Taken()
        while self._queue.queues and len(taken.waiting) < _MOST_UNITS:
            waiting = self._queue.first
            single = waiting.unit is None or waiting.alone
            if taken.waiting and single:
                break
            if waiting.token is not None:
                if waiting.token in taken.tokens:
                    break  # A repetition has its turn when the outcome of the first one is known.
                taken.tokens.add(waiting.token)
            self._queue.take()
            if waiting.future.done():
                self._left(waiting)
                continue
            taken.waiting.append(waiting)
            if single:
                break
        return taken.waiting

    async def _serve(self, taken: list[QueuedCall]) -> None:
        try:
            first = taken[0]
            if first.ended is not None:
                first.future.set_result(None)
                await asyncio.wait((first.ended,))
            else:
                await self._execute(taken)
        except BuckramError as error:
            for waiting in taken:
                fail_future(waiting.future, self._own(error, waiting))
        except BaseException as error:
            for waiting in taken:
                if not waiting.future.done():
                    waiting.future.set_exception(self._gone() if isinstance(error, asyncio.CancelledError) else error)
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            for waiting in taken:
                self._left(waiting)

    def _own(self, error: BuckramError, waiting: QueuedCall) -> BuckramError:
        """Return the error with the caller's own token."""
        if isinstance(error, CommitUnknown) and waiting.token is not None:
            return CommitUnknown(error.database, waiting.token, error.reason)
        return error

    async def _execute(self, taken: list[QueuedCall]) -> None:
        leadership, leader = await self._committing.leadership()
        served: list[QueuedCall] = []
        for waiting in taken:
            if waiting.leader is not leader:
                fail_future(waiting.future, NotLeader(self._engine.database, ""))
            elif not self._repeated(waiting):
                full = self._committing.full() if waiting.token is not None else None
                if full is None:
                    served.append(waiting)
                else:
                    fail_future(waiting.future, full)
        if served and served[0].alone:
            await self._alone(leadership, served[0])
        elif served:
            await self._group(leadership, taken, served)

    def _repeated(self, waiting: QueuedCall) -> bool:
        """Answer a call whose token was used before."""
        counts = self._committing.counts(waiting.token) if waiting.token is not None else None
        if counts is None:
            return False
        if not waiting.future.done():
            waiting.future.set_result(decode_counts(counts))
        return True

    async def _group(self, leadership: int, taken: list[QueuedCall], served: Sequence[QueuedCall]) -> None:
        units = [waiting.unit for waiting in served if waiting.unit is not None]
        results, wrote = await self._engine.run(partial(self._engine.execution.group, leadership, units))
        if not wrote:
            await self._committing.prove()
        for waiting, result in zip(served, results, strict=False):
            if waiting.future.done():
                continue
            if isinstance(result, BuckramError):
                fail_future(waiting.future, self._own(result, waiting))
            elif isinstance(result, Exception):
                waiting.future.set_exception(result)
            else:
                waiting.future.set_result(result)
        for waiting in reversed(served[len(results) :]):  # They come next: the results are too large.
            taken.remove(waiting)
            self._queue.give_back(waiting.caller, waiting)

    async def _alone(self, leadership: int, waiting: QueuedCall) -> None:
        unit = waiting.unit
        assert unit is not None
        result, wrote = await self._engine.run(
            partial(self._engine.execution.alone, leadership, unit.statements[0], unit.token)
        )
        if not wrote:
            await self._committing.prove()
        if not waiting.future.done():
            waiting.future.set_result([result])

    def close(self) -> None:
        """Fail all waiting calls, and give no more turns."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for waiting in self._queue.drain():
            self._left(waiting)
            fail_future(waiting.future, self._gone())


# -- turns ------------------------------------------------------------------------------------------------


class RoundRobin(Generic[T]):
    """Queue with a round-robin among callers: after a turn a caller comes after all others that wait."""

    def __init__(self) -> None:
        self.queues: OrderedDict[str, deque[T]] = OrderedDict()
        """Items that wait, by caller; no caller without items is here."""

    def add(self, caller: str, item: T) -> None:
        """Append an item behind this caller's earlier ones."""
        queue = self.queues.get(caller)
        if queue is None:
            queue = self.queues[caller] = deque()
        queue.append(item)

    @property
    def first(self) -> T:
        """Return the item whose turn it is. Raises StopIteration if none waits."""
        return next(iter(self.queues.values()))[0]

    def take(self) -> T:
        """Remove and return the item whose turn it is; its caller comes after the others."""
        caller, queue = next(iter(self.queues.items()))
        item = queue.popleft()
        if queue:
            self.queues.move_to_end(caller)
        else:
            del self.queues[caller]
        return item

    def give_back(self, caller: str, item: T) -> None:
        """Put back an item that could not be done in its turn; it has the next one."""
        self.queues.setdefault(caller, deque()).appendleft(item)
        self.queues.move_to_end(caller, last=False)

    def oldest(self) -> Iterator[tuple[str, T]]:
        """Return the oldest item of each caller."""
        return ((caller, queue[0]) for caller, queue in self.queues.items())

    def drop_first(self, caller: str) -> T:
        """Remove and return the oldest item of this caller."""
        queue = self.queues[caller]
        item = queue.popleft()
        if not queue:
            del self.queues[caller]
        return item

    def drain(self) -> list[T]:
        """Remove and return all items."""
        items = [item for queue in self.queues.values() for item in queue]
        self.queues.clear()
        return items
