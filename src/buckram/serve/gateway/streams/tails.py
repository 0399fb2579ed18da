"""Tails: followers of a stream get its new records as events, which are read and encoded once for all of them.

A stream that has tails has one `Feed`: a reader at its end, and a ring of the newest events. A tail that is in the ring
costs no more than the writing; one that is further behind, because it began there or takes events too slowly, reads
pages by itself until it is in the ring. So memory is bounded, however many tails there are and however slow they are.
An event's id says at which position a client with a Last-Event-ID resumes.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from buckram.cluster import Client
from buckram.core.streams.names import StreamName
from buckram.core.streams.records.batch import Batch
from buckram.core.streams.records.positions import PositionMark, PositionVerdict
from buckram.core.tenants.fair_share import FairShare
from buckram.errors import BuckramError, HandleClosed
from buckram.runtime.process.tasks import TaskScope
from buckram.serve.gateway.shared.error_answers import bad_request
from buckram.serve.gateway.shared.limits import GatewayLimits
from buckram.serve.http.problems import HttpProblem, full
from buckram.serve.json_views.records import record_line
from buckram.streams.read.locate import known_end
from buckram.streams.read.position_check import history_now, verdict_on
from buckram.streams.read.reader import StreamReader
from buckram.types import History, Offset

_PAGE_BYTES = 256 * 1024
END = b"event: end\ndata: {}\n\n"
"""The stream was ended: nothing follows."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Encoded events of the records from `first` to before `next`."""

    first: Offset
    next: Offset
    data: bytes


