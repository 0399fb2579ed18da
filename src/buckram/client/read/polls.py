"""Long polls of one tail: who waits for the next LAC at which bookie. What is done with it is tail.py.

One question at a time, hedged by a second one after a while, then the other members in turn. It may be asked before
the consumer is ready to wait, so that what was written meanwhile is known when it comes back. While the LAC moves
often, polls for the LACs after the next wait beside it: else each would reach its bookie during a commit, or after the
entry that it waits for. Answers are looked at where they arrive: with a task for each poll a tail that keeps up would
cost more than the writer that it follows.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from buckram.client.read.lac import bookie_lac
from buckram.client.read.replicas import LedgerReads, ask, check_running, report
from buckram.client.shared.services import Services
from buckram.core.ledgers.answers import Answer, Negative, Positive, Unknown
from buckram.core.wire.messages import LAST_ENTRY, Read, ReadReply, Reply
from buckram.errors import (
    BookieError,
    BuckramError,
    Code,
    DigestMismatch,
    HandleClosed,
    ProtocolError,
    UnknownLedgerState,
)
from buckram.runtime.net.connection import PendingRequest
from buckram.runtime.process.tasks import TaskScope
from buckram.types import NO_ENTRY, BookieId, Entry, EntryId, LedgerMetadata

_AT_ONCE = 2
_AHEAD = 2
_OFTEN_S = 0.05
_LAG_S = 0.02
"""Time that other bookies are asked instead of one that lags, seconds."""


class _Poll:
    """A long poll at one bookie. `answer` is set once it has come."""

    __slots__ = ("above", "answer", "asked", "bookie", "bug", "sent_at", "task")

    def __init__(self, bookie: BookieId, above: EntryId, sent_at: float) -> None:
        self.bookie, self.above, self.sent_at = bookie, above, sent_at
        self.answer: Answer[EntryId] | None = None
        self.bug: BaseException | None = None
        """The error that came instead of an answer; it is raised to the consumer."""
        self.asked: PendingRequest | None = None
        self.task: asyncio.Task[Answer[EntryId]] | None = None
        """The task that asks where no connection is open yet, or where the answer leads to another question."""

    @property
    def settled(self) -> bool:
        return self.answer is not None or self.bug is not None

    def drop(self) -> None:
        if self.asked is not None:
            self.asked.cancel()
        if self.task is not None:
            self.task.cancel()


OnEntry = Callable[[Entry], None]
"""Called with a verified entry that came with the answer to a poll, confirmed or not."""


class LacPolls:
    """Long polls of one tail for a larger LAC; `on_entry` gets the entries that come with the answers."""

    def __init__(self, services: Services, reads: LedgerReads, scope: TaskScope, on_entry: OnEntry) -> None:
        self._services, self._reads, self._scope, self._on_entry = services, reads, scope, on_entry
        self._loop = asyncio.get_running_loop()
        self._wait_ms = max(1, int(services.config.long_poll_s * 1000))
        self._polls: list[_Poll] = []
        self._others: list[BookieId] | None = None
        """Bookies to ask next; None before the order is worked out: then all of them but the first."""
        self._first: BookieId = ""
        self._metadata: LedgerMetadata | None = None
        self._above = NO_ENTRY
        self._begun_at = self._moved_at = 0.0
        self._ahead: deque[_Poll] = deque()
        """Polls that were sent ahead, for ascending LACs."""
        self._topping_up = False
        self.proved_by: BookieId | None = None
        """The bookie that reported the last LAC that was learned: it has that entry and the next one."""
        self._unseen = True
        self._waiter: asyncio.Future[None] | None = None
        self._event: asyncio.Event | None = None
        self._event_task: asyncio.Task[None] | None = None
        self._hedge: asyncio.TimerHandle | None = None
        self._hedge_at = 0.0
        self._hedge_due = False

    def begin(self, above: EntryId, metadata: LedgerMetadata) -> None:
        """Ask the members of the last fragment for a LAC beyond `above`, unless that is asked already."""
        if self._polls and self._metadata is metadata and self._above == above:
            return
        self._drop_polls()
        now, ahead = self._loop.time(), self._ahead
        same = self._metadata is metadata
        often, self._moved_at = same and now - self._moved_at < _OFTEN_S, now
        while ahead and (ahead[0].above < above or not same):
            ahead.popleft().drop()
        self._metadata, self._above, self._unseen = metadata, above, True
        waits = bool(ahead) and ahead[0].above == above
        first = ahead.popleft() if waits else self._ask(self._members(metadata, above)[0], above)
        self._polls.append(first)
        self._first, self._others, self._begun_at = first.bookie, None, first.sent_at
        if often and not self._topping_up:
            # Later: it is not urgent, and the consumer may be about to get what this call follows.
            self._topping_up = True
            self._loop.call_soon(self._top_up)

    def _top_up(self) -> None:
        self._topping_up = False
        metadata, ahead = self._metadata, self._ahead
        if metadata is None or not self._polls or self._scope.closed:
            return
        for further in range(self._above + 1 + len(ahead), self._above + 1 + _AHEAD):
            ahead.append(self._ask(self._members(metadata, further)[0], further))

    def _members(self, metadata: LedgerMetadata, above: EntryId) -> Sequence[BookieId]:
        """Return all members; first come those that get the next LAC first, because they store the entry after it."""
        ensemble = metadata.last_fragment.ensemble
        start = (above + 2) % len(ensemble)
        return self._services.bookies.read_order(ensemble[start:] + ensemble[:start])

    async def wait(self, changed: asyncio.Event) -> EntryId | None:
        """Return a proven LAC beyond the asked one, after `begin`.

        None: `changed` is set, or no bookie had one; `no_bookie_waited` says why.
        """
        self._watch(changed)
        self._hedge_due = False
        while self._polls:
            check_running(self._scope)
            if changed.is_set():
                return None
            more, self._hedge_due = self._hedge_due, False
            for poll in [poll for poll in self._polls if poll.settled]:
                self._polls.remove(poll)
                lac = self._learn(poll)
                if lac is not None:
                    self._drop_polls()
                    return lac
                more = True
            if (lac := self._overtaken()) is not None:
                return lac
            if more and len(self._polls) < _AT_ONCE and (others := self._rest()):
                self._polls.append(self._ask(others.pop(0), self._above))
            elif self._polls:
                await self._sleep()
        return None

    def no_bookie_waited(self) -> tuple[bool, bool]:
        """Return whether no bookie waited, and whether that is because none has seen the ledger."""
        spent = self._loop.time() - self._begun_at
        return not self._polls and spent < self._services.config.long_poll_s / 2, self._unseen

    def stop(self) -> None:
        """End all polls, because their caller waits no longer."""
        self._drop_polls()
        while self._ahead:
            self._ahead.pop().drop()
        if self._hedge is not None:
            self._hedge.cancel()
            self._hedge = None
        if self._event_task is not None:
            self._event_task.cancel()
            self._event_task = self._event = None

    def _overtaken(self) -> EntryId | None:
        """Return a later LAC that is known already, as the bookie that is asked lags behind the others; else None."""
        lac = self._above
        for poll in self._ahead:
            if isinstance(poll.answer, Positive) and poll.answer.value > lac:
                lac, self.proved_by = poll.answer.value, poll.bookie
        if lac == self._above:
            return None
        for poll in self._polls:
            self._services.bookies.report_slow(poll.bookie, _LAG_S)
        self._drop_polls()
        return lac

    # -- waking up ----------------------------------------------------------------------------------------

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _watch(self, changed: asyncio.Event) -> None:
        """Start one task for the event, however often it is waited for. It ends with the scope, too."""
        if self._event is not changed or self._event_task is None or self._event_task.done():
            if self._event_task is not None:
                self._event_task.cancel()
            self._event, self._event_task = changed, self._scope.spawn(_set(changed), "metadata change")
            self._event_task.add_done_callback(self._wake)

    async def _sleep(self) -> None:
        """Wait until an answer comes, or until it is time to ask one more bookie."""
        hedge_s = self._services.hedge_s
        if hedge_s is not None and len(self._polls) < _AT_ONCE and self._others != []:
            # One timer, which is not moved by each wait, so it may come too early.
            self._hedge_at = self._loop.time() + hedge_s
            if self._hedge is None:
                self._hedge = self._loop.call_at(self._hedge_at, self._late)
        else:
            self._hedge_at = math.inf
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _late(self) -> None:
        self._hedge = None
        if self._waiter is None or self._hedge_at == math.inf:
            return
        if self._loop.time() < self._hedge_at:
            self._hedge = self._loop.call_at(self._hedge_at, self._late)
        else:
            self._hedge_due = True
            self._wake()

    def _drop_polls(self) -> None:
        for poll in self._polls:
            poll.drop()
        self._polls.clear()

    # -- questions and answers ----------------------------------------------------------------------------

    def _rest(self) -> list[BookieId]:
        if self._others is None:
            assert self._metadata is not None
            self._others = [one for one in self._members(self._metadata, self._above) if one != self._first]
        return self._others

    def _ask(self, bookie: BookieId, above: EntryId) -> _Poll:
        poll = _Poll(bookie, above, self._loop.time())
        request = Read(
            self._reads.ledger_id,
            LAST_ENTRY,
            previous_lac=above,
            timeout_ms=self._wait_ms,
            birth=self._reads.digest.birth,
        )
        try:
            poll.asked = self._services.pool.ask(bookie, request, partial(self._on_reply, poll))
        except BookieError as error:
            poll.answer = Unknown(error)
        else:
            if poll.asked is None:
                self._follow_up(poll, self._call(poll, request))
        return poll

    def _on_reply(self, poll: _Poll, reply: Reply | BuckramError) -> None:
        try:
            poll.answer = self._judge(poll, reply)
            if poll.answer is None and not self._scope.closed:
                self._follow_up(poll, self._sealed(poll, reply))
        except Exception as bug:  # any bug is raised in the consumer
            poll.bug = bug
        if poll.settled:
            self._wake()

    def _follow_up(self, poll: _Poll, work: Coroutine[Any, Any, Answer[EntryId]]) -> None:
        def ended(task: asyncio.Task[Answer[EntryId]]) -> None:
            if not task.cancelled():
                poll.bug = task.exception()
                poll.answer = None if poll.bug is not None else task.result()
            self._wake()

        poll.task = self._scope.spawn(work, f"poll {poll.bookie}")
        poll.task.add_done_callback(ended)

    def _learn(self, poll: _Poll) -> EntryId | None:
        answer = poll.answer
        if answer is None:
            assert poll.bug is not None
            raise poll.bug
        report(self._services, poll.bookie, answer)
        if isinstance(answer, Unknown) and isinstance(answer.error, HandleClosed):
            raise answer.error
        self._unseen = self._unseen and _unseen(answer)
        if not isinstance(answer, Positive) or answer.value <= self._above:
            return None
        self.proved_by = poll.bookie
        return answer.value

    async def _call(self, poll: _Poll, request: Read) -> Answer[EntryId]:
        """Ask over a connection that has to be opened first."""
        try:
            reply = await ask(self._services.pool, poll.bookie, request)
        except HandleClosed as error:
            return Unknown(error)
        answer = self._judge(poll, reply)
        return await self._sealed(poll, reply) if answer is None else answer

    def _judge(self, poll: _Poll, reply: Reply | BuckramError) -> Answer[EntryId] | None:
        """Return the largest LAC that the last entry proves; None when the bookie must be asked for the sealed one."""
        if isinstance(reply, HandleClosed):
            return Unknown(reply)
        opened = self._reads.opened(poll.bookie, None, reply)
        proven = NO_ENTRY
        if isinstance(opened, Positive):
            proven = opened.value.last_add_confirmed
            self._on_entry(opened.value)
            if proven > poll.above:
                return Positive(proven)
        empty = isinstance(reply, ReadReply) and reply.code is Code.NO_ENTRY
        if _claims(poll, reply) or empty or isinstance(reply, ProtocolError):
            return None
        return opened if not isinstance(opened, Positive) else Positive(proven)

    async def _sealed(self, poll: _Poll, reply: Reply | BuckramError) -> Answer[EntryId]:
        """Ask for an idle writer's LAC, which is in a sealed packet beside the entries and not in the last entry."""
        services, reads, bookie = self._services, self._reads, poll.bookie
        try:
            answer = await bookie_lac(services, bookie, reads.ledger_id, reads.digest)
        except (HandleClosed, BookieError) as error:
            return Unknown(error)
        if _claims(poll, reply) and isinstance(answer, Positive) and answer.value <= poll.above:
            return Unknown(DigestMismatch(reads.ledger_id, f"bookie {bookie} cannot prove the LAC it claims"))
        return answer


def _claims(poll: _Poll, reply: Reply | BuckramError) -> bool:
    return isinstance(reply, ReadReply) and reply.max_lac is not None and reply.max_lac > poll.above


def _unseen(answer: Answer[EntryId]) -> bool:
    """Return whether the bookie has not seen the ledger. One that may have lost data does not say so."""
    if isinstance(answer, Unknown):
        return isinstance(answer.error, UnknownLedgerState)
    return isinstance(answer, Negative) and answer.code is Code.NO_LEDGER


async def _set(event: asyncio.Event) -> None:
    await event.wait()
