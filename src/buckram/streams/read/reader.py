"""StreamReader: the handle by which a program reads a stream, record by record or in batches.

It opens at its first use, so `async for record in ns.read(name)` is enough; `async with` or close() ends it. Not here:
the batches over segments and rolls (`streams/read/batch_source.py`), finding the first record (`read/locate.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol

from buckram.client.ledger_client import LedgerClient
from buckram.client.shared.handles import NotBlocking
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.names import StreamName
from buckram.core.streams.records.batch import Batch, Record
from buckram.core.streams.records.record_format import NO_TXID
from buckram.errors import HandleClosed, InvalidArgument, OffsetOutOfRange, OffsetTruncated
from buckram.streams.read.batch_source import StreamSource
from buckram.streams.read.locate import by_newest_list, known_end, offset_at_time, offset_of_txid, readable_end
from buckram.streams.shared.metadata import HeadAt, StreamStore
from buckram.types import Offset

if TYPE_CHECKING:
    import pyarrow as pa

Time = int | datetime
"""A moment: microseconds since 1970 (UTC), or a datetime with a time zone."""
Truncated = Literal["error", "skip"]
"""Behaviour of a reader whose position was truncated: raise OffsetTruncated, or go on at the earliest offset."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class CursorHandle(Protocol):
    """Interface of a durable cursor for readers (`read/cursors.py`)."""

    async def load(self) -> int | None:
        """Return the cursor's offset, or None if it does not exist."""
        ...

    async def move(self, offset: Offset) -> None:
        """Move the cursor up to `offset`. Raises CursorMoved, NoSuchCursor, MetadataUnavailable."""
        ...


ReaderOpened = Callable[["StreamReader"], None]
"""Called once when a reader has opened; from then on closing the client closes it."""
ReaderClosed = Callable[["StreamReader"], None]
"""Called when a reader has been closed."""


@dataclass(frozen=True, slots=True)
class Range:
    """The arguments of Namespace.read, which describes them."""

    start: int | str = "earliest"
    stop: int | str | None = None
    start_time: Time | None = None
    stop_time: Time | None = None
    start_txid: int | None = None
    follow: bool = False
    on_truncated: Truncated = "error"


