"""Fencing reads: sets the fence before the entry is looked up.

The order is key, fence bit, look-up; no answer leaves before the fence is durable (F1, F2, F4).
Not here: the look-up and the answer (`bookie/service/entries/reads.py`); adds to fenced ledgers
(`bookie/service/entries/adds.py`).
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

from buckram.bookie.service.connections.ledger_births import is_other
from buckram.bookie.service.connections.long_poll import LongPolls
from buckram.bookie.service.connections.session import REQUEST_COST, Session, request_of
from buckram.bookie.service.entries.admission import Admission, Verdict, needs_proof
from buckram.bookie.service.entries.read_replies import absence, refuse
from buckram.bookie.service.security.audit_events import WRONG_KEY, OnRefused
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import Store
from buckram.core.wire.messages import BatchRead, Read, ReplyContext
from buckram.errors import Code
from buckram.types import NO_BIRTH, EntryId, LedgerId

log = logging.getLogger("buckram.bookie")


class FencedReads(Protocol):
    """Continues fencing reads whose ledger has its fence bit (`bookie/service/entries/reads.py`)."""

    def queue_fenced(
        self, session: Session, context: ReplyContext, request: Read | BatchRead, name: bytes | None
    ) -> None:
        """Look the entry up and answer once the fence is durable. `name`: the birth that the connection named."""
        ...


class OnFenced(Protocol):
    """Callback for a ledger that was fenced, with the session that did it."""

    def __call__(self, session: Session, ledger_id: LedgerId, /) -> None: ...


class FencePath:
    """Fences the ledgers of fencing reads of all connections, and wakes the long polls of each."""

    def __init__(self, store: Store, admission: Admission, polls: LongPolls, reads: FencedReads) -> None:
        self._store, self._admission, self._polls, self._reads = store, admission, polls, reads
        self.on_fenced: OnFenced | None = None
        """Callback for each ledger that becomes fenced."""
        self.on_refused: OnRefused | None = None
        """Callback for each request whose key is wrong."""

    def arrive(self, session: Session, context: ReplyContext, request: Read | BatchRead) -> None:
        """Take a fencing read: fence at once, or after a look at metadata where only that tells whose key is right."""
        name, key = session.named.get(request.ledger_id), request.master_key
        record = self._store.ledger(request.ledger_id)
        if key is not None and (is_other(record, name) or needs_proof(record, key)):
            # Only metadata knows which of two ledgers is live and whose key is right.
            session.requests_held += REQUEST_COST
            self._admission.hold(
                request.ledger_id, key, name, partial(self._on_verdict, session, context, request, name)
            )
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
            self._refuse_key(session, context, request)
        elif verdict in (Verdict.LATER, Verdict.UNKNOWN) and (other or disputed):
            refuse(session, context, request, Code.TOO_MANY_REQUESTS)
        elif other or verdict is Verdict.OTHER:
            # The ledger that was named is gone for good: nothing of it is here, and no add of it will be taken.
            refuse(session, context, request, absence(self._store, None))
        elif disputed:
            self._fence_absent(session, context, request)
        else:
            self._fence(session, context, request, name)
        session.recount()

    def _fence_absent(self, session: Session, context: ReplyContext, request: Read | BatchRead) -> None:
        """Fence a ledger that metadata does not know: no key of it is right, and none may add to it."""
        code = absence(self._store, None)
        try:
            self._store.fence(request.ledger_id)
        except StoreError:
            code = Code.IO_ERROR
        self._store.after_durable(partial(_refuse_durably, session, context, request, code))

    def _fence(self, session: Session, context: ReplyContext, request: Read | BatchRead, name: bytes | None) -> None:
        record = self._store.ledger(request.ledger_id)
        was_fenced = record is not None and record.fenced
        try:
            code = self.fence(request.ledger_id, request.master_key, name)
        except StoreError as error:
            about = request_of(session, context)
            log.warning("ledger %d cannot be fenced: %s", request.ledger_id, error, extra=about)
            code = Code.IO_ERROR
        if code is Code.OK:
            if not was_fenced and self.on_fenced is not None:
                self.on_fenced(session, request.ledger_id)
            self._reads.queue_fenced(session, context, request, name)
        elif code is Code.UNAUTHORIZED:
            self._refuse_key(session, context, request)  # nothing changed, so nothing to wait for
        else:
            self._store.after_durable(partial(_refuse_durably, session, context, request, code))

    def _refuse_key(self, session: Session, context: ReplyContext, request: Read | BatchRead) -> None:
        if self.on_refused is not None:
            self.on_refused(session, "fence", request.ledger_id, WRONG_KEY)
        refuse(session, context, request, Code.UNAUTHORIZED)

    def fence(self, ledger_id: LedgerId, key: bytes | None, name: bytes | None = None) -> Code:
        """Set the fence bit of the ledger that `name` (a birth) means; it is durable with the store's `after_durable`.

        Returns OK, UNAUTHORIZED, NO_LEDGER (deleted here) or IO_ERROR. Raises StoreError if the store takes no more.
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
            self._polls.state_changed(ledger_id)
        return Code.OK


def _refuse_durably(
    session: Session, context: ReplyContext, request: Read | BatchRead, code: Code, error: OSError | None
) -> None:
    refuse(session, context, request, code if error is None else Code.IO_ERROR)