class Feed:
    """The newest events of one stream, from its end on when the feed was opened."""

    def __init__(self, client: Client, name: StreamName, limits: GatewayLimits) -> None:
        self._client, self.name, self._limits = client, name, limits
        self._history = history_now(client)
        self._pieces: deque[Piece] = deque()
        self._bytes = 0
        self.begin: Offset = 0
        """The lowest offset that is in the ring, or would be."""
        self.next: Offset = 0
        """The offset after the last record that was read."""
        self.ended = False
        """True if the stream was ended and all its records were read."""
        self.error: BuckramError | None = None
        """Error that ended the feed; its tails end with it."""
        self._changed = asyncio.Event()
        self._scope = TaskScope(f"feed of {name}")

    async def open(self) -> None:
        """Find the end of the stream. Raises NoSuchStream, ReadFailed, MetadataUnavailable."""
        reader = self._client.namespace(self.name.namespace).read(
            self.name.stream, start="latest", follow=True, on_truncated="skip"
        )
        try:
            self.begin = self.next = await reader.open()
        except BaseException:
            await reader.close()
            raise
        self._scope.spawn(self._read(reader), "read")

    async def close(self) -> None:
        """End it, and with it the tails that are left."""
        await self._scope.close()
        self._finish(HandleClosed(f"stream {self.name}: the gateway ends; follow it again, from Last-Event-ID"))

    def piece(self, position: Offset) -> Piece | None:
        """The events that hold a position of the ring; None at its end. The position must not be below `begin`."""
        if position >= self.next:
            return None
        at = max(bisect_right(self._pieces, position, key=lambda piece: piece.first) - 1, 0)
        # Offsets may have gaps, where compaction removed records.
        return self._pieces[at] if self._pieces[at].next > position else self._pieces[at + 1]

    async def changed(self, within_s: float) -> None:
        """Wait for more events, the end or an error, for at most `within_s` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._changed.wait()

    async def _read(self, reader: StreamReader) -> None:
        try:
            loop = asyncio.get_running_loop()
            published = loop.time() - self._limits.tail_gather_s
            async with reader:
                while (batch := await reader.next_batch()) is not None:
                    # What comes after a pause is sent at once, and what follows soon shares a write.
                    gathered = [batch]
                    more = await _gather(reader, gathered, published + self._limits.tail_gather_s)
                    published = loop.time()
                    self._publish(gathered)
                    if not more:
                        break
            self.ended = True
            self._finish(None)
        except Exception as error:  # whatever ends it: tails must not wait for ever
            self._finish(error if isinstance(error, BuckramError) else HandleClosed(f"stream {self.name}: {error!r}"))
            if not isinstance(error, BuckramError):
                raise

    def _publish(self, batches: list[Batch]) -> None:
        events = b"".join(events_of(batch, self._history) for batch in batches)
        piece = Piece(batches[0].first_offset, batches[-1].next_offset, events)
        if piece.first > self.next:  # records between were truncated before they were read
            self._pieces.clear()
            self._bytes, self.begin = 0, piece.first
        self._pieces.append(piece)
        self._bytes += len(piece.data)
        self.next = piece.next
        while self._bytes > self._limits.tail_ring_bytes and len(self._pieces) > 1:
            self._bytes -= len(self._pieces.popleft().data)
            self.begin = self._pieces[0].first
        self._wake()

    def _finish(self, error: BuckramError | None) -> None:
        self.error = self.error or error
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Tails:
    """All tails of a gateway. `opened` begins one; the feed of a stream ends with its last tail."""

    def __init__(self, client: Client, limits: GatewayLimits) -> None:
        self._client, self._limits = client, limits
        self._feeds: dict[StreamName, asyncio.Task[Feed | BuckramError]] = {}
        self._users: dict[StreamName, int] = {}
        self._readers = asyncio.Semaphore(limits.tail_readers)
        self._scope = TaskScope("tails")
        self._closed = False
        self._share = FairShare(limits.tails)

    @property
    def count(self) -> int:
        """Number of open tails."""
        return self._share.total

    async def opened(self, name: StreamName, start: Offset | None, holder: str = "") -> Tail:
        """Return a tail from `start`, or from the end (None). Raises HttpProblem 503, NoSuchStream, ReadFailed."""
        if self._closed:
            raise HttpProblem(503, "GATEWAY_STOPS", "this gateway is stopping: follow at another one, or later")
        if not self._share.has_room(holder):
            what, do = self._share.said(holder, "tails are open"), "close some, or follow at another gateway"
            limit = self._limits.tails
            raise full("TOO_MANY_TAILS", what, self.count, limit, option="tails", do=do, retry_after_s=5)
        self._share.take(holder)
        self._users[name] = self._users.get(name, 0) + 1
        try:
            feed = await self._feed(name)
        except BaseException:
            self.left(name, holder)
            raise
        return Tail(self, feed, start, holder)

    async def close(self) -> None:
        """End all tails; each gets a last event about that."""
        self._closed = True
        for task in list(self._feeds.values()):
            await self._end(task)
        await self._scope.close()

    async def _feed(self, name: StreamName) -> Feed:
        task = self._feeds.get(name)
        if task is None or (task.done() and _is_over(task)):
            task = self._feeds[name] = self._scope.spawn(self._begun(name), f"feed of {name}")
        found = await asyncio.shield(task)
        if isinstance(found, BuckramError):
            raise found.with_traceback(None)
        return found

    async def _begun(self, name: StreamName) -> Feed | BuckramError:
        feed = Feed(self._client, name, self._limits)
        try:
            await feed.open()
        except BuckramError as error:
            return error
        return feed

    def left(self, name: StreamName, holder: str) -> None:
        """Record the end of a tail; the last one of a stream ends its feed."""
        self._share.give(holder)
        self._users[name] -= 1
        if self._users[name]:
            return
        del self._users[name]
        task = self._feeds.pop(name, None)
        if task is not None and not self._closed:
            self._scope.spawn(self._end(task), f"end of the feed of {name}")

    async def _end(self, task: asyncio.Task[Feed | BuckramError]) -> None:
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None and isinstance(feed := task.result(), Feed):
            await feed.close()

    async def page(self, name: StreamName, start: Offset, stop: Offset) -> tuple[Offset, bytes]:
        """Events from `start` on, up to `stop` at most, and the offset after them; in turn with other tails."""
        async with self._readers:
            reader = self._client.namespace(name.namespace).read(
                name.stream, start=start, stop=stop, on_truncated="skip"
            )
            async with reader:
                found: list[bytes] = []
                while sum(map(len, found)) < _PAGE_BYTES and (batch := await reader.next_batch()) is not None:
                    found.append(events_of(batch, history_now(self._client)))
                at = reader.position
                return (stop if not found else at if at is not None else stop), b"".join(found)


class Tail:
    """One client's position in a stream. `next` returns events; `close` ends it."""

    def __init__(self, tails: Tails, feed: Feed, start: Offset | None, holder: str) -> None:
        self._tails, self._feed, self._holder = tails, feed, holder
        self.position: Offset = feed.next if start is None else start
        """The offset after the last event that was given."""
        self._closed = False

    @property
    def known_end(self) -> Offset:
        """The offset after the newest record that its feed has read."""
        return self._feed.next

    async def next(self, within_s: float) -> bytes | None:
        """Return more events: empty if none came within `within_s` seconds, None after the last one of an ended
        stream.

        Raises the error that ended the feed.
        """
        feed = self._feed
        if self.position < feed.begin:
            self.position, data = await self._tails.page(feed.name, self.position, feed.begin)
            return data
        piece = feed.piece(self.position)
        if piece is None:
            if feed.error is not None:
                raise feed.error.with_traceback(None)
            if feed.ended:
                return None
            await feed.changed(within_s)
            piece = feed.piece(self.position) if self.position >= feed.begin else None
        if piece is None:
            return b""
        before, self.position = self.position, piece.next
        return piece.data if piece.first >= before else _from(piece, before)

    def close(self) -> None:
        """Follow no more. Idempotent."""
        if not self._closed:
            self._closed = True
            self._tails.left(self._feed.name, self._holder)


