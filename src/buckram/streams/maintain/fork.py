"""Forking a stream: a new stream with the records of another one below an offset. It shares whole segments.

1. The head of the fork is created, with a mark that it is being made, and with its lease. It has no record and cannot
   be used.
2. The segment in which the offset lies is copied up to it, into a ledger with an intent. A writer of the source is not
   disturbed: nothing is fenced, and what is copied is what readers may read.
3. Source and fork take hold of each shared ledger (`streams/shared/shared_ledgers.py`), some of them in one multi, on
   condition that the source's head, which lists them, and the fork's head have not changed.
4. Pages are written, then one multi completes the head: with all rows, without the mark and the intents. If there are
   many copies, the head gets its rows first, and most intents go before the mark does.

A crash before step 4 leaves a head with the mark and no lease, by which the janitor, or the next fork of that name,
deletes the fork; its keys below `shared` say what it holds. If the source's list changes meanwhile, it is read again,
and what is held or copied already is used again. Segments that are history are copied within their location, files and
all; the one with the producers' table becomes a ledger, where writers look for that. Not here: what is shared and what
the head becomes (`core/streams/forks.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from buckram.client.ledger_client import LedgerClient
from buckram.client.write.engine import LedgerAppender
from buckram.core.streams.external.history import directory_of, offloaded_row, place_of
from buckram.core.streams.forks import (
    CopiedSegment,
    ForkPlan,
    check_forking,
    copied_row,
    cut_entry,
    forked,
    hides_producers,
    plan_fork,
    records_of,
    with_copies,
    without_producers,
)
from buckram.core.streams.metadata.changes import HeadStep, check_usable
from buckram.core.streams.metadata.head import HISTORY, Fork, Head, Offloaded, Page, Segment, encode_page
from buckram.core.streams.metadata.purposes import Act, check_act
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.core.streams.records.record_format import EntryHeader, parse_header
from buckram.errors import (
    BuckramError,
    CorruptEntry,
    InvalidArgument,
    KeyExists,
    MalformedBatch,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    NoSuchStream,
    OffsetOutOfRange,
    StreamError,
    StreamExists,
    VersionConflict,
    WriterExists,
)
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain.compaction import ProgressCallback
from buckram.streams.maintain.delete import delete_incomplete
from buckram.streams.maintain.history.segment_copy import SegmentCopy
from buckram.streams.maintain.history.table import update_table
from buckram.streams.maintain.truncate import is_lease_held
from buckram.streams.read.history_reader import SegmentReader, open_segment
from buckram.streams.read.locate import first_entry, known_end, readable_end
from buckram.streams.shared.ledgers import (
    FORK,
    Intent,
    discard,
    discard_after_error,
    drop_files,
    let_go,
    listing_op,
    make_history_id,
    make_ledger,
    read_intent,
)
from buckram.streams.shared.metadata import HeadAt, StreamStore, head_retries, new_uid, retry_metadata
from buckram.streams.shared.namespaces import Namespaces, changed_policy, create_stream
from buckram.streams.shared.ownership import opened
from buckram.streams.shared.recovery import entry_header, summarise
from buckram.streams.shared.shared_ledgers import shared_by, sharing_ops
from buckram.streams.write.lease import Holder
from buckram.types import CheckVersion, Create, KeyOp, LedgerId, Offset

_WITHIN_S = 60.0
"""Time without any success after which the fork is given up, seconds."""
_INTENTS_AT_ONCE = 50
_OPS_AT_ONCE = 24
"""The size of the multis that take hold of ledgers: every metadata store takes as many."""


@dataclass(frozen=True, slots=True)
class StreamFork:
    """Report of a fork: its source, and the segments that are shared and copied."""

    stream: str
    """Full name of the fork, NAMESPACE/STREAM."""
    source: str
    """Full name of its source, NAMESPACE/STREAM."""
    offset: Offset
    """The records below it are those of the source; the fork's own begin here."""
    earliest: Offset
    """The first offset that can be read."""
    shared_segments: int
    """The number of segments that both streams list."""
    shared_bytes: int
    """The payload of these segments; it is stored once, and counts once for quotas."""
    copied_bytes: int
    """The payload that was copied: of the segment in which the offset lies, and of segments in history."""
    producers: bool
    """True if the fork knows the sequences of idempotent producers as of the offset; else they are new to it."""