class StreamReader(NotBlocking):
    """`async for record in reader`, or batches with `async for batch in reader.batches()`; one consumer at a time.

    Errors: NoSuchStream, OffsetOutOfRange, OffsetTruncated (the position was truncated; with on_truncated="skip" the
    reader goes on at the earliest offset instead), CorruptEntry, MissingCodec, EncryptionKeyMissing, ReadFailed
    (retryable), HandleClosed. After an error the next call continues at the same position.
    """

    def __init__(
        self,
        client: LedgerClient,
        streams: StreamStore,
        name: StreamName,
        span: Range,
        cursor: CursorHandle | None = None,
        *,
        on_open: ReaderOpened,
        on_closed: ReaderClosed,
    ) -> None:
        _check(span)
        self.stream = str(name)
        """Full name of the stream, NAMESPACE/STREAM."""
        self._client, self._streams, self._name, self._span = client, streams, name, span
        self._cursor = cursor
        self._on_open, self._on_closed = on_open, on_closed
        self._source: StreamSource | None = None
        self._records: list[Record] = []
        self._at = 0
        self._not_before = NO_TXID
        self._txid_not_before = NO_TXID
        self._stop_time: int | None = None
        self._delivered: int | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"<StreamReader {self._name} {'closed' if self._closed else 'open'}>"

    @property
    def position(self) -> int | None:
        """The offset after the last record returned; None before the first use."""
        return self._delivered

    async def open(self) -> int:
        """Find the start now, without reading a record, and return the position. The first use does it otherwise."""
        self._client.services.check_loop()
        if self._source is None:
            self._client.services.guard()
            if self._closed:
                raise HandleClosed(f"the reader of stream {self.stream} is closed; read again")
            self._source = await by_newest_list(self._streams, self._name, self._begin)
            self._on_open(self)
        assert self._delivered is not None
        return self._delivered

    async def next_batch(self) -> Batch | None:
        """Return the next records as zero-copy views of one entry; None at the end of the range or of the stream."""
        await self.open()
        source = self._source
        assert source is not None
        if self._at < len(self._records):
            # Some records of a batch were returned one by one, so return the rest of that batch.
            await source.seek(self._records[self._at].offset)
        self._records, self._at = [], 0
        while True:
            batch = await source.next()
            if batch is None:
                return None
            if self._stop_time is not None and batch.append_time >= self._stop_time:
                await source.seek(batch.first_offset)
                source.stop = batch.first_offset
                return None
            found = self._wanted(batch)
            if found is not None:
                self._delivered = found.next_offset
                return found

    def batches(self) -> AsyncIterator[Batch]:
        """Iterate over all batches: `async for batch in reader.batches()`."""
        return self._batches()

    async def arrow_batches(self) -> AsyncIterator[pa.RecordBatch]:
        """Iterate over all batches as Arrow record batches; `streams/shared/arrow_batches.py` has their schema."""
        from buckram.streams.shared.arrow_batches import to_arrow

        async for batch in self._batches():
            yield to_arrow(batch)

    async def commit(self, offset: Offset | None = None) -> int:
        """Move the cursor past the last record returned, and return its offset. A later reader starts from there.

        `offset`: move it there instead, if not all returned records were processed. Raises CursorMoved, NoSuchCursor,
        MetadataUnavailable, and InvalidArgument for a reader without a cursor or an offset beyond its position.
        """
        if self._cursor is None:
            raise InvalidArgument(f"stream {self.stream}: this reader has no cursor; read with cursor=NAME")
        # Commit also works after the end, where iteration has closed this reader.
        position = self._delivered if self._delivered is not None else await self.open()
        if offset is not None:
            if type(offset) is not int or offset < 0:
                raise InvalidArgument(f"stream {self.stream}: commit({offset!r}): needs an int from 0 on")
            if offset > position:
                raise InvalidArgument(f"stream {self.stream}: commit({offset}): read up to {position} only")
            position = offset
        await self._cursor.move(position)
        return position

    async def seek(self, offset: Offset) -> None:
        """Continue at another offset. OffsetOutOfRange beyond the readable end, unless this reader follows."""
        if type(offset) is not int or offset < 0:
            raise InvalidArgument(f"stream {self.stream}: seek({offset!r}): an offset is an int from 0 on")
        await self.open()
        source = self._source
        assert source is not None
        await self._check_end(offset, source.follower.head)
        await source.seek(offset)
        # The start by time or txid no longer applies: all records from here on are wanted.
        self._not_before = self._txid_not_before = NO_TXID
        self._records, self._at, self._delivered = [], 0, offset

    async def close(self) -> None:
        """Stop reading. Idempotent; the stream is not changed."""
        if not self._closed:
            self._client.services.check_loop()
        self._closed = True
        source, self._source = self._source, None
        if source is not None:
            await source.close()
        self._on_closed(self)

    def __aiter__(self) -> StreamReader:
        return self

    async def __anext__(self) -> Record:
        at = self._at
        if at < len(self._records):
            self._at = at + 1
            record = self._records[at]
            self._delivered = record.offset + 1
            return record
        batch = await self.next_batch()
        if batch is None:
            await self.close()
            raise StopAsyncIteration
        self._records, self._at = batch.records(), 1
        self._delivered = batch.first_offset + 1
        return self._records[0]

    async def __aenter__(self) -> StreamReader:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- inside -------------------------------------------------------------------------------------------

    async def _batches(self) -> AsyncIterator[Batch]:
        while (batch := await self.next_batch()) is not None:
            yield batch

    def _wanted(self, batch: Batch) -> Batch | None:
        """Return the batch's records from the start by time or txid on; None if all of them are before it.

        That start may be beyond the stream's end, and then records before it may still be appended.
        """
        if batch.append_time < self._not_before:
            return None
        if self._txid_not_before != NO_TXID:
            wanted = self._txid_not_before
            rows = enumerate(batch.txids(), batch.first_offset)
            first = next((offset for offset, txid in rows if txid is not None and txid >= wanted), None)
            if first is None:
                return None
            self._txid_not_before = NO_TXID
            return batch.between(first)
        return batch

    async def _begin(self, at: HeadAt) -> StreamSource:
        span, name = self._span, self._name
        check_usable(self.stream, at.head)
        end: int | None = None
        if not span.follow:
            end = await known_end(self._client, name, at.head)
        start = await self._start(at)
        stop = end
        if isinstance(span.stop, int):
            stop = span.stop if end is None else min(span.stop, end)
        elif span.stop == "latest":
            stop = end if end is not None else await known_end(self._client, name, at.head)
        if span.stop_time is not None:
            self._stop_time = microseconds(span.stop_time)
        self._delivered = start
        return StreamSource(
            self._client,
            self._streams,
            name,
            at,
            start,
            stop,
            follow=span.follow,
            skip_truncated=span.on_truncated == "skip",
        )

    async def _start(self, at: HeadAt) -> int:
        span, head = self._span, at.head
        if self._cursor is not None and (kept := await self._cursor.load()) is not None:
            return self._checked(kept, head.earliest)
        if span.start_time is not None:
            self._not_before = microseconds(span.start_time)
            found = await offset_at_time(self._client, self._streams, self._name, head, self._not_before)
            return max(found, head.earliest)
        if span.start_txid is not None:
            self._txid_not_before = span.start_txid
            found = await offset_of_txid(self._client, self._streams, self._name, head, span.start_txid)
            return max(found, head.earliest)
        if span.start == "earliest":
            return head.earliest
        if span.start == "latest":
            return max(await known_end(self._client, self._name, head), head.earliest)
        assert isinstance(span.start, int)
        await self._check_end(span.start, head)
        return self._checked(span.start, head.earliest)

    async def _check_end(self, offset: Offset, head: Head) -> None:
        """Raise OffsetOutOfRange beyond the readable end, unless this reader follows a stream that has not ended."""
        if offset > head.end and (head.ended or not self._span.follow):
            head, end = await readable_end(self._client, self._streams, self._name, offset)
            if offset > end:
                raise OffsetOutOfRange(self.stream, offset, head.earliest, end)

    def _checked(self, offset: Offset, earliest: int) -> int:
        if offset >= earliest:
            return offset
        if self._span.on_truncated == "skip":
            return earliest
        raise OffsetTruncated(self.stream, offset, earliest)


