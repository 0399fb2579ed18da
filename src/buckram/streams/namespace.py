"""Namespace: what `client.namespace(name)` gives. Each operation on streams begins here; the work is elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from buckram.client.client import Client
from buckram.client.shared.opening import Opening
from buckram.core.streams.batch import Record
from buckram.core.streams.changes import check_properties, check_usable, configured
from buckram.core.streams.head import Head, Segment, Transaction, WriterInfo
from buckram.core.streams.names import StreamName, check_writer_name, stream_name
from buckram.core.streams.policy import Policy, check_overrides, merged
from buckram.core.streams.transactions import StepId
from buckram.errors import (
    BuckramError,
    InvalidArgument,
    NoSuchNamespace,
    NoSuchStream,
    OffsetOutOfRange,
    StreamExists,
    VersionConflict,
)
from buckram.streams.maintain.delete import delete_stream
from buckram.streams.maintain.retention import consumed, held
from buckram.streams.maintain.truncate import offset_keeping, trim, truncate
from buckram.streams.read.cursors import Cursor, CursorInfo, list_cursors, place_cursor
from buckram.streams.read.locate import known_end, offset_at_time
from buckram.streams.read.reader import Range, StreamReader, Time, Truncated, microseconds
from buckram.streams.shared.metadata import HeadAt, StreamStore, new_uid
from buckram.streams.shared.namespaces import Namespaces, changed_policy, list_names
from buckram.streams.write.bulk import Bulk
from buckram.streams.write.opening import open_writer
from buckram.streams.write.writer import StreamWriter


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream at one moment. `end`: the offset after the last readable record. Times in microseconds UTC."""

    name: str
    """NAMESPACE/STREAM."""
    uid: str
    """What tells it from an earlier stream of this name."""
    created: int
    """When it was created."""
    earliest: int
    """The first offset that can be read."""
    end: int
    """The offset after the last readable record."""
    ended: bool
    """Whether it was marked as ended: no record follows."""
    writer: WriterInfo | None
    """Who opened it for writing and has not closed it; None if nobody."""
    policy: Policy
    """Its settings in force: those of its own, then the namespace's, then defaults."""
    overrides: Mapping[str, Any]
    """The settings of its own."""
    properties: Mapping[str, str]
    """The application's own names and values."""
    last_append: int
    """Append time of the last record of its sealed segments."""
    transactions: Mapping[str, Transaction]
    """The newest bulk step of each application."""
    segments: int
    """How many are listed, dead ones that wait for deletion included. Compaction of old ones may have left fewer."""
    writer_gone: bool = False
    """`writer` opened the stream and did not close it, and does not hold it any more: it died, or its session did."""