class _Key(NamedTuple):
    """Number and base of a segment, how many of its records are copied, and of copied files the id of the origin's."""

    number: int
    base: Offset
    records: int
    files: LedgerId


class SourceChanged(StreamError):
    """The source's list is not what was read: read it again."""

    retryable = True

    def __init__(self, stream: str, message: str) -> None:
        super().__init__(stream, message)
        self.message = message


async def fork_stream(
    client: LedgerClient,
    streams: StreamStore,
    source: StreamName,
    name: StreamName,
    *,
    at: Offset | None = None,
    policy: Mapping[str, Any] | None = None,
    pace: Pace | None = None,
    progress: ProgressCallback = lambda _: None,
) -> StreamFork:
    """Make the stream `name` of the records of `source` below the offset `at`, default the readable end.

    `policy` has settings that differ from the source's; properties are the source's. What a process that died has left
    under that name is deleted first. Raises NoSuchStream, StreamExists, WriterExists while another process forks,
    MachineLog, OffsetOutOfRange, NotEnoughBookies, QuotaExceeded, and the errors of reading the source.
    """
    head = (await streams.read(source)).head
    check_usable(str(source), head)
    check_act(str(source), head, Act.FORK)
    if source.namespace != name.namespace:
        raise InvalidArgument(
            f"fork of {source} as {name}: both must be in one namespace, whose quota the shared ledgers count for; "
            f"choose a name in {source.namespace}"
        )
    if at is not None and (type(at) is not int or at < 0):
        raise InvalidArgument(f"fork of {source} at {at!r}: needs an offset, an int from 0 on")
    at = await _readable(client, streams, source, head, at)
    runtime = client.services.runtime
    made = Head(
        new_uid(runtime.rng.getrandbits(64)),
        runtime.clock.wall_us(),
        policy=changed_policy(head.policy, policy or {}),
        properties=head.properties,
        fork=Fork(str(source), head.uid, at, False),
    )
    lease = streams.layout.lease(made.uid)
    holder = Holder(f"fork of {source}", f"{runtime.rng.getrandbits(64):016x}", made.created)
    made = await _created(client, streams, name, made, [Create(lease, holder.encode(), ephemeral=True)])
    settings = merged((await Namespaces(streams).get(name.namespace)).policy, made.policy)
    forking = _Forking(client, streams, source, name, made, settings, pace or Pace(None), progress)
    try:
        return await forking.run()
    except BuckramError:
        with suppress(BuckramError):  # The janitor deletes it otherwise; the first error is the one to report.
            await forking.abandon()
        raise
    finally:
        await _free(streams, lease, holder)


async def _created(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, lease: Sequence[KeyOp]
) -> Head:
    """Create the head of a fork; one of that name that a dead process left half-made is deleted first."""
    while True:
        try:
            return (await create_stream(streams, name, head, lease)).head
        except StreamExists:
            try:
                there = (await streams.read(name)).head
            except NoSuchStream:
                continue
            if there.fork is None or there.fork.done:
                raise _exists(name, there) from None
            if await is_lease_held(streams, there.uid):
                raise WriterExists(
                    str(name),
                    f"fork of {there.fork.source}",
                    there.created,
                    "is being made as a fork by another process: wait for it; if it died, try again when its session "
                    "has ended",
                ) from None
            with suppress(NoSuchStream):  # The janitor was faster.
                await delete_incomplete(client, streams, name, there.uid)


def _exists(name: StreamName, there: Head) -> StreamExists:
    """Return the error for a stream that is there: it may be what an earlier call has made."""
    if there.fork is None:
        return StreamExists(str(name))
    return StreamExists(
        str(name),
        f"exists already, as a fork of {there.fork.source} at offset {there.fork.at} (`buckram stream show {name}`); "
        "open it or choose another name",
    )


async def _readable(
    client: LedgerClient, streams: StreamStore, source: StreamName, head: Head, at: Offset | None
) -> Offset:
    """Return the offset, or the readable end for None. OffsetOutOfRange if the records below it cannot be read."""
    if at is None:
        return await known_end(client, source, head)
    head, end = await readable_end(client, streams, source, at)
    if not head.earliest <= at <= end:
        raise OffsetOutOfRange(str(source), at, head.earliest, end)
    return at