def microseconds(time: Time) -> int:
    """Return a moment as microseconds since 1970 (UTC). InvalidArgument for a datetime without a time zone."""
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise InvalidArgument(f"time {time}: has no time zone; use datetime.now(timezone.utc) or the like")
        return (time - _EPOCH) // timedelta(microseconds=1)
    if type(time) is not int:
        raise InvalidArgument(f"time {time!r}: needs microseconds since 1970 (UTC) as int, or a datetime")
    return time


def _check(span: Range) -> None:
    starts = [span.start != "earliest", span.start_time is not None, span.start_txid is not None]
    if sum(starts) > 1:
        raise InvalidArgument("give one of start, start_time and start_txid")
    if isinstance(span.start, str) and span.start not in ("earliest", "latest"):
        raise InvalidArgument(f'start {span.start!r}: needs an offset, "earliest" or "latest"')
    if isinstance(span.stop, str) and span.stop != "latest":
        raise InvalidArgument(f'stop {span.stop!r}: needs an offset or "latest"')
    for what, offset in (("start", span.start), ("stop", 0 if span.stop is None else span.stop)):
        if not isinstance(offset, str) and (type(offset) is not int or offset < 0):
            raise InvalidArgument(f"{what} {offset!r}: an offset is an int from 0 on")
    if span.on_truncated not in ("error", "skip"):
        raise InvalidArgument(f'on_truncated {span.on_truncated!r}: choose "error" or "skip"')
    if span.start_txid is not None and (type(span.start_txid) is not int or span.start_txid < 0):
        raise InvalidArgument(f"start_txid {span.start_txid!r}: needs an int from 0 on")
    for time in (span.start_time, span.stop_time):
        if time is not None:
            microseconds(time)
