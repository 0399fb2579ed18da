"""Appender: offsets, batches and acknowledgements of a stream's writer, all in synchronous steps.

A batch of records is sent as one entry: at the end of the event loop's turn if fewer than `flights` entries are in
flight, else when one of them is acknowledged, when the batch is full, or after `linger`. Not here: the queue of appends
that wait for room (`write/append_queue.py`), the ledger (`write/segment.py`), when a segment ends (`write/roll.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, NamedTuple

from buckram.client.write.completions import Completions, fail_future
from buckram.config import ClientConfig, NetConfig
from buckram.core.streams.ack_window import StreamWindow
from buckram.core.streams.batch_copies import BatchCopy
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.policy import Policy
from buckram.core.streams.records.codecs import codec_number
from buckram.core.streams.records.producers import UNKNOWN_OFFSET, ProducerTable
from buckram.core.streams.records.record_format import PRODUCERS, Columns
from buckram.errors import BuckramError, BufferFull, OffsetMismatch, check
from buckram.streams.write import record_arguments as records
from buckram.streams.write.append_queue import MAX_ENTRY_RECORDS, AppendQueue, PendingAppend
from buckram.streams.write.lease import AppendClock
from buckram.streams.write.segment import SegmentWriter
from buckram.types import Offset

EntrySent = Callable[[], None]
"""Called after each entry that was handed to a segment; the roller then checks whether a roll is due."""


class Sent(NamedTuple):
    """An entry that is not released yet, kept so that it can be sent again if its ledger breaks."""

    next_offset: Offset
    columns: Columns | BatchCopy
    last_txid: int


BATCH_BYTES = 256 * 1024
_ENTRY_RESERVE = 64 * 1024
_COLUMN_COST = 64


class Appender:
    """Gives offsets to records, sends them in batches, and resolves futures. Call `begin` before the first append."""

    def __init__(
        self,
        stream: str,
        head: Head,
        policy: Policy,
        table: ProducerTable,
        config: ClientConfig,
        net: NetConfig,
        *,
        linger_s: float,
        flights: int,
        clock: AppendClock,
        on_entry_sent: EntrySent,
        within: Callable[[], object] | None = None,
    ) -> None:
        """`within`: says whether the caller may be within a span (`seams.py:Traces`)."""
        self.stream = stream
        self.next_offset = head.end
        """The offset of the next record. The window's own `next_offset` counts only records that were sent."""
        self.window = StreamWindow(head.end)
        self.queue = AppendQueue(self)
        self.segment: SegmentWriter | None = None
        self.batch = Columns()
        self.plain = True
        """True if the records of the batch have values only: no keys, headers, times, txids or producers."""
        self.sent_bytes = 0
        """Bytes of the records that were sent and are not released."""
        frame = net.max_frame_bytes - _ENTRY_RESERVE
        self.entry_limit = frame
        self.record_limit = max(min(records.MAX_RECORD_BYTES, frame - MAX_ENTRY_RECORDS * _COLUMN_COST), 1024)
        self.closed = False
        self._batch_bytes = min(BATCH_BYTES, self.record_limit)
        self._max_pending = config.max_pending_bytes
        self._policy, self._table, self._clock, self._on_entry_sent = policy, table, clock, on_entry_sent
        self._compression = codec_number(policy.compression)
        self._last_append, self._last_txid = head.last_append, head.last_txid
        self._released_txid = head.last_txid
        self._completions = Completions()
        self._unreleased: deque[Sent] = deque()
        self._copies: deque[BatchCopy] = deque()
        """Batches of another stream that have offsets and are not sent, because no segment takes entries for now."""
        self.paused = False
        """True while no segment takes entries; records wait in the batch and in the queue."""
        self.held = False
        """True while only records of an append that has begun get offsets; other appends wait in the queue."""
        self._held_bytes = 0
        """Bytes of append_nowait that wait while offsets are held back."""
        self._loop = asyncio.get_running_loop()
        self._linger_s, self._flights = linger_s, flights
        """Maximum time that records linger, seconds, and the number of entries in flight at which they do."""
        self._timer: asyncio.TimerHandle | None = None
        self._send_scheduled = self._lingering = False
        self._linger_until = 0.0
        self._within = within
        self._context: Context | None = None
        """Context of the first append that made the batch linger within a span: the entry is sent within it, too."""

    @property
    def pending_bytes(self) -> int:
        """Bytes of the records that are not released: those in the batch and those that were sent."""
        return self.sent_bytes + self.batch.size

    @property
    def idle(self) -> bool:
        """Return whether no record waits for room or for an acknowledgement."""
        return self.next_offset == self.window.released and not self.queue.waiting

    def begin(self, segment: SegmentWriter) -> None:
        """Send the batch to the present segment, then all later records to this one."""
        self.send_batch()
        self._last_append = max(self._last_append, self._clock())
        self._expire()
        self.segment = segment
        segment.begin(self.window.begin(), self._last_append, self._last_txid, self._table)

    def replace(self, failed: SegmentWriter, end: int, fresh: SegmentWriter, table: ProducerTable) -> None:
        """Send again to `fresh` what `failed` lacks: its ledger broke and holds only the records below `end`.

        `table` has the producers as of `end`, for the snapshot of the new segment. The appender's own table is ahead,
        because it includes the records that are sent again.
        """
        self.window.cut(failed.progress, end)
        self.segment = fresh
        self._last_append = max(self._last_append, self._clock())
        kept = [sent.last_txid for sent in self._unreleased if sent.next_offset <= end]
        again = [sent for sent in self._unreleased if sent.next_offset > end]
        # Copies keep their times, so the producers before them must not be of a later time.
        times = [sent.columns.append_time for sent in again[:1] if isinstance(sent.columns, BatchCopy)]
        time = min([self._last_append, *times])
        fresh.begin(self.window.begin(), time, kept[-1] if kept else self._released_txid, table)
        for sent in again:
            self.window.take(len(sent.columns))
            check(self.window.next_offset == sent.next_offset, "M9", f"offset {self.window.next_offset} sent again")
            self._send_to(fresh, sent)
        self.paused = False
        self.send_batch()
        self._send_copies()
        if self.queue.waiting:
            self.queue.drain()

    # -- records of others in between ----------------------------------------------------------------------

    def hold(self) -> None:
        """Give no offsets to further appends until `go_on` or `let_go`, and send what has some."""
        self.held = True
        self.send_batch()

    @property
    def at_rest(self) -> bool:
        """Return whether all records with an offset are released, and no append has offsets for a part of its own."""
        begun = bool(self.queue.waiting) and self.queue.waiting[0].begun
        return not begun and self.next_offset == self.window.released

    def settled(self) -> asyncio.Future[None]:
        """Return a future that is resolved when all that has an offset now is released."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._promise(None, future)
        return future

    def go_on(self, segment: SegmentWriter, end: int, last_append: int) -> None:
        """Go on at offset `end` in this segment, behind the records of others, which were appended at `last_append`."""
        if self.closed:
            return
        check(self.held and self.at_rest and not self.batch.values, "S9", f"{self.stream}: not at rest at {end}")
        self.window.jump(end)
        self.next_offset = end
        self._last_append = max(self._last_append, last_append, self._clock())
        self._expire()
        self.segment = segment
        segment.begin(self.window.begin(), self._last_append, self._last_txid, self._table)
        self.let_go()

    def let_go(self) -> None:
        """Give offsets again, first to what waits."""
        self.held, self._held_bytes = False, 0
        if self.queue.waiting:
            self.queue.drain()

    def keep(self, size: int) -> None:
        """Count `size` bytes that wait while offsets are held back. Raises BufferFull if these are too many."""
        if self._held_bytes and self._held_bytes + size > self._max_pending:
            raise BufferFull(self._held_bytes, self._max_pending)
        self._held_bytes += size

    # -- accepting records --------------------------------------------------------------------------------

    def full(self, size: int) -> bool:
        """Return whether a record of `size` bytes would have to wait for room."""
        return bool(self.queue.waiting) or not self._room(size)

    def _room(self, size: int) -> bool:
        # While paused the batch cannot be sent, and it must stay within the limits of one entry.
        if (
            self.paused
            and self.batch.values
            and (self.batch.size + size > self._batch_bytes or len(self.batch.values) >= MAX_ENTRY_RECORDS)
        ):
            return False
        pending = self.sent_bytes + self.batch.size
        return pending == 0 or pending + size <= self._max_pending

    def buffer_full(self) -> BufferFull:
        """Return the error for an append_nowait that has no room."""
        return BufferFull(self.pending_bytes, self._max_pending)

    def add_plain(self, value: bytes) -> asyncio.Future[int]:
        """Append one value for which there is room. This is the fast path of append_nowait."""
        size = len(value)
        batch = self.batch
        if batch.size + size > self._batch_bytes and batch.size:
            self.send_batch()
            batch = self.batch
        offset = self.next_offset
        self.next_offset = offset + 1
        if self.plain:
            batch.values.append(value)
            batch.size += size
        else:
            batch.extend(Columns([value], size=size))
        future: asyncio.Future[int] = self._loop.create_future()
        self._completions.add(offset, offset, future)
        self._batched()
        return future

    def accept(self, pending: PendingAppend) -> bool:
        """Give offsets to as many of its records as there is room for; True when all have one (AppendConsumer)."""
        if self.held and not pending.begun:
            return False
        if not pending.begun and not self._begin(pending):
            return True
        while pending.done < len(pending.ends):
            stop, size = pending.next_part(self._batch_bytes, whole=pending.atomic)
            if not self._room(size) or (self.paused and pending.atomic):
                return False
            part = pending.part(stop, size)
            if self.batch.values and (pending.atomic or self.batch.size + size > self._batch_bytes):
                self.send_batch()
            if self.batch.values:
                self.batch.extend(part)
            else:
                self.batch = part
            self.plain = self.batch.plain
            self.next_offset += stop - pending.done
            pending.done = stop
            self._remember(part)
            if pending.atomic:
                self.send_batch()
            else:
                self._batched()
        result: Any = None
        if pending.many:
            result = range(pending.first, self.next_offset)
        elif pending.first < self.next_offset:
            result = pending.first
        self._promise(result, pending.future)
        return True

    def _begin(self, pending: PendingAppend) -> bool:
        """Check the append and leave out what is stored already.

        Returns False when nothing is left to do: it failed, or the stream has all of its records.
        """
        columns = pending.columns
        try:
            if pending.expect is not None and pending.expect != self.next_offset:
                raise OffsetMismatch(self.stream, pending.expect, self.next_offset)
            if columns.producers and columns.sequences:
                producer, first = columns.producers[0] or "", columns.sequences[0]
                known = self._table.fresh(self.stream, producer, first, len(columns), pending.start)
                if known == len(columns):
                    last = self._table.last(producer)
                    found = last is not None and last.sequence == first + known - 1
                    offset = last.offset if last is not None and found else UNKNOWN_OFFSET
                    # The first attempt may still be in flight, so the answer waits until everything sent is released.
                    self._promise(range(self.next_offset, self.next_offset) if pending.many else offset, pending.future)
                    return False
                pending.skip(known)
                columns = pending.columns
            if columns.txids is not None:
                records.check_order(self.stream, columns.txids, self._last_txid)
        except BuckramError as error:
            fail_future(pending.future, error)
            return False
        pending.begun, pending.first = True, self.next_offset
        return True

    def _remember(self, part: Columns) -> None:
        """Note the last txid and the producer's last sequence of records that have just received offsets."""
        if part.txids is not None:
            self._last_txid = max(self._last_txid, *part.txids)
        if part.producers and part.sequences:
            producer, time = part.producers[-1] or "", max(self._last_append, self._clock())
            self._table.stored(producer, part.sequences[-1], self.next_offset - 1, time, part.sequences[0])
            if len(self._table) > self._policy.max_producers:
                self._expire()

    def _expire(self) -> None:
        policy = self._policy
        self._table.expire(self._last_append, policy.max_producers, int(policy.producer_s * 1_000_000))

    def _promise(self, result: Any, future: asyncio.Future[Any]) -> None:
        """Resolve `future` when every record that has an offset now is released."""
        last = self.next_offset - 1
        if last < self.window.released:
            future.set_result(result)
        else:
            self._completions.add(last, result, future)

    # -- sending ------------------------------------------------------------------------------------------

    def _batched(self) -> None:
        """Send the batch if it is full; otherwise arrange that it is sent."""
        batch = self.batch
        if batch.size >= self._batch_bytes or len(batch.values) >= MAX_ENTRY_RECORDS:
            self.send_batch()
        elif not self._send_scheduled and not self._lingering:
            if self._linger_s and self.segment is not None and self.segment.in_flight >= self._flights:
                self._linger()  # The acknowledgement of an entry in flight sends the batch, at latest the timer.
                if self._within is not None and self._within():
                    self._context = copy_context()
            else:
                self._send_scheduled = True
                self._loop.call_soon(self.send_or_linger)

    def send_or_linger(self) -> None:
        """Send the batch now, unless so many entries are in flight that it lingers. Called at the latest when the turn
        ends in which its records came."""
        self._send_scheduled = False
        if not self.batch.values or self.segment is None:
            return
        if not self._linger_s or self.segment.in_flight < self._flights:
            self.send_batch()
        else:
            self._linger()

    def _linger(self) -> None:
        self._lingering, self._linger_until = True, self._loop.time() + self._linger_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._linger_until, self._lingered)

    def _lingered(self) -> None:
        """Send the batch when its time is over. The timer is not moved for each batch, so it may fire too early."""
        self._timer = None
        if self._lingering and self._loop.time() < self._linger_until:
            self._timer = self._loop.call_at(self._linger_until, self._lingered)
        elif self._lingering:
            self.send_batch()

    def send_batch(self) -> None:
        """Send the batch now, as one entry."""
        batch, segment = self.batch, self.segment
        self._lingering = False
        if not batch.values or segment is None or self.closed or self.paused:
            return
        self.batch, self.plain = Columns(), True
        self._last_append = max(self._last_append, self._clock())
        self.window.take(len(batch.values))
        self._unreleased.append(Sent(self.window.next_offset, batch, self._last_txid))
        self.sent_bytes += batch.size
        self._send_to(segment, self._unreleased[-1])
        if segment.wants_snapshot() and self.window.next_offset == self.next_offset:
            self._expire()
            segment.snapshot(self._table)
        self._on_entry_sent()

    def _send_to(self, segment: SegmentWriter, sent: Sent) -> None:
        context, self._context = self._context, None
        if isinstance(sent.columns, BatchCopy):
            segment.send_copy(sent.columns, sent.last_txid)
        elif context is not None:
            context.run(segment.send, sent.columns, self._last_append, sent.last_txid, self._compression)
        else:
            segment.send(sent.columns, self._last_append, sent.last_txid, self._compression)

    # -- copies -------------------------------------------------------------------------------------------

    def add_copy(self, copy: BatchCopy) -> asyncio.Future[None]:
        """Append a batch of another stream, which must be the next one; the future ends when it is acknowledged."""
        check(copy.batch.first_offset == self.next_offset, "S9", f"{self.stream}: {copy.batch} at {self.next_offset}")
        self.next_offset += len(copy)
        future: asyncio.Future[None] = self._loop.create_future()
        self._copies.append(copy)
        self._completions.add(self.next_offset - 1, None, future)
        self._send_copies()
        return future

    def add_producers(self, table: ProducerTable) -> None:
        """Go on with the producers that another stream knows at this offset, and keep them in the segment."""
        self._table = table
        if self.segment is not None and not self._copies and not self.paused and not self.closed:
            self.segment.snapshot(table)

    def _send_copies(self) -> None:
        while self._copies and self.segment is not None and not self.closed and not self.paused:
            copy = self._copies.popleft()
            self._last_append = max(self._last_append, copy.append_time)
            self._last_txid = max(self._last_txid, copy.last_txid)
            if copy.columns & PRODUCERS:
                self._table.replay(copy.batch)
            self.window.take(len(copy))
            self._unreleased.append(Sent(self.window.next_offset, copy, self._last_txid))
            self.sent_bytes += copy.size
            self._send_to(self.segment, self._unreleased[-1])
            if self.segment.wants_snapshot():
                self.segment.snapshot(self._table)
            self._on_entry_sent()

    # -- acknowledgements ---------------------------------------------------------------------------------

    def acked(self, segment: SegmentWriter, next_offset: Offset) -> None:
        """Release what can be released now that the segment's ledger has acknowledged all below `next_offset`."""
        if self.closed:
            return
        moved = self.window.acked(segment.progress, next_offset)
        if self.batch.values and segment is self.segment and segment.in_flight < self._flights:
            self.send_batch()
        if moved:
            self._released()

    def listed(self, segment: SegmentWriter) -> None:
        """Release what waited for this segment to be listed and the one before to be sealed (M9)."""
        if not self.closed and self.window.listed(segment.progress):
            self._released()

    def _released(self) -> None:
        released, entries = self.window.released, self._unreleased
        while entries and entries[0].next_offset <= released:
            sent = entries.popleft()
            self.sent_bytes -= sent.columns.size
            self._released_txid = sent.last_txid
        self._completions.reached(released - 1)
        if self.queue.waiting:
            self.queue.drain()

    def fail(self, error: BuckramError) -> None:
        """Fail everything pending with `error`; nothing is sent or acknowledged any more (M9)."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.batch = Columns()
        self._copies.clear()
        self._completions.fail(error)
        self.queue.fail(error)
