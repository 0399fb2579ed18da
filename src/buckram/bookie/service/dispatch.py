"""Interprets and answers each kind of request except adds and reads. No bytes, files or tasks here.

Nothing is acknowledged before the store reports it as durable.
Not here: adds (`bookie/service/entries/adds.py`) and reads (`bookie/service/entries/reads.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from buckram.bookie.service.connections.ledger_births import is_other
from buckram.bookie.service.connections.long_poll import LongPolls
from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.connections.session import REQUEST_COST, Session, request_of
from buckram.bookie.service.entries.adds import REFUSALS
from buckram.bookie.service.entries.admission import Admission, Verdict, needs_proof
from buckram.bookie.service.entries.pulls import PullPath
from buckram.bookie.service.entries.read_replies import absence
from buckram.bookie.service.entries.reads import ReadPath
from buckram.bookie.service.security.audit_events import WRONG_KEY, OnRefused
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import Store
from buckram.core.security.principal import Principal
from buckram.core.wire import availability
from buckram.core.wire.introduction import Identity, Introduction, identity_mismatch
from buckram.core.wire.lacs import LAC_PACKET, LARGEST_LAC_PACKET
from buckram.core.wire.messages import (
    DISK_STATE,
    FREE_DISK_SPACE,
    LOSS,
    MEMORY_USE,
    QUOTAS,
    REPORT,
    TOTAL_DISK_CAPACITY,
    BatchRead,
    BookieInfoReply,
    ErrorReply,
    Force,
    ForceReply,
    GetBookieInfo,
    ListEntries,
    ListEntriesReply,
    MemoryUse,
    Pull,
    Read,
    ReadLac,
    ReadLacReply,
    ReplyContext,
    Request,
    Trouble,
    WriteLac,
    WriteLacReply,
)
from buckram.errors import Code
from buckram.seams import Space
from buckram.types import MASTER_KEY_SIZE, NO_BIRTH, EntryId, LedgerId

log = logging.getLogger("buckram.bookie")


class ServedBookie(Protocol):
    """A bookie as the dispatcher sees it: the facts it answers requests with, and what it learns from them
    (`bookie/process.py`)."""

    def disk_space(self) -> Space:
        """Return the space of the data directory's device. Raises OSError."""
        ...

    def figures(self) -> Mapping[str, int]:
        """Return figures of the disk and of the check of its files, by name."""
        ...

    def troubles(self) -> Sequence[Trouble]:
        """Return what is wrong with this bookie now."""
        ...

    def report(self) -> bytes:
        """Return the report about the bookie for operators, encoded."""
        ...

    def used_up(self, session: Session) -> Mapping[str, int]:
        """Return use and limit of quotas that are used up, of namespaces that concern who is on the connection."""
        ...

    def identity(self) -> Identity:
        """Return the identity of the bookie for clients that introduce themselves."""
        ...

    def client_introduced(self, introduction: Introduction, principal: Principal) -> None:
        """Learn from the introduction of a client that meant this bookie."""
        ...


