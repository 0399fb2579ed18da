"""Single entries of one ledger, many at a time: the first bookie is asked, and mostly its answer is all there is to it.

That takes a future and no task, timer or race of its own. Whatever else happens is the race's (replicas.run_race),
which takes the question over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf

from buckram.client.read.replicas import LedgerReads, check_running, report, run_race
from buckram.client.shared.services import Services
from buckram.core.ledgers.answers import Answer, Positive
from buckram.core.ledgers.reading import Race
from buckram.core.wire.messages import Reply
from buckram.errors import BuckramError
from buckram.runtime.net.connection import OnReply, PendingRequest
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, Entry, EntryId


class _Waiting:
    """A read that waits for its first answer: `woken` when it is there, takes too long, or the handle is closed."""

    __slots__ = ("due", "reply", "woken")

    def __init__(self, woken: asyncio.Future[None], due: float) -> None:
        self.woken, self.due = woken, due
        self.reply: Reply | BuckramError | None = None

    def on_reply(self, reply: Reply | BuckramError) -> None:
        self.reply = reply
        self.wake()

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class SingleReads:
    """The single reads of one handle, whose scope ends them."""

    def __init__(self, services: Services, reads: LedgerReads, scope: TaskScope) -> None:
        self._services, self._reads, self._scope = services, reads, scope
        self._hedge_s = services.hedge_s or inf
        self._waiting: dict[_Waiting, None] = {}
        """The reads under way in the order of asking, so that the first one is due first."""
        self._timer: asyncio.TimerHandle | None = None
        scope.hold(self)

    async def read(self, order: Sequence[BookieId], entry: EntryId) -> Answer[Entry]:
        """Read an entry from the bookies that hold it, asked in this order. Raises HandleClosed."""
        scope, reads, first = self._scope, self._reads, order[0]
        check_running(scope)
        loop = asyncio.get_running_loop()
        began = loop.time()
        waiting = _Waiting(loop.create_future(), began + self._hedge_s if len(order) > 1 else inf)
        asked = reads.ask_entry(first, entry, waiting.on_reply)
        begun: PendingRequest | Answer[Entry] | None = asked
        if asked is not None:
            await self._wait(waiting, asked)
            if waiting.reply is not None:
                begun = reads.opened(first, entry, waiting.reply)
                report(self._services, first, begun)
                if isinstance(begun, Positive):
                    self._services.bookies.recent.reads.took(first, (now := loop.time()) - began, now)
                    return begun
        one = _OneEntry(reads, entry)
        return await run_race(Race(order), one, self._services, scope, one, begun=begun)

    async def _wait(self, waiting: _Waiting, asked: PendingRequest) -> None:
        """Wait until there is an answer, or until it is time to ask another bookie."""
        self._waiting[waiting] = None
        if self._timer is None and waiting.due != inf:
            self._timer = asyncio.get_running_loop().call_at(waiting.due, self._look)
        try:
            await waiting.woken
            check_running(self._scope)
        except BaseException:
            asked.cancel()
            raise
        finally:
            del self._waiting[waiting]

    def _look(self) -> None:
        """Wake those that have waited long enough, and come again when the next one has."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for waiting in self._waiting:
            if waiting.due > now:
                if waiting.due != inf:
                    self._timer = loop.call_at(waiting.due, self._look)
                return
            waiting.wake()

    def cancel(self) -> None:
        """Wake all reads, because the handle is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for waiting in self._waiting:
            waiting.wake()


class _OneEntry:
    """A read of one entry from a bookie, in a task or, as a DirectRequest, without one."""

    __slots__ = ("_entry", "_reads")

    def __init__(self, reads: LedgerReads, entry: EntryId) -> None:
        self._reads, self._entry = reads, entry

    async def __call__(self, bookie: BookieId) -> Answer[Entry]:
        return await self._reads.entry(bookie, self._entry)

    def ask(self, bookie: BookieId, on_reply: OnReply) -> PendingRequest | None:
        return self._reads.ask_entry(bookie, self._entry, on_reply)

    def opened(self, bookie: BookieId, reply: Reply | BuckramError) -> Answer[Entry]:
        return self._reads.opened(bookie, self._entry, reply)
