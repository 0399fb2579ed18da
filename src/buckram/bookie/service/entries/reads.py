"""Reads: plain, fencing, batch and long poll, with one bounded queue of jobs per connection.

Not here: how a ledger is fenced (`bookie/service/entries/fencing.py`); what a read is answered with what was found
(`bookie/service/entries/read_replies.py`); the forms of a batch (`bookie/service/entries/batch_reads.py`).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from buckram.bookie.service.connections.ledger_births import is_other
from buckram.bookie.service.connections.long_poll import LacProof, LongPolls, Waiter, Woken
from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.connections.session import HIGH_WATER, REQUEST_COST, Session
from buckram.bookie.service.entries.admission import Admission
from buckram.bookie.service.entries.batch_reads import Batch, BatchSource, Served
from buckram.bookie.service.entries.fencing import FencePath
from buckram.bookie.service.entries.read_replies import Found, Job, ReadReplies, absence, body_bytes, error_like, refuse
from buckram.bookie.storage.read_results import Outcome
from buckram.bookie.storage.store import Store
from buckram.core.entries.packed import FrameParts
from buckram.core.wire.located import Located
from buckram.core.wire.messages import LAST_ENTRY, BatchRead, BatchReadReply, Read, ReadReply, ReplyContext
from buckram.errors import Code
from buckram.seams import Stats
from buckram.types import NO_ENTRY, EntryId, LedgerId

MAX_AT_ONCE = 256
FIRST_GUESS, SMALLEST_GUESS = 512 * 1024, 4096
BATCH_OVERHEAD = 24 + 8 + 4
FRAME_ROOM = 128
"""An upper limit of the bytes that a v3 answer needs besides the entry."""


class MostBytes(Protocol):
    """Limit of the size of an answer about a ledger (`bookie/service/rate_limiter.py`)."""

    def __call__(self, ledger_id: LedgerId, /) -> int: ...


class ReadPath:
    """Serves Read and BatchRead of all connections."""

    def __init__(
        self,
        store: Store,
        polls: LongPolls,
        budget: Budget,
        admission: Admission,
        max_batch_bytes: int,
        max_frame_bytes: int,
        stats: Stats,
    ) -> None:
        self._store, self._polls, self._budget = store, polls, budget
        self._max_batch_bytes, self._max_body = max_batch_bytes, max_frame_bytes - FRAME_ROOM
        self._guess = FIRST_GUESS
        self.fencing = FencePath(store, admission, polls, self)
        self._undecided = admission.waiting
        self._replies = ReadReplies(store, self._undecided, self._max_body)
        self.served = Served(stats)
        self._batches = BatchSource(store, stats, self.served)
        self._seconds = stats.histogram(
            "buckram_bookie_read_seconds", "from looking entries up to their answer, per turn"
        )
        self._time = asyncio.get_running_loop().time
        self._failed = stats.counter("buckram_bookie_failed_reads_total", "reads answered with anything but entries")
        self._ready: dict[Session, None] = {}
        self.most_bytes: MostBytes | None = None
        """Maximum bytes of an answer while namespaces compete; None: as large as the request and the bookie allow."""

    # -- arriving requests

    def read(self, session: Session, context: ReplyContext, request: Read) -> None:
        """Take a read of one entry, which may fence or wait for the LAC."""
        if request.fence:
            self.fencing.arrive(session, context, request)
        elif request.previous_lac is not None:
            self._arrive_poll(session, context, request, request.previous_lac)
        elif self._budget.refuse_reads:
            refuse(session, context, request, Code.TOO_MANY_REQUESTS)
        else:
            self._queue(session, Job(context, request, False, session.named.get(request.ledger_id)))

    def batch(self, session: Session, context: ReplyContext, request: BatchRead) -> None:
        """Take a read of several entries, which may fence."""
        if request.fence:
            self.fencing.arrive(session, context, request)
        elif self._budget.refuse_reads:
            refuse(session, context, request, Code.TOO_MANY_REQUESTS)
        else:
            self._queue(session, Job(context, request, False, session.named.get(request.ledger_id)))

    def _arrive_poll(self, session: Session, context: ReplyContext, request: Read, above: EntryId) -> None:
        if request.piggyback and request.entry_id != LAST_ENTRY:
            refuse(session, context, request, Code.BAD_REQUEST)
            return
        record = self._store.ledger(request.ledger_id)
        name = session.named.get(request.ledger_id)
        if is_other(record, name):
            record = None
        # A ledger whose first adds wait for a look at metadata is known: Apache's client takes a few "no such ledger"
        # beside a bookie that does not answer for "no such entry", and DistributedLog's readers end with that.
        undecided = record is None and request.ledger_id in self._undecided
        if (record is None and not undecided) or (record is not None and record.tombstone):
            refuse(session, context, request, absence(self._store, record))
            return
        job = Job(context, request, False, name)
        job.poll_above = above
        lac = NO_ENTRY if record is None else record.lac
        if request.timeout_ms is None or request.timeout_ms <= 0 or lac > above:
            self._queue(session, job)
            return
        over = partial(self._poll_over, session, job)
        waiter = self._polls.wait(request.ledger_id, above, request.timeout_ms / 1000, over)
        if waiter is None:
            refuse(session, context, request, Code.TOO_MANY_REQUESTS)
        else:
            session.waiters[waiter] = None

    def _poll_over(
        self, session: Session, job: Job, waiter: Waiter, why: Woken, advanced_ms: int | None, proof: LacProof | None
    ) -> None:
        job.advanced_ms = advanced_ms
        session.waiters.pop(waiter, None)
        if session.open and not (proof is not None and self._answer_poll(session, job, waiter, proof)):
            self._queue(session, job)

    def _answer_poll(self, session: Session, job: Job, waiter: Waiter, proof: LacProof) -> bool:
        """Answer with the entry that brought the LAC, without a read of the store. False if that cannot be done."""
        request = job.request
        assert isinstance(request, Read)
        # On a connection with queued jobs or unsent answers, the answer is queued and charged like any other.
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

    def queue_fenced(
        self, session: Session, context: ReplyContext, request: Read | BatchRead, name: bytes | None
    ) -> None:
        self._queue(session, Job(context, request, True, name))

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
        # If the peer takes its answers, one job may always run, however large, so that the queue never blocks.
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
            self._store.read(wanted, partial(self._singles_done, session, singles, guess * len(singles), self._time()))
        session.recount()

    def _wanted(self, job: Job, request: Read) -> EntryId:
        """Return the entry to look up, NO_ENTRY for none. The fence bit of a fencing read is set already (F4)."""
        if job.poll_above is not None and request.piggyback:
            record = self._store.ledger(request.ledger_id)
            return job.poll_above + 1 if record is not None and record.lac > job.poll_above else NO_ENTRY
        if request.entry_id != LAST_ENTRY:
            return max(request.entry_id, NO_ENTRY)
        last = self._store.last_entry(request.ledger_id)
        return NO_ENTRY if last is None else last

    def _batch_bytes(self, request: BatchRead) -> int:
        most = max(0, min(request.max_bytes, self._max_batch_bytes))
        return most if self.most_bytes is None else min(most, self.most_bytes(request.ledger_id))

    def _start_batch(self, session: Session, job: Job, request: BatchRead, cost: int) -> None:
        first = request.entry_id
        if first == LAST_ENTRY:
            last = self._store.last_entry(request.ledger_id)
            if last is None:
                self._batch_done(session, job, cost, self._time(), [])
                return
            first = last
        done = partial(self._batch_done, session, job, cost, self._time())
        self._batches.read(request, first, max(0, cost - BATCH_OVERHEAD), done)

    # -- answers

    def _singles_done(
        self, session: Session, jobs: list[Job], reserved: int, since: float, outcomes: list[Outcome]
    ) -> None:
        self._seconds.observe(self._time() - since)
        session.reading_bytes -= reserved
        largest = SMALLEST_GUESS
        for outcome in outcomes:
            if type(outcome) is bytes and len(outcome) > largest:
                largest = len(outcome)
        # What the next reads are charged before their size is known; it grows at once and shrinks slowly.
        self._guess = largest if largest > self._guess else max(largest, self._guess // 2)
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._finish(session, job, outcome)
        self._go_on(session)

    def _batch_done(self, session: Session, job: Job, cost: int, since: float, outcome: Batch) -> None:
        self._seconds.observe(self._time() - since)
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

    def _finish(self, session: Session, job: Job, outcome: Found) -> None:
        session.requests_held -= REQUEST_COST
        request = job.request
        reply: ReadReply | BatchReadReply
        if isinstance(request, BatchRead):
            reply = self._replies.batch(job, request, outcome)
        elif job.poll_above is not None:
            reply = self._replies.poll(job, request, outcome)
        else:
            reply = self._replies.single(job, request, outcome)
        self._count(reply)
        if job.fencing:
            held = REQUEST_COST + body_bytes(reply)
            session.requests_held += held
            self._store.after_durable(partial(self._reply_durably, session, job.context, reply, held))
        else:
            session.reply(job.context, reply)

    def _count(self, reply: ReadReply | BatchReadReply) -> None:
        if reply.code is not Code.OK:
            self._failed.inc()
        elif isinstance(reply, BatchReadReply):
            self.served.count(len(reply.bodies), body_bytes(reply), reply.ledger_id)
        elif reply.body is not None:
            self.served.count(1, len(reply.body), reply.ledger_id)

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
            reply = error_like(reply, Code.IO_ERROR)
        session.reply(context, reply)
