"""StreamEngine: the implementation of a stream's writer, behind the handle StreamWriter (`write/writer.py`).

It ties together the appender (offsets, batches, acknowledgements), the roller with its segments (ledgers) and the
lease. Not here: checks of arguments (`streams/write/record_arguments.py`), becoming the writer and taking over
(`write/opening.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any

from buckram.client.shared.handles import close_on_exit, wait_closed
from buckram.core.streams.batch_copies import BatchCopy
from buckram.core.streams.metadata.changes import released
from buckram.core.streams.metadata.head import Head, Summary
from buckram.core.streams.policy import Policy
from buckram.core.streams.records.producers import ProducerTable
from buckram.core.streams.records.record_format import Columns, HeadersInput
from buckram.errors import (
    BuckramError,
    HandleClosed,
    InvariantViolation,
    LedgerFenced,
    RecordTooLarge,
    WriteFailed,
    WriterFailed,
    WriterLost,
    check,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.write import record_arguments as records
from buckram.streams.write.append_queue import PendingAppend
from buckram.streams.write.appender import Appender
from buckram.streams.write.insertion import answer_insertions
from buckram.streams.write.lease import AppendClock, Lease, WriterClaim
from buckram.streams.write.roll import Roller
from buckram.streams.write.sealing import as_writer_error, finish, recover_broken, sweep_garbage
from buckram.streams.write.segment import SegmentWriter
from buckram.types import Buffer, LedgerId, Offset

_NO_EXTRAS = (None,) * 8

EngineClosed = Callable[["StreamEngine"], None]
"""Called once, after the engine has ended and none of its tasks is left."""


class StreamEngine:
    """A stream's writer from its opening until it is closed, lost or failed. StreamWriter documents the methods."""

    def __init__(
        self,
        claim: WriterClaim,
        head: Head,
        policy: Policy,
        table: ProducerTable,
        *,
        name: str,
        linger_ms: float,
        on_closed: EngineClosed,
        flights: int = 1,
        clock: AppendClock | None = None,
    ) -> None:
        """`linger_ms`: how long records may wait while `flights` entries are in flight. `clock`: that of the records,
        default the cluster's."""
        services = claim.client.services
        self.stream, self.name, self.epoch, self.policy = str(claim.name), name, claim.epoch, policy
        self.uid = claim.uid
        self.lost = asyncio.Event()
        """Set when another writer has the lease or has fenced this one, or when the stream was deleted."""
        self._claim, self._on_closed = claim, on_closed
        self._guard, self.check_loop = services.guard, services.check_loop
        self.moment = services.clocks.moment
        """Returns what may be the time now."""
        self._loop = asyncio.get_running_loop()
        self._scope = TaskScope(f"stream writer {self.stream}", self._broken)
        self._roller = Roller(claim, policy, self._scope, self)
        self._appender = Appender(
            self.stream,
            head,
            policy,
            table,
            services.config,
            services.net,
            linger_s=linger_ms / 1000,
            flights=flights,
            clock=clock or services.clocks.now,
            on_entry_sent=self._roller.entry_sent,
            within=None if services.runtime.traces is None else services.runtime.traces.within,
        )
        self._plain_limit = self._appender.record_limit
        self._lease: Lease | None = None
        self._refusal: BuckramError | None = None
        """The error that new appends get; None while they are accepted."""
        self._failure: BuckramError | None = None
        """The error of the first append that failed, for `flush` and `close`."""
        self._closing: asyncio.Task[BuckramError | None] | None = None

    def now(self) -> int:
        """Return the wall time in microseconds UTC that records are stamped with."""
        return self._claim.now()

    def start(self, lease: Lease, first: SegmentWriter) -> None:
        """Own the lease from now on and begin the first segment, which is listed when its first entry is sent."""
        self._lease = lease
        self._appender.begin(first)
        self._roller.begin(first)

    async def prepare(self) -> SegmentWriter:
        """Make the ledger of a segment for `start`. Raises NotEnoughBookies or MetadataUnavailable."""
        return await self._roller.prepare()

    def serve_insertions(self) -> None:
        """List the ledgers of bulk steps that ask for it, from now on (`streams/write/insertion.py`)."""
        self.run(answer_insertions(self._claim, self._roller), "insertions")

    def run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run `work` in the background; it is cancelled when this writer ends."""
        self._scope.spawn(work, name)

    # -- state --------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets. Right after opening, a new leader must have read up to here."""
        return self._appender.next_offset

    @property
    def acknowledged(self) -> int:
        """The offset below which all records are acknowledged."""
        return self._appender.window.released

    @property
    def pending_bytes(self) -> int:
        """Bytes of values, keys and headers that are not acknowledged."""
        return self._appender.pending_bytes

    @property
    def max_record_bytes(self) -> int:
        """The most bytes that value, key and headers of one record may have together; above it: RecordTooLarge."""
        return self._appender.record_limit

    @property
    def closed(self) -> bool:
        """Return whether the writer is closed, lost or failed, and accepts no appends."""
        return self._refusal is not None

    @property
    def lost_reason(self) -> str:
        """Reason for which `lost` is set; empty if it is not."""
        return str(self._refusal) if self.lost.is_set() else ""

    @property
    def degraded(self) -> bool:
        """Return whether records get fewer copies than they should, or have to wait; see `degraded_reason`."""
        return bool(self.degraded_reason)

    @property
    def degraded_reason(self) -> str:
        """Reason for which records get fewer copies than they should, or have to wait; empty if they do not."""
        segment = self._appender.segment
        if segment is None or self.closed:
            return ""
        if self._appender.paused or (self._roller.busy and self._roller.last_trouble):
            return self._roller.last_trouble or "its ledger broke and is replaced by a new one"
        return segment.ledger.degraded_reason if segment.ledger.degraded else ""

    @property
    def roll_trouble(self) -> str:
        """Reason for which a roll that is due was put off; empty if none is."""
        return self._roller.last_trouble

    # -- appending ----------------------------------------------------------------------------------------

    async def append(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: HeadersInput | None = None,
        timestamp: int | None = None,
        txid: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        start: int | None = None,
        expect_offset: Offset | None = None,
    ) -> int:
        """Append one record and return its offset once it is acknowledged; see StreamWriter.append."""
        self._check_running()
        columns = records.one(
            self.stream, self._appender.record_limit, value, key, headers, timestamp, txid, producer, sequence, start
        )
        future: asyncio.Future[int] = self._loop.create_future()
        self._appender.queue.put(PendingAppend(columns, None, future, expect=expect_offset, start=start))
        return await future

    def append_nowait(
        self,
        value: Buffer | None,
        *,
        key: Buffer | None = None,
        headers: HeadersInput | None = None,
        timestamp: int | None = None,
        txid: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        start: int | None = None,
        expect_offset: Offset | None = None,
    ) -> asyncio.Future[int]:
        """Append one record and return its future; see StreamWriter.append_nowait."""
        appender = self._appender
        extras = (key, headers, timestamp, txid, producer, sequence, start, expect_offset)
        if extras == _NO_EXTRAS and type(value) is bytes and len(value) <= self._plain_limit and not appender.held:
            if appender.full(len(value)):
                raise appender.buffer_full()
            try:
                return appender.add_plain(value)
            except RuntimeError:  # of a loop that has ended, and has no turn to send this in
                self.check_loop()
                raise
        self._check_running()
        columns = records.one(
            self.stream, appender.record_limit, value, key, headers, timestamp, txid, producer, sequence, start
        )
        if appender.held:
            appender.keep(columns.size)
        elif appender.full(columns.size):
            raise appender.buffer_full()
        future: asyncio.Future[int] = self._loop.create_future()
        appender.queue.put(PendingAppend(columns, None, future, expect=expect_offset, start=start))
        return future

    async def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[HeadersInput | None] | None = None,
        timestamps: Iterable[int | None] | None = None,
        txids: Iterable[int | None] | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        start: int | None = None,
        atomic: bool = False,
        expect_offset: Offset | None = None,
    ) -> range:
        """Append consecutive records and return their offsets once acknowledged; see StreamWriter.append_many."""
        self._check_running()
        appender = self._appender
        columns, sizes = records.many(
            self.stream, appender.record_limit, values, keys, headers, timestamps, txids, producer, sequence, start
        )
        if atomic:
            total = columns.size + columns.overhead * len(columns)
            if total > appender.entry_limit:
                raise RecordTooLarge(self.stream, total, appender.entry_limit, "an atomic batch")
        future: asyncio.Future[range] = self._loop.create_future()
        appender.queue.put(
            PendingAppend(columns, sizes, future, many=True, atomic=atomic, expect=expect_offset, start=start)
        )
        return await future

    def append_values(self, values: list[bytes]) -> asyncio.Future[range]:
        """Append consecutive values in this very turn, and return the future of their offsets. Errors: append_many."""
        self._check_running()
        appender = self._appender
        limit = appender.record_limit
        columns, sizes = records.many(self.stream, limit, values, None, None, None, None, None, None, None)
        future: asyncio.Future[range] = self._loop.create_future()
        appender.queue.put(PendingAppend(columns, sizes, future, many=True))
        appender.send_or_linger()
        return future

    def append_copy(self, copy: BatchCopy) -> asyncio.Future[None]:
        """Append the next batch of the stream that this one is a mirror of, and return the future of its storing.

        It does not wait for room: the caller bounds what is in flight, see `pending_bytes`.
        """
        self._check_running()
        return self._appender.add_copy(copy)

    def put_producers(self, table: ProducerTable) -> None:
        """Take over the producers that the stream of which this is a mirror knows at this offset."""
        self._check_running()
        self._appender.add_producers(table)

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; raises the first append that failed."""
        self.check_loop()
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if not self._appender.idle:
            future: asyncio.Future[None] = self._loop.create_future()
            self._appender.queue.put(PendingAppend(Columns(), [], future))
            self._appender.send_batch()
            await future

    async def roll(self) -> bool:
        """End the segment and begin another while appends go on. Returns False and does nothing if it is empty."""
        self._check_running()
        self._appender.send_batch()
        return await self._roller.roll()

    # -- the end ------------------------------------------------------------------------------------------

    async def end(self) -> int:
        """Mark the stream as ended, close this writer, and return the offset after the last record."""
        self._check_running()
        await self._close_once(wait=True, end=True)
        return self.next_offset

    async def close(self, *, wait: bool = True) -> None:
        """Flush, seal the segment and release the stream; see StreamWriter.close."""
        await self._close_once(wait=wait, end=False)

    async def abandon(self) -> None:
        """Stop without sealing, as a crash would. Pending appends fail; the next writer takes over."""
        self.fail(HandleClosed(f"stream {self.stream}: the client was closed before the writer"))
        await self._dispose()

    async def __aenter__(self) -> StreamEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        what = f"the writer of stream {self.stream}"
        await close_on_exit(lambda wait: self.close(wait=wait), self._dispose, error, what)

    async def _close_once(self, *, wait: bool, end: bool) -> None:
        """Close in a task of its own, so that cancelling the caller does not stop it. All calls get the same result."""
        if self._closing is None:
            if self._scope.closed:
                raise HandleClosed(f"stream {self.stream}: the writer was abandoned; open a new one")
            self._closing = self._scope.spawn(self._close(wait=wait, end=end), "close")
        await wait_closed(self._closing, f"stream {self.stream}")

    async def _close(self, *, wait: bool, end: bool) -> BuckramError | None:
        """Close, and return the error instead of raising it, because every caller of `close` is to get it."""
        sound, error = self._refusal is None, None
        self._refuse(HandleClosed(f"stream {self.stream}: the writer is closed; open a new one"))
        try:
            if wait and sound:
                await self.flush()
            elif not self._appender.idle:
                self.fail(HandleClosed(f"stream {self.stream}: the writer was closed before this was acknowledged"))
            await self._roller.stop()
            if sound and self._failure is None:
                await self._release(end)
        except InvariantViolation:
            raise
        except BuckramError as failed:
            error = as_writer_error(self.stream, failed)
            if isinstance(error, WriterLost):
                self.lost.set()
        await self._dispose()
        return self._failure or error

    async def _release(self, end: bool) -> None:
        """Seal the open segment and release the stream, in one compare-and-set of the head."""
        segment, claim = self._appender.segment, self._claim
        sealed: tuple[int, Summary] | None = None
        if segment is not None and segment.progress.listed:
            sealed = await self._finish(segment)
        elif segment is not None:
            await self._roller.discard(segment)
        head = await claim.streams.change(
            claim.name, lambda head: released(self.stream, head, claim.nonce, sealed, end=end), uid=claim.uid
        )
        if sealed is not None and sealed[0] in head.garbage:
            await sweep_garbage(claim, head)

    async def _finish(self, segment: SegmentWriter) -> tuple[LedgerId, Summary]:
        """Close the last segment and return its row's contents. All of its records are acknowledged.

        If its ledger breaks now, recovery must find every record in it (S9).
        """
        try:
            return segment.ledger.ledger_id, await finish(segment)
        except WriteFailed:
            broken = await recover_broken(self._claim, segment, lambda _: None)
        held = broken.records if broken.sealed is not None else -1
        check(held == segment.records, "S9", f"{self.stream}: {segment.records} records acknowledged, {held} stored")
        assert broken.sealed is not None
        return broken.sealed

    async def _dispose(self) -> None:
        self.fail(HandleClosed(f"stream {self.stream}: the writer was given up before this was acknowledged"))
        if self._lease is not None:
            await self._lease.close()
        if self._appender.segment is not None:
            await self._appender.segment.ledger.abandon()
        await self._roller.abandon()
        await self._scope.close()
        self._on_closed(self)

    # -- events -------------------------------------------------------------------------------------------

    def fail(self, error: BuckramError) -> None:
        """End the writer: everything pending fails with `error`, and nothing is acknowledged any more."""
        if self._appender.closed:
            return
        if self._failure is None and not self._appender.idle:
            self._failure = error
        self._refuse(error)
        self._appender.fail(error)
        self._roller.fail(error)
        if isinstance(error, WriterLost):
            self._refusal = error
            self.lost.set()

    def lease_lost(self, reason: str) -> None:
        """End the writer because the lease has another holder; `reason` names it."""
        self.fail(WriterLost(self.stream, reason))

    def _refuse(self, error: BuckramError) -> None:
        if self._refusal is None:
            self._refusal, self._plain_limit = error, -1

    def _check_running(self) -> None:
        self._guard()
        if self._refusal is not None:
            raise self._refusal.with_traceback(None)

    def _broken(self, error: BaseException) -> None:
        """End the writer after a bug in it, since nothing may be acknowledged or sealed on unsound state."""
        self.fail(WriterFailed(self.stream, f"internal error, please report it: {error!r}"))

    def switch_segment(self, fresh: SegmentWriter) -> SegmentWriter | None:
        old = self._appender.segment
        self._appender.begin(fresh)
        return old

    def segment_listed(self, segment: SegmentWriter) -> None:
        self._appender.listed(segment)

    def segment_acked(self, segment: SegmentWriter, next_offset: Offset) -> None:
        try:
            self._appender.acked(segment, next_offset)
        except InvariantViolation as error:
            self._broken(error)
            raise

    def segment_failed(self, segment: SegmentWriter, error: BuckramError) -> None:
        if self._appender.closed or segment is not self._appender.segment or self._appender.paused:
            return  # The error is of a segment that was replaced before.
        if isinstance(error, WriteFailed):
            self.pause()
            self._roller.repair(segment)
        elif isinstance(error, LedgerFenced) and not segment.progress.listed and self._roller.busy:
            self.pause()  # It was fenced, by a janitor perhaps: listing it fails with the reason.
        else:
            self.fail(as_writer_error(self.stream, error))

    def pause(self) -> None:
        self._appender.paused = True

    def hold(self) -> asyncio.Future[None]:
        self._appender.hold()
        return self._appender.settled()

    def at_rest(self) -> bool:
        return self._appender.at_rest

    def let_go(self) -> None:
        self._appender.let_go()

    def go_on(self, segment: SegmentWriter, end: int, last_append: int) -> None:
        self._appender.go_on(segment, end, last_append)

    def replace_segment(self, failed: SegmentWriter, end: int, fresh: SegmentWriter, table: ProducerTable) -> None:
        self._appender.replace(failed, end, fresh, table)
