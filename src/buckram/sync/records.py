"""The blocking faces of a stream's writer and readers, and of bulk steps.

Bulk steps are ledgers that become segments in one compare-and-set.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING

from buckram.client.shared.handles import NotAsync, NotCopied, close_on_exit_blocking
from buckram.config import ClientConfig
from buckram.core.streams.records.batch import Batch, Record
from buckram.core.streams.records.record_format import HeadersInput
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.read.reader import StreamReader as _StreamReader
from buckram.streams.write.bulk import Bulk as _Bulk
from buckram.streams.write.bulk import BulkLedger as _BulkLedger
from buckram.streams.write.writer import StreamWriter as _StreamWriter
from buckram.sync.calls.records import BulkCalls, BulkLedgerCalls, StreamReaderCalls, StreamWriterCalls
from buckram.sync.handover import Handover
from buckram.sync.thread import LoopThread
from buckram.types import Buffer, LedgerId, Offset

if TYPE_CHECKING:
    import pyarrow as pa


class BulkLedger(BulkLedgerCalls, NotCopied):
    """See the async one. One writer."""

    def __init__(self, thread: LoopThread, ledger: _BulkLedger) -> None:
        super().__init__(thread, ledger)
        self.ledger_id = ledger.ledger_id
        """The ledger's id."""

    def append_many(
        self,
        values: Iterable[Buffer | None],
        *,
        keys: Iterable[Buffer | None] | None = None,
        headers: Iterable[HeadersInput | None] | None = None,
        timestamps: Iterable[int | None] | None = None,
    ) -> int:
        """Append records in a row; how many the ledger has when they are stored."""
        rows = values if isinstance(values, bytes | bytearray | memoryview | str) else list(values)
        names, labels = None if keys is None else list(keys), None if headers is None else list(headers)
        times = None if timestamps is None else list(timestamps)
        return self._thread.run(lambda: self._handle.append_many(rows, keys=names, headers=labels, timestamps=times))


class Bulk(BulkCalls, NotCopied):
    """See the async one: `ns.bulk(stream, application=..., version=...)`."""

    def __init__(self, thread: LoopThread, bulk: _Bulk) -> None:
        super().__init__(thread, bulk)
        self.stream = bulk.stream
        """NAMESPACE/STREAM."""
        self.application = bulk.application
        """Application whose step it is."""
        self.version = bulk.version
        """The number of the step; each is published once."""

    def create_ledger(self, marks: Mapping[str, bytes] | None = None) -> BulkLedger:
        """Return a ledger for records of this step. `marks`: further keys of its custom metadata."""

        async def create() -> BulkLedger:
            return BulkLedger(self._thread, await self._handle.create_ledger(marks))

        return self._thread.run(create)

    def abort(self, ledgers: Iterable[LedgerId]) -> None:
        """Delete ledgers of this step that will not be published."""
        wanted = list(ledgers)
        self._thread.run(lambda: self._handle.abort(wanted))


