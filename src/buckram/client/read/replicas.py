"""Asking replicas: one Race (core/ledgers/reading) played over the network, with hedging and the bookies' history.

Requests in, verified answers out. Which entries to read and what a failure means are reader's and recover's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.entries.packed import total_bytes
from buckram.core.ledgers.answers import Answer, Positive, Unknown, classify
from buckram.core.ledgers.reading import Race
from buckram.core.wire.messages import BatchRead, BatchReadReply, Read, ReadReply, Reply, Request
from buckram.errors import (
    BookieError,
    BookieUnavailable,
    BuckramError,
    Code,
    DigestMismatch,
    HandleClosed,
    ProtocolError,
)
from buckram.runtime.net.connection import OnReply, PendingRequest
from buckram.runtime.net.pool import BookiePool
from buckram.runtime.process.tasks import TaskScope
from buckram.seams import Notify
from buckram.types import BookieId, Entry, EntryId, LedgerId

T = TypeVar("T")
Opener = Callable[[Sequence[bytes]], list[T]]
"""Verifies consecutive stored entries; returns those before the first bad one."""
_BATCH_GIVE_UP = 2
_SINGLES = 64


class RangeOpener(Protocol[T]):
    def __call__(self, ledger_id: LedgerId, first: EntryId, stored: Sequence[bytes], /) -> list[T]:
        """Verify consecutive stored entries from `first` on; return those before the first bad one."""
        ...


class OnBytes(Protocol):
    def __call__(self, entries: int, size: int, /) -> None:
        """Take note that `entries` stored entries came, of `size` bytes together."""
        ...


async def ask(
    pool: BookiePool, bookie: BookieId, request: Request, *, protocol: int | None = None
) -> Reply | BookieError:
    """Send one request. An error is returned instead of a reply, not raised."""
    try:
        return await pool.call(bookie, request, protocol=protocol)
    except BookieError as error:
        return error


Question = Callable[[BookieId], Awaitable[Answer[T]]]
"""Asks one bookie and classifies what it answers. May raise BookieError and HandleClosed."""


class DirectRequest(Protocol[T]):
    """A request whose reply needs no task."""

    def ask(self, bookie: BookieId, on_reply: OnReply) -> PendingRequest | None:
        """Send it; `on_reply` gets what `opened` understands. None where the request needs a task after all."""
        ...

    def opened(self, bookie: BookieId, reply: Reply | BuckramError) -> Answer[T]: ...


async def run_race(
    race: Race[T],
    question: Question[T],
    services: Services,
    scope: TaskScope,
    direct: DirectRequest[T] | None = None,
    *,
    begun: PendingRequest | Answer[T] | None = None,
    on_answers: Notify | None = None,
) -> Answer[T]:
    """Ask as the race says until it is decided; returns its outcome. Requests still open then are cancelled.

    `begun`: the first bookie was asked through `direct`. It has said this (which is reported), or takes so long that
    the next one's time has come. `on_answers` is called when the race has taken answers: its owner may decide it, too.
    """
    first, hedge_s = race.start(), services.hedge_s
    asked = first[0]
    if isinstance(begun, PendingRequest):
        first = race.hedge()
    elif begun is not None:
        first = race.answered(asked, begun)
    elif len(first) == 1 and not (hedge_s and race.can_hedge):
        answer = await _answer_of(question, asked)
        check_running(scope)
        report(services, asked, answer)
        first = race.answered(asked, answer)
    requests = _OpenRequests(question, scope, direct)
    scope.hold(requests)
    try:
        if isinstance(begun, PendingRequest):
            requests.take_over(asked, begun)
        requests.ask(first)
        while (outcome := race.outcome) is None:
            answers = await requests.answers(hedge_s if race.can_hedge else None)
            for bookie, answer in answers:
                report(services, bookie, answer)
                requests.ask(race.answered(bookie, answer))
            if not answers:
                requests.ask(race.hedge())
            elif on_answers is not None:
                on_answers()
    finally:
        scope.drop(requests)
        requests.forget()
    for bookie in race.beaten():
        services.bookies.report_slow(bookie)
    return outcome


async def _answer_of(question: Question[T], bookie: BookieId) -> Answer[T]:
    try:
        return await question(bookie)
    except (BookieError, HandleClosed) as error:
        return Unknown(error)


class _OpenRequests(Generic[T]):
    """The requests to bookies of one question: who was asked, their replies, and the future of the caller that
    waits."""

    __slots__ = ("_asked", "_cancelled", "_direct", "_question", "_replies", "_scope", "_woken")

    def __init__(self, question: Question[T], scope: TaskScope, direct: DirectRequest[T] | None) -> None:
        self._question, self._scope, self._direct = question, scope, direct
        self._asked: dict[BookieId, PendingRequest | asyncio.Task[Answer[T]]] = {}
        self._replies: dict[BookieId, Reply | BuckramError | asyncio.Task[Answer[T]]] = {}
        self._woken: asyncio.Future[None] | None = None
        self._cancelled = False

    def ask(self, bookies: Sequence[BookieId]) -> None:
        """Raise HandleClosed when the handle that owns the scope was closed."""
        for bookie in bookies:
            check_running(self._scope)
            on_reply = partial(self._on_reply, bookie)
            asked = None if self._direct is None else self._direct.ask(bookie, on_reply)
            if asked is None:
                task = self._scope.spawn(_answer_of(self._question, bookie), f"ask {bookie}")
                task.add_done_callback(on_reply)
                self._asked[bookie] = task
            else:
                self._asked[bookie] = asked

    def take_over(self, bookie: BookieId, asked: PendingRequest) -> None:
        """Adopt a request that was sent already: its reply belongs here."""
        asked.on_reply = partial(self._on_reply, bookie)
        self._asked[bookie] = asked

    def _on_reply(self, bookie: BookieId, what: Reply | BuckramError | asyncio.Task[Answer[T]]) -> None:
        self._replies[bookie] = what
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def cancel(self) -> None:
        """Wake the caller, because the scope ends."""
        self._cancelled = True
        self._wake()

    async def answers(self, timeout_s: float | None) -> list[tuple[BookieId, Answer[T]]]:
        """Return the answers that came, in the order of asking; empty if none came within `timeout_s` (None: no
        limit)."""
        if not self._replies and not self._cancelled:
            loop = asyncio.get_running_loop()
            self._woken = loop.create_future()
            timer = loop.call_later(timeout_s, self._wake) if timeout_s is not None else None
            try:
                await self._woken
            finally:
                if timer is not None:
                    timer.cancel()
        if self._cancelled:
            raise _closed()
        replies, self._replies = self._replies, {}
        return [(bookie, self._opened(bookie, replies[bookie])) for bookie in list(self._asked) if bookie in replies]

    def _opened(self, bookie: BookieId, what: Reply | BuckramError | asyncio.Task[Answer[T]]) -> Answer[T]:
        del self._asked[bookie]
        if not isinstance(what, asyncio.Task):
            assert self._direct is not None
            return self._direct.opened(bookie, what)
        if what.cancelled():
            raise _closed()
        return what.result()

    def forget(self) -> None:
        """Cancel the requests that are still open."""
        for asked in self._asked.values():
            asked.cancel()
        self._asked.clear()  # what was asked refers to this object


def check_running(scope: TaskScope) -> None:
    """Raise HandleClosed when the handle that owns the scope was closed."""
    if scope.closed:
        raise _closed()


def _closed() -> HandleClosed:
    return HandleClosed("the handle was closed while it was in use; open the ledger again")


def report(services: Services, bookie: BookieId, answer: Answer[T]) -> None:
    """Remember what the answer says about the bookie; negatives say nothing."""
    if isinstance(answer, Positive):
        services.bookies.report_ok(bookie)
    elif isinstance(answer, Unknown) and isinstance(answer.error, BookieError):
        services.bookies.report_failed(bookie)
    elif isinstance(answer, Unknown) and answer.damaged:
        services.bookies.report_slow(bookie)


def reply_is(reply: Reply | BookieError, *codes: Code) -> bool:
    return not isinstance(reply, BookieError) and reply.code in codes


def one_from_files(ledger: LedgerId, entry: EntryId, max_bytes: int, digest: Digest) -> BatchRead:
    """Return a request for one entry as the bookie's files have it, whatever it keeps in memory."""
    return BatchRead(
        ledger, entry, 1, max_bytes, master_key=digest.key, framed=True, from_files=True, birth=digest.birth
    )