async def _free(streams: StreamStore, lease: str, holder: Holder) -> None:
    """Delete the lease, unless a writer of the fork has it by now; if that fails it goes with the session."""
    with suppress(BuckramError):
        found = await streams.keys.get(lease)
        if found.value == holder.encode():
            await streams.keys.delete(lease, found.version)


class _Forking:
    """One fork while it is made."""

    def __init__(
        self,
        client: LedgerClient,
        streams: StreamStore,
        source: StreamName,
        name: StreamName,
        head: Head,
        policy: Policy,
        pace: Pace,
        progress: ProgressCallback,
    ) -> None:
        assert head.fork is not None
        self._client, self._streams, self._source, self._name = client, streams, source, name
        self._uid, self._fork, self._policy = head.uid, head.fork, policy
        self._pace, self._progress = pace, progress
        self._copies: dict[_Key, tuple[CopiedSegment, Intent]] = {}
        """Copies of the source's segments, with their intents."""
        self._hidden: dict[LedgerId, None] = {}
        """Copies with records of producers and without a table of these."""
        self._held: dict[LedgerId, None] = {}
        """The ledgers that source and fork hold."""

    async def run(self) -> StreamFork:
        retries, before = head_retries(_WITHIN_S), 0
        while True:
            source = await self._read_source()
            try:
                plan = await self._plan(source.head)
                await self._copy(plan)
                made = [made for made, _ in self._made(plan)]
                plan = with_copies(plan, made)
                if any(one.row.ledger in self._hidden for one in made):
                    plan = without_producers(plan)
                await self._share(plan, source.version)
                break
            except (NoSuchLedger, NoSuchEntry, SourceChanged) as error:
                if (done := len(self._copies) + len(self._held)) > before:
                    retries, before = head_retries(_WITHIN_S), done
                final = StreamError(error.stream, error.message) if isinstance(error, SourceChanged) else error
                await retries.wait(final)
        await self._drop_surplus(plan)
        return await self._complete(plan)

    async def abandon(self) -> None:
        """Delete everything of the fork unless it is complete; if it was deleted, what it holds and wrote since."""
        try:
            if not await delete_incomplete(self._client, self._streams, self._name, self._uid):
                return
        except NoSuchStream:
            while shared := await shared_by(self._streams, self._uid):
                for ledger in shared:
                    await let_go(self._client, self._streams, self._uid, ledger)
        for copy, _ in self._copies.values():
            if copy.row.offloaded is not None:  # Its last files may be younger than the deletion.
                await drop_files(self._client, self._uid, copy.row.offloaded.location, copy.row.ledger)

    async def _read_source(self) -> HeadAt:
        await self._streams.keys.sync()
        source = await self._streams.read(self._source)
        if source.head.uid != self._fork.uid:
            raise NoSuchStream(str(self._source), "was deleted while it was forked")
        check_usable(str(self._source), source.head)
        if source.head.earliest > self._fork.at:
            end = await known_end(self._client, self._source, source.head)
            raise OffsetOutOfRange(str(self._source), self._fork.at, source.head.earliest, end)
        return source

    async def _plan(self, head: Head) -> ForkPlan:
        plan = plan_fork(head, [row async for row in self._streams.segments(head)], self._fork.at)
        if not plan.gapless:
            raise SourceChanged(str(self._source), "its list changed while it was read")
        return plan

    # -- copies -------------------------------------------------------------------------------------------

    def _made(self, plan: ForkPlan) -> list[tuple[CopiedSegment, Intent]]:
        """Return the copies that the plan needs, as far as they exist."""
        return [copy for row in _copied_rows(plan) if (copy := self._copies.get(_key(plan, row))) is not None]

    async def _copy(self, plan: ForkPlan) -> None:
        for row in _copied_rows(plan):
            key = _key(plan, row)
            if key not in self._copies:
                copy = self._copy_into_ledger(plan, row) if _needs_ledger(plan, row) else self._copy_history(row)
                self._copies[key] = await copy

    async def _copy_into_ledger(self, plan: ForkPlan, row: Segment) -> tuple[CopiedSegment, Intent]:
        writer, intent = await make_ledger(
            self._client, self._streams, self._name, self._uid, self._policy, epoch=0, purpose=FORK
        )
        try:
            try:
                async with open_segment(self._client, StreamId(self._source, self._fork.uid), row) as reader:
                    if await self._copy_entries(plan, row, reader, writer):
                        self._hidden[writer.ledger_id] = None
                await writer.close()
            except BaseException:
                await writer.abandon()
                raise
            async with opened(self._client, StreamId(self._name, self._uid), writer.ledger_id) as copied:
                summary = await summarise(self._name, copied)
            return CopiedSegment(row, copied_row(str(self._name), plan, row, writer.ledger_id, summary)), intent
        except BuckramError:
            await discard_after_error(self._client, self._streams, self._uid, intent)
            raise

    async def _copy_entries(self, plan: ForkPlan, row: Segment, reader: SegmentReader, writer: LedgerAppender) -> bool:
        """Copy the entries of a segment under their own ids, the last one only as far as the offset goes.

        Returns whether records of producers are among them without a table of these.
        """
        due = records_of(plan, row)
        last = row.summary.last_entry if row.summary is not None else reader.last_confirmed
        stop = await first_entry(self._source, reader, last, lambda header: header.first + header.records >= due)
        if stop > last:
            raise SourceChanged(str(self._source), f"offset {row.base + due - 1} is not readable yet")
        before: EntryHeader | None = None
        hidden = False
        async for chunk in reader.chunks(0, stop):
            entries: list[bytes] = []
            for entry in chunk:
                header, payload = entry_header(self._source, entry), entry.payload
                if entry.entry_id == stop:
                    try:
                        payload = cut_entry(payload, due, before, plan.last_txid)
                        header = parse_header(payload)
                    except MalformedBatch as error:
                        raise CorruptEntry(str(self._source), row.ledger, entry.entry_id, str(error)) from None
                hidden |= hides_producers(header)
                entries.append(payload)
                before = header
            size = sum(map(len, entries))
            await self._pace.take(size)
            await writer.append_many(entries)
            self._progress(size)
        return hidden

    async def _copy_history(self, row: Segment) -> tuple[CopiedSegment, Intent]:
        """Copy the files of a segment into the fork's directory of the same location."""
        own = directory_of("", self._source, self._fork.uid)
        location = place_of(row).location.removesuffix(own)
        directory = directory_of(location, self._name, self._uid)
        intent = await make_history_id(self._client, self._streams, self._uid, directory, epoch=0)
        source = StreamId(self._source, self._fork.uid)
        copy = SegmentCopy(self._name, self._uid, row, intent, directory, row.base, source=source)
        digest = await copy.make_or_discard(self._client, self._streams, self._pace, self._progress)
        return CopiedSegment(row, offloaded_row(row, intent.ledger, Offloaded(directory, digest))), intent

    # -- shared ledgers -----------------------------------------------------------------------------------

    async def _share(self, plan: ForkPlan, version: int) -> None:
        """Take hold of every shared ledger while the source's head has this version. NoSuchLedger, SourceChanged."""
        waiting = [ledger for ledger in plan.shared if ledger not in self._held]
        parties = StreamId(self._source, self._fork.uid), StreamId(self._name, self._uid)
        retries = head_retries(_WITHIN_S)
        while waiting:
            own = await self._streams.read(self._name)
            check_forking(str(self._name), own.head)
            batch: list[LedgerId] = []
            ops: list[KeyOp] = [
                CheckVersion(self._streams.layout.head(self._source), version),
                CheckVersion(self._streams.layout.head(self._name), own.version),
            ]
            while len(batch) < len(waiting) and len(ops) < _OPS_AT_ONCE:
                ledger = waiting[len(batch)]
                ops += await sharing_ops(self._streams, ledger, *parties)
                batch.append(ledger)
            try:
                await self._streams.keys.multi(ops)
            except (VersionConflict, KeyExists, NoSuchKey, MetadataUnavailable) as error:
                if (await self._read_source()).version != version:
                    raise SourceChanged(str(self._source), "its list changed while it was forked") from error
                await retries.wait(error)  # A ledger's record changed, another fork was faster, or a reply was lost.
                continue
            self._held |= dict.fromkeys(batch)
            del waiting[: len(batch)]
            retries = head_retries(_WITHIN_S)

    async def _drop_surplus(self, plan: ForkPlan) -> None:
        """Let go ledgers that an earlier plan needed and this one does not.

        What the fork holds is read: the reply to a request that took hold of something may have been lost.
        """
        needed_ledgers, after = frozenset(plan.shared), -1
        while shared := await shared_by(self._streams, self._uid, after=after):
            for ledger in shared:
                if ledger not in needed_ledgers:
                    await let_go(self._client, self._streams, self._uid, ledger)
            after = shared[-1]
        needed = [intent for _, intent in self._made(plan)]
        for _, intent in self._copies.values():
            if intent not in needed:
                await discard(self._client, self._streams, self._uid, intent)

    # -- the end ------------------------------------------------------------------------------------------

    async def _complete(self, plan: ForkPlan) -> StreamFork:
        copies = self._made(plan)
        made = [one for one, _ in copies]
        step = forked(str(self._name), (await self._streams.read(self._name)).head, plan, made)
        for page in step.pages:
            await self._write_page(page)
        intents = [intent for _, intent in copies]
        if len(intents) > _INTENTS_AT_ONCE:
            await self._streams.change(
                self._name,
                lambda head: HeadStep(forked(str(self._name), head, plan, made, done=False).head),
                uid=self._uid,
            )
            while len(intents) > _INTENTS_AT_ONCE:
                await self._take_from_intents(intents[:_INTENTS_AT_ONCE])
                del intents[:_INTENTS_AT_ONCE]
        ops = [listing_op(self._streams, self._uid, intent) for intent in intents]
        try:
            head = await self._streams.change(
                self._name, partial(self._completed, plan=plan, made=made), uid=self._uid, extra=lambda _: ops
            )
        except (NoSuchKey, VersionConflict) as error:
            raise StreamError(str(self._name), f"a copy was discarded while the fork was made: {error}") from error
        for directory in dict.fromkeys(row.offloaded.location for _, row in made if row.offloaded is not None):
            await update_table(self._streams, self._name, self._uid, directory)
        shared = [row.summary.bytes for row in plan.whole if row.kind != HISTORY and row.summary is not None]
        return StreamFork(
            str(self._name),
            str(self._source),
            plan.at,
            plan.earliest,
            len(shared),
            sum(shared),
            sum(row.summary.bytes for _, row in made if row.summary is not None),
            head.fork is None or head.fork.producers_known,
        )

    async def _take_from_intents(self, intents: list[Intent]) -> None:
        """Delete intents of copies that the head lists already, while it is there. Too many for one multi (etcd)."""
        retries, asked = head_retries(_WITHIN_S), False
        while True:
            own = await self._streams.read(self._name)
            check_forking(str(self._name), own.head)
            there = [one for one in intents if await read_intent(self._streams, self._uid, one.ledger) == one]
            if there != intents and (there or not asked):
                raise StreamError(str(self._name), "a copy was discarded while the fork was made")
            if not there:
                return  # An earlier request succeeded and its reply was lost.
            ops = [listing_op(self._streams, self._uid, one) for one in there]
            try:
                await self._streams.keys.multi([CheckVersion(self._streams.layout.head(self._name), own.version), *ops])
                return
            except (VersionConflict, NoSuchKey, MetadataUnavailable) as error:
                asked = True
                await retries.wait(error)

    def _completed(self, head: Head, *, plan: ForkPlan, made: list[CopiedSegment]) -> HeadStep | None:
        if head.fork is not None and head.fork.done:
            return None  # An earlier request succeeded and its reply was lost.
        return HeadStep(forked(str(self._name), head, plan, made).head)  # Its pages are written already.

    async def _write_page(self, page: Page) -> None:
        """Write a page of a list that has no readers yet. MetadataUnavailable."""
        key = self._streams.layout.page(self._uid, page.number)
        with suppress(KeyExists):  # An earlier request succeeded and its reply was lost.
            await retry_metadata(lambda: self._streams.keys.create(key, encode_page(page)))


def _copied_rows(plan: ForkPlan) -> list[Segment]:
    """Return the segments that are copied and not shared."""
    return [row for row in plan.whole if row.kind == HISTORY] + ([plan.cut] if plan.cut is not None else [])


def _needs_ledger(plan: ForkPlan, row: Segment) -> bool:
    """Return whether a copy is a ledger: part of a segment, or the one with the producers' table for writers."""
    return row is plan.cut or row.number == plan.producers


def _key(plan: ForkPlan, row: Segment) -> _Key:
    """Return the key of a copy. It stays the same if the ledger is compacted or offloaded, as its records do."""
    return _Key(row.number, row.base, records_of(plan, row), -1 if _needs_ledger(plan, row) else row.ledger)