class Dispatcher:
    """Answers every request that is not an add."""

    def __init__(
        self,
        store: Store,
        reads: ReadPath,
        polls: LongPolls,
        budget: Budget,
        admission: Admission,
        max_frame_bytes: int,
        bookie: ServedBookie,
        pulls: PullPath,
    ) -> None:
        self._store, self._reads, self._polls, self._budget = store, reads, polls, budget
        self._admission, self._bookie, self._pulls = admission, bookie, pulls
        self._max_body = max_frame_bytes - 128
        self.on_refused: OnRefused | None = None
        """Callback for explicit LACs whose key is wrong."""

    def request(self, session: Session, context: ReplyContext, request: Request) -> None:
        if isinstance(request, Read):
            self._reads.read(session, context, request)
        elif isinstance(request, BatchRead):
            self._reads.batch(session, context, request)
        elif isinstance(request, Pull):
            self._pulls.arrive(session, context, request)
        elif isinstance(request, WriteLac):
            self._write_lac(session, context, request, session.named.get(request.ledger_id))
        elif isinstance(request, ReadLac):
            self._read_lac(session, context, request)
        elif isinstance(request, Force):
            self._force(session, context, request)
        elif isinstance(request, GetBookieInfo):
            self._info(session, context, request)
        elif isinstance(request, ListEntries):
            self._list(session, context, request)
        else:
            session.reply(context, ErrorReply(Code.BAD_REQUEST))

    def _write_lac(
        self, session: Session, context: ReplyContext, request: WriteLac, name: bytes | None, *, looked: bool = False
    ) -> None:
        ledger_id = request.ledger_id
        try:
            code = self._refused_lac(request, name)
            if code is None and needs_proof(self._store.ledger(ledger_id), request.master_key):
                if not looked:
                    session.requests_held += REQUEST_COST + len(request.body)
                    done = partial(self._on_lac_verdict, session, context, request, name)
                    self._admission.hold(ledger_id, request.master_key, name, done)
                    return
                if self._store.ledger(ledger_id) is not None:
                    code = Code.TOO_MANY_REQUESTS  # metadata did not say whose key is right
            if code is None:
                code = self._keep_lac(request, name)
        except StoreError as error:
            code = REFUSALS.get(error.kind, Code.IO_ERROR)
        if code is not Code.OK:
            self._refuse_lac(session, context, request, code)
            return
        held = REQUEST_COST + len(request.body)
        session.requests_held += held
        self._store.after_durable(partial(self._lac_durable, session, context, request, held))

    def _on_lac_verdict(
        self,
        session: Session,
        context: ReplyContext,
        request: WriteLac,
        name: bytes | None,
        verdict: Verdict,
        last: EntryId,
    ) -> None:
        """Continue after the look at metadata for the key. Without an answer, keep the LAC under the request's key."""
        session.requests_held -= REQUEST_COST + len(request.body)
        if verdict is Verdict.WRONG_KEY:
            self._refuse_lac(session, context, request, Code.UNAUTHORIZED)
        elif verdict is Verdict.OTHER:
            session.reply(context, WriteLacReply(Code.NO_LEDGER, request.ledger_id))
        else:
            self._write_lac(session, context, request, name, looked=True)
        session.recount()

    def _refuse_lac(self, session: Session, context: ReplyContext, request: WriteLac, code: Code) -> None:
        if code is Code.UNAUTHORIZED and self.on_refused is not None:
            self.on_refused(session, "append", request.ledger_id, WRONG_KEY)
        session.reply(context, WriteLacReply(code, request.ledger_id))

    def _refused_lac(self, request: WriteLac, name: bytes | None) -> Code | None:
        """Return why the packet cannot be stored, whatever its key. A bookie cannot check the digest."""
        store = self._store
        body = request.body
        if not LAC_PACKET.size <= len(body) <= LARGEST_LAC_PACKET or len(request.master_key) != MASTER_KEY_SIZE:
            return Code.BAD_REQUEST
        ledger_id, _ = LAC_PACKET.unpack_from(body)
        if ledger_id != request.ledger_id or ledger_id < 0:
            return Code.BAD_REQUEST
        if store.failed is not None:
            return Code.IO_ERROR
        if not store.is_writable:
            return Code.READ_ONLY
        record = store.ledger(ledger_id)
        if record is not None and (record.tombstone or is_other(record, name)):
            return Code.NO_LEDGER
        return None

    def _keep_lac(self, request: WriteLac, name: bytes | None) -> Code:
        """Store the packet and return OK, or return why not; then nothing has changed."""
        store, ledger_id = self._store, request.ledger_id
        record = store.ledger(ledger_id)
        if record is None:
            # A ledger that got nothing but explicit LACs still has to pass admission before its first normal add.
            store.put_ledger(ledger_id, request.master_key, admitted=False, birth=name or NO_BIRTH)
        elif record.master_key != request.master_key:
            return Code.UNAUTHORIZED
        _, lac = LAC_PACKET.unpack_from(request.body)
        store.set_explicit_lac(ledger_id, lac, request.body)
        self._polls.lac_advanced(ledger_id, lac)
        return Code.OK

    def _lac_durable(
        self, session: Session, context: ReplyContext, request: WriteLac, held: int, error: OSError | None
    ) -> None:
        session.requests_held -= held
        session.reply(context, WriteLacReply(Code.OK if error is None else Code.IO_ERROR, request.ledger_id))

    def _read_lac(self, session: Session, context: ReplyContext, request: ReadLac) -> None:
        store, ledger_id = self._store, request.ledger_id
        if self._budget.refuse_reads:
            session.reply(context, ReadLacReply(Code.TOO_MANY_REQUESTS, ledger_id))
            return
        last = None if self._is_other(session, ledger_id) else store.last_entry(ledger_id)
        if last is None:
            self._answer_lac(session, context, request, [None])
            return
        session.requests_held += REQUEST_COST
        store.read([(ledger_id, last)], partial(self._last_read, session, context, request))

    def _last_read(
        self, session: Session, context: ReplyContext, request: ReadLac, outcomes: list[bytes | StoreError | None]
    ) -> None:
        session.requests_held -= REQUEST_COST
        self._answer_lac(session, context, request, outcomes)

    def _answer_lac(
        self, session: Session, context: ReplyContext, request: ReadLac, outcomes: list[bytes | StoreError | None]
    ) -> None:
        """Answer with the last entry and the explicit LAC; one of them suffices. A missing ledger is NO_ENTRY, as in
        Apache's bookies."""
        record = self._store.ledger(request.ledger_id)
        if self._is_other(session, request.ledger_id):
            record, outcomes = None, [None]
        lac_body = None if record is None or record.tombstone else record.explicit_lac
        last = outcomes[0]
        if isinstance(last, StoreError):
            code = Code.UNKNOWN_LEDGER_STATE if last.limbo else Code.IO_ERROR
        elif last is not None and len(last) + len(lac_body or b"") > self._max_body:
            code, last = Code.IO_ERROR, None
        elif last is None and lac_body is None:
            code = absence(self._store, record)
            if code is Code.NO_LEDGER:
                code = Code.NO_ENTRY
        else:
            code = Code.OK
        body = last if isinstance(last, bytes) else None
        session.reply(context, ReadLacReply(code, request.ledger_id, lac_body, body))

    def _is_other(self, session: Session, ledger_id: LedgerId) -> bool:
        name = session.named.get(ledger_id)
        return name is not None and is_other(self._store.ledger(ledger_id), name)

    def _force(self, session: Session, context: ReplyContext, request: Force) -> None:
        if self._is_other(session, request.ledger_id):  # the data of the named ledger is gone from here
            session.reply(context, ForceReply(Code.NO_LEDGER, request.ledger_id))
            return
        session.requests_held += REQUEST_COST
        self._store.after_durable(partial(self._forced, session, context, request))

    def _forced(self, session: Session, context: ReplyContext, request: Force, error: OSError | None) -> None:
        session.requests_held -= REQUEST_COST
        session.reply(context, ForceReply(Code.OK if error is None else Code.IO_ERROR, request.ledger_id))

    def _introduce(self, session: Session, context: ReplyContext, said: Introduction) -> None:
        """Answer with this bookie's identity, and close the connection of a client that expects another bookie."""
        mine = self._bookie.identity()
        session.reply(context, BookieInfoReply(Code.OK, identity=mine))
        if identity_mismatch(said, mine):
            session.refuse(
                f"the client wanted bookie {said.bookie_id} of cluster {said.cluster}, but this is another bookie"
            )
        else:
            session.introduction = said
            self._bookie.client_introduced(said, session.principal)

    def _info(self, session: Session, context: ReplyContext, request: GetBookieInfo) -> None:
        if request.introduction is not None:
            self._introduce(session, context, request.introduction)
            return
        try:
            space = self._bookie.disk_space()
        except OSError as error:
            log.warning("free space is unknown: %s", error, extra=request_of(session, context))
            session.reply(context, BookieInfoReply(Code.IO_ERROR))
            return
        total = space.total_bytes if request.requested & TOTAL_DISK_CAPACITY else None
        free = space.free_bytes if request.requested & FREE_DISK_SPACE else None
        memory = self._memory() if request.requested & MEMORY_USE else ()
        loss = None
        if request.requested & LOSS:
            loss = self._store.loss if self._store.limbo else 0
        found: tuple[Mapping[str, int], Sequence[Trouble]] = {}, ()
        if request.requested & DISK_STATE:
            found = self._bookie.figures(), self._bookie.troubles()
        if request.requested & QUOTAS:
            found = {**found[0], **self._bookie.used_up(session)}, found[1]
        report = self._bookie.report() if request.requested & REPORT else None
        reply = BookieInfoReply(Code.OK, total, free, memory, loss, figures=found[0], troubles=found[1], report=report)
        session.reply(context, reply)

    def _memory(self) -> list[MemoryUse]:
        budget = self._budget
        return [*self._store.memory(), MemoryUse("connections", budget.total, budget.limit), self._pulls.memory()]

    def _list(self, session: Session, context: ReplyContext, request: ListEntries) -> None:
        record = self._store.ledger(request.ledger_id)
        if self._is_other(session, request.ledger_id):
            record = None
        if record is None or record.tombstone or record.limbo or self._store.failed is not None:
            code = absence(self._store, record)
            session.reply(context, ListEntriesReply(code, request.ledger_id))
            return
        try:
            body = availability.encode_runs(self._store.entries(request.ledger_id))
        except (OSError, StoreError) as error:
            what = "ledger %d: its entries cannot be listed: %s"
            log.warning(what, request.ledger_id, error, extra=request_of(session, context))
            session.reply(context, ListEntriesReply(Code.IO_ERROR, request.ledger_id))
            return
        code = Code.OK if len(body) <= self._max_body else Code.IO_ERROR
        found = body, b"" if record.birth == NO_BIRTH else record.birth
        session.reply(context, ListEntriesReply(code, request.ledger_id, *(found if code is Code.OK else ())))