def events_of(batch: Batch, history: History) -> bytes:
    """The records of a batch as server-sent events: the id begins with the offset, the data are the record's JSON."""
    rest = suffix_of(history, batch.append_time)
    return "".join([f"id: {one.offset}{rest}\ndata: {record_line(one)}\n" for one in batch.records()]).encode()


def _from(piece: Piece, position: Offset) -> bytes:
    """The events of a piece from a position within it on."""
    events = piece.data.split(b"\n\n")[:-1]
    kept = [one for one in events if int(one[4 : one.index(b"\n")].partition(b"-")[0]) >= position]
    return b"".join(one + b"\n\n" for one in kept)


async def _gather(reader: StreamReader, found: list[Batch], until: float) -> bool:
    """Add the batches that come until then; False at the end of the stream."""
    loop = asyncio.get_running_loop()
    while loop.time() < until:
        try:
            async with asyncio.timeout_at(until):
                batch = await reader.next_batch()
        except TimeoutError:
            return True
        if batch is None:
            return False
        found.append(batch)
    return True


def _is_over(task: asyncio.Task[Feed | BuckramError]) -> bool:
    """Return whether a feed ended or failed to open, so that the next tail has to begin a new one."""
    if task.cancelled() or task.exception() is not None:
        return True
    found = task.result()
    return isinstance(found, BuckramError) or found.error is not None


# -- ids of events ----------------------------------------------------------------------------------------

FIRST_EPOCH = 1
"""Epoch of a cluster that was never restored."""
_ID = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19})-([0-9]{1,19}))?", re.ASCII)


class EventId(NamedTuple):
    """Parsed id of an event. `epoch` and `append_time` are 0 if the id is only an offset."""

    offset: Offset
    epoch: int = 0
    append_time: int = 0


def suffix_of(history: History, append_time: int) -> str:
    """Return the part after the offset in the ids of records that were appended at this time."""
    return "" if history.epoch <= FIRST_EPOCH else f"-{history.epoch}-{append_time}"


def parse_id(text: str) -> EventId:
    """Parse a client's Last-Event-ID. Raises HttpProblem 400 if it is invalid."""
    found = _ID.fullmatch(text)
    if found is None:
        raise bad_request(f"Last-Event-ID {text[:60]!r}: needs the id that the last event had, which is an offset")
    return EventId(int(found[1]), int(found[2] or 0), int(found[3] or 0))


async def start_after(client: Client, name: StreamName, text: str) -> Offset:
    """Return the offset after the event with this id.

    HttpProblem 409 if the stream went back since, or may have; and raises as reading does.
    """
    last, now = parse_id(text), history_now(client)
    position = last.offset + 1
    if max(last.epoch, FIRST_EPOCH) >= now.epoch:
        return position
    if not last.epoch:
        raise _went_back(
            name, last, now, "and an id without an epoch does not say whether its record is still the one at the offset"
        )
    streams = client.namespace(name.namespace).store
    head = (await streams.read(name)).head
    end = await known_end(client, name, head)
    if position > end:
        return position  # whoever asks for what is beyond the end is told so
    mark = PositionMark(position, last.append_time, "", last.epoch, "")
    verdict = await verdict_on(client, streams, name, head, end, mark)
    if verdict is PositionVerdict.DIFFERS:
        raise _went_back(name, last, now, "and the stream has another record at the offset now")
    if verdict is not PositionVerdict.SAME:
        raise _went_back(name, last, now, "and the record is truncated, so that it cannot be compared")
    return position


def _went_back(name: StreamName, last: EventId, now: History, why: str) -> HttpProblem:
    do = f"follow without Last-Event-ID, from ?start={last.offset + 1} or another offset, earliest or latest"
    return HttpProblem(
        409,
        "STREAM_WENT_BACK",
        f"stream {name}: the metadata were restored since the event {last.offset} was sent (epoch {now.epoch} now), "
        f"{why}: {do}",
        value=last.offset,
        epoch=now.epoch,
        do=do,
    )
