"""StreamWriter: the handle by which a program writes to a stream. StreamEngine (`write/engine.py`) does the work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType

from buckram.client.shared.handles import NotBlocking
from buckram.core.streams.records.record_format import HeadersInput
from buckram.streams.write.engine import StreamEngine
from buckram.types import Buffer, Offset


class StreamWriter(NotBlocking):
    """The one writer of a stream, from `ns.writer(name)`. `async with` flushes and closes it.

    Errors of appends: RecordTooLarge, TxidOutOfOrder, OffsetMismatch, OutOfOrderSequence, ProducerForgotten,
    BufferFull and InvalidArgument mean that nothing was written. After any other error the record may or may not
    become part of the stream, and the writer is finished: WriterLost (another writer took over, or the stream was
    deleted), WriterFailed, QuotaExceeded (the namespace has stored as many bytes as it may), HandleClosed. In a forked
    child process each call raises ForkedClient. Cancelling an append abandons the wait, not the write.
    """

    def __init__(self, engine: StreamEngine) -> None:
        self._engine = engine
        self.stream = engine.stream
        """Full name of the stream, NAMESPACE/STREAM."""
        self.name = engine.name
        """The name of this writer, which others see in WriterExists and in StreamInfo."""
        self.epoch = engine.epoch
        """The number of this writer; each writer of the stream has a higher one than those before."""
        self.policy = engine.policy
        """The stream's settings in force when this writer was opened."""
        self.lost = engine.lost
        """Set when another writer has the lease or has fenced this one, or when the stream was deleted."""
        # The methods below exist for documentation and types. The engine's own methods replace them on each handle,
        # so that an append does not pay for another call.
        self.append = engine.append  # type: ignore[method-assign]
        self.append_nowait = engine.append_nowait  # type: ignore[method-assign]

    def __repr__(self) -> str:
        engine = self._engine
        state = "closed" if engine.closed else "degraded" if engine.degraded else "open"
        if self.lost.is_set():
            state = "lost"
        return f"<StreamWriter {self.stream} {state} epoch={self.epoch} next_offset={engine.next_offset}>"

    # -- state --------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """The offset that the next record gets. Right after opening, a new leader must have read up to here."""
        return self._engine.next_offset

    @property
    def acknowledged(self) -> int:
        """The offset below which all records are acknowledged."""
        return self._engine.acknowledged

    @property
    def pending_bytes(self) -> int:
        """Bytes of values, keys and headers that are not acknowledged."""
        return self._engine.pending_bytes

    @property
    def max_record_bytes(self) -> int:
        """The most bytes that value, key and headers of one record may have together; above it: RecordTooLarge."""
        return self._engine.max_record_bytes

    @property
    def closed(self) -> bool:
        """Return whether the writer is closed, lost or failed, and accepts no appends."""
        return self._engine.closed

    @property
    def lost_reason(self) -> str:
        """Reason for which `lost` is set; empty if it is not."""
        return self._engine.lost_reason

    @property
    def degraded(self) -> bool:
        """Return whether records get fewer copies than they should, or have to wait; see `degraded_reason`."""
        return self._engine.degraded

    @property
    def degraded_reason(self) -> str:
        """Reason for which records get fewer copies than they should, or have to wait; empty if they do not."""
        return self._engine.degraded_reason

    @property
    def roll_trouble(self) -> str:
        """Reason for which a roll that is due was put off; empty if none is."""
        return self._engine.roll_trouble

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
        """Append one record and return its offset once it is acknowledged. Waits for room, in the order of the calls.

        `timestamp`: event time in microseconds UTC, default now. `txid`: a number of the application that is never
        less than that of the record before. `producer` and `sequence`: sequences go up by one, and a retry with the
        same sequence is stored once; it returns UNKNOWN_OFFSET, -1, if the first offset is not known any more.
        `start`: the first sequence of a producer that the stream has never seen, default 0. `expect_offset`:
        OffsetMismatch unless it is the next offset.
        """
        return await self._engine.append(
            value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            txid=txid,
            producer=producer,
            sequence=sequence,
            start=start,
            expect_offset=expect_offset,
        )

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
        """Append one record as `append` does, but return its future at once; BufferFull where append would wait.

        The future may be dropped: `flush` and `close` raise the error of the first append that failed.
        """
        return self._engine.append_nowait(
            value,
            key=key,
            headers=headers,
            timestamp=timestamp,
            txid=txid,
            producer=producer,
            sequence=sequence,
            start=start,
            expect_offset=expect_offset,
        )

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
        """Append consecutive records and return the offsets of those written, once all are acknowledged.

        `sequence` is that of the first record, the others count up from it; records that are stored already are left
        out. `atomic`: after any crash the stream has all of them or none. If they do not fit in one entry,
        RecordTooLarge is raised before anything is sent.
        """
        return await self._engine.append_many(
            values,
            keys=keys,
            headers=headers,
            timestamps=timestamps,
            txids=txids,
            producer=producer,
            sequence=sequence,
            start=start,
            atomic=atomic,
            expect_offset=expect_offset,
        )

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; raises the error of the first append that failed."""
        await self._engine.flush()

    async def roll(self) -> bool:
        """End the segment and begin another while appends go on. Returns False and does nothing if it is empty."""
        return await self._engine.roll()

    # -- the end ------------------------------------------------------------------------------------------

    async def end(self) -> int:
        """Mark the stream as ended, close this writer, and return the offset after the last record.

        No record can follow, and readers that follow the stream stop there.
        """
        return await self._engine.end()

    async def close(self, *, wait: bool = True) -> None:
        """Flush, seal the segment and release the stream; raises the error of the first append that failed. Idempotent.

        With wait=False appends that are not acknowledged yet fail. After MetadataUnavailable the segment stays open
        until the next writer seals it.
        """
        self._engine.check_loop()
        await self._engine.close(wait=wait)

    async def abandon(self) -> None:
        """Stop without sealing, as a crash would. Pending appends fail; the next writer takes over."""
        self._engine.check_loop()
        await self._engine.abandon()

    async def __aenter__(self) -> StreamWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.__aexit__(kind, error, trace)


def engine_of(writer: StreamWriter) -> StreamEngine:
    """Return the engine behind the handle, for parts of Buckram itself and the simulator; programs use the handle."""
    return writer._engine
