"""One segment as its writer sees it: entries into its ledger, in order, and what they add up to.

Which offsets may be told to callers is core/streams/window, when a segment ends is roll.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from buckram.client.write.completions import AckCallback
from buckram.client.write.engine import LedgerAppender
from buckram.core.streams.head import Summary
from buckram.core.streams.producers import ProducerTable
from buckram.core.streams.record_format import (
    IDLE,
    MARK,
    NO_MAX,
    NO_MIN,
    NO_SNAPSHOT,
    NO_TXID,
    SNAPSHOT,
    Columns,
    encode,
    encode_plain,
)
from buckram.core.streams.window import SegmentProgress
from buckram.errors import BuckramError, BufferFull
from buckram.net.tasks import TaskScope
from buckram.streams.shared.ledgers import Intent

_SNAPSHOT_EVERY = 16 * 1024 * 1024
_SNAPSHOT_SHARE = 32
"""Snapshots cost at most one byte in so many."""


class SegmentWriter:
    """`acked(self, next_offset)` and `failed(self, error)` are called for entries, in order, on the loop."""

    def __init__(
        self,
        ledger: LedgerAppender,
        intent: Intent,
        scope: TaskScope,
        acked: Callable[[SegmentWriter, int], None],
        failed: Callable[[SegmentWriter, BuckramError], None],
        *,
        idle_s: float,
    ) -> None:
        self.ledger, self.intent = ledger, intent
        ledger.publish_no_lac()  # this does it, with entries: cheaper for the writer and quicker for readers
        self.progress: SegmentProgress
        """From `begin` on."""
        self.begun = False
        self.bytes = self.records = 0
        self.broken: BuckramError | None = None
        """The first error of its ledger: it takes nothing more."""
        self.opened_at = 0.0
        """Loop time of `begin`."""
        self.in_flight = 0
        """Entries that are not acknowledged."""
        self._scope, self._acked, self._failed = scope, acked, failed
        self._entries = 0
        self._first_append = self._last_append = 0
        self._lowest, self._highest, self._last_txid = NO_MIN, NO_MAX, NO_TXID
        self._snapshot, self._since_snapshot = NO_SNAPSHOT, 0
        self._snapshot_size = 0
        self._marked = 0
        """Records that a mark stands behind, or that need none."""
        self._stored = 0
        """Records that were acknowledged when this was looked at last."""
        metadata = ledger.metadata
        self._spread = metadata.ensemble_size - metadata.write_quorum + 1
        """So many entries in a row reach every member of the ensemble."""
        self._loop = asyncio.get_running_loop()
        self._ack_callback = AckCallback(self._acknowledged, self._lost)
        self._idle_s = idle_s
        self._rested_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._queue: deque[tuple[bytes, int]] = deque()
        self._drained = asyncio.Event()
        self._drained.set()

    def begin(self, progress: SegmentProgress, append_time: int, last_txid: int, table: ProducerTable) -> None:
        """Records go here from now on. The producers' snapshot comes first, if there is anything to keep."""
        self.progress, self.begun = progress, True
        self.opened_at = self._loop.time()
        self._first_append = self._last_append = append_time
        self._last_txid = last_txid
        if table:
            self.snapshot(table)

    def send(self, columns: Columns, append_time: int, last_txid: int, compression: int) -> None:
        """One entry with these records, whose offsets were taken from the window."""
        if columns.producers is not None and self._snapshot == NO_SNAPSHOT:
            # Nobody was known at `begin`, and a recovery would not look for producers without a snapshot.
            self.snapshot(ProducerTable())
        self._last_append, self._last_txid = append_time, last_txid
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
        """It is time for another one, so that a recovery has little to read."""
        return self._snapshot != NO_SNAPSHOT and self._since_snapshot > max(
            _SNAPSHOT_EVERY, _SNAPSHOT_SHARE * self._snapshot_size
        )

    def snapshot(self, table: ProducerTable) -> None:
        """`table` must not hold anything that was not sent before: it would be taken for stored after a crash."""
        body = table.encode()
        self._snapshot, self._since_snapshot, self._snapshot_size = self._entries, 0, len(body)
        self._plain(SNAPSHOT, body)

    def mark(self) -> None:
        """An entry without records: carries the LAC over what was acknowledged, and tells tails of a coming end."""
        self._tell(MARK)

    def rest(self) -> None:
        """No idle marks any more: it is closed or given up."""
        self._idle_s = 0.0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def flush(self) -> None:
        """Until the ledger acknowledged everything so far; raises what it failed with."""
        await self._drained.wait()
        if self.broken is not None:
            raise self.broken.with_traceback(None)
        await self.ledger.flush()

    async def close(self) -> Summary:
        """Seal the ledger; what it holds. Errors as Writer.close."""
        self.rest()
        # An idle mark may have come since the last flush and wait here for room: the ledger would close without it.
        await self.flush()
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

    def _acknowledged(self, next_offset: int) -> None:
        self.in_flight -= 1
        self._acked(self, next_offset)
        # Nothing follows that would carry the LAC over the last records. One timer, armed lazily, never per entry.
        if not self.in_flight or self._spread > 1:
            self._rested_at = self._loop.time()
            self._stored = next_offset - self.progress.base
            if self._timer is None and self._idle_s and self._marked != self._stored:
                self._timer = self._loop.call_at(self._rested_at + self._idle_s, self._idle)

    def _idle(self) -> None:
        self._timer = None
        if self._marked == self._stored or not self._idle_s:
            return
        if self._spread == 1:
            # The next entry tells every member, and so does one that was sent after the last acknowledgement.
            if self.in_flight:
                return
            due = self._rested_at + self._idle_s
            if self._loop.time() < due:
                self._timer = self._loop.call_at(due, self._idle)
                return
        self._marked = self._stored
        self._tell(IDLE)

    def _tell(self, kind: int) -> None:
        """So many that each member of the ensemble gets one: a tail waits at any of them."""
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
            # A bookie is slow to take bytes: append() waits for room, and those behind it wait with it.
            self._queue.append((payload, next_offset))
            self._drained.clear()
            self._scope.spawn(self._drain(), f"drain ledger {self.ledger.ledger_id}")
        except BuckramError as error:
            self._break(error)

    async def _drain(self) -> None:
        """Bounded by the writer's limit of pending bytes."""
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
        self._failed(self, error)

    def _lost(self, error: BaseException) -> None:
        if isinstance(error, BuckramError):
            self._break(error)