class Namespace:
    """A namespace of streams. Stream names may be given bare or as NAMESPACE/STREAM of this namespace."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = stream_name("x", name).namespace
        """Of the namespace."""
        self._streams = StreamStore(client.services.store)
        self._spaces = Namespaces(self._streams)

    def __repr__(self) -> str:
        return f"<Namespace {self.name}>"

    @property
    def store(self) -> StreamStore:
        """For rooms that work on metadata directly (retention, janitor)."""
        return self._streams

    # -- streams ------------------------------------------------------------------------------------------

    async def create(self, stream: str, *, properties: Mapping[str, str] | None = None, **policy: Any) -> StreamInfo:
        """Make a stream. `policy`: what differs from the namespace's (core/streams/policy.Policy). StreamExists."""
        name = self._name(stream)
        overrides = check_overrides(policy)
        check_properties(properties or {})
        runtime = self._client.services.runtime
        head = Head(
            new_uid(runtime.rng.getrandbits(64)),
            runtime.clock.wall_us(),
            policy=overrides,
            properties=dict(properties or {}),
        )
        while True:
            space = await self._spaces.get(self.name)
            if space.deleting:
                raise NoSuchNamespace(self.name)
            merged(space.policy, overrides)
            try:
                await self._streams.create(name, head, space.version)
                break
            except VersionConflict:
                continue
        return await self._info(name, HeadAt(head, 0))

    async def exists(self, stream: str) -> bool:
        """Whether there is a stream of this name."""
        try:
            check_usable(stream, (await self._streams.read(self._name(stream))).head)
        except NoSuchStream:
            return False
        return True

    async def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Bare names in order, those greater than `after`; empty at the end."""
        self._client.services.guard()
        await self._spaces.get(self.name)
        return await list_names(self._streams, self._streams.layout.heads(self.name), prefix, after, limit)

    async def info(self, stream: str) -> StreamInfo:
        """What is known of a stream now. NoSuchStream."""
        name = self._name(stream)
        return await self._info(name, await self._streams.read(name))

    async def delete(self, stream: str, *, force: bool = False) -> None:
        """Delete a stream and all that belongs to it; its writer is fenced first. NoSuchStream.

        RecoveryFailed when too few bookies answer to fence it: the stream is marked and nothing of it is deleted; ask
        again. `force` deletes it then, too; a writer that still reaches its bookies gets acknowledgements for a while.
        """
        self._client.services.guard()
        await delete_stream(self._client, self._streams, self._name(stream), force=force)

    async def set_policy(self, stream: str, **policy: Any) -> StreamInfo:
        """Change settings of one stream; None takes a setting back to the namespace's. Writers see it when reopened."""
        name = self._name(stream)
        await self._streams.change(
            name, lambda head: configured(str(name), head, changed_policy(head.policy, policy), None)
        )
        return await self.info(stream)

    async def set_properties(self, stream: str, properties: Mapping[str, str | None]) -> StreamInfo:
        """Set properties; None removes one."""
        name = self._name(stream)

        def merge(head: Head) -> dict[str, str]:
            both = {**head.properties, **properties}
            return {key: value for key, value in both.items() if value is not None}

        await self._streams.change(name, lambda head: configured(str(name), head, None, merge(head)))
        return await self.info(stream)

    async def segments(self, stream: str) -> AsyncIterator[Segment]:
        """The segment list, oldest first; for planning of parallel reads."""
        head = (await self._streams.read(self._name(stream))).head
        async for segment in self._streams.segments(head):
            yield segment

    # -- writing and reading ------------------------------------------------------------------------------

    def writer(
        self,
        stream: str,
        *,
        create: bool = True,
        takeover: bool = False,
        wait: bool = False,
        name: str = "",
        linger_ms: float = 50.0,
    ) -> Opening[StreamWriter]:
        """The stream's writer: `async with ns.writer("orders") as w` or `await ns.writer(...)`.

        `create`: makes a stream that is not there. Held by another writer: WriterExists, unless `wait` (until it goes:
        leader election) or `takeover` (it is fenced). `name` is what others are told of this writer. `linger_ms`:
        how long a record waits at most for earlier ones that are on their way, so that more travel together; 0 never.
        Errors: StreamEnded, NotEnoughBookies, RecoveryFailed (retryable).
        """
        full = self._name(stream)
        check_writer_name(name)
        if not isinstance(linger_ms, int | float) or not 0 <= linger_ms <= 10_000:
            raise InvalidArgument(f"linger_ms = {linger_ms!r}: needs a number from 0 to 10000")
        if wait and takeover:
            raise InvalidArgument("wait=True and takeover=True exclude each other")

        async def start() -> StreamWriter:
            self._client.services.guard()
            if create and not await self.exists(full.stream):
                with suppress(StreamExists):
                    await self.create(full.stream)
            space = await self._spaces.get(self.name)
            engine = await open_writer(
                self._client,
                self._streams,
                full,
                lambda head: merged(space.policy, head.policy),
                writer_name=name,
                takeover=takeover,
                wait=wait,
                linger_ms=linger_ms,
                on_closed=self._client.services.forget,
            )
            try:
                self._client.services.adopt(engine, engine.abandon)
            except BuckramError:
                await engine.abandon()
                raise
            return StreamWriter(engine)

        return Opening(start, "ns.writer()")

    def read(
        self,
        stream: str,
        *,
        start: int | str = "earliest",
        stop: int | str | None = None,
        start_time: Time | None = None,
        stop_time: Time | None = None,
        start_txid: int | None = None,
        follow: bool = False,
        on_truncated: Truncated = "error",
        cursor: str | None = None,
    ) -> StreamReader:
        """A reader: `async for record in ns.read("orders")`. Opens at first use; NoSuchStream then.

        From `start` (an offset, "earliest", "latest"), the first record appended at or after `start_time`, or the first
        with at least `start_txid`; before `stop` (an offset, or "latest") and `stop_time` (append time). Without
        `follow` it ends at what is readable now, with it only where the stream was ended. `on_truncated="skip"`: goes
        on at the earliest instead of OffsetTruncated. `cursor`: begins at this durable cursor where it exists;
        `reader.commit()` moves it.
        """
        name = self._name(stream)
        services = self._client.services
        clock = services.runtime.clock
        place = Cursor(self._streams, name, cursor, clock) if cursor is not None else None
        return StreamReader(
            self._client,
            self._streams,
            name,
            Range(start, stop, start_time, stop_time, start_txid, follow, on_truncated),
            place,
            on_open=lambda reader: services.adopt(reader, reader.close),
            on_closed=services.forget,
        )

    async def get(self, stream: str, offset: int) -> Record:
        """One record. OffsetOutOfRange (says earliest and latest), OffsetTruncated."""
        name = self._name(stream)
        if type(offset) is not int or offset < 0:
            raise InvalidArgument(f"offset {offset!r}: needs an int from 0 on")
        reader = self.read(stream, start=offset, stop=offset + 1)
        try:
            batch = await reader.next_batch()
        finally:
            await reader.close()
        if batch is None:
            head = (await self._streams.read(name)).head
            raise OffsetOutOfRange(str(name), offset, head.earliest, await known_end(self._client, name, head))
        return batch.records()[0]

    async def truncate(
        self,
        stream: str,
        *,
        before: int | None = None,
        before_time: Time | None = None,
        keep_bytes: int | None = None,
        before_cursors: bool = False,
        trim_now: bool = True,
    ) -> int:
        """Drop the oldest records: below an offset, appended before a time, beyond so many bytes (whole segments), or
        what every cursor has passed (nothing where there is no cursor).

        The new earliest offset, at once and exact to the record; space follows by whole segments, now (`trim_now`) or
        by the janitor. OffsetOutOfRange.
        """
        name = self._name(stream)
        if sum(choice is not None for choice in (before, before_time, keep_bytes)) + before_cursors != 1:
            raise InvalidArgument("truncate needs exactly one of before, before_time, keep_bytes and before_cursors")
        for what, number in (("before", before), ("keep_bytes", keep_bytes)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidArgument(f"truncate({what}={number!r}): needs an int from 0 on")
        head = (await self._streams.read(name)).head
        check_usable(str(name), head)
        if before is not None:
            offset = before
        elif before_time is not None:
            offset = await offset_at_time(self._client, self._streams, name, head, microseconds(before_time))
        elif before_cursors:
            offset = await consumed(self._streams, name)
        else:
            offset = await offset_keeping(self._streams, head, keep_bytes or 0)
        head = await truncate(self._client, self._streams, name, offset)
        if trim_now:
            await trim(self._client, self._streams, name)
        return head.earliest

    # -- cursors ------------------------------------------------------------------------------------------

    async def cursors(self, stream: str, *, after: str = "", limit: int = 1000) -> Sequence[CursorInfo]:
        """The stream's cursors in order of their names, those greater than `after`, each with its lag in records."""
        return await list_cursors(self._client, self._streams, self._name(stream), after=after, limit=limit)

    async def move_cursor(self, stream: str, cursor: str, offset: int) -> None:
        """Make a cursor, or move it up. CursorMoved if it is further (delete it first), OffsetOutOfRange."""
        await place_cursor(self._client, self._streams, self._name(stream), cursor, offset)

    async def delete_cursor(self, stream: str, cursor: str) -> None:
        """NoSuchCursor. A reader that has it fails at its next commit."""
        await Cursor(self._streams, self._name(stream), cursor, self._client.services.runtime.clock).delete()

    # -- bulk ---------------------------------------------------------------------------------------------

    async def bulk(
        self, stream: str, *, application: str, version: int, query: str = "", place: str = "", new_epoch: bool = False
    ) -> Bulk:
        """A bulk step (streams/write/bulk): ledgers that become segments in one compare-and-set, once per (application,
        version). NoSuchStream. The rest is for streaming queries, see core/streams/transactions.StepId."""
        name = self._name(stream)
        head = (await self._streams.read(name)).head
        check_usable(str(name), head)
        space = await self._spaces.get(self.name)
        step = StepId(application, version, query, place, new_epoch)
        return Bulk(self._client, self._streams, name, head, merged(space.policy, head.policy), step)

    # -- inside -------------------------------------------------------------------------------------------

    def _name(self, stream: str) -> StreamName:
        self._client.services.guard()
        return stream_name(stream, self.name)

    async def _info(self, name: StreamName, at: HeadAt) -> StreamInfo:
        head = at.head
        check_usable(str(name), head)
        space = await self._spaces.get(self.name)
        count = len(head.tail) + max(head.paged - head.first, 0)
        gone = head.writer is not None and not await held(self._streams, head.uid)
        return StreamInfo(
            str(name),
            head.uid,
            head.created,
            head.earliest,
            await known_end(self._client, name, head),
            head.ended,
            head.writer,
            merged(space.policy, head.policy),
            head.policy,
            head.properties,
            head.last_append,
            head.transactions,
            count,
            gone,
        )


__all__ = ["Namespace", "StreamInfo"]
