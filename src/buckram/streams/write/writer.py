"""StreamWriter: the one writer of a stream, as its user sees it. The work is done by StreamEngine (`engine.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType

from buckram.client.shared.opening import NotBlocking
from buckram.core.streams.record_format import HeadersInput
from buckram.streams.write.engine import StreamEngine
from buckram.types import Buffer


class StreamWriter(NotBlocking):
    """From `ns.writer(name)`. `async with` flushes and closes.

    Errors of appends: RecordTooLarge, TxidOutOfOrder, OffsetMismatch, OutOfOrderSequence, ProducerForgotten,
    BufferFull and InvalidArgument mean that nothing was written. After any other the record may or may not become part
    of the stream and the writer is finished: WriterLost (somebody took over), WriterFailed, HandleClosed. ForkedClient
    in a child process. Cancelling an append abandons the wait, not the write.
    """

    def __init__(self, engine: StreamEngine) -> None:
        self._engine = engine
        self.stream = engine.stream
        """NAMESPACE/STREAM."""
        self.name = engine.name
        """What others are told of this writer."""
        self.epoch = engine.epoch
        """Each writer of the stream has a higher one than those before."""
        self.policy = engine.policy
        """The stream's settings, as they were when it was opened."""
        self.lost = engine.lost
        """Set when lease or fence are lost: somebody else is the writer now, or the stream is gone."""
        # The methods below say what there is; on a handle they are the engine's own, so that an append costs no more.
        self.append = engine.append  # type: ignore[method-assign]
        self.append_nowait = engine.append_nowait  # type: ignore[method-assign]

    def __repr__(self) -> str:
        engine = self._engine
        state = "closed" if engine.closed else "degraded" if engine.degraded else "open"
        if self.lost.is_set():
            state = "lost"
        return f"<StreamWriter {self.stream} {state} epoch={self.epoch} next_offset={engine.next_offset}>"

    # -- what one can know --------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """What the next record gets; right after opening: how far a new leader must read first."""
        return self._engine.next_offset

    @property
    def acknowledged(self) -> int:
        """All records below this offset are acknowledged."""
        return self._engine.acknowledged

    @property
    def pending_bytes(self) -> int:
        """Bytes of values, keys and headers that are not acknowledged."""
        return self._engine.pending_bytes

    @property
    def max_record_bytes(self) -> int:
        """Value, key and headers of one record; RecordTooLarge above."""
        return self._engine.max_record_bytes

    @property
    def closed(self) -> bool:
        """No append is accepted any more: closed, lost or failed."""
        return self._engine.closed

    @property
    def lost_reason(self) -> str:
        """Why `lost` is set; empty if it is not."""
        return self._engine.lost_reason

    @property
    def degraded(self) -> bool:
        """Records get fewer copies than they should for now, or have to wait; `degraded_reason` says why."""
        return self._engine.degraded

    @property
    def degraded_reason(self) -> str:
        """Why records get fewer copies than they should, or have to wait; empty if they do not."""
        return self._engine.degraded_reason

    @property
    def roll_trouble(self) -> str:
        """Why a roll that is due was put off; empty if none is."""
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
        expect_offset: int | None = None,
    ) -> int:
        """Append one record; its offset when it is stored for good. Waits for room, in call order.

        `timestamp`: event time in microseconds UTC, default now. `txid`: the application's own number, never less than
        the one before. `producer` and `sequence`: sequences go up by one, and a retry of one is stored once
        (UNKNOWN_OFFSET, -1, if the offset of the first is not known any more). `start`: where a producer begins that
        the stream never had, if not at 0. `expect_offset`: OffsetMismatch unless it is the next offset.
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
        expect_offset: int | None = None,
    ) -> asyncio.Future[int]:
        """As append, but returns the future at once; BufferFull where append would wait. The future may be dropped:
        flush and close raise the first append that failed."""
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
        expect_offset: int | None = None,
    ) -> range:
        """Append records in a row; the offsets of those that were written when all are stored for good.

        `sequence`: of the first record, the others count on; those that are stored already are left out. `atomic`: all
        of them or none, after any crash; RecordTooLarge before anything is sent if they do not fit in one entry.
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
        """Wait until everything appended so far is acknowledged; raises the first append that failed."""
        await self._engine.flush()

    async def roll(self) -> bool:
        """End the segment and begin another, while appends go on; False (nothing done) if it holds no record."""
        return await self._engine.roll()

    # -- the end ------------------------------------------------------------------------------------------

    async def end(self) -> int:
        """Mark the end of the stream and close this writer: readers end there, no record follows. The end offset."""
        return await self._engine.end()

    async def close(self, *, wait: bool = True) -> None:
        """Flush, seal the segment and give the stream up; raises the first append that failed. Idempotent.

        With wait=False what is not yet acknowledged fails. After MetadataUnavailable the next writer seals it.
        """
        await self._engine.close(wait=wait)

    async def abandon(self) -> None:
        """Stop without sealing, as a crash would: pending appends fail, the next writer takes over."""
        await self._engine.abandon()

    async def __aenter__(self) -> StreamWriter:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._engine.__aexit__(kind, error, trace)


def engine_of(writer: StreamWriter) -> StreamEngine:
    """For the parts of Buckram that stand on a stream's writer, and the simulator; a program uses the handle."""
    return writer._engine
