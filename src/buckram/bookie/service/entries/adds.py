"""The hot path: inserts runs of adds into the store and acknowledges them once they are durable.

Each run costs one record look-up, one key comparison, one insertion and one blob of acknowledgements. There is no await
between the checks and the insertion (F4). The store gets one callback per turn of the loop. Single entries are never
looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial

from buckram.bookie.service.connections.ledger_births import is_other
from buckram.bookie.service.connections.long_poll import LongPolls
from buckram.bookie.service.connections.memory_budget import Budget
from buckram.bookie.service.connections.session import Session
from buckram.bookie.service.entries.admission import Admission, Verdict, needs_proof
from buckram.bookie.service.security.audit_events import WRONG_KEY, OnRefused
from buckram.bookie.storage.read_results import StoreError
from buckram.bookie.storage.store import UNLIMITED, LedgerRecord, Store, TakenAdds
from buckram.core.wire.adds import HIGH_PRIORITY, RECOVERY_ADD, V2_ADDS, AddRun, ack_frames
from buckram.core.wire.server_protocol import encode_add_replies
from buckram.errors import Code
from buckram.seams import Stats
from buckram.types import NO_BIRTH, EntryId, LedgerId

Held = tuple[Session, AddRun | TakenAdds]
REFUSALS = {"busy": Code.TOO_MANY_REQUESTS, "full": Code.READ_ONLY}
"""The result code of an add that the store refuses, by kind of StoreError; any other kind is an I/O error."""
_CODES = {Verdict.UNKNOWN: Code.IO_ERROR, Verdict.LATER: Code.TOO_MANY_REQUESTS}
_UNDECIDED = tuple(_CODES)


def _goes_on(record: LedgerRecord | None) -> bool:
    """Return whether the record alone decides, without metadata: the ledger was admitted before, or it is fenced or
    deleted."""
    return record is not None and (record.fenced or record.tombstone or (record.admitted and not record.limbo))


def _answers(run: AddRun | TakenAdds, code: Code) -> bytes | bytearray:
    """Return the replies to adds that were inserted."""
    if isinstance(run, TakenAdds):
        return run.answer(code)
    if code is Code.OK and run.context is V2_ADDS:
        return ack_frames(run.ledger_id, run.first, run.count)
    return encode_add_replies(run, code)


class AddPath:
    """Checks in the order of the protocol: read-only, admission, key, fence; then the store."""

    def __init__(
        self,
        store: Store,
        polls: LongPolls,
        budget: Budget,
        stats: Stats,
        admission: Admission,
    ) -> None:
        self._store, self._polls, self._budget, self._admission = store, polls, budget, admission
        self._ledger, self._vouched, self._undecided = store.ledger, admission.vouched, admission.waiting
        self._inserted: list[Held] = []
        self._loop = asyncio.get_running_loop()
        self._added = stats.counter("buckram_bookie_added_entries_total", "entries acknowledged")
        self._added_bytes = stats.counter("buckram_bookie_added_bytes_total", "bytes of those, as framed on the wire")
        self._seconds = stats.histogram("buckram_bookie_add_seconds", "from arrival to acknowledgement, per loop turn")
        self.entries = self.bytes = 0
        """Entries and bytes that were acknowledged since the start."""
        self._refused = stats.counter("buckram_bookie_refused_adds_total", "entries answered with an error")
        self.on_refused: OnRefused | None = None
        """Callback for each run whose key is wrong."""

    def add(self, session: Session, run: AddRun) -> None:
        """Insert a run, refuse it, or let it wait for admission."""
        record = self._ledger(run.ledger_id)
        if (
            record is None
            or record.fenced
            or record.tombstone
            or not record.admitted
            or record.limbo
            or record.master_key != run.master_key
            or not self._store.is_writable
            or self._budget.total > self._budget.limit
            or (
                (name := session.named.get(run.ledger_id)) != record.birth
                and (name is not None or run.first <= record.last or run.ledger_id in self._undecided)
            )
        ):
            self._add_unusual(session, run, record, session.named.get(run.ledger_id))
        else:
            self._insert(session, run)

    def take(
        self,
        session: Session,
        chunk: bytes,
        offset: int,
        max_packet: int,
        v3: bool,
        allowed: Mapping[LedgerId, bytes] | None = None,
        most_bytes: int = UNLIMITED,
    ) -> TakenAdds | None:
        """Insert the plain adds of a chunk from `offset` on; None if the first one is not plain.

        `allowed`: the ledgers that a gate lets pass, with the births that the connection has to mean; None: all.
        """
        store, budget = self._store, self._budget
        if not store.is_writable or budget.total > budget.limit or self._comes_alone(session):
            return None
        if not self._inserted:
            self._loop.call_soon(self._wait_for_commit)  # before the store starts a commit, as for a run
        waiting, undecided = self._polls.waiting, self._undecided
        taken = store.take_adds(
            chunk, offset, max_packet, session.named, waiting, undecided, allowed, most_bytes, v3=v3
        )
        if taken is not None:
            session.requests_held += taken.size
            self._inserted.append((session, taken))
        return taken

    def _comes_alone(self, session: Session) -> bool:
        """Return whether the next add of a connection has to come as a run."""
        return False

    def take_adds(self, session: Session, chunk: bytes, offset: int, max_packet: int, v3: bool) -> int:
        """Take plain adds of a connection without a gate; see `ChunkHandler`."""
        taken = self.take(session, chunk, offset, max_packet, v3)
        return offset if taken is None else taken.end

    def _released(self, session: Session, run: AddRun, name: bytes | None, verdict: Verdict, last: EntryId) -> None:
        """Continue a run after the look at metadata.

        `name`: the birth that the connection had named when the run arrived; it may have named another one since.
        `last`: the last entry of a ledger that is CLOSED.
        """
        session.requests_held -= run.end - run.start
        session.births.check(run.ledger_id)
        record = self._ledger(run.ledger_id)
        other = is_other(record, name)
        if verdict is Verdict.WRONG_KEY:
            self._refuse_key(session, run)
        elif other or verdict is Verdict.OTHER:
            self._refuse_other(session, run, verdict)
        elif run.recovery:
            self._copy_released(session, run, verdict, record, name)
        elif verdict in (Verdict.ADMITTED, Verdict.CLOSED):
            closed_at = last if verdict is Verdict.CLOSED else None
            self._add_unusual(session, run, record, name, closed_at, looked=True)
        elif verdict in _UNDECIDED:
            if _goes_on(record):
                self._add_unusual(session, run, record, name, looked=True)
            else:
                self.refuse(session, run, _CODES[verdict])
        else:
            self._refuse_fenced(session, run)
        session.recount()

    def _refuse_other(self, session: Session, run: AddRun, verdict: Verdict) -> None:
        """Refuse a run of another ledger than the stored one of that id."""
        if verdict in _UNDECIDED:
            self.refuse(session, run, _CODES[verdict])
        elif run.recovery:
            self.refuse(session, run, Code.NO_LEDGER)
        else:
            self._refuse_fenced(session, run)

    def _copy_released(
        self, session: Session, run: AddRun, verdict: Verdict, record: LedgerRecord | None, name: bytes | None
    ) -> None:
        """Continue a recovery add after the look at metadata: it is stored even if metadata did not answer.

        Of a ledger that metadata does not know, no key is right, so the ledger that is stored under its id stays.
        """
        ours = record is None or (record.master_key == run.master_key and not record.tombstone)
        if verdict is Verdict.ABSENT and not ours:
            self.refuse(session, run, Code.NO_LEDGER)
        else:
            self._add_unusual(session, run, record, name, looked=True)

    def refuse(self, session: Session, run: AddRun, code: Code) -> None:
        """Answer every entry of the run with an error."""
        self._refused.inc(run.count)
        session.answer_run(run, code)

    def _add_unusual(
        self,
        session: Session,
        run: AddRun,
        record: LedgerRecord | None,
        name: bytes | None,
        closed_at: EntryId | None = None,
        *,
        looked: bool = False,
    ) -> None:
        """Decide on a run for which the record alone does not suffice. `looked`: metadata was asked for this run."""
        try:
            code = self._decide(session, run, record, name, closed_at, looked)
        except StoreError as error:
            code = REFUSALS.get(error.kind, Code.IO_ERROR)
        if code is Code.OK:
            self._insert(session, run)
        elif code is Code.UNAUTHORIZED:
            self._refuse_key(session, run)
        elif code is not None:
            self.refuse(session, run, code)

    def _refuse_key(self, session: Session, run: AddRun) -> None:
        if self.on_refused is not None:
            self.on_refused(session, "append", run.ledger_id, WRONG_KEY)
        self.refuse(session, run, Code.UNAUTHORIZED)

    def _decide(
        self,
        session: Session,
        run: AddRun,
        record: LedgerRecord | None,
        name: bytes | None,
        closed_at: EntryId | None,
        looked: bool,
    ) -> Code | None:
        """Return OK to insert, an error, or None: the run waits and is answered later.

        `closed_at`: the last entry of the ledger if metadata says that it is closed.
        """
        store = self._store
        recovery = bool(run.flags & RECOVERY_ADD)
        if store.failed is not None:
            return Code.IO_ERROR
        if self._budget.refuse_adds and not recovery:
            return Code.TOO_MANY_REQUESTS
        if not store.is_writable and not (run.flags & (RECOVERY_ADD | HIGH_PRIORITY) and store.reserve_usable):
            return Code.READ_ONLY
        if not looked and (needs_proof(record, run.master_key) or self._in_doubt(session, run, record, name)):
            self._wait(session, run, name)
            return None
        if record is not None and record.master_key != run.master_key:
            return Code.UNAUTHORIZED if record.proven else Code.TOO_MANY_REQUESTS
        if recovery:
            self._recovering(run, record, name or NO_BIRTH)
            return Code.OK
        if record is not None and (record.tombstone or record.fenced):
            return Code.FENCED
        if closed_at is not None:
            if run.last <= closed_at:
                return Code.OK  # the writer closed the ledger before this replica had answered
            store.fence(run.ledger_id)
            self._refuse_fenced(session, run)
            return None
        if record is not None and record.admitted and (not record.limbo or self._vouched(run.ledger_id)):
            return Code.OK
        self._wait(session, run, name)
        return None

    def _in_doubt(self, session: Session, run: AddRun, record: LedgerRecord | None, name: bytes | None) -> bool:
        """Return whether only metadata shows if the run is of the ledger that is stored here.

        Recovery adds are in doubt only if they are certainly of another ledger.
        """
        ledger_id = run.ledger_id
        if record is None or name == record.birth:
            return False
        if record.birth == NO_BIRTH:  # of an older release: learned at the first look
            dead = record.fenced or record.tombstone
            return not (name is None or dead or run.recovery or ledger_id in session.births.checked)
        if name is not None:
            return True
        if run.recovery or not (
            record.fenced
            or record.tombstone
            or run.first <= record.last
            or record.master_key != run.master_key
            or ledger_id in self._undecided
        ):
            return False
        return run.first == 0 or ledger_id not in session.births.checked or ledger_id in self._undecided

    def _wait(self, session: Session, run: AddRun, name: bytes | None) -> None:
        session.requests_held += run.end - run.start
        done = partial(self._released, session, run.detached(), name)
        self._admission.hold(run.ledger_id, run.master_key, name, done, grows=not run.recovery)

    def _recovering(self, run: AddRun, record: LedgerRecord | None, name: bytes) -> None:
        """Make the ledger of a recovery add known, under the birth that was named.

        If the ledger was deleted here, it stays fenced (F3, M10); the store takes care of that.
        """
        if record is None or record.tombstone:
            self._store.put_ledger(run.ledger_id, run.master_key, admitted=False, birth=name)
        elif record.birth != name and name != NO_BIRTH:
            self._store.learn_birth(run.ledger_id, name)

    def _insert(self, session: Session, run: AddRun) -> None:
        ledger_id = run.ledger_id
        inserted = self._inserted
        if not inserted:
            # Before add_run, so that this runs before the store starts the commit that it schedules itself.
            self._loop.call_soon(self._wait_for_commit)
        try:
            self._store.add_run(
                ledger_id, run.first, run.count, run.lac, run.chunk, run.start, run.end,
                even=run.stride > 0, bulk=bool(run.flags & RECOVERY_ADD),
            )  # fmt: skip
        except StoreError as error:
            self.refuse(session, run, REFUSALS.get(error.kind, Code.IO_ERROR))
            return
        session.requests_held += run.end - run.start
        if run.deferred_sync and not run.flags & RECOVERY_ADD:
            now = self._loop.time()
            self._store.after_written(partial(self._answer, [(session, run)], now))
        else:
            inserted.append((session, run))
        if ledger_id in self._polls.waiting:  # wake waiters before the commit starts
            self._polls.lac_advanced(ledger_id, run.lac, run.proof)

    def _wait_for_commit(self) -> None:
        inserted, self._inserted = self._inserted, []
        if inserted:
            if self._store.backpressure:
                for session, _ in inserted:
                    self._budget.pause_reads_of(session)
            self._store.after_durable(partial(self._answer, inserted, self._loop.time()))

    def _answer(self, inserted: list[Held], since: float, error: OSError | None) -> None:
        """Acknowledge the runs of one loop turn, or report the error, with one write per connection."""
        code = Code.OK if error is None else Code.IO_ERROR
        blobs: dict[Session, list[bytes | bytearray]] = {}
        entries = size = 0
        for session, run in inserted:
            if isinstance(run, TakenAdds):
                held, count = run.size, run.entries
            else:
                held, count = run.end - run.start, run.count
            session.requests_held -= held
            size += held
            entries += count
            if isinstance(run, AddRun) and run.answered is not None:
                run.answered(run, code)
                continue
            acks = _answers(run, code)
            mine = blobs.get(session)
            if mine is None:
                blobs[session] = [acks]
            else:
                mine.append(acks)
        for session, mine in blobs.items():
            session.send_now(mine[0] if len(mine) == 1 else b"".join(mine))
            if session.open:
                self._budget.update(session)
        if error is None:
            self.entries += entries
            self.bytes += size
            self._added.value += entries
            self._added_bytes.value += size
            self._seconds.observe(self._loop.time() - since)
        else:
            self._refused.inc(entries)

    def _refuse_fenced(self, session: Session, run: AddRun) -> None:
        """Refuse a run because metadata says that the ledger may not grow, once the new fence is durable."""
        held = run.end - run.start
        session.requests_held += held

        def durable(error: OSError | None) -> None:
            session.requests_held -= held
            self.refuse(session, run, Code.FENCED if error is None else Code.IO_ERROR)
            session.recount()

        self._store.after_durable(durable)
