"""Source: the batches of a stream from a position on, across segments, rolls, truncation and take-over.

It has one consumer, never fences and never writes. It may be cancelled at every await, because the position moves only
with the batch that is returned. A metadata watch keeps the newest head of the stream: older versions never replace
newer ones, and while the metadata store is unavailable the last head stays. Not here: the handle for users
(`read/reader.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from typing import TypeAlias

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.tail import Tail
from buckram.core.backoff import STORE_WATCH, Delays
from buckram.core.streams.metadata.head import Head, Segment
from buckram.core.streams.metadata.purposes import Purpose, purpose_of
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.records.batch import Batch, entry_body
from buckram.core.streams.records.producers import ProducerTable
from buckram.core.streams.records.record_format import MARK, SNAPSHOT, EntryHeader
from buckram.errors import (
    BuckramError,
    CorruptEntry,
    HandleClosed,
    MalformedBatch,
    MetadataError,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    NoSuchStream,
    OffsetTruncated,
    ReadFailed,
)
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.read.history_reader import HistoryReader, SegmentReader, open_segment
from buckram.streams.read.locate import decode_entry, entry_of_offset, in_bounds
from buckram.streams.shared.metadata import HeadAt, StreamStore
from buckram.streams.shared.recovery import was_deleted
from buckram.types import Entry

_LOOK_MIN_S, _LOOK_MAX_S, _LOOK_FOR_S = 0.002, 0.01, 1.0
"""After a mark the head is read every few milliseconds for a second, in case the watch takes longer."""
_IDLE_LOOK_S = 5.0
"""Interval of reads of the head while it does not change, seconds, in case a watch was lost."""
_TRANSIENT = (NoSuchLedger, NoSuchEntry, ReadFailed, MetadataUnavailable)
_PAUSE_S, _GIVE_UP_S = 0.1, 60.0
_Chunk: TypeAlias = Sequence[Entry | Batch | EntryHeader]
"""Entries of a ledger as they are, those of history decoded."""


class StreamSource:
    """Returns batches in order. `position` is the next offset to return, `stop` where to end (exclusive), or None."""

    def __init__(
        self,
        client: LedgerClient,
        streams: StreamStore,
        name: StreamName,
        at: HeadAt,
        position: int,
        stop: int | None,
        *,
        follow: bool,
        skip_truncated: bool,
        tables: bool = False,
    ) -> None:
        """`tables`: `next_item` returns the tables of producers as well, where the stream has them."""
        self.position, self.stop = position, stop
        self._client, self._streams, self._name = client, streams, name
        self._follow, self._skip = follow, skip_truncated
        self._scope = TaskScope(f"stream reader {name}")
        self.follower = HeadFollower(streams, name, at, self._scope)
        self._open = AsyncExitStack()
        self._segment: Segment | None = None
        self._chunks: AsyncGenerator[_Chunk, None] | None = None
        self._tail: Tail | None = None
        self._undecoded: deque[Entry | Batch | EntryHeader] = deque()
        """Entries that were read; those of a chunk are decoded one by one, because a caller may want few of them."""
        self._ready: deque[Batch | ProducerTable] = deque()
        self._tables = tables
        self._marked = False
        self._failing_since: float | None = None
        self._closed = False
        if follow:
            self.follower.follow()

    async def next(self) -> Batch | None:
        """Return the next batch, which is not empty, or None at the end; the errors are those of `next_item`."""
        while isinstance(item := await self.next_item(), ProducerTable):
            pass
        return item

    async def next_item(self) -> Batch | ProducerTable | None:
        """Return the next batch, which is not empty, or the producers known at the position; None at the end.

        Raises OffsetTruncated, NoSuchStream, HandleClosed, CorruptEntry, and the errors of reading a ledger.
        """
        while True:
            if self._closed:
                raise HandleClosed(f"the reader of stream {self._name} was closed while it waited")
            if self.stop is not None and self.position >= self.stop:
                return None
            if self.follower.gone or self.follower.head.deleting:
                await self.follower.refresh()  # This raises NoSuchStream.
            if self._check_truncation():
                await self._leave_segment()
            while self._undecoded and not self._ready:
                self._decode(self._undecoded.popleft())
            if self._ready:
                item = self._ready.popleft()
                if isinstance(item, ProducerTable):
                    return item
                batch = item.between(self.position, self.stop)
                if len(batch):
                    self.position = batch.next_offset
                    return batch
                continue
            # The event is made before the head is read, so that no change between reading and waiting is missed.
            changed = self.follower.changes()
            if self._segment is None:
                entered = await self._enter()
                if entered is False and (not self._follow or self.follower.head.ended):
                    return None
                if entered is False:
                    await self._wait_for_change(changed)
                continue
            try:
                await self._decode_next()
            except _TRANSIENT as error:
                await self._wait_or_raise(error)

    async def seek(self, position: int) -> None:
        """Continue at another offset."""
        self.position = position
        await self._leave_segment()

    async def close(self) -> None:
        """Stop; a call of `next` that waits raises HandleClosed."""
        self._closed = True
        self.follower.stop()
        await self._leave_segment()
        await self._scope.close()

    # -- segments -----------------------------------------------------------------------------------------

    def _check_truncation(self) -> bool:
        """Move a position that was truncated to the earliest offset and return True; OffsetTruncated if not allowed."""
        earliest = self.follower.head.earliest
        if self.position >= earliest:
            return False
        if not self._skip:
            raise OffsetTruncated(str(self._name), self.position, earliest)
        self.position = earliest
        return True

    async def _enter(self) -> bool | None:
        """Open the segment that holds the position. False: there is none yet; None: the list changed, try again."""
        segment: Segment | None = None
        try:
            segment = await self._streams.segment_of(self.follower.head, self.position)
            if segment is None:
                return False
            reader = await self._open.enter_async_context(
                open_segment(self._client, StreamId(self._name, self.follower.head.uid), segment)
            )
            await self._begin(segment, reader)
        except NoSuchKey:  # A page was trimmed since the head was read.
            await self.follower.refresh()
            return None
        except _TRANSIENT as error:
            self._segment = segment
            await self._wait_or_raise(error)
            return None
        return True

    async def _begin(self, segment: Segment, reader: SegmentReader) -> None:
        """Start reading the segment at the entry of the position: in chunks, or as a tail if it is open."""
        last = segment.summary.last_entry if segment.summary is not None else reader.last_confirmed
        first = await entry_of_offset(self._name, reader, segment, self.position, last)
        if segment.sealed or not self._follow or isinstance(reader, HistoryReader):
            chunks = _chunks(reader, first, last, entries=self._tables)
            self._chunks = await self._open.enter_async_context(aclosing(chunks))
        else:
            self._tail = reader.tail(first)
            self._open.push_async_callback(self._tail.aclose)
        self._segment = segment

    async def _leave_segment(self) -> None:
        self._segment, self._chunks, self._tail, self._marked = None, None, None, False
        self._undecoded.clear()
        self._ready.clear()
        await self._open.aclose()

    async def _decode_next(self) -> None:
        """Read the next entries of the segment, and decode those of a tail, or leave the segment at its end."""
        segment = self._segment
        assert segment is not None
        if self._marked:
            self._marked = False
            if await self._poll_for_roll(segment):
                return
        found: _Chunk | None
        if self._chunks is not None:
            found = await anext(self._chunks, None)
        elif self._tail is not None:
            found = await self._tail.next_chunk()
        else:
            found = None
        if not found:
            await self._segment_ended(segment)
            return
        self._failing_since = None
        if self._tail is None:
            self._undecoded.extend(found)
            return
        for entry in found:
            # A mark says that the writer rolls: this is looked at when the batches before it were taken.
            self._marked = self._decode(entry) or self._marked

    def _decode(self, entry: Entry | Batch | EntryHeader) -> bool:
        """Decode an entry of the segment into a batch or a table, if it is one; return whether it is a mark."""
        segment = self._segment
        assert segment is not None
        if isinstance(entry, Entry):
            decoded = decode_entry(self._name, segment, entry)
        else:
            decoded = in_bounds(segment, entry)
        if isinstance(decoded, Batch):
            self._ready.append(decoded)
        elif decoded.kind == SNAPSHOT and self._tables and isinstance(entry, Entry):
            self._ready.append(_table_in(self._name, entry, decoded))
        return isinstance(decoded, EntryHeader) and decoded.kind == MARK

    async def _segment_ended(self, segment: Segment) -> None:
        """Leave a segment whose ledger was read to the end; if it was open, wait until the list has changed."""
        await self._leave_segment()
        if segment.sealed:
            return
        if not self._follow:
            self.stop = self.position
            return
        while True:
            changed = self.follower.changes()
            row = await self._current_row()
            if self._closed or row is None or row.sealed or row.ledger != segment.ledger:
                return
            await self._wait_for_change(changed)

    async def _current_row(self) -> Segment | None:
        self._check_truncation()
        return await self._streams.segment_of(self.follower.head, self.position)

    async def _poll_for_roll(self, segment: Segment) -> bool:
        """Read the head often for a while, since a mark says that the segment ends. True when the segment was left."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + _LOOK_FOR_S, _LOOK_MIN_S
        while loop.time() < until and not self._closed:
            changed = self.follower.changes()
            try:
                await self.follower.refresh()
            except MetadataUnavailable:
                return False
            row = await self._current_row()
            if row is None or row.ledger != segment.ledger:
                await self._leave_segment()
                return True
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await changed.wait()
            pause = min(pause * 1.5, _LOOK_MAX_S)
        return False

    async def _wait_for_change(self, changed: asyncio.Event) -> None:
        """Wait until the head has changed; after a while read it in any case."""
        try:
            async with asyncio.timeout(_IDLE_LOOK_S):
                await changed.wait()
        except TimeoutError:
            try:
                await self.follower.refresh()
            except MetadataUnavailable:
                return

    async def _wait_or_raise(self, error: BuckramError) -> None:
        """After a failed read: return if the list has changed meanwhile, else pause, or raise the error.

        An error that is not retryable is raised when it occurs twice in a row, others after a minute.
        """
        loop = asyncio.get_running_loop()
        before = self._segment
        await self._leave_segment()
        try:
            head = await self.follower.refresh()
            if self.position < head.earliest:
                return
            row = await self._streams.segment_of(head, self.position)
        except MetadataUnavailable as away:
            row, error = before, away
        if before is not None and (row is None or row.ledger != before.ledger):
            return
        if (nobody := self._client.services.bookies.nobody()) is not None:
            raise nobody from None
        if self._failing_since is None:
            self._failing_since = loop.time()
        elif not error.retryable or loop.time() - self._failing_since > _GIVE_UP_S:
            self._failing_since = None
            if row is None or not isinstance(error, NoSuchLedger) or not await self._was_deleted(row):
                raise error
            if not self._skip:
                raise OffsetTruncated(str(self._name), self.position, row.end) from error
            self.position = row.end
            return
        await asyncio.sleep(_PAUSE_S)

    async def _was_deleted(self, row: Segment) -> bool:
        """Return whether the list names a sealed segment that was deleted.

        False for logs other than streams of records: for those only the owner knows what it means.
        """
        if not row.sealed or purpose_of(str(self._name), self.follower.head) is not Purpose.RECORDS:
            return False
        try:
            return await was_deleted(self._streams, self._name, row)
        except MetadataError:  # the store is away, or this reader lacks the permission
            return False


