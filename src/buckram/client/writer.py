"""Writer: appending to one ledger. Ids, acknowledgements and the LAC are core/append; failures ensemble_change.

What is appended in one turn of the loop leaves as one run: sealed and framed once, at the end of the turn, with the
LAC of that moment. Per entry there is no task, lock, timer, and a future only where the caller holds it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any

from buckram.client.close import force, seal
from buckram.client.completions import Completions, fail_future
from buckram.client.ensemble_change import EnsembleChange
from buckram.client.explicit_lac import ExplicitLac
from buckram.client.metadata_cell import MetadataCell
from buckram.client.services import Services
from buckram.core.adds import frame_adds
from buckram.core.append import AppendWindow, Run, Send
from buckram.core.entry import Digest, master_key
from buckram.core.quorum import Quorum
from buckram.errors import (
    BuckramError,
    BufferFull,
    DuplicateEntry,
    EntryTooLarge,
    HandleClosed,
    InvalidArgument,
    LedgerClosed,
    LedgerFenced,
    Unauthorized,
    WriteFailed,
)
from buckram.net.pool import AddLane
from buckram.net.tasks import TaskScope
from buckram.types import BookieId, Buffer, DigestType, EntryId, LedgerId, LedgerMetadata, Versioned

FRAME_RESERVE_BYTES = 256
"""A payload may have max_frame_bytes less this: room for header, digest and the v3 envelope."""
RUN_BYTES = 256 * 1024
_LANE_LIMIT_FACTOR = 4
"""A lane may hold this many times max_pending_bytes for a slow bookie before appends wait for it, too."""


class _Parked:
    """An append (or a flush: no payloads) that waits for room, in call order. `done` of its payloads are enqueued."""

    __slots__ = ("done", "entry_id", "future", "many", "payloads")

    def __init__(
        self, payloads: Sequence[bytes], future: asyncio.Future[Any], many: bool, entry_id: EntryId | None
    ) -> None:
        self.payloads, self.future, self.many, self.entry_id = payloads, future, many, entry_id
        self.done = 0


class Writer:
    """The one writer of a ledger; from `client.create()`.

    `async with` flushes and closes. Errors of appends: LedgerClosed, EntryTooLarge, DuplicateEntry, BufferFull and
    InvalidArgument mean that nothing was written; after any other the entry may or may not become part of the ledger,
    and the writer is finished. Cancelling an append abandons the wait, not the write.
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
        on_closed: Callable[[Writer], None] | None = None,
    ) -> None:
        metadata, config = current.metadata, services.config
        quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
        self.ledger_id = ledger_id
        self._services, self._on_closed = services, on_closed
        self._loop = asyncio.get_running_loop()
        self._key = master_key(password)
        self._digest = Digest(metadata.digest_type or DigestType.DUMMY, password)
        self._max_bytes, self._max_entries = config.max_pending_bytes, config.max_pending_entries
        self._max_payload = services.net.max_frame_bytes - FRAME_RESERVE_BYTES
        self._cell = MetadataCell(services.store, ledger_id, current)
        self._window = AppendWindow(
            ledger_id, quorum, metadata.last_fragment.ensemble, deferred_sync=deferred_sync, explicit_ids=explicit_ids
        )
        self._scope = TaskScope(f"writer {ledger_id}", self._task_failed)
        self._completions = Completions()
        self._parked: deque[_Parked] = deque()
        self._outbox: list[bytes] = []
        self._outbox_ids: list[EntryId] = []
        self._outbox_first: EntryId = 0
        self._outbox_bytes = 0
        self._flush_scheduled = False
        self._stalled = False
        self._targets: list[tuple[AddLane, int]] = []
        self._refusal: BuckramError | None = None
        self._failure: BuckramError | None = None
        self._closing: asyncio.Task[BuckramError | None] | None = None
        self._sealed = False
        self._lac = ExplicitLac(
            self._window, services.pool, self._scope, self._digest, self._key, config.idle_lac_ms / 1000
        )
        self._change = EnsembleChange(
            self._window, self._cell, services.bookies, services.pool, self._scope,
            send=self._resend, head_moved=self._head_moved, fail=self._fail,
        )  # fmt: skip
        self._unsubscribe = services.bookies.on_change(self._change.bookies_changed)
        stats = services.runtime.stats
        self._entries_total = stats.counter("client_appended_entries_total", "entries sent by writers")
        self._bytes_total = stats.counter("client_appended_bytes_total", "payload bytes sent by writers")
        self._retarget()

    # -- what one can know --------------------------------------------------------------------------------

    @property
    def last_confirmed(self) -> EntryId:
        """The last entry that every reader may see; -1 before the first. Under deferred sync: the last forced one."""
        return self._window.lac

    @property
    def last_pushed(self) -> EntryId:
        """The highest id given out, acknowledged or not."""
        return self._window.next_entry - 1

    @property
    def length(self) -> int:
        """Payload bytes appended (acknowledged or not); of the whole ledger once closed."""
        return self._window.length

    @property
    def pending_bytes(self) -> int:
        return self._window.pending_bytes

    @property
    def pending_entries(self) -> int:
        return self._window.pending_entries

    @property
    def metadata(self) -> LedgerMetadata:
        """As this writer last saw or wrote it."""
        return self._cell.metadata

    @property
    def degraded(self) -> bool:
        """Entries get fewer than Qw copies for now, but never fewer than Qa; `degraded_reason` says why."""
        return bool(self._change.degraded) and not self._window.closed

    @property
    def degraded_reason(self) -> str:
        return self._change.degraded

    @property
    def ensemble_changes(self) -> int:
        return self._change.changes

    @property
    def closed(self) -> bool:
        """No append is accepted any more: closed, or failed."""
        return self._refusal is not None

    # -- appending ----------------------------------------------------------------------------------------

    async def append(self, payload: Buffer, *, entry_id: EntryId | None = None) -> EntryId:
        """Append one entry; returns its id when Qa bookies hold it and all before it. Waits for room, in call order.

        `entry_id` exactly on a writer created with explicit_ids; it is then acknowledged when no smaller id is missing.
        """
        body = self._checked(payload, entry_id)
        future: asyncio.Future[EntryId] = self._loop.create_future()
        if self._parked or self._full(len(body), 1):
            self._parked.append(_Parked((body,), future, False, entry_id))
        else:
            self._enqueue_one(body, entry_id, future)
        return await future

    def append_nowait(self, payload: Buffer, *, entry_id: EntryId | None = None) -> asyncio.Future[EntryId]:
        """As append, but returns the future at once; BufferFull where append would wait. The future may be dropped:
        flush and close raise the first append that failed."""
        body = self._checked(payload, entry_id)
        if self._parked or self._full(len(body), 1):
            raise self._buffer_full()
        future: asyncio.Future[EntryId] = self._loop.create_future()
        self._enqueue_one(body, entry_id, future)
        return future

    async def append_many(self, payloads: Iterable[Buffer]) -> range:
        """Append entries in a row; returns their ids when all are acknowledged. One future for all of them."""
        bodies = self._checked_many(payloads)
        future: asyncio.Future[range] = self._loop.create_future()
        parked = _Parked(bodies, future, True, None)
        if self._parked or not self._take(parked):
            self._parked.append(parked)
        return await future

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; raises the first append that failed."""
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._window.closed or not (self._window.pending_entries or self._parked):
            return
        future: asyncio.Future[None] = self._loop.create_future()
        if self._parked:
            self._parked.append(_Parked((), future, False, None))
        else:
            self._completions.add(self.last_pushed, None, future)
        await future

    async def force(self) -> EntryId:
        """Deferred sync: make everything acknowledged so far durable; returns the last durable entry.

        A BookieError leaves open what is durable; call again. Without deferred sync acknowledged is durable already.
        """
        self._services.guard()
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if not self._window.deferred_sync:
            return self._window.lac
        last = await force(self._window, self._services.pool)
        self._lac.head_moved()
        return last

    # -- the end ------------------------------------------------------------------------------------------

    async def close(self, *, wait: bool = True) -> None:
        """Flush, then seal the ledger with the last confirmed entry; raises the first append that failed.

        Appends are refused from now on. With wait=False what is not yet acknowledged fails with LedgerClosed. Closing
        again gives the same result. MetadataUnavailable: the ledger may or may not be sealed, close again (or
        recover it). Cancelling close does not stop it.
        """
        if self._closing is None or (self._closing.done() and not self._sealed):
            if self._scope.closed:
                if self._failure is not None:
                    raise self._failure.with_traceback(None)
                return
            if self._refusal is None:
                self._refusal = LedgerClosed(self.ledger_id, "closed by this writer; append to a new ledger")
            self._closing = self._scope.spawn(self._close(wait), "close")
        error = await asyncio.shield(self._closing)
        if error is not None:
            raise error.with_traceback(None)

    async def abandon(self) -> None:
        """Stop without sealing: pending appends fail with HandleClosed, the ledger stays open and can be recovered."""
        self._end(HandleClosed(f"ledger {self.ledger_id}: the client was closed before the writer"))
        await self._dispose()

    async def __aenter__(self) -> Writer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close(wait=not isinstance(error, asyncio.CancelledError))
        except BuckramError as failure:
            if error is None:
                raise
            error.add_note(f"closing ledger {self.ledger_id} failed too: {failure}")
        finally:
            await self._dispose()

    async def _close(self, wait: bool) -> BuckramError | None:
        """Runs once; returns the error instead of raising it, because every caller of close gets it."""
        try:
            if wait and not self._window.closed:
                await self._settle()
                if self._window.deferred_sync and not self._window.closed:
                    await force(self._window, self._services.pool)
            last, length = self._window.close()
            self._end(LedgerClosed(self.ledger_id, "the writer was closed before this append was acknowledged"), wait)
            await seal(self._cell, self.ledger_id, last, length)
        except BuckramError as error:
            if isinstance(error, LedgerFenced):
                self._sealed = True  # somebody else's end of the ledger is an end
            return self._failure or error
        self._sealed = True
        await self._dispose()
        return self._failure

    async def _settle(self) -> None:
        """Wait until no append is pending that can still be acknowledged. Explicit ids behind a gap cannot."""
        while not self._window.closed and (self._parked or self._window.reachable > self._window.pending_head):
            future: asyncio.Future[None] = self._loop.create_future()
            if self._parked:
                self._parked.append(_Parked((), future, False, None))
            else:
                self._completions.add(self._window.reachable, None, future)
            try:
                await future
            except BuckramError:
                return  # kept as the failure of the writer

    async def _dispose(self) -> None:
        self._unsubscribe()
        self._lac.close()
        self._change.close()
        await self._scope.close()
        if self._on_closed is not None:
            self._on_closed(self)
            self._on_closed = None

    def _fail(self, error: BuckramError) -> None:
        """The writer ends here: everything pending fails with `error` (S8), nothing is acknowledged any more (F11)."""
        if not self._window.closed:
            self._end(error)

    def _end(self, error: BuckramError, expected: bool = False) -> None:
        if self._failure is None and not expected and (self._parked or self._window.pending_entries):
            self._failure = error
        if self._refusal is None:
            self._refusal = error
        self._window.close()
        self._outbox, self._outbox_ids, self._outbox_bytes = [], [], 0
        self._targets = []
        self._completions.fail(error)
        parked, self._parked = self._parked, deque()
        for waiter in parked:
            fail_future(waiter.future, error)

    def _task_failed(self, error: BaseException) -> None:
        """A task of ours broke: a bug. Nothing more may be acknowledged on unsound state."""
        self._fail(WriteFailed(self.ledger_id, f"internal error: {error!r}"))

    # -- admission ----------------------------------------------------------------------------------------

    def _checked(self, payload: Buffer, entry_id: EntryId | None) -> bytes:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if type(payload) is not bytes:
            payload = self._as_bytes(payload)
        if len(payload) > self._max_payload:
            raise EntryTooLarge(self.ledger_id, len(payload), self._max_payload)
        if (entry_id is not None) is not self._window.explicit_ids:
            raise InvalidArgument(
                f"entry_id={entry_id}: "
                + ("this writer was created with explicit_ids, give every append its entry_id"
                   if self._window.explicit_ids else "create the ledger with explicit_ids=True to choose entry ids")
            )  # fmt: skip
        if entry_id is not None and (type(entry_id) is not int or not 0 <= entry_id < 2**63 - 1):
            raise InvalidArgument(f"entry_id={entry_id!r}: needs an int from 0 to 2**63-2")
        return payload

    def _checked_many(self, payloads: Iterable[Buffer]) -> Sequence[bytes]:
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)
        if self._window.explicit_ids:
            raise InvalidArgument("append_many: this writer was created with explicit_ids, append entries one by one")
        if isinstance(payloads, bytes | bytearray | memoryview | str):
            raise InvalidArgument(f"append_many takes a sequence of payloads, not {type(payloads).__name__}")
        bodies = [p if type(p) is bytes else self._as_bytes(p) for p in payloads]
        largest = max(map(len, bodies), default=0)
        if largest > self._max_payload:
            raise EntryTooLarge(self.ledger_id, largest, self._max_payload)
        return bodies

    @staticmethod
    def _as_bytes(payload: Buffer) -> bytes:
        if isinstance(payload, bytes | bytearray | memoryview):
            return bytes(payload)  # a copy: the caller may change its buffer before it is sent
        raise InvalidArgument(f"a payload must be bytes, bytearray or memoryview, not {type(payload).__name__}")

    def _full(self, size: int, count: int) -> bool:
        window = self._window
        if self._stalled:
            return True
        return window.pending_entries > 0 and (
            window.pending_bytes + size > self._max_bytes or window.pending_entries + count > self._max_entries
        )

    def _buffer_full(self) -> BufferFull:
        window = self._window
        if self._stalled:
            why = "a bookie is slow to take what was sent"
        elif window.pending_entries >= self._max_entries:
            why = f"{window.pending_entries} entries are not yet acknowledged, the limit is {self._max_entries}"
        else:
            return BufferFull(window.pending_bytes, self._max_bytes)
        return BufferFull(window.pending_bytes, self._max_bytes, f"{why}: await flush() or use append(), which waits")

    def _take(self, parked: _Parked) -> bool:
        """Enqueue as much of it as there is room for; True when nothing is left and its future is on the way."""
        if not parked.payloads:
            self._when_acked(self.last_pushed, None, parked.future)
            return True
        payloads, first = parked.payloads, parked.done
        if not parked.many:
            if self._full(len(payloads[0]), 1):
                return False
            self._enqueue_one(payloads[0], parked.entry_id, parked.future)
            return True
        rest = payloads[first:] if first else payloads
        size = sum(map(len, rest))
        if not self._full(size, len(rest)):
            self._enqueue(rest, size)
            parked.done = len(payloads)
        else:
            for body in rest:
                if self._full(len(body), 1):
                    return False
                self._enqueue((body,), len(body))
                parked.done += 1
        last = self.last_pushed
        self._when_acked(last, range(last - len(payloads) + 1, last + 1), parked.future)
        return True

    def _when_acked(self, last: EntryId, result: Any, future: asyncio.Future[Any]) -> None:
        if last <= self._window.pending_head:
            future.set_result(result)
        else:
            self._completions.add(last, result, future)

    def _admit_parked(self) -> None:
        while self._parked:
            parked = self._parked[0]
            if not parked.future.done() and not self._take(parked):
                return
            self._parked.popleft()

    def _enqueue_one(self, body: bytes, entry_id: EntryId | None, future: asyncio.Future[Any]) -> None:
        if entry_id is not None:
            try:
                self._window.enqueue_at(entry_id, len(body))
            except DuplicateEntry as error:
                fail_future(future, error)
                return
            self._outbox_ids.append(entry_id)
            self._outbox.append(body)
            self._outbox_bytes += len(body)
            self._schedule()
        else:
            entry_id = self._enqueue((body,), len(body))
        self._completions.add(entry_id, entry_id, future)

    def _enqueue(self, bodies: Sequence[bytes], size: int) -> EntryId:
        first = self._window.enqueue(len(bodies), size)
        if not self._outbox:
            self._outbox_first = first
        self._outbox += bodies
        self._outbox_bytes += size
        self._schedule()
        return first

    def _schedule(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._send_outbox)

    # -- sending ------------------------------------------------------------------------------------------

    def _send_outbox(self) -> None:
        """Frame and send what this turn appended. From reading the LAC to the lanes it is one step (2.2)."""
        self._flush_scheduled = False
        bodies, size = self._outbox, self._outbox_bytes
        if not bodies or self._window.closed:
            return
        self._services.guard()
        ids, self._outbox, self._outbox_ids, self._outbox_bytes = self._outbox_ids, [], [], 0
        length = self._window.length - size
        if ids:
            rows = _rows(ids)
        elif size <= RUN_BYTES:
            rows = [(self._outbox_first, 0, len(bodies))]
        else:
            rows = _pieces(self._outbox_first, bodies)
        for first, start, stop in rows:
            part = bodies if stop - start == len(bodies) else bodies[start:stop]
            length = self._send_run(first, part, length)
        self._lac.carried(self._window.lac)
        self._entries_total.inc(len(bodies))
        self._bytes_total.inc(size)

    def _send_run(self, first: EntryId, bodies: list[bytes], length: int) -> int:
        window = self._window
        frames, acks, after = frame_adds(self._digest, self._key, self.ledger_id, first, window.lac, length, bodies)
        last = first + len(bodies) - 1
        run = Run(first, last, frames[0] if first == last else b"".join(frames), acks, after - length)
        window.start(run)
        if window.quorum.mirrored:
            data, deferred = run.data, window.deferred_sync
            for lane, slot in self._targets:
                lane.send(data, acks, ((self, slot, first, last),), deferred_sync=deferred)
                if lane.pending_bytes > self._lane_limit:
                    self._stalled = True
        else:
            self._resend(window.stripe(run))
        return after

    @property
    def _lane_limit(self) -> int:
        return _LANE_LIMIT_FACTOR * self._max_bytes

    def _resend(self, sends: Sequence[Send]) -> None:
        self._retarget()
        lanes = {slot: lane for lane, slot in self._targets}
        for send in sends:
            lane = lanes[send.slot]
            runs = [(self, send.slot, first, last) for first, last in send.rows]
            lane.send(send.data, send.acks, runs, deferred_sync=self._window.deferred_sync)
            if lane.pending_bytes > self._lane_limit:
                self._stalled = True

    def _retarget(self) -> None:
        pool, window = self._services.pool, self._window
        self._targets = [(pool.lane(window.ensemble[position]), slot) for position, slot in window.live()]

    # -- answers (AckSink) --------------------------------------------------------------------------------

    def acked(self, position: int, bookie_id: BookieId, first: EntryId, last: EntryId) -> None:
        """From a lane; `position` is the slot the run was sent under."""
        if self._window.acked(position, first, last):
            self._head_moved()
        if self._stalled:
            self._check_stall()

    def add_failed(
        self, position: int, bookie_id: BookieId, first: EntryId, last: EntryId, error: BuckramError
    ) -> None:
        window = self._window
        if self._stalled:
            self._check_stall()
        if window.closed or window.slots[position % window.quorum.ensemble_size] != position:
            return  # stale, whatever it says (2.3)
        if isinstance(error, LedgerFenced | Unauthorized | HandleClosed):
            self._fail(error)
        elif self._change.position_failed(position, error):
            self._retarget()

    def _head_moved(self) -> None:
        self._completions.reached(self._window.pending_head)
        self._lac.head_moved()
        if self._parked:
            self._admit_parked()

    def _check_stall(self) -> None:
        if all(lane.pending_bytes <= self._lane_limit for lane, _ in self._targets):
            self._stalled = False
            self._admit_parked()


def _rows(ids: list[EntryId]) -> list[tuple[EntryId, int, int]]:
    """(first id, start, stop) of each row of consecutive ids, in call order."""
    rows: list[tuple[EntryId, int, int]] = []
    start = 0
    for i in range(1, len(ids) + 1):
        if i == len(ids) or ids[i] != ids[i - 1] + 1:
            rows.append((ids[start], start, i))
            start = i
    return rows


def _pieces(first: EntryId, bodies: list[bytes]) -> list[tuple[EntryId, int, int]]:
    """(first id, start, stop) of runs of about RUN_BYTES, so that room comes back in small steps."""
    pieces: list[tuple[EntryId, int, int]] = []
    start = size = 0
    for i, body in enumerate(bodies):
        if size and size + len(body) > RUN_BYTES:
            pieces.append((first + start, start, i))
            start, size = i, 0
        size += len(body)
    pieces.append((first + start, start, len(bodies)))
    return pieces
