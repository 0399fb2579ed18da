"""Reads: plain, fencing, batch and long poll, with one bounded queue of jobs per connection.

The order of a fencing read is key, fence bit, look-up; no answer leaves before the fence is durable (F1, F2, F4).
Absence is reported only where the store is certain (F6); clients count any other error as unknown. Stored data of
another ledger than the named one does not count: for the named ledger, nothing is here (I8).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container
from functools import partial
from typing import TypeAlias

from buckram.bookie.service.admission import Verdict, needs_proof
from buckram.bookie.service.batches import SERVED, Batch, BatchSource
from buckram.bookie.service.births import is_other
from buckram.bookie.service.limits import Budget
from buckram.bookie.service.long_poll import LongPolls, Proof, Waiter, Woken
from buckram.bookie.service.session import HIGH_WATER, REQUEST_COST, Session
from buckram.bookie.storage.errors import StoreError
from buckram.bookie.storage.store import LedgerRecord, Store
from buckram.core.entries.packed import FrameParts
from buckram.core.wire.context import ReplyContext
from buckram.core.wire.located import Located
from buckram.core.wire.messages import LAST_ENTRY, BatchRead, BatchReadReply, Read, ReadReply
from buckram.errors import Code
from buckram.seams import Stats
from buckram.types import NO_BIRTH, NO_ENTRY, EntryId, LedgerId

log = logging.getLogger("buckram.bookie")
MAX_AT_ONCE = 256
FIRST_GUESS, SMALLEST_GUESS = 512 * 1024, 4096
BATCH_OVERHEAD = 24 + 8 + 4
FRAME_ROOM = 128
"""What a v3 answer needs beside the entry, generously."""

Outcome: TypeAlias = bytes | StoreError | None
Hold: TypeAlias = Callable[[LedgerId, bytes, "bytes | None", Callable[[Verdict, EntryId], None]], None]
"""Admission.hold"""


class Job:
    """A read in the queue of its connection."""

    __slots__ = ("advanced_ms", "context", "fencing", "name", "poll_above", "request")

    def __init__(self, context: ReplyContext, request: Read | BatchRead, fencing: bool, name: bytes | None) -> None:
        self.context, self.request, self.fencing, self.name = context, request, fencing, name
        self.poll_above: EntryId | None = None
        self.advanced_ms: int | None = None


class ReadPath:
    """Serves Read and BatchRead of all connections; `fenced` is told of each ledger that gets its fence."""

    def __init__(
        self,
        store: Store,
        polls: LongPolls,
        budget: Budget,
        hold: Hold,
        undecided: Container[LedgerId],
        max_batch_bytes: int,
        max_frame_bytes: int,
        fenced: Callable[[LedgerId], None],
        stats: Stats,
    ) -> None:
        self._hold, self._undecided = hold, undecided
        self._store, self._polls, self._budget, self._fenced = store, polls, budget, fenced
        self._max_batch_bytes, self._max_body = max_batch_bytes, max_frame_bytes - FRAME_ROOM
        self._guess = FIRST_GUESS
        self._batches = BatchSource(store, stats)
        self._served = stats.counter(*SERVED)
        self._failed = stats.counter("buckram_bookie_failed_reads_total", "reads answered with anything but entries")
        self._ready: dict[Session, None] = {}

    # -- arriving requests

    def read(self, session: Session, context: ReplyContext, request: Read) -> None:
        if request.fence:
            self._arrive_fencing(session, context, request)
        elif request.previous_lac is not None:
            self._arrive_poll(session, context, request, request.previous_lac)
        elif self._budget.refuse_reads:
            self._refuse(session, context, request, Code.TOO_MANY_REQUESTS)
        else:
            self._queue(session, Job(context, request, False, session.named.get(request.ledger_id)))

    def batch(self, session: Session, context: ReplyContext, request: BatchRead) -> None:
        if request.fence:
            self._arrive_fencing(session, context, request)
        elif self._budget.refuse_reads:
            self._refuse(session, context, request, Code.TOO_MANY_REQUESTS)
        else:
            self._queue(session, Job(context, request, False, session.named.get(request.ledger_id)))

    def _arrive_fencing(self, session: Session, context: ReplyContext, request: Read | BatchRead) -> None:
        name, key = session.named.get(request.ledger_id), request.master_key
        record = self._store.ledger(request.ledger_id)
        if key is not None and (is_other(record, name) or needs_proof(record, key)):
            # Only metadata knows which of two ledgers is live and whose key is right.
            session.requests_held += REQUEST_COST
            self._hold(request.ledger_id, key, name, partial(self._on_verdict, session, context, request, name))
            return
        self._fence(session, context, request, name)

    def _on_verdict(
        self,
        session: Session,
        context: ReplyContext,
        request: Read | BatchRead,
        name: bytes | None,
        verdict: Verdict,
        last: EntryId,
    ) -> None:
        """Continue a fencing request after metadata named the ledger and its key, or did not answer."""
        session.requests_held -= REQUEST_COST
        ledger_id, key = request.ledger_id, request.master_key
        record = self._store.ledger(ledger_id)
        other = is_other(record, name)
        disputed = record is not None and not record.proven and record.master_key != key
        if verdict is Verdict.WRONG_KEY:
            self._refuse(session, context, request, Code.UNAUTHORIZED)
        elif verdict in (Verdict.LATER, Verdict.UNKNOWN) and (other or disputed):
            self._refuse(session, context, request, Code.TOO_MANY_REQUESTS)
        elif other or verdict is Verdict.OTHER:
            # The one that was named is gone for good: nothing of it is here, and no add of it will be taken.
            self._refuse(session, context, request, absence(self._store, None))
        elif disputed:
            self._fence_absent(session, context, request)
        else:
            self._fence(session, context, request, name)
        session.recount()

    def _fence_absent(self, session: Session, context: ReplyContext, request: Read | BatchRead) -> None:
        """Of a ledger that metadata does not know no key is right, and none may add to it."""
        code = absence(self._store, None)
        try:
            self._store.fence(request.ledger_id)
        except StoreError:
            code = Code.IO_ERROR
        self._store.after_durable(partial(self._refuse_durably, session, context, request, code))

    def _fence(self, session: Session, context: ReplyContext, request: Read | BatchRead, name: bytes | None) -> None:
        try:
            code = self.fence(request.ledger_id, request.master_key, name)
        except StoreError as error:
            log.warning("ledger %d cannot be fenced: %s", request.ledger_id, error)
            code = Code.IO_ERROR
        if code is Code.OK:
            self._queue(session, Job(context, request, True, name))
        elif code is Code.UNAUTHORIZED:
            self._refuse(session, context, request, code)  # nothing changed, so nothing to wait for
        else:
            self._store.after_durable(partial(self._refuse_durably, session, context, request, code))

    def fence(self, ledger_id: LedgerId, key: bytes | None, name: bytes | None = None) -> Code:
        """Set the fence bit, of the ledger that was named; OK, UNAUTHORIZED, NO_LEDGER (deleted here) or IO_ERROR.
        Durable with after_durable.

        StoreError when the store takes no more.
        """
        store = self._store
        if key is None:
            return Code.UNAUTHORIZED
        if store.failed is not None:
            return Code.IO_ERROR
        record = store.ledger(ledger_id)
        if record is None:
            store.put_ledger(ledger_id, key, admitted=False, birth=name or NO_BIRTH)
        elif record.tombstone:
            return Code.NO_LEDGER
        elif record.master_key != key:
            return Code.UNAUTHORIZED
        elif name is not None and record.birth == NO_BIRTH:
            store.learn_birth(ledger_id, name)
        if record is None or not record.fenced:
            store.fence(ledger_id)
            self._fenced(ledger_id)
        return Code.OK

    def _arrive_poll(self, session: Session, context: ReplyContext, request: Read, above: EntryId) -> None:
        if request.piggyback and request.entry_id != LAST_ENTRY:
            self._refuse(session, context, request, Code.BAD_REQUEST)
            return
        record = self._store.ledger(request.ledger_id)
        name = session.named.get(request.ledger_id)
        if is_other(record, name):
            record = None
        if record is None or record.tombstone:
            self._refuse(session, context, request, absence(self._store, record))
            return
        job = Job(context, request, False, name)
        job.poll_above = above
        if request.timeout_ms is None or request.timeout_ms <= 0 or record.lac > above:
            self._queue(session, job)
            return
        over = partial(self._poll_over, session, job)
        waiter = self._polls.wait(request.ledger_id, above, request.timeout_ms / 1000, over)
        if waiter is None:
            self._refuse(session, context, request, Code.TOO_MANY_REQUESTS)
        else:
            session.waiters[waiter] = None

    def _poll_over(
        self, session: Session, job: Job, waiter: Waiter, why: Woken, advanced_ms: int | None, proof: Proof | None
    ) -> None:
        job.advanced_ms = advanced_ms
        session.waiters.pop(waiter, None)
        if session.open and not (proof is not None and self._answer_poll(session, job, waiter, proof)):
            self._queue(session, job)

    def _answer_poll(self, session: Session, job: Job, waiter: Waiter, proof: Proof) -> bool:
        """With the entry that brought the LAC, without a look into the store. False where that is not the answer."""
        request = job.request
        assert isinstance(request, Read)
        # On a connection that is behind the answer takes its turn and is charged like any other.
        if request.piggyback or request.entry_id != LAST_ENTRY or session.jobs or session.unsent() or self._budget.full:
            return False
        body, record = proof(waiter.above), self._store.ledger(request.ledger_id)
        if body is None or len(body) > self._max_body or record is None or record.tombstone:
            return False
        if is_other(record, job.name):
            return False
        reply = ReadReply(Code.OK, request.ledger_id, request.entry_id, body, record.lac, job.advanced_ms)
        self._count(reply)
        session.reply_at_once(job.context, reply)
        return True

    # -- the queue

    def _queue(self, session: Session, job: Job) -> None:
        session.requests_held += REQUEST_COST
        session.jobs.append(job)
        self.pump_soon(session)

    def pump_soon(self, session: Session) -> None:
        """Look at the connection's jobs at the end of this loop turn: one store.read for all of them."""
        if not self._ready:
            asyncio.get_running_loop().call_soon(self._pump_ready)
        self._ready[session] = None

    def _pump_ready(self) -> None:
        ready, self._ready = self._ready, {}
        for session in ready:
            if session.open:
                self._pump(session)

    def _pump(self, session: Session) -> None:
        """Start as many jobs as the connection has room for."""
        jobs = session.jobs
        singles: list[Job] = []
        wanted: list[tuple[LedgerId, EntryId]] = []
        reserved = 0
        guess = self._guess
        unsent = session.unsent()
        room = 0 if self._budget.full else self._budget.connection_limit - unsent - session.reading_bytes
        # One job may always run, however large, when the peer takes its answers: nothing stands still.
        idle = session.reading_bytes == 0 and unsent <= HIGH_WATER
        while jobs and len(singles) < MAX_AT_ONCE:
            job = jobs[0]
            assert isinstance(job, Job)
            request = job.request
            cost = self._batch_bytes(request) if isinstance(request, BatchRead) else guess
            if room < cost and not (idle and not reserved):
                break
            room -= cost
            reserved += cost
            jobs.popleft()
            if job.name is not None and is_other(self._store.ledger(request.ledger_id), job.name):
                reserved -= cost
                room += cost
                self._finish(session, job, None)
                continue
            if isinstance(request, BatchRead):
                idle = False
                session.reading_bytes += cost
                self._start_batch(session, job, request, cost)
                continue
            entry_id = self._wanted(job, request)
            if entry_id == NO_ENTRY:
                reserved -= cost
                room += cost
                self._finish(session, job, None)
            else:
                singles.append(job)
                wanted.append((request.ledger_id, entry_id))
        if singles:
            session.reading_bytes += guess * len(singles)
            self._store.read(wanted, partial(self._singles_done, session, singles, guess * len(singles)))
        session.recount()

    def _wanted(self, job: Job, request: Read) -> EntryId:
        """The entry to look up now, NO_ENTRY for none. The fence bit of a fencing read is set already (F4)."""
        if job.poll_above is not None and request.piggyback:
            record = self._store.ledger(request.ledger_id)
            return job.poll_above + 1 if record is not None and record.lac > job.poll_above else NO_ENTRY
        if request.entry_id != LAST_ENTRY:
            return max(request.entry_id, NO_ENTRY)
        last = self._store.last_entry(request.ledger_id)
        return NO_ENTRY if last is None else last

    def _batch_bytes(self, request: BatchRead) -> int:
        return max(0, min(request.max_bytes, self._max_batch_bytes))

    def _start_batch(self, session: Session, job: Job, request: BatchRead, cost: int) -> None:
        first = request.entry_id
        if first == LAST_ENTRY:
            last = self._store.last_entry(request.ledger_id)
            if last is None:
                self._batch_done(session, job, cost, [])
                return
            first = last
        self._batches.read(request, first, max(0, cost - BATCH_OVERHEAD), partial(self._batch_done, session, job, cost))

    # -- answers

    def _singles_done(self, session: Session, jobs: list[Job], reserved: int, outcomes: list[Outcome]) -> None:
        session.reading_bytes -= reserved
        largest = SMALLEST_GUESS
        for outcome in outcomes:
            if type(outcome) is bytes and len(outcome) > largest:
                largest = len(outcome)
        # Grows at once and shrinks slowly: what the next reads are charged before their size is known.
        self._guess = largest if largest > self._guess else max(largest, self._guess // 2)
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._finish(session, job, outcome)
        self._go_on(session)

    def _batch_done(self, session: Session, job: Job, cost: int, outcome: Batch) -> None:
        session.reading_bytes -= cost
        if isinstance(outcome, (FrameParts, Located)):
            session.requests_held -= REQUEST_COST
            session.send_parts(self._batches.parts(job.context, outcome))
        else:
            self._finish(session, job, outcome)
        self._go_on(session)

    def _go_on(self, session: Session) -> None:
        session.recount()
        if session.jobs and session.open:
            self.pump_soon(session)

    def _finish(self, session: Session, job: Job, outcome: Outcome | list[bytes]) -> None:
        session.requests_held -= REQUEST_COST
        request = job.request
        reply: ReadReply | BatchReadReply
        if isinstance(request, BatchRead):
            reply = self._batch_reply(job, request, outcome)
        elif job.poll_above is not None:
            reply = self._poll_reply(job, request, outcome)
        else:
            reply = self._single_reply(job, request, outcome)
        self._count(reply)
        if job.fencing:
            held = REQUEST_COST + _body_bytes(reply)
            session.requests_held += held
            self._store.after_durable(partial(self._reply_durably, session, job.context, reply, held))
        else:
            session.reply(job.context, reply)

    def _count(self, reply: ReadReply | BatchReadReply) -> None:
        if reply.code is not Code.OK:
            self._failed.inc()
        elif isinstance(reply, BatchReadReply):
            self._served.inc(len(reply.bodies))
        elif reply.body is not None:
            self._served.inc()

    def _reply_durably(
        self,
        session: Session,
        context: ReplyContext,
        reply: ReadReply | BatchReadReply,
        held: int,
        error: OSError | None,
    ) -> None:
        session.requests_held -= held
        if error is not None:
            reply = _error_like(reply, Code.IO_ERROR)
        session.reply(context, reply)

    def _batch_reply(self, job: Job, request: BatchRead, outcome: Outcome | list[bytes]) -> BatchReadReply:
        if isinstance(outcome, list) and outcome:
            if len(outcome[0]) > self._max_body:
                return BatchReadReply(Code.IO_ERROR, request.ledger_id, request.entry_id)
            return BatchReadReply(Code.OK, request.ledger_id, request.entry_id, outcome)
        code = self._code(job, None if isinstance(outcome, list) else outcome)
        return BatchReadReply(code, request.ledger_id, request.entry_id)

    def _single_reply(self, job: Job, request: Read, outcome: Outcome | list[bytes]) -> ReadReply:
        if isinstance(outcome, bytes) and len(outcome) <= self._max_body:
            # Only the v3 answer to a plain read has room for the LAC.
            wanted = job.context.protocol == 3 and not job.fencing
            record = self._store.ledger(request.ledger_id) if wanted else None
            lac = record.lac if record is not None else None
            return ReadReply(Code.OK, request.ledger_id, request.entry_id, outcome, lac)
        return ReadReply(self._code(job, outcome), request.ledger_id, request.entry_id)

    def _poll_reply(self, job: Job, request: Read, outcome: Outcome | list[bytes]) -> ReadReply:
        """The LAC counts; the entry comes along where this bookie has it (striping: often it has not)."""
        record = self._store.ledger(request.ledger_id)
        if record is None or record.tombstone or is_other(record, job.name):
            return ReadReply(self._absent(job), request.ledger_id, request.entry_id)
        if not request.piggyback:
            if not isinstance(outcome, bytes):
                return ReadReply(self._code(job, outcome), request.ledger_id, request.entry_id)
            return ReadReply(Code.OK, request.ledger_id, request.entry_id, outcome, record.lac, job.advanced_ms)
        if isinstance(outcome, StoreError) and not outcome.limbo:
            return ReadReply(Code.IO_ERROR, request.ledger_id, LAST_ENTRY)
        above = job.poll_above
        if isinstance(outcome, bytes) and above is not None and len(outcome) <= self._max_body:
            return ReadReply(Code.OK, request.ledger_id, above + 1, outcome, record.lac, job.advanced_ms)
        if record.lac == NO_ENTRY and self._store.last_entry(request.ledger_id) is None:
            return ReadReply(self._absent(job), request.ledger_id, LAST_ENTRY)
        return ReadReply(Code.OK, request.ledger_id, LAST_ENTRY, None, record.lac, job.advanced_ms)

    # -- codes

    def _code(self, job: Job, outcome: Outcome | list[bytes]) -> Code:
        if outcome is None:
            return self._absent(job)
        if isinstance(outcome, StoreError) and outcome.limbo:
            return Code.UNKNOWN_LEDGER_STATE
        return Code.IO_ERROR

    def _absent(self, job: Job) -> Code:
        ledger_id = job.request.ledger_id
        record = self._store.ledger(ledger_id)
        code = absence(self._store, None if is_other(record, job.name) else record)
        # The first adds of a ledger may wait for a look at metadata: it is no ledger that nobody knows.
        return Code.NO_ENTRY if code is Code.NO_LEDGER and record is None and ledger_id in self._undecided else code

    def _refuse(self, session: Session, context: ReplyContext, request: Read | BatchRead, code: Code) -> None:
        kind = BatchReadReply if isinstance(request, BatchRead) else ReadReply
        session.reply(context, kind(code, request.ledger_id, request.entry_id))

    def _refuse_durably(
        self, session: Session, context: ReplyContext, request: Read | BatchRead, code: Code, error: OSError | None
    ) -> None:
        self._refuse(session, context, request, code if error is None else Code.IO_ERROR)


def absence(store: Store, record: LedgerRecord | None) -> Code:
    """How to say that a ledger or an entry of it is not here: a negative only where that is certain (F6)."""
    if store.failed is not None:
        return Code.IO_ERROR
    if record is None:
        return Code.UNKNOWN_LEDGER_STATE if store.limbo else Code.NO_LEDGER
    if record.tombstone:
        return Code.NO_LEDGER
    return Code.UNKNOWN_LEDGER_STATE if record.limbo else Code.NO_ENTRY


def _error_like(reply: ReadReply | BatchReadReply, code: Code) -> ReadReply | BatchReadReply:
    return type(reply)(code, reply.ledger_id, reply.entry_id)


def _body_bytes(reply: ReadReply | BatchReadReply) -> int:
    if isinstance(reply, BatchReadReply):
        return sum(map(len, reply.bodies))
    return 0 if reply.body is None else len(reply.body)