class StreamWriter(StreamWriterCalls, NotAsync):
    """See the async one. Appends of several threads are mixed in the order in which they arrive."""

    def __init__(self, thread: LoopThread, writer: _StreamWriter, scope: TaskScope, config: ClientConfig) -> None:
        super().__init__(thread, writer)
        self._scope = scope
        self.stream = writer.stream
        """NAMESPACE/STREAM."""
        self.name = writer.name
        """Name of this writer that others see."""
        self.epoch = writer.epoch
        """Each writer of the stream has a higher one than those before."""
        self.policy = writer.policy
        """The stream's settings, as they were when it was opened."""
        self.lost = threading.Event()
        """Set when the lease is lost or the ledger fenced: another process is the writer now, or the stream is gone."""
        self._handover: Handover[int] = Handover(thread, scope, config, f"stream {writer.stream}", writer)
        thread.loop.call_soon_threadsafe(self._watch)

    def _watch(self) -> None:
        if not self._scope.closed:
            self._scope.spawn(_when_set(self._handle.lost, self.lost), "lost")

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
    ) -> Future[int]:
        """Hand over one record; its future has the offset when it is stored. BufferFull at the limit.

        The future cannot be cancelled and may be dropped: flush and close raise the first append that failed.
        Its callbacks run in the client's thread and must not block.
        """
        body = bytes(value) if isinstance(value, bytearray | memoryview) else value
        size = (len(body) if body is not None else 0) + (len(key) if key is not None else 0)
        extras = {
            "key": key,
            "headers": headers,
            "timestamp": timestamp,
            "txid": txid,
            "producer": producer,
            "sequence": sequence,
            "start": start,
            "expect_offset": expect_offset,
        }
        return self._handover.put(size, body, **{name: extra for name, extra in extras.items() if extra is not None})

    def append_many(
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
        """Append records in a row and wait until all are stored; the offsets of those that were written."""
        # Here, because iterating may be the caller's code, which has no business on the loop.
        rows = values if isinstance(values, bytes | bytearray | memoryview | str) else list(values)
        some_keys = None if keys is None else list(keys)
        some_headers = None if headers is None else list(headers)
        some_times = None if timestamps is None else list(timestamps)
        some_txids = None if txids is None else list(txids)
        return self._thread.run(
            lambda: self._handle.append_many(
                rows,
                keys=some_keys,
                headers=some_headers,
                timestamps=some_times,
                txids=some_txids,
                producer=producer,
                sequence=sequence,
                start=start,
                atomic=atomic,
                expect_offset=expect_offset,
            )
        )

    def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; raises the first append that failed."""
        self._thread.run(self._handle.flush)
        self._handover.raise_rejected()

    def end(self) -> int:
        """Mark the end of the stream and close this writer. The end offset."""

        async def end() -> int:
            try:
                return await self._handle.end()
            finally:
                await self._scope.close()

        offset = self._thread.run(end)
        self._handover.raise_rejected()
        return offset

    def close(self, *, wait: bool = True) -> None:
        """Flush, seal the segment and give the stream up; raises the first append that failed. Idempotent."""

        async def close() -> None:
            try:
                await self._handle.close(wait=wait)
            finally:
                await self._scope.close()

        self._thread.run(close)
        self._handover.raise_rejected()

    def abandon(self) -> None:
        """Stop without sealing, as a crash would."""

        async def abandon() -> None:
            await self._handle.abandon()
            await self._scope.close()

        self._thread.run(abandon)

    def __enter__(self) -> StreamWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread.forked:
            return  # the parent's stream: it is open there
        close_on_exit_blocking(lambda wait: self.close(wait=wait), error, f"the writer of stream {self.stream}")


async def _when_set(source: asyncio.Event, target: threading.Event) -> None:
    await source.wait()
    target.set()


class StreamReader(StreamReaderCalls, NotAsync):
    """See the async one: `for record in reader`, or batches. One consumer at a time."""

    def __init__(self, thread: LoopThread, reader: _StreamReader) -> None:
        super().__init__(thread, reader)
        self.stream = reader.stream
        """NAMESPACE/STREAM."""
        self._rest: Batch | None = None
        self._records: Iterator[Record] = iter(())
        self._position: int | None = None

    @property
    def position(self) -> int | None:
        """The offset after the last record handed out; None before the first use."""
        return self._handle.position if self._position is None else self._position

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """Return the next records; None at the end. TimeoutError after `timeout_s` loses nothing."""
        rest, self._rest, self._records = self._rest, None, iter(())
        if rest is not None and self._position is not None and self._position < rest.next_offset:
            batch: Batch | None = rest.between(self._position)
        else:
            batch = self._thread.run(self._handle.next_batch, timeout_s)
        if batch is not None:
            self._position = batch.next_offset
        return batch

    def batches(self) -> Iterator[Batch]:
        """Yield all batches."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def arrow_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all batches as Arrow record batches."""
        from buckram.streams.shared.arrow_batches import to_arrow

        return map(to_arrow, self.batches())

    def commit(self, offset: Offset | None = None) -> int:
        """Move the cursor past the last record handed out, or to `offset`. The cursor's offset."""
        place = self._position if offset is None else offset
        return self._thread.run(lambda: self._handle.commit(place))

    def seek(self, offset: Offset) -> None:
        """Go on from another offset."""
        self._thread.run(lambda: self._handle.seek(offset))
        self._rest, self._records, self._position = None, iter(()), offset

    def close(self) -> None:
        """Idempotent. In a forked child, or after the client's close: nothing."""
        if self._thread.usable:
            self._thread.run(self._handle.close)

    def __iter__(self) -> StreamReader:
        return self

    def __next__(self) -> Record:
        record = next(self._records, None)
        if record is None:
            batch = self.next_batch()
            if batch is None:
                self.close()
                raise StopIteration
            self._rest, self._records = batch, iter(batch.records())
            record = next(self._records)
        self._position = record.offset + 1
        return record

    def __enter__(self) -> StreamReader:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