def _table_in(name: StreamName, entry: Entry, header: EntryHeader) -> ProducerTable:
    try:
        return ProducerTable.decode(entry_body(entry.payload, header))
    except MalformedBatch as error:
        raise CorruptEntry(str(name), entry.ledger_id, entry.entry_id, str(error)) from None


async def _chunks(reader: SegmentReader, first: int, last: int, *, entries: bool) -> AsyncGenerator[_Chunk, None]:
    """Yield the entries of a segment in chunks.

    `entries`: as they were written; otherwise those of history come as batches, which is quicker.
    """
    if first > last:
        return
    if isinstance(reader, HistoryReader) and not entries:
        async with aclosing(reader.decoded(first, last)) as batches:
            async for found in batches:
                yield found
        return
    async for chunk in reader.chunks(first, last):
        yield chunk


# -- the newest head --------------------------------------------------------------------------------------


class HeadFollower:
    """The newest known head of a stream. It watches only after `follow`; `scope` owns the task."""

    def __init__(self, streams: StreamStore, name: StreamName, current: HeadAt, scope: TaskScope) -> None:
        self._streams, self._name, self._current, self._scope = streams, name, current, scope
        self._stale, self._changed = asyncio.Event(), asyncio.Event()
        self._following = False
        self.gone = False
        """True if the stream was deleted; another one may exist under its name."""

    @property
    def head(self) -> Head:
        """Newest head seen so far."""
        return self._current.head

    def follow(self) -> None:
        """Start to watch, unless it does: the head is read now and after every change."""
        if not self._following:
            self._following = True
            self._stale.set()
            self._scope.keep(self._run, "follow the head", wake=self._stale.set)

    def changes(self) -> asyncio.Event:
        """Return an event that the next change or deletion after this call sets."""
        if self._changed.is_set():
            self._changed = asyncio.Event()
        return self._changed

    async def refresh(self) -> Head:
        """Read the head now and return it. Raises NoSuchStream or MetadataUnavailable."""
        try:
            self._install(await self._streams.read(self._name))
        except NoSuchStream:
            self._mark_gone()
        if self.gone or self.head.deleting:
            raise NoSuchStream(str(self._name), "was deleted while it was read")
        return self.head

    async def _run(self) -> None:
        delays = Delays(STORE_WATCH)
        while not self.gone:
            await self._stale.wait()
            self._stale.clear()
            try:
                self._install(await self._streams.read(self._name, self._stale.set, within_s=0.0))
                delays.reset()
            except NoSuchStream:
                self._mark_gone()
            except MetadataError:
                self._stale.set()
                await asyncio.sleep(delays.take())

    def _install(self, seen: HeadAt) -> None:
        if seen.head.uid != self._current.head.uid:
            self._mark_gone()
        elif seen.version > self._current.version:
            self._current = seen
            self._changed.set()

    def stop(self) -> None:
        """Wake all tasks that wait for a change. Closing the scope ends the watch."""
        self._changed.set()

    def _mark_gone(self) -> None:
        self.gone = True
        self._changed.set()
