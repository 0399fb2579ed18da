"""Chooses the reply to a read from what the store found.

Absence is reported only where the store is certain (F6); clients count any other error as unknown. Stored data of
another ledger than the named one does not count: for the named ledger, nothing is here (I8).
Not here: when a read is looked up and sent (`bookie/service/entries/reads.py`).
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeAlias

from buckram.bookie.service.connections.ledger_births import is_other
from buckram.bookie.service.connections.session import Session
from buckram.bookie.storage.read_results import Outcome, StoreError
from buckram.bookie.storage.store import LedgerRecord, Store
from buckram.core.wire.messages import LAST_ENTRY, BatchRead, BatchReadReply, Read, ReadReply, ReplyContext
from buckram.errors import Code
from buckram.types import NO_ENTRY, EntryId, LedgerId

Found: TypeAlias = Outcome | list[bytes]
"""The store's result of a job: one entry, an error, None (absent), or the entries of a batch."""


class Job:
    """A read in the queue of its connection. `name` is the birth of the ledger that the connection named, if any."""

    __slots__ = ("advanced_ms", "context", "fencing", "name", "poll_above", "request")

    def __init__(self, context: ReplyContext, request: Read | BatchRead, fencing: bool, name: bytes | None) -> None:
        self.context, self.request, self.fencing, self.name = context, request, fencing, name
        self.poll_above: EntryId | None = None
        self.advanced_ms: int | None = None


class ReadReplies:
    """Replies to the reads of one store. `undecided` holds the ledgers whose first adds wait for admission; no entry
    of more than `max_body` bytes fits into a frame."""

    def __init__(self, store: Store, undecided: Container[LedgerId], max_body: int) -> None:
        self._store, self._undecided, self._max_body = store, undecided, max_body

    def batch(self, job: Job, request: BatchRead, outcome: Found) -> BatchReadReply:
        if isinstance(outcome, list) and outcome:
            if len(outcome[0]) > self._max_body:
                return BatchReadReply(Code.IO_ERROR, request.ledger_id, request.entry_id)
            return BatchReadReply(Code.OK, request.ledger_id, request.entry_id, outcome)
        code = self._code(job, None if isinstance(outcome, list) else outcome)
        return BatchReadReply(code, request.ledger_id, request.entry_id)

    def single(self, job: Job, request: Read, outcome: Found) -> ReadReply:
        if isinstance(outcome, bytes) and len(outcome) <= self._max_body:
            # Only the v3 answer to a plain read has room for the LAC.
            wanted = job.context.protocol == 3 and not job.fencing
            record = self._store.ledger(request.ledger_id) if wanted else None
            lac = record.lac if record is not None else None
            return ReadReply(Code.OK, request.ledger_id, request.entry_id, outcome, lac)
        return ReadReply(self._code(job, outcome), request.ledger_id, request.entry_id)

    def poll(self, job: Job, request: Read, outcome: Found) -> ReadReply:
        """Reply with the LAC, and with the entry if this bookie has it; with striping it often has not."""
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

    def _code(self, job: Job, outcome: Found) -> Code:
        if outcome is None:
            return self._absent(job)
        if isinstance(outcome, StoreError) and outcome.limbo:
            return Code.UNKNOWN_LEDGER_STATE
        return Code.IO_ERROR

    def _absent(self, job: Job) -> Code:
        ledger_id = job.request.ledger_id
        record = self._store.ledger(ledger_id)
        code = absence(self._store, None if is_other(record, job.name) else record)
        # While the first adds of a ledger wait for a look at metadata, it is not an unknown ledger.
        return Code.NO_ENTRY if code is Code.NO_LEDGER and record is None and ledger_id in self._undecided else code


def absence(store: Store, record: LedgerRecord | None) -> Code:
    """Return the code for a ledger or an entry that is not here: a negative only where that is certain (F6)."""
    if store.failed is not None:
        return Code.IO_ERROR
    if record is None:
        return Code.UNKNOWN_LEDGER_STATE if store.limbo else Code.NO_LEDGER
    if record.tombstone:
        return Code.NO_LEDGER
    return Code.UNKNOWN_LEDGER_STATE if record.limbo else Code.NO_ENTRY


def refuse(session: Session, context: ReplyContext, request: Read | BatchRead, code: Code) -> None:
    """Answer a read with an error."""
    kind = BatchReadReply if isinstance(request, BatchRead) else ReadReply
    session.reply(context, kind(code, request.ledger_id, request.entry_id))


def error_like(reply: ReadReply | BatchReadReply, code: Code) -> ReadReply | BatchReadReply:
    """Return a reply of the same kind that has only the error."""
    return type(reply)(code, reply.ledger_id, reply.entry_id)


def body_bytes(reply: ReadReply | BatchReadReply) -> int:
    """Return the bytes of the entries in a reply."""
    if isinstance(reply, BatchReadReply):
        return sum(map(len, reply.bodies))
    return 0 if reply.body is None else len(reply.body)
