"""Long polls of one tail: who waits for the next LAC at which bookie. What is done with it is tail.py.

One question at a time, hedged by a second one after a while, then the other members in turn. It may be asked before
the consumer is ready to wait, so that what was written meanwhile is known when it comes back. While the LAC moves
often, a poll for the LAC after the next waits beside it: else each would reach its bookie during a commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from buckram.client.lac import bookie_lac
from buckram.client.replicas import LedgerReads, ask, check_running, report
from buckram.client.services import Services
from buckram.core.answers import Answer, Negative, Positive, Unknown
from buckram.core.messages import LAST_ENTRY, Read, ReadReply
from buckram.core.recovery import quorum_of
from buckram.errors import BookieError, Code, DigestMismatch, HandleClosed, ProtocolError, UnknownLedgerState
from buckram.net.tasks import TaskScope
from buckram.types import NO_ENTRY, BookieId, Entry, EntryId, LedgerMetadata

_AT_ONCE = 2
_OFTEN_S = 0.05


class _Poll(NamedTuple):
    """One that was sent ahead."""

    task: asyncio.Task[Answer[EntryId]]
    bookie: BookieId
    above: EntryId
    sent_at: float


class LacPolls:
    """`keep` gets verified entries that come along with answers. Not for two consumers."""

    def __init__(
        self, services: Services, reads: LedgerReads, scope: TaskScope, keep: Callable[[Entry], None]
    ) -> None:
        self._services, self._reads, self._scope, self._keep = services, reads, scope, keep
        self._polls: dict[asyncio.Task[Answer[EntryId]], BookieId] = {}
        self._order: list[BookieId] = []
        self._metadata: LedgerMetadata | None = None
        self._above = NO_ENTRY
        self._begun_at = 0.0
        self._ahead: _Poll | None = None
        self._unseen = True
        self._event: asyncio.Event | None = None
        self._event_task: asyncio.Task[None] | None = None

    def begin(self, above: EntryId, metadata: LedgerMetadata) -> None:
        """Ask for a LAC beyond `above`, unless that is asked already. At the members of the last fragment."""
        if self._polls and self._metadata is metadata and self._above == above:
            return
        self._drop_polls()
        now = asyncio.get_running_loop().time()
        often = self._metadata is metadata and now - self._begun_at < _OFTEN_S
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (ahead.above != above or self._metadata is not metadata):
            ahead.task.cancel()
            ahead = None
        self._metadata, self._above, self._unseen, self._begun_at = metadata, above, True, now
        self._order = self._members(metadata, above)
        if ahead is not None:
            self._polls[ahead.task], self._begun_at = ahead.bookie, ahead.sent_at
            self._order.remove(ahead.bookie)
        else:
            self._ask_next()
        if often:
            bookie = self._members(metadata, above + 1)[0]
            task = self._scope.spawn(self._poll(bookie, above + 1), f"poll {bookie}")
            self._ahead = _Poll(task, bookie, above + 1, now)

    def _members(self, metadata: LedgerMetadata, above: EntryId) -> list[BookieId]:
        """All of them, those that get the next LAC first: they store the entry after it."""
        ensemble = metadata.last_fragment.ensemble
        members = [ensemble[position] for position in quorum_of(metadata).ensemble_set(above + 2)]
        return self._services.bookies.read_order(members)

    async def wait(self, changed: asyncio.Event) -> EntryId | None:
        """A proven LAC beyond the asked one; None when `changed` is set or all were asked in vain (then look at
        `vain`). After `begin`."""
        event = self._until(changed)
        while self._polls:
            more = self._order and len(self._polls) < _AT_ONCE
            await asyncio.wait(
                [event, *self._polls],
                timeout=self._services.hedge_s if more else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
            check_running(self._scope)
            if changed.is_set():
                return None
            for task in [task for task in self._polls if task.done()]:
                bookie = self._polls.pop(task)
                lac = self._learn(bookie, task.result())
                if lac is not None:
                    self._drop_polls()
                    return lac
            if self._order and (more or not self._polls):
                self._ask_next()
        return None

    def vain(self) -> tuple[bool, bool]:
        """Nobody waited for us, and: because no bookie has seen the ledger."""
        spent = asyncio.get_running_loop().time() - self._begun_at
        return not self._polls and spent < self._services.config.long_poll_s / 2, self._unseen

    def stop(self) -> None:
        """Nobody waits any more."""
        self._drop_polls()
        if self._ahead is not None:
            self._ahead.task.cancel()
            self._ahead = None
        if self._event_task is not None:
            self._event_task.cancel()
            self._event_task = self._event = None

    def _drop_polls(self) -> None:
        polls, self._polls = self._polls, {}
        for task in polls:
            task.cancel()

    def _until(self, changed: asyncio.Event) -> asyncio.Task[None]:
        """One task for an event, however often it is waited for."""
        if self._event is not changed or self._event_task is None or self._event_task.done():
            if self._event_task is not None:
                self._event_task.cancel()
            self._event, self._event_task = changed, self._scope.spawn(_set(changed), "metadata change")
        return self._event_task

    def _ask_next(self) -> None:
        bookie = self._order.pop(0)
        self._polls[self._scope.spawn(self._poll(bookie, self._above), f"poll {bookie}")] = bookie

    def _learn(self, bookie: BookieId, answer: Answer[EntryId]) -> EntryId | None:
        report(self._services, bookie, answer)
        if isinstance(answer, Unknown) and isinstance(answer.error, HandleClosed):
            raise answer.error
        self._unseen = self._unseen and _unseen(answer)
        return answer.value if isinstance(answer, Positive) and answer.value > self._above else None

    async def _poll(self, bookie: BookieId, above: EntryId) -> Answer[EntryId]:
        """Wait at one bookie for a LAC beyond `above`; the largest LAC that it can prove then."""
        services, reads = self._services, self._reads
        wait_s = services.config.long_poll_s
        request = Read(reads.ledger_id, LAST_ENTRY, previous_lac=above, timeout_ms=max(1, int(wait_s * 1000)))
        try:
            reply = await ask(services.pool, bookie, request)
            opened = reads.opened(bookie, None, reply)
            proven = NO_ENTRY
            if isinstance(opened, Positive):
                proven = opened.value.last_add_confirmed
                self._keep(opened.value)
            if proven > above:
                return Positive(proven)
            claims = isinstance(reply, ReadReply) and reply.max_lac is not None and reply.max_lac > above
            empty = isinstance(reply, ReadReply) and reply.code is Code.NO_ENTRY
            if claims or empty or isinstance(reply, ProtocolError):
                # An idle writer's LAC stands in a sealed packet beside the entries, not in the last entry.
                answer = await bookie_lac(services, bookie, reads.ledger_id, reads.digest)
                if claims and isinstance(answer, Positive) and answer.value <= above:
                    return Unknown(DigestMismatch(reads.ledger_id, f"bookie {bookie} cannot prove the LAC it claims"))
                return answer
        except (HandleClosed, BookieError) as error:
            return Unknown(error)
        return opened if not isinstance(opened, Positive) else Positive(proven)


def _unseen(answer: Answer[EntryId]) -> bool:
    """The bookie has not seen the ledger; one that may have lost data does not say so, but cannot wait either."""
    if isinstance(answer, Unknown):
        return isinstance(answer.error, UnknownLedgerState)
    return isinstance(answer, Negative) and answer.code is Code.NO_LEDGER


async def _set(event: asyncio.Event) -> None:
    await event.wait()
