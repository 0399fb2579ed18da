"""LedgerAppender: the engine of a Writer. Ids, acknowledgements and the LAC: core/ledgers/append.

What is appended in one turn of the loop leaves as one run: sealed and framed once, at the end of the turn, with the
LAC of that moment (outbox). Per entry there is no task, lock or timer, and a future only where the caller holds it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

from buckram.client.maintain.fill import copy_missing_of, lagging_members
from buckram.client.shared.arguments import check_payload, check_payloads
from buckram.client.shared.handles import close_on_exit, wait_closed
from buckram.client.shared.lagging_replicas import BehindNotes
from buckram.client.shared.ledger_metadata import MetadataCell
from buckram.client.shared.services import Services
from buckram.client.write.append_limits import AppendRoom, used_up
from buckram.client.write.completions import AckCallback, Completions
from buckram.client.write.durability import HURRY_S, complete_copies, force, seal, wait_settled
from buckram.client.write.ensemble_change import EnsembleChange
from buckram.client.write.explicit_lac import ExplicitLac
from buckram.client.write.outbox import Outbox
from buckram.client.write.tracing import TracedOutbox
from buckram.core.entries.entry import Digest, master_key
from buckram.core.ledgers.append import AppendWindow, Send
from buckram.core.ledgers.metadata import birth_of
from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.judge import breaches
from buckram.core.placement.policy import policy_of
from buckram.core.security.encryption import OVERHEAD, Cipher
from buckram.core.security.namespace_rules import namespace_of_ledger
from buckram.core.streams.names import DEFAULT_NAMESPACE
from buckram.errors import (
    BuckramError,
    HandleClosed,
    InvariantViolation,
    LedgerClosed,
    LedgerFenced,
    QuotaExceeded,
    Unauthorized,
    WriteFailed,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.types import BookieId, Buffer, DigestType, EntryId, LedgerId, LedgerMetadata, Slot, Versioned

FRAME_RESERVE_BYTES = 256
"""A payload may have max_frame_bytes less this: room for header, digest and the v3 envelope."""


OnAppenderClosed = Callable[["LedgerAppender"], None]
"""Called once with an appender that has let go of everything: closed, failed or abandoned."""


class LedgerAppender:
    """The engine of a Writer (`client/write/writer.py`, which describes the methods for users); lanes report to it.

    A segment of a stream uses it without the handle, which has neither `append_with_callback` nor `publish_no_lac`.
    """

    def __init__(
        self,
        services: Services,
        ledger_id: LedgerId,
        current: Versioned,
        *,
        password: bytes,
        explicit_ids: bool = False,
        deferred_sync: bool = False,
        absent: Collection[int] = (),
        cipher: Cipher | None = None,
        on_closed: OnAppenderClosed | None = None,
    ) -> None:
        metadata, config, pool = current.metadata, services.config, services.pool
        quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        key, birth = master_key(password), birth_of(metadata)
        self._policy = policy = policy_of(metadata.custom_metadata, services.bookies.policy)
        digest = Digest(metadata.digest_type or DigestType.DUMMY, password, birth)
        self.ledger_id, self.name = ledger_id, (ledger_id, birth) if birth else None
        self._services, self._on_closed, self._digest = services, on_closed, digest
        self._loop = asyncio.get_running_loop()
        self._max_payload = services.net.max_frame_bytes - FRAME_RESERVE_BYTES - (0 if cipher is None else OVERHEAD)
        self._cell = MetadataCell(services.store, ledger_id, current)
        self._window = window = AppendWindow(
            ledger_id,
            quorum,
            metadata.last_fragment.ensemble,
            deferred_sync=deferred_sync,
            explicit_ids=explicit_ids,
            spread=services.bookies.ack_rules(policy, quorum.write_quorum),
            absent=absent,
        )
        self._scope = TaskScope(f"writer {ledger_id}", self.on_unusable)
        self._lac = ExplicitLac(window, services, self._scope, digest, key)
        self.namespace = namespace_of_ledger(metadata.custom_metadata)
        traces = services.runtime.traces
        self._outbox = (Outbox if traces is None else partial(TracedOutbox, traces))(
            window,
            services,
            digest,
            key,
            owner=self,
            explicit_lac=self._lac,
            lane="" if self.namespace == DEFAULT_NAMESPACE else self.namespace,
            cipher=cipher,
        )
        self._completions = Completions()
        self._room = AppendRoom(
            window, self._outbox, self._completions, config.max_pending_bytes, config.max_pending_entries
        )
        self.close_copies_s = config.close_copies_s
        """Longest wait of a close for members that lack entries, seconds."""
        self._notes = BehindNotes(services.store, ledger_id, services.runtime.stats)
        self._lagging_members = lagging_members(services, window, self._cell, digest, key, self._scope, self._notes)
        self._copy_missing = copy_missing_of(services, ledger_id, digest, key, self._notes)
        self._change = EnsembleChange(
            window,
            self._cell,
            services.bookies,
            pool,
            self._scope,
            writer=self,
            lagging_members=self._lagging_members,
            policy=policy,
        )
        self._unsubscribe = services.bookies.on_change(self._change.bookies_changed)
        services.slow.add(self._change)
        self._acked_under: dict[BookieId, int] = {}
        """Deferred sync: which connection's answers the next force must still find in place (sealing.force)."""
        self._refusal: BuckramError | None = None
        """Error for new appends; None while they are accepted."""
        # Up to here a payload of type bytes without an explicit id needs no other check; -1: each needs all checks.
        self._plain_limit = -1 if explicit_ids else self._max_payload
        self._failure: BuckramError | None = None
        """Error of the first append that failed; None if none has."""
        self._unsound: BuckramError | None = None
        self._closing: asyncio.Task[BuckramError | None] | None = None
        self._finished = self._asking_quota = False

    # -- what one can know --------------------------------------------------------------------------------

    @property
    def last_confirmed(self) -> EntryId:
        """Return the last entry that every reader may see; -1 before the first. Under deferred sync: the last forced
        one."""
        return self._window.lac

    @property
    def last_pushed(self) -> EntryId:
        """Return the highest id given out, acknowledged or not."""
        return self._window.next_entry - 1

    @property
    def length(self) -> int:
        """Return the payload bytes appended (acknowledged or not); of the whole ledger once closed."""
        return self._window.length

    @property
    def pending_bytes(self) -> int:
        """Return the payload bytes sent or about to be, and not yet acknowledged (counted by runs)."""
        return self._window.pending_bytes

    @property
    def pending_entries(self) -> int:
        return self._window.pending_entries

    @property
    def metadata(self) -> LedgerMetadata:
        """Return the metadata as this writer last saw or wrote it."""
        return self._cell.metadata

    @property
    def degraded(self) -> bool:
        """Return whether entries get fewer than Qw copies for now, but never fewer than Qa; `degraded_reason` has the
        reason."""
        return bool(self._change.degraded) and not self._window.closed

    @property
    def misplaced(self) -> tuple[str, ...]:
        """Return where the present bookies fall short of the ledger's placement, in sentences."""
        window = self._window
        topology = self._services.bookies.topology
        return tuple(map(str, breaches(window.ensemble, window.quorum, self._policy, topology)))

    @property
    def degraded_reason(self) -> str:
        return self._change.degraded

    @property
    def ensemble_changes(self) -> int:
        """Return how many bookies were replaced so far."""
        return self._change.changes

    @property
    def closed(self) -> bool:
        """Return whether no append is accepted any more: closed, or failed."""
        return self._refusal is not None

    # -- appending ----------------------------------------------------------------------------------------

    async def append(self, payload: Buffer, *, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry; returns its id when Qa bookies hold it and all before it. Waits for room, in call order.

        `entry_id` exactly on a writer created with explicit_ids; it is then acknowledged when no smaller id is missing.
        """
        if type(payload) is not bytes or entry_id is not None or len(payload) > self._plain_limit:
            payload = self._checked(payload, entry_id)
        future: asyncio.Future[EntryId] = self._loop.create_future()
        try:
            if self._room.full(len(payload), entry_id):
                self._room.wait((payload,), future, entry_id=entry_id)
            else:
                self._room.enqueue(payload, entry_id, future)
            return await future
        except RuntimeError:  # of asyncio, which does not say whose loop it is
            self.check_loop()
            raise

    def append_nowait(self, payload: Buffer, *, entry_id: EntryId | None = None) -> asyncio.Future[EntryId]:
        """Append and return the future at once; BufferFull where append would wait. The future may be dropped:
        flush and close raise the first append that failed."""
        if type(payload) is not bytes or entry_id is not None or len(payload) > self._plain_limit:
            payload = self._checked(payload, entry_id)
        if self._room.full(len(payload), entry_id):
            raise self._room.buffer_full()
        future: asyncio.Future[EntryId] = self._loop.create_future()
        try:
            self._room.enqueue(payload, entry_id, future)
        except RuntimeError:
            self.check_loop()
            raise
        return future

    def append_with_callback(self, payload: bytes, callback: AckCallback, result: Any) -> None:
        """Append for a caller that batches by itself: `callback` gets `result`. The entry leaves now, since
        nothing joins it in this turn of the loop."""
        if len(payload) > self._plain_limit:
            payload = self._checked(payload, None)
        if self._room.full(len(payload)):
            raise self._room.buffer_full()
        self._completions.add(self._outbox.add((payload,), len(payload)), result, callback)
        self._outbox.flush_now()

    async def append_many(self, payloads: Iterable[Buffer]) -> range:
        """Append entries in a row; returns their ids when all are acknowledged. One future for all of them."""
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        bodies = check_payloads(self.ledger_id, payloads, self._max_payload, explicit=self._window.explicit_ids)
        if not bodies:
            return range(self._window.next_entry, self._window.next_entry)
        future: asyncio.Future[range] = self._loop.create_future()
        self._room.wait(bodies, future, many=True)
        return await future

    def publish_no_lac(self) -> None:
        """Stop publishing the last confirmed entry when idle: the writer's owner appends something instead."""
        self._lac.close()

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; raises the first append that failed."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._window.pending_entries or self._room.waiting:
            future: asyncio.Future[None] = self._loop.create_future()
            self._room.wait((), future)
            await future

    def check_loop(self) -> None:
        """Raise WrongEventLoop in another event loop than the client's."""
        self._services.check_loop()

    async def force(self) -> EntryId:
        """Deferred sync: make everything acknowledged so far durable; returns the last durable entry.

        A BookieError leaves open what is durable; call again. WriteFailed ends the writer: a bookie was lost that may
        have restarted without what it had acknowledged. Without deferred sync acknowledged is durable already.
        """
        self._services.guard()
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if not self._window.deferred_sync:
            return self._window.lac
        try:
            last = await force(self._window, self._services.pool, self._acked_under, self._digest.birth)
        except WriteFailed as error:
            self.fail(error)
            raise
        self._lac.head_moved()
        return last

    def _checked(self, payload: Buffer, entry_id: EntryId | None) -> bytes:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        return check_payload(self.ledger_id, payload, entry_id, self._max_payload, explicit=self._window.explicit_ids)

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self, *, wait: bool = True) -> None:
        """Flush, then seal the ledger with the last confirmed entry; raises the first append that failed.

        Appends are refused from now on. With wait=False what is not yet acknowledged fails with LedgerClosed. Closing
        again gives the same result. MetadataUnavailable (or a BookieError of the last force): the ledger may or may
        not be sealed, close again or recover it. Cancelling close does not stop it.
        """
        if self._closing is None or (self._closing.done() and not self._finished):
            self._refuse(LedgerClosed(self.ledger_id, "closed by this writer; append to a new ledger"))
            if self._scope.closed:
                raise HandleClosed(f"ledger {self.ledger_id}: the writer was abandoned, recover the ledger to close it")
            self._closing = self._scope.spawn(self._close(wait), "close")
        await wait_closed(self._closing, f"ledger {self.ledger_id}")

    async def replicated(self) -> bool:
        """Return, after close, whether all bookies have confirmed what they must hold, not only those of each
        quorum."""
        copies = self._outbox.copies
        await copies.wait(self._services.net.request_timeout_s)
        behind = self._lagging_members.left and (not self._finished or self.ledger_id in self._services.lagging)
        return not copies.unanswered and not behind

    async def abandon(self) -> None:
        """Stop without sealing: pending appends fail with HandleClosed, the ledger stays open and can be recovered."""
        self.fail(HandleClosed(f"ledger {self.ledger_id}: the client was closed before the writer"))
        await self._dispose()

    async def __aenter__(self) -> LedgerAppender:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await close_on_exit(lambda wait: self.close(wait=wait), self._dispose, error, f"ledger {self.ledger_id}")

    async def _close(self, wait: bool) -> BuckramError | None:
        """Close once at a time; return the error, because every caller of close gets it."""
        window, error = self._window, None
        try:
            if wait:
                await wait_settled(window, self._room, self._completions)
            if wait and window.deferred_sync and not window.closed:
                await force(window, self._services.pool, self._acked_under, self._digest.birth)
            unfinished = LedgerClosed(self.ledger_id, "the writer was closed before this was acknowledged")
            self._end(unfinished, meant=not wait)
            if self._unsound is not None:
                raise self._unsound  # recovery decides from what the bookies hold
            copies, behind = self._outbox.copies, list[BookieId]()
            if not isinstance(self._failure, LedgerFenced):  # else it is for whoever fenced it
                behind = await complete_copies(
                    self._services, window, copies, self._lagging_members, self._notes, self.close_copies_s
                )
            await seal(self._cell, self.ledger_id, *window.close())
            copies.complete()
            if len(self._notes.noted(behind)) < len(behind):  # the store did not answer before; it does now
                await self._notes.note(behind, HURRY_S)
            self._services.lagging.add(self.ledger_id, behind, self._copy_missing)
        except InvariantViolation:
            raise
        except BuckramError as failed:
            error = failed
        self._finished = error is None or not error.retryable
        if self._finished:
            await self._dispose()
        return self._failure or error

    def resend(self, sends: Sequence[Send]) -> None:
        """Send these again, and everything from now on to the window's present ensemble. Called by an ensemble
        change."""
        self._outbox.resend(sends)

    async def _dispose(self) -> None:
        # After this nobody works for what is pending: it must not wait for ever, and late answers must find an end.
        self.fail(HandleClosed(f"ledger {self.ledger_id}: the writer was abandoned before this was acknowledged"))
        self._unsubscribe()
        self._services.slow.remove(self._change)
        self._lac.close()
        self._change.close()
        await self._scope.close()
        if self._on_closed is not None:
            self._on_closed(self)
            self._on_closed = None

    def fail(self, error: BuckramError) -> None:
        """End the writer: everything pending fails with `error` (S8) and nothing is acknowledged any more (F11)."""
        if not self._window.closed:
            self._end(error)

    def _end(self, error: BuckramError, *, meant: bool = False) -> None:
        window = self._window
        # Acknowledged and not forced is as good as pending: sealing cuts it off.
        left = self._room.waiting or window.pending_entries or window.pending_head > window.lac
        if self._failure is None and not meant and left:
            self._failure = error
        self._refuse(error)
        self._window.close()
        self._outbox.clear()
        self._completions.fail(error)
        self._room.fail(error)

    def _refuse(self, error: BuckramError) -> None:
        if self._refusal is None:
            self._refusal, self._plain_limit = error, -1

    def on_unusable(self, error: BaseException) -> None:
        """End the writer after a bug, or when the client may not be used any more. Nothing may be acknowledged or
        sealed on unsound state."""
        if not isinstance(error, BuckramError) or isinstance(error, InvariantViolation):
            error = WriteFailed(self.ledger_id, f"internal error, please report it: {error!r}")
            self._unsound = error
        self.fail(error)

    # -- answers (AckSink) --------------------------------------------------------------------------------

    def acked(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId) -> None:
        """Record that the bookie in `slot` stored these entries. Called by a lane."""
        outbox, count = self._outbox, last - first + 1
        copies = outbox.copies
        if copies.expected is None:
            copies.unanswered -= count
        else:
            copies.answered(count)
        if first <= outbox.probe.entry <= last:
            outbox.probed(bookie_id)
        if self._window.deferred_sync and bookie_id not in self._acked_under:
            self._acked_under[bookie_id] = self._services.pool.losses(bookie_id)
        try:
            moved = self._window.acked(slot, first, last)
        except InvariantViolation as error:
            self.on_unusable(error)
            raise
        if moved:
            self.on_head_moved()

    def add_failed(self, slot: Slot, bookie_id: BookieId, first: EntryId, last: EntryId, error: BuckramError) -> None:
        """Handle adds that failed. Called by a lane; stale answers are ignored, whatever they say (2.3)."""
        self._outbox.copies.answered(last - first + 1)
        window = self._window
        if window.closed:
            self._lagging_members.failed(bookie_id)
        elif window.slots[slot % window.quorum.ensemble_size] == slot:
            if isinstance(error, LedgerFenced | Unauthorized | HandleClosed):
                self.fail(error)
            elif isinstance(error, QuotaExceeded):
                self._over_quota(bookie_id)
            else:
                self._change.slot_failed(slot, error)

    def _over_quota(self, bookie_id: BookieId) -> None:
        """End the writer because its namespace may store nothing more, once the bookie has told the figures."""
        if not self._asking_quota and not self._scope.closed:
            self._asking_quota = True
            self._scope.spawn(self._end_over_quota(bookie_id), "quota")

    async def _end_over_quota(self, bookie_id: BookieId) -> None:
        self.fail(await used_up(self._services.pool, bookie_id, self.namespace))

    def on_head_moved(self) -> None:
        """Resolve the futures of acknowledged entries, and enqueue appends that waited for room."""
        head = self._window.pending_head
        self._completions.reached(head)
        self._lac.head_moved()
        if 0 <= self._outbox.marked <= head:
            self._room.took(self._outbox.marked_took())
        if self._room.waiting:
            self._room.enqueue_waiting()

    def on_writable(self) -> None:
        """Enqueue waiting appends, because backpressure is over. Called by the outbox."""
        self._room.enqueue_waiting()
