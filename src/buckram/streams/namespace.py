"""StreamNamespace: all operations on the streams of a namespace. `cli/cluster/commands.py` makes `Namespace` of it.

The methods check arguments and call the rooms below: `write`, `read`, `maintain` and `shared`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from buckram.client.ledger_client import LedgerClient
from buckram.client.shared.handles import NotCopied, Opening
from buckram.core.streams.metadata.changes import HeadStep, check_properties, check_usable, configured
from buckram.core.streams.metadata.head import Head, Segment, SnapshotRow
from buckram.core.streams.metadata.purposes import Act, check_act, purpose_named
from buckram.core.streams.metadata.transactions import StepId
from buckram.core.streams.names import StreamName, check_writer_name, stream_name
from buckram.core.streams.policy import check_overrides, merged
from buckram.core.streams.records.batch import Record
from buckram.core.streams.records.schemas import RecordSchemas, check_no_schema, with_schema
from buckram.errors import (
    BuckramError,
    InvalidArgument,
    NoSuchStream,
    OffsetOutOfRange,
    StreamExists,
)
from buckram.streams.info import StreamInfo, stream_info
from buckram.streams.maintain.compaction import join_before_writing
from buckram.streams.maintain.delete import delete_stream
from buckram.streams.maintain.fork import StreamFork, fork_stream
from buckram.streams.maintain.truncate import offset_keeping, offset_passed_by_all, trim, truncate
from buckram.streams.read.cursors import Cursor, CursorInfo, list_cursors, place_cursor
from buckram.streams.read.locate import by_newest_list, offset_at_time, readable_end
from buckram.streams.read.reader import Range, StreamReader, Time, Truncated, microseconds
from buckram.streams.shared.layout import list_names
from buckram.streams.shared.metadata import HeadAt, StreamStore, new_uid
from buckram.streams.shared.namespaces import Namespaces, changed_policy, create_stream
from buckram.streams.shared.record_values import RecordCodec
from buckram.streams.write.bulk import Bulk
from buckram.streams.write.opening import open_writer
from buckram.streams.write.writer import StreamWriter
from buckram.types import Offset


class StreamNamespace(NotCopied):
    """A namespace of streams. Stream names may be given alone or as NAMESPACE/STREAM of this namespace."""

    def __init__(self, client: LedgerClient, name: str) -> None:
        self._client = client
        self.name = stream_name("x", name).namespace
        """Name of the namespace."""
        self._streams = StreamStore(client.services.store)
        self._namespaces = Namespaces(self._streams)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    @property
    def store(self) -> StreamStore:
        """Metadata of the streams, for callers within Buckram that work on it directly."""
        return self._streams

    # -- streams ------------------------------------------------------------------------------------------

    async def create(self, stream: str, *, properties: Mapping[str, str] | None = None, **policy: Any) -> StreamInfo:
        """Create a stream. `policy` has the settings that differ from the namespace's. Raises StreamExists.

        Settings are the fields of Policy in `core/streams/policy.py`; unknown ones raise InvalidArgument.
        """
        return await self._create(self._name(stream), properties, policy)

    async def create_machine_log(
        self, stream: str, properties: Mapping[str, str] | None = None, /, **policy: Any
    ) -> StreamInfo:
        """Create a stream that is the log of a replicated machine, for `buckram.machine`. Raises StreamExists."""
        return await self._create(self._name(stream), properties, policy, snapshots=())

    async def _create(
        self,
        name: StreamName,
        properties: Mapping[str, str] | None,
        policy: Mapping[str, Any],
        snapshots: tuple[SnapshotRow, ...] | None = None,
    ) -> StreamInfo:
        overrides = check_overrides(policy)
        check_properties(properties or {})
        check_no_schema(str(name), properties or {})
        runtime = self._client.services.runtime
        head = Head(
            new_uid(runtime.rng.getrandbits(64)),
            runtime.clock.wall_us(),
            policy=overrides,
            properties=dict(properties or {}),
            snapshots=snapshots,
        )
        made = await create_stream(self._streams, name, head)
        return await stream_info(self._client, self._streams, name, head, made.namespace.policy)

    async def exists(self, stream: str) -> bool:
        """Return whether there is a stream of this name."""
        try:
            check_usable(stream, (await self._streams.read(self._name(stream))).head)
        except NoSuchStream:
            return False
        return True

    async def list(self, *, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Return names that begin with `prefix` and are greater than `after`, in order; an empty list is the end."""
        self._client.services.guard()
        await self._namespaces.get(self.name)
        return await list_names(self._streams.keys, self._streams.layout.heads(self.name), prefix, after, limit)

    async def info(self, stream: str) -> StreamInfo:
        """Return the present state and settings of a stream. Raises NoSuchStream."""
        name = self._name(stream)

        async def look(at: HeadAt) -> StreamInfo:
            return await self._info(name, at)

        return await by_newest_list(self._streams, name, look)

    async def delete(self, stream: str, *, force: bool = False, purpose: str = "records") -> None:
        """Delete a stream with its records, cursors and settings; its writer is fenced first. Raises NoSuchStream.

        A stream that is the log of a machine, a database or all objects, or the audit trail, is deleted only if
        `purpose` names that ("machine", "database", "objects", "audit"); otherwise MachineLog or StreamPurpose names
        the right command.

        RecoveryFailed: too few bookies answered to fence the writer. The stream is marked as deleted then, and nothing
        is deleted yet; call it again. `force` deletes the stream all the same; a writer that still reaches its bookies
        may get acknowledgements for a while.
        """
        self._client.services.guard()
        owner = purpose_named(purpose)
        await delete_stream(self._client, self._streams, self._name(stream), force=force, acting_for=owner)

    async def fork_stream(
        self, source: str, name: str, *, offset: Offset | None = None, time: Time | None = None, **policy: Any
    ) -> StreamFork:
        """Make the stream `name` of the records of `source` below `offset`, or of those appended before `time`.

        Without both, of all that are readable now. Both streams go on by themselves; they share the segments that are
        whole below the offset, and the records of the one in which it lies are copied. `policy` has settings that
        differ from the source's. A writer of the source is not disturbed. Raises NoSuchStream, StreamExists,
        OffsetOutOfRange, MachineLog.
        """
        origin, full = self._name(source), stream_name(name if "/" in str(name) else f"{self.name}/{name}")
        if offset is not None and time is not None:
            raise InvalidArgument(f"fork of {origin}: give an offset or a time, not both")
        if time is not None:
            head = (await self._streams.read(origin)).head
            check_usable(str(origin), head)
            offset = await offset_at_time(self._client, self._streams, origin, head, microseconds(time))
            offset = max(offset, head.earliest)
        return await fork_stream(self._client, self._streams, origin, full, at=offset, policy=policy)

    async def set_policy(self, stream: str, **policy: Any) -> StreamInfo:
        """Change settings of a stream; None resets one to the namespace's. Writers use them when they open again."""
        name = self._name(stream)
        await self._streams.change(
            name, lambda head: configured(str(name), head, changed_policy(head.policy, policy), None)
        )
        return await self.info(stream)

    async def set_properties(self, stream: str, properties: Mapping[str, str | None]) -> StreamInfo:
        """Set properties of a stream; a value of None removes one. Versions of its schema are not among them."""
        name = self._name(stream)
        check_no_schema(str(name), properties)

        def merge(head: Head) -> dict[str, str]:
            both = {**head.properties, **properties}
            return {key: value for key, value in both.items() if value is not None}

        await self._streams.change(name, lambda head: configured(str(name), head, None, merge(head)))
        return await self.info(stream)

    async def set_schema(self, stream: str, schema: str) -> int:
        """Add a version to the schema of a stream's values, Avro's JSON of a record; returns its number.

        Nothing changes if it is the newest version already. Raises InvalidArgument for what is no such schema, or may
        not follow the newest one (`core/streams/records/schemas.py`).
        """
        name = self._name(stream)

        def change(head: Head) -> HeadStep | None:
            check_act(str(name), head, Act.SCHEMA)
            return configured(str(name), head, None, with_schema(str(name), head.properties, schema))

        head = await self._streams.change(name, change)
        found = RecordSchemas.of(head.properties)
        return 0 if found is None else found.version

    async def schema(self, stream: str) -> RecordCodec | None:
        """Return the codec of records by the stream's current schema; None if it has no schema.

        Raises ConfigError without fastavro.
        """
        name = self._name(stream)
        head = (await self._streams.read(name)).head
        check_usable(str(name), head)
        found = RecordSchemas.of(head.properties)
        return None if found is None else RecordCodec(str(name), found)

    async def segments(self, stream: str) -> AsyncIterator[Segment]:
        """Iterate over the segments, the oldest first; for planning parallel reads."""
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
        """Open the stream's writer: `async with ns.writer("orders") as w` or `await ns.writer(...)`.

        `create`: create the stream if it does not exist. If another writer has the stream: WriterExists, or `wait`
        until it is free (leader election), or fence that writer (`takeover`). `name`: what others see of this writer.
        `linger_ms`: for how long a record may wait while earlier ones are in flight, so that more records share an
        entry; 0 sends at once. Errors: StreamEnded, MachineLog, MirrorStream, NotEnoughBookies, QuotaExceeded,
        RecoveryFailed (retryable).
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
            head = (await self._streams.read(full)).head
            check_act(str(full), head, Act.WRITE)
            space = await self._namespaces.get(self.name)
            if not head.ended:
                await join_before_writing(self._client, self._streams, full, head, merged(space.policy, head.policy))
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
        """Return a reader: `async for record in ns.read("orders")`. Its first use opens it, and may raise NoSuchStream.

        It reads from `start` (an offset, "earliest", "latest"), from the first record appended at or after
        `start_time`, or from the first with at least `start_txid`; up to and without `stop` (an offset, or "latest")
        and `stop_time` (append time). Without `follow` it ends at what is readable when it opens; with it, only where
        the stream was ended. `on_truncated="skip"`: continue at the earliest offset instead of OffsetTruncated.
        `cursor`: start at this durable cursor if it exists; `reader.commit()` moves it. ForeignLedger: the stream's
        metadata name what is not its own.
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

    async def get(self, stream: str, offset: Offset) -> Record:
        """Return one record; one that was acknowledged before this call is found, whoever appended it.

        Raises OffsetTruncated, or OffsetOutOfRange, which has the earliest offset and the end; OffsetNotReadable (try
        again) for a record that is written and whose writer died before it published the LAC that covers it.
        """
        name = self._name(stream)
        if type(offset) is not int or offset < 0:
            raise InvalidArgument(f"offset {offset!r}: needs an int from 0 on")
        while True:
            reader = self.read(stream, start=offset, stop=offset + 1)
            try:
                batch = await reader.next_batch()
            finally:
                await reader.close()
            if batch is not None:
                return batch.records()[0]
            head, end = await readable_end(self._client, self._streams, name, offset + 1)
            if offset >= end:
                raise OffsetOutOfRange(str(name), offset, head.earliest, end)

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
        """Drop the oldest records and return the new earliest offset.

        Exactly one argument says which: those below the offset `before`; those appended before `before_time`; all but
        the newest segments that have `keep_bytes`; or those that every cursor has passed (none without a cursor). They
        are unreadable at once; space is freed by whole segments, now (`trim_now`) or by the janitor. OffsetOutOfRange:
        `before` is beyond the readable end.
        """
        name = self._name(stream)
        if sum(choice is not None for choice in (before, before_time, keep_bytes)) + before_cursors != 1:
            raise InvalidArgument("truncate needs exactly one of before, before_time, keep_bytes and before_cursors")
        for what, number in (("before", before), ("keep_bytes", keep_bytes)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidArgument(f"truncate({what}={number!r}): needs an int from 0 on")
        head = (await self._streams.read(name)).head
        check_usable(str(name), head)
        check_act(str(name), head, Act.TRUNCATE)
        if before is not None:
            offset = before
        elif before_time is not None:
            offset = await offset_at_time(self._client, self._streams, name, head, microseconds(before_time))
        elif before_cursors:
            offset = await offset_passed_by_all(self._streams, name)
        else:
            offset = await offset_keeping(self._streams, head, keep_bytes or 0)
        head = await truncate(self._client, self._streams, name, offset)
        if trim_now:
            await trim(self._client, self._streams, name)
        return head.earliest

    # -- cursors ------------------------------------------------------------------------------------------

    async def cursors(self, stream: str, *, after: str = "", limit: int = 1000) -> Sequence[CursorInfo]:
        """Return cursors with names greater than `after`, in the order of their names, each with its lag in records."""
        return await list_cursors(self._client, self._streams, self._name(stream), after=after, limit=limit)

    async def move_cursor(self, stream: str, cursor: str, offset: Offset) -> None:
        """Create a cursor, or move it up. Raises CursorMoved if it is further (delete it first), OffsetOutOfRange."""
        await place_cursor(self._client, self._streams, self._name(stream), cursor, offset)

    async def delete_cursor(self, stream: str, cursor: str) -> None:
        """Delete a cursor. A reader that uses it fails at its next commit. Raises NoSuchCursor."""
        await Cursor(self._streams, self._name(stream), cursor, self._client.services.runtime.clock).delete()

    # -- bulk ---------------------------------------------------------------------------------------------

    async def bulk(
        self, stream: str, *, application: str, version: int, query: str = "", place: str = "", new_epoch: bool = False
    ) -> Bulk:
        """Begin a bulk step: ledgers that become segments in one compare-and-set, once per application and version.

        `streams/write/bulk.py` shows its use. `query`, `place` and `new_epoch` are for streaming queries, see StepId in
        `core/streams/metadata/transactions.py`. Raises NoSuchStream.
        """
        name = self._name(stream)
        head = (await self._streams.read(name)).head
        check_usable(str(name), head)
        check_act(str(name), head, Act.WRITE)
        space = await self._namespaces.get(self.name)
        step = StepId(application, version, query, place, new_epoch)
        return Bulk(self._client, self._streams, name, head, merged(space.policy, head.policy), step)

    # -- inside -------------------------------------------------------------------------------------------

    def log_name(self, stream: str) -> StreamName:
        """Return the full name of a stream of this namespace, for callers within Buckram."""
        return self._name(stream)

    def _name(self, stream: str) -> StreamName:
        self._client.services.guard()
        return stream_name(stream, self.name)

    async def _info(self, name: StreamName, at: HeadAt) -> StreamInfo:
        space = await self._namespaces.get(self.name)
        return await stream_info(self._client, self._streams, name, at.head, space.policy)
