"""SegmentWriter: appends entries to the ledger of one segment, in order, and keeps the totals for its row in the list.

Not here: which offsets may be acknowledged (`core/streams/ack_window.py`), when a segment ends (`write/roll.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from buckram.client.write.completions import AckCallback
from buckram.client.write.durability import HURRY_S
from buckram.client.write.engine import LedgerAppender
from buckram.core.streams.ack_window import SegmentProgress
from buckram.core.streams.batch_copies import BatchCopy
from buckram.core.streams.metadata.head import Summary
from buckram.core.streams.records.producers import ProducerTable
from buckram.core.streams.records.record_format import (
    DATA,
    IDLE,
    MARK,
    NO_MAX,
    NO_MIN,
    NO_SNAPSHOT,
    NO_TXID,
    PRODUCERS,
    SNAPSHOT,
    Columns,
    EntryHeader,
    encode,
    encode_plain,
    framed,
)
from buckram.errors import BuckramError, BufferFull
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.shared.ledgers import Intent
from buckram.types import Offset

_SNAPSHOT_EVERY = 16 * 1024 * 1024
_SNAPSHOT_SHARE = 32
"""Inverse of the maximum share of snapshots in the bytes of a segment: at most one byte in this many."""


class SegmentEvents(Protocol):
    """Events of a segment, on the event loop and in the order of its entries."""

    def segment_acked(self, segment: SegmentWriter, next_offset: Offset) -> None:
        """Learn that the ledger has acknowledged all entries with records below `next_offset`."""

    def segment_failed(self, segment: SegmentWriter, error: BuckramError) -> None:
        """Learn that an entry was not stored, and the ledger takes no more. It may be called more than once."""


class SegmentWriter:
    """The open segment of a writer. `begin` comes first; `close` returns the summary that seals it."""

    def __init__(
        self,
        ledger: LedgerAppender,
        intent: Intent,
        scope: TaskScope,
        events: SegmentEvents,
        *,
        idle_s: float,
    ) -> None:
        self.ledger, self.intent = ledger, intent
        # Idle marks publish the LAC instead: cheaper for the writer, and tailing readers see it sooner.
        ledger.publish_no_lac()
        self.progress: SegmentProgress
        """Place of the segment in the window; set by `begin`."""
        self.begun = False
        self.bytes = self.records = 0
        self.broken: BuckramError | None = None
        """The first error of its ledger, which takes no entry afterwards."""
        self.opened_at = 0.0
        """The loop time of `begin`."""
        self.in_flight = 0
        """The number of entries that are not acknowledged."""
        self._scope, self._on_acked, self._on_failed = scope, events.segment_acked, events.segment_failed
        self._entries = 0
        self._first_append = self._last_append = 0
        self._lowest, self._highest, self._last_txid = NO_MIN, NO_MAX, NO_TXID
        self._snapshot, self._since_snapshot = NO_SNAPSHOT, 0
        self._snapshot_size = 0
        self._marked = 0
        """The number of records whose LAC an idle mark has published."""
        self._stored = 0
        """The number of records that were acknowledged when the last entry in flight was."""
        metadata = ledger.metadata
        self._spread = metadata.ensemble_size - metadata.write_quorum + 1
        """The number of consecutive entries of which every member of the ensemble stores at least one."""
        self._loop = asyncio.get_running_loop()
        self._ack_callback = AckCallback(self._acknowledged, self._lost)
        self._idle_s = idle_s
        self._rested_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._queue: deque[tuple[bytes, int]] = deque()
        self._drained = asyncio.Event()
        self._drained.set()

    def begin(self, progress: SegmentProgress, append_time: int, last_txid: int, table: ProducerTable) -> None:
        """Start the segment. Its first entry is the snapshot of the producers, if there are any."""
        self.progress, self.begun = progress, True
        self.opened_at = self._loop.time()
        self._first_append = self._last_append = append_time
        self._last_txid = last_txid
        if table:
            self.snapshot(table)

    def send_copy(self, copy: BatchCopy, last_txid: int) -> None:
        """Append an entry of another stream with its records as they are; like `send` otherwise."""
        if copy.columns & PRODUCERS and self._snapshot == NO_SNAPSHOT:
            self.snapshot(ProducerTable())
        self._begin_entry(copy.append_time, last_txid)
        self._lowest, self._highest = min(self._lowest, copy.lowest), max(self._highest, copy.highest)
        header = EntryHeader(
            DATA,
            copy.compression,
            copy.columns,
            len(copy),
            copy.body_size,
            self.records,
            copy.append_time,
            last_txid,
            self._lowest,
            self._highest,
            self._snapshot,
        )
        self.records += len(copy)
        self._submit(framed(header, copy.body))

    def _begin_entry(self, append_time: int, last_txid: int) -> None:
        if not self._entries:
            self._first_append = append_time
        self._last_append, self._last_txid = append_time, last_txid

    def send(self, columns: Columns, append_time: int, last_txid: int, compression: int) -> None:
        """Append one entry with these records, whose offsets were taken from the window."""
        if columns.producers is not None and self._snapshot == NO_SNAPSHOT:
            # No producer was known at `begin`, and recovery looks for producers only where there is a snapshot.
            self.snapshot(ProducerTable())
        self._begin_entry(append_time, last_txid)
        payload, header = encode(
            columns,
            first=self.records,
            append_time=append_time,
            last_txid=last_txid,
            lowest=self._lowest,
            highest=self._highest,
            snapshot=self._snapshot,
            compression=compression,
        )
        self._lowest, self._highest = header.min_timestamp, header.max_timestamp
        self.records += header.records
        self._submit(payload)

    def wants_snapshot(self) -> bool:
        """Return whether another snapshot is due, so that recovery has few entries to read after it."""
        return self._snapshot != NO_SNAPSHOT and self._since_snapshot > max(
            _SNAPSHOT_EVERY, _SNAPSHOT_SHARE * self._snapshot_size
        )

    def snapshot(self, table: ProducerTable) -> None:
        """Append the table as an entry.

        It must only name sequences that were sent before: after a crash they are taken for stored.
        """
        body = table.encode()
        self._snapshot, self._since_snapshot, self._snapshot_size = self._entries, 0, len(body)
        self._plain(SNAPSHOT, body)

    def mark(self) -> None:
        """Append a mark: it publishes the LAC of the entries before it and tells tailing readers of a coming end."""
        self._append_to_each_bookie(MARK)

    def rest(self) -> None:
        """Append no further idle marks, because the segment is being closed or abandoned."""
        self._idle_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def flush(self) -> None:
        """Wait until the ledger has acknowledged every entry; raises the error that it failed with."""
        await self._drained.wait()
        if self.broken is not None:
            raise self.broken.with_traceback(None)
        await self.ledger.flush()

    async def close(self) -> Summary:
        """Close the ledger and return what it holds. Raises what Writer.close raises."""
        self.rest()
        # An idle mark appended since the last flush may wait for room; without it the ledger would end too early.
        await self.flush()
        self.ledger.close_copies_s = min(self.ledger.close_copies_s, HURRY_S)  # records of the next segment wait
        await self.ledger.close()
        return Summary(
            self.records,
            self._entries - 1,
            self.bytes,
            self._first_append,
            self._last_append,
            self._lowest,
            self._highest,
            self._last_txid,
            self._snapshot,
        )

    def _plain(self, kind: int, body: bytes) -> None:
        self._submit(
            encode_plain(
                kind,
                body,
                first=self.records,
                append_time=self._last_append,
                last_txid=self._last_txid,
                lowest=self._lowest,
                highest=self._highest,
                snapshot=self._snapshot,
            )
        )

    def _acknowledged(self, next_offset: Offset) -> None:
        self.in_flight -= 1
        self._on_acked(self, next_offset)
        # If no entry follows, nothing publishes the LAC of the last records. The timer for that is armed lazily and
        # there is only one, because this runs for each entry.
        if not self.in_flight or self._spread > 1:
            self._rested_at = self._loop.time()
            self._stored = next_offset - self.progress.base
            if self._timer is None and self._idle_s and self._marked != self._stored:
                self._timer = self._loop.call_at(self._rested_at + self._idle_s, self._idle)

    def _idle(self) -> None:
        """Append idle marks if acknowledged records have a LAC that no entry has published."""
        self._timer = None
        if self._marked == self._stored or not self._idle_s:
            return
        if self._spread == 1:
            # Every member of the ensemble stores each entry, so an entry in flight or the next one publishes the LAC.
            if self.in_flight:
                return
            due = self._rested_at + self._idle_s
            if self._loop.time() < due:
                self._timer = self._loop.call_at(due, self._idle)
                return
        self._marked = self._stored
        self._append_to_each_bookie(IDLE)

    def _append_to_each_bookie(self, kind: int) -> None:
        """Append so many empty entries that each member of the ensemble stores one: readers long-poll any of them."""
        for _ in range(self._spread):
            self._plain(kind, b"")

    def _submit(self, payload: bytes) -> None:
        self._entries += 1
        self.bytes += len(payload)
        self._since_snapshot += len(payload)
        self.in_flight += 1
        next_offset = self.progress.base + self.records
        if self._queue or not self._drained.is_set():
            self._queue.append((payload, next_offset))
            return
        try:
            self.ledger.append_with_callback(payload, self._ack_callback, next_offset)
        except BufferFull:
            # A bookie is slow to take bytes. From now on entries go through `append`, which waits for room, in order.
            self._queue.append((payload, next_offset))
            self._drained.clear()
            self._scope.spawn(self._drain(), f"drain ledger {self.ledger.ledger_id}")
        except BuckramError as error:
            self._break(error)

    async def _drain(self) -> None:
        """Append the queued entries in order. The writer's limit of pending bytes bounds the queue."""
        try:
            while self._queue:
                payload, next_offset = self._queue.popleft()
                await self.ledger.append(payload)
                self._acknowledged(next_offset)
        except BuckramError as error:
            self._queue.clear()
            self._break(error)
        finally:
            self._drained.set()

    def _break(self, error: BuckramError) -> None:
        self.broken = self.broken or error
        self._on_failed(self, error)

    def _lost(self, error: BaseException) -> None:
        if isinstance(error, BuckramError):
            self._break(error)