def as_single(request: BatchRead, reply: BatchReadReply) -> ReadReply:
    """Return the reply that a plain read of the first entry would have got."""
    body = bytes(reply.bodies[0]) if reply.bodies else None
    return ReadReply(reply.code, request.ledger_id, request.entry_id, body)


class OnDigestMismatch(Protocol):
    def __call__(self, bookie: BookieId, entry: EntryId | None, stored: bytes, /) -> None:
        """Take note of stored bytes that failed the digest; `entry` is None if the last one was asked for."""
        ...


class LedgerReads:
    """The reads of one ledger that a single bookie can answer, verified."""

    def __init__(
        self,
        services: Services,
        ledger_id: LedgerId,
        digest: Digest,
        scope: TaskScope,
        *,
        on_digest_mismatch: OnDigestMismatch | None = None,
    ) -> None:
        self._services = services
        self._on_digest_mismatch = on_digest_mismatch
        self._scope = scope
        self._pool = services.pool
        self.ledger_id = ledger_id
        self.digest = digest

    async def entry(self, bookie: BookieId, entry: EntryId) -> Answer[Entry]:
        loop, request = asyncio.get_running_loop(), Read(self.ledger_id, entry, birth=self.digest.birth)
        began = loop.time()
        answer = self.opened(bookie, entry, await ask(self._pool, bookie, request))
        if isinstance(answer, Positive):
            self._services.bookies.recent.reads.took(bookie, (now := loop.time()) - began, now)
        return answer

    def ask_entry(self, bookie: BookieId, entry: EntryId, on_reply: OnReply) -> PendingRequest | None:
        """Ask for what `opened` understands, over a connection that is open."""
        try:
            return self._pool.ask(bookie, Read(self.ledger_id, entry, birth=self.digest.birth), on_reply)
        except BookieError:
            return None  # it is raised again where the question has a task

    async def stored(self, bookie: BookieId, entry: EntryId) -> Answer[Entry]:
        """Read an entry as the bookie's files have it, whatever its memory holds, if the bookie knows batch reads."""
        if self._services.batch_unsupported.get(bookie, 0) < _BATCH_GIVE_UP:
            request = one_from_files(self.ledger_id, entry, self._services.config.read_batch_bytes, self.digest)
            reply = await ask(self._pool, bookie, request)
            if isinstance(reply, BatchReadReply):
                return self.opened(bookie, entry, as_single(request, reply))
        return await self.entry(bookie, entry)

    async def fencing(self, bookie: BookieId, entry: EntryId | None, master_key: bytes) -> Answer[Entry]:
        """Read the entry (None: the last one stored) from a bookie, which the request fences."""
        wanted = -1 if entry is None else entry
        request = Read(
            self.ledger_id, wanted, fence=True, master_key=master_key, high_priority=True, birth=self.digest.birth
        )
        return self.opened(bookie, entry, await ask(self._pool, bookie, request))

    def opened(self, bookie: BookieId, entry: EntryId | None, reply: Reply | BuckramError) -> Answer[Entry]:
        """Classify the reply to a Read; `entry` None accepts any id."""

        def verify() -> Entry:
            if not isinstance(reply, ReadReply) or reply.body is None:
                raise ProtocolError(bookie, "answered a read without an entry")
            try:
                return self.digest.open(self.ledger_id, entry, reply.body)
            except DigestMismatch:
                if self._on_digest_mismatch is not None:
                    self._on_digest_mismatch(bookie, entry, reply.body)
                raise

        return classify(bookie, reply, verify)

    async def batch(
        self,
        bookie: BookieId,
        first: EntryId,
        count: int,
        opener: Opener[T],
        on_bytes: OnBytes,
        *,
        from_files: bool = False,
    ) -> Answer[list[T]]:
        """Read a verified, non-empty prefix of `count` entries from `first` on; `on_bytes(entries, bytes)` is called.

        A peer without batch reads closes the connection; after two such closings in a row it is asked entry by entry.
        """
        batch_unsupported = self._services.batch_unsupported
        before = batch_unsupported.get(bookie, 0)
        if before >= _BATCH_GIVE_UP:
            return await self._singles(bookie, first, count, opener, on_bytes)
        size = self._services.config.read_batch_bytes
        request = BatchRead(
            self.ledger_id,
            first,
            count,
            size,
            master_key=self.digest.key,
            framed=True,
            from_files=from_files,
            birth=self.digest.birth,
        )
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await ask(self._pool, bookie, request)
        if isinstance(reply, BatchReadReply) and reply.code is Code.OK:
            self._services.bookies.recent.batches.took(bookie, (now := loop.time()) - began, now)
        if isinstance(reply, BookieUnavailable | ProtocolError) or reply_is(reply, Code.BAD_REQUEST):
            # One entry tells a peer that is gone from one that hung up on the unknown request.
            answer = await self._singles(bookie, first, 1, opener, on_bytes)
            if isinstance(answer, Positive) and batch_unsupported.get(bookie, 0) == before:
                # Others outstanding with this one went with the same connection: that was one closing.
                batch_unsupported[bookie] = before + 1
            return answer

        def verify() -> list[T]:
            if not isinstance(reply, BatchReadReply):
                raise ProtocolError(bookie, "answered a batch read with something else")
            # More than was asked for could reach beyond the fragment or the LAC (S16).
            bodies = reply.bodies if len(reply.bodies) <= count else reply.bodies[:count]
            return self._opened_all(bookie, first, bodies, opener, on_bytes)

        if batch_unsupported and isinstance(reply, BatchReadReply) and reply.code is Code.OK:
            batch_unsupported.pop(bookie, None)
        return classify(bookie, reply, verify)

    async def single(self, bookie: BookieId, entry: EntryId, opener: Opener[T], on_bytes: OnBytes) -> Answer[list[T]]:
        """Open one entry with an opener of batches; the result is a list of one."""
        return await self._singles(bookie, entry, 1, opener, on_bytes)

    async def _singles(
        self, bookie: BookieId, first: EntryId, count: int, opener: Opener[T], on_bytes: OnBytes
    ) -> Answer[list[T]]:
        requests = [Read(self.ledger_id, first + i, birth=self.digest.birth) for i in range(min(count, _SINGLES))]
        replies = await self._ask_all(bookie, requests)
        bodies: list[bytes] = []
        for reply in replies:
            if not isinstance(reply, ReadReply) or reply.code is not Code.OK or reply.body is None:
                break
            bodies.append(reply.body)
        return classify(bookie, replies[0], lambda: self._opened_all(bookie, first, bodies, opener, on_bytes))

    def _opened_all(
        self, bookie: BookieId, first: EntryId, bodies: Sequence[bytes], opener: Opener[T], on_bytes: OnBytes
    ) -> list[T]:
        opened = opener(bodies)
        if not opened:
            raise DigestMismatch(self.ledger_id, f"entry {first}: a bad copy at bookie {bookie}")
        on_bytes(len(bodies), total_bytes(bodies))
        return opened

    async def _ask_all(self, bookie: BookieId, requests: Sequence[Request]) -> list[Reply | BookieError]:
        if len(requests) == 1:
            return [await ask(self._pool, bookie, requests[0])]
        tasks = [self._scope.spawn(ask(self._pool, bookie, request), f"ask {bookie}") for request in requests]
        try:
            return [await task for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
