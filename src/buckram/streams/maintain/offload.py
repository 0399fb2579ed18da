"""Offload: sealed segments are copied to files outside the cluster, which take their places in the segment list, by
hand or by the stream's policy.

    work = await plan_offload(...)
    report = await offload_planned(...)     or, in many processes, for each row: copy_segment, then replace_run

An id for the files gets its intent, then each part is written, read back and compared entry by entry, then the manifest
likewise; then one compare-and-set puts the files in the ledger's place and gives the ledger an intent. So a crash
leaves a ledger in the list, or files in the list, and what is in no list has an intent, by which the janitor finds it.
Readers of the ledger go on until the janitor deletes it (JanitorSettings.retired_s). A check tells whether the files of
a history are complete. Not here: how a copy is written and verified (`streams/maintain/history/segment_copy.py`), the
table (`streams/maintain/history/table.py`), deleting history, which is truncation (`streams/maintain/truncate.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.compaction import CompactionRun
from buckram.core.streams.external.history import (
    check_location,
    directory_of,
    due_segments,
    may_offload,
    offloaded_row,
    whole,
)
from buckram.core.streams.metadata.changes import check_usable, is_dead
from buckram.core.streams.metadata.head import HISTORY, Head, Offloaded, Segment
from buckram.core.streams.metadata.purposes import Act, check_act
from buckram.core.streams.names import StreamId, StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.core.streams.records.batch import Batch
from buckram.errors import (
    BuckramError,
    CorruptEntry,
    ForeignLedger,
    InvalidArgument,
    MetadataError,
    NoSuchEntry,
    NoSuchLedger,
)
from buckram.metadata.records.foreign_references import forget_foreign_notes
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain.compaction import Compactable, Copied, ProgressCallback, replace_run
from buckram.streams.maintain.history.export import replace_exported
from buckram.streams.maintain.history.segment_copy import Attempt, CopiesAhead, SegmentCopy, check_software
from buckram.streams.read.history_reader import SegmentFiles
from buckram.streams.read.locate import decode_entry
from buckram.streams.shared.ledgers import make_history_id
from buckram.streams.shared.locations import in_thread
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.streams.shared.namespaces import Namespaces
from buckram.streams.shared.ownership import check_own
from buckram.types import Entry, LedgerId

Wanted = Callable[[Head, Sequence[Segment], Policy], list[Segment]]
"""Returns those of a stream's segments that are to be offloaded, the oldest first."""


@dataclass(frozen=True, slots=True)
class Offloadable:
    """The segments of a stream that are to be offloaded, at one moment, and where to."""

    name: StreamName
    uid: str
    epoch: int
    policy: Policy
    directory: str
    rows: tuple[Segment, ...]
    put_aside: int
    """Number of segments that were wanted and stay, because they hold the producers' table."""

    @property
    def bytes(self) -> int:
        """Payload bytes of all segments."""
        return sum(row.summary.bytes for row in self.rows if row.summary is not None)


@dataclass(slots=True)
class OffloadReport:
    """Report of an offload of one stream."""

    stream: str
    location: str = ""
    segments: int = 0
    """The number of segments that are history now."""
    records: int = 0
    bytes: int = 0
    """The payload of these segments; their ledgers are deleted later, by the janitor."""
    file_bytes: int = 0
    kept: int = 0
    """The number of segments that stay on bookies, because the producers' table is in them."""
    put_off: int = 0
    """The number of segments that changed meanwhile; the next offload may take them."""
    table: str = ""
    """Location of the Iceberg table; empty without pyiceberg."""


async def plan_offload(
    streams: StreamStore, name: StreamName, *, to: str | None = None, wanted: Wanted | None = None
) -> Offloadable:
    """Return what is to be offloaded: what `wanted` names, or all that may be.

    `to` is a location, default the policy's offload_to. Raises NoSuchStream, MachineLog, and InvalidArgument without a
    location.
    """
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    check_act(str(name), head, Act.OFFLOAD)
    policy = merged((await Namespaces(streams).get(name.namespace)).policy, head.policy)
    location = check_location(to) if to is not None else policy.offload_to
    if not location:
        raise InvalidArgument(
            f"stream {name}: has no place for its history; give one (--to URL), or set the policy offload_to"
        )
    rows = [row async for row in streams.segments(head)]
    chosen = rows if wanted is None else wanted(head, rows, policy)
    ready = tuple(row for row in chosen if may_offload(head, row))
    aside = sum(row.sealed and row.number == head.producers for row in chosen)
    return Offloadable(name, head.uid, head.epoch, policy, directory_of(location, name, head.uid), ready, aside)


async def _list(
    client: LedgerClient,
    streams: StreamStore,
    work: Offloadable,
    copying: Awaitable[tuple[Copied, int]],
    report: OffloadReport,
) -> None:
    """Put a copy in the place of its segment once it is made, and add it to the report."""
    try:
        copied, size = await copying
    except (NoSuchLedger, NoSuchEntry):
        report.put_off += 1  # The segment was truncated or replaced meanwhile.
        return
    run = Compactable(work.name, work.uid, work.epoch, work.policy, (copied.run,))
    if not await replace_run(client, streams, run, copied):
        report.put_off += 1
        return
    summary = copied.row.summary
    assert summary is not None
    report.segments += 1
    report.records += summary.records
    report.bytes += summary.bytes
    report.file_bytes += size


async def copy_segment(
    client: LedgerClient,
    streams: StreamStore,
    work: Offloadable,
    row: Segment,
    *,
    pace: Pace | None = None,
    progress: ProgressCallback = lambda _: None,
) -> tuple[Copied, int]:
    """Write a segment's files, read them back and compare; returns the row that can take its place, and their bytes.

    A failure leaves nothing, a crash leaves files with an intent. Raises WriteFailed or ReadFailed if the location or
    the bookies cannot be reached, CorruptEntry if the files do not give back what was written, StreamError for
    encrypted entries, NoSuchLedger or NoSuchEntry if the segment was truncated meanwhile.
    """
    copy = await _begin(client, streams, work, row)
    return _copied(work, row, copy, await copy.make_or_discard(client, streams, pace or Pace(None), progress))


async def _begin(client: LedgerClient, streams: StreamStore, work: Offloadable, row: Segment) -> SegmentCopy:
    check_software()
    intent = await make_history_id(client, streams, work.uid, work.directory, epoch=work.epoch)
    return SegmentCopy(work.name, work.uid, row, intent, work.directory, row.base)


def _copied(work: Offloadable, row: Segment, copy: SegmentCopy, digest: str) -> tuple[Copied, int]:
    place = Offloaded(work.directory, digest)
    return Copied(CompactionRun((row,)), offloaded_row(row, copy.copy, place), copy.intent), copy.file_bytes


async def _attempted(work: Offloadable, attempt: Attempt[Segment]) -> tuple[Copied, int]:
    return _copied(work, attempt.item, attempt.copy, await attempt.digest())


async def offload_planned(
    client: LedgerClient,
    streams: StreamStore,
    work: Offloadable,
    *,
    pace: Pace | None = None,
    progress: ProgressCallback = lambda _: None,
) -> OffloadReport:
    """Offload the segments of a plan in their order, and bring the table up to date. The next one is read meanwhile.

    It may be stopped and repeated at any point. Errors are those of copy_segment and update_table.
    """
    report = OffloadReport(str(work.name), work.directory, kept=work.put_aside)
    try:
        begin = partial(_begin, client, streams, work)
        async with CopiesAhead(client, streams, work.rows, begin, pace=pace, progress=progress) as copies:
            while (attempt := await copies.next()) is not None:
                await _list(client, streams, work, _attempted(work, attempt), report)
    except BuckramError:
        with suppress(BuckramError):  # What is listed is in the table; the first error is the one to report.
            await _finish(client, streams, work, report)
        raise
    await _finish(client, streams, work, report)
    return report


async def _finish(client: LedgerClient, streams: StreamStore, work: Offloadable, report: OffloadReport) -> None:
    report.table = await replace_exported(client, streams, work.name, work.uid, work.directory)


async def offload_stream(
    client: LedgerClient,
    streams: StreamStore,
    name: StreamName,
    *,
    to: str | None = None,
    wanted: Wanted | None = None,
    pace: Pace | None = None,
    progress: ProgressCallback = lambda _: None,
) -> OffloadReport:
    """Offload a stream, segment after segment. It may be stopped and repeated at any point.

    Errors are those of plan_offload and offload_planned.
    """
    work = await plan_offload(streams, name, to=to, wanted=wanted)
    return await offload_planned(client, streams, work, pace=pace, progress=progress)


AT_ONCE = 16
"""The most segments of a stream that one pass of the janitor offloads, so that other streams have their turn."""


def asks_for_offload(head: Head, policy: Policy) -> bool:
    """Return whether the policy has segments of this stream offloaded at all; a machine's log stays on bookies."""
    reason = policy.offload_after_s is not None or policy.offload_bytes is not None
    return bool(policy.offload_to) and reason and head.snapshots is None


async def offload_by_policy(
    client: LedgerClient, streams: StreamStore, name: StreamName, head: Head, policy: Policy, now: int | None
) -> OffloadReport | None:
    """Offload what the policy wants offloaded now, AT_ONCE segments at most; None if that is nothing.

    `now` is in microseconds UTC, or None while the time is in doubt: then nothing is offloaded by age. Errors are those
    of offload_stream.
    """
    if not asks_for_offload(head, policy):
        return None
    rows = [row async for row in streams.segments(head)]
    if not _due(head, rows, policy, now=now):
        return None
    # To the place of the policy that was checked, even if the policy has changed since.
    return await offload_stream(client, streams, name, to=policy.offload_to, wanted=partial(_due, now=now))


def _due(head: Head, rows: Sequence[Segment], policy: Policy, *, now: int | None) -> list[Segment]:
    due = due_segments(head, rows, now=now, after_s=policy.offload_after_s, keep_bytes=policy.offload_bytes)
    return due[:AT_ONCE]


@dataclass(slots=True)
class StreamCheck:
    """Result of a check of a stream's segments."""

    stream: str
    segments: int = 0
    history: int = 0
    """The number of segments that are history."""
    records: int = 0
    """The records that were read from history."""
    bytes: int = 0
    """The bytes of files that were read."""
    problems: list[str] = field(default_factory=list)
    adopted: list[LedgerId] = field(default_factory=list)
    """The ledgers that were marked as the stream's own before the check."""


async def check_stream(client: LedgerClient, streams: StreamStore, name: StreamName) -> StreamCheck:
    """Check that each segment's ledger exists and is its own, and read all files of history: bytes, records, offsets.

    The copies of ledgers on bookies are not read: `buckram ledger check` does that. Raises NoSuchStream.
    """
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    found, stream = StreamCheck(str(name)), StreamId(name, head.uid)
    due: int | None = None
    foreign = False
    async for row in streams.segments(head):
        if is_dead(head, row):
            continue
        found.segments += 1
        if due is not None and row.base != due:
            found.problems.append(f"segment {row.number} begins at offset {row.base}, offset {due} is expected")
        due = row.end
        try:
            if row.kind == HISTORY:
                found.history += 1
                files = SegmentFiles(stream, row)
                records, size = await in_thread(row.ledger, files.location, partial(_check_files, name, row, files))
                found.records, found.bytes = found.records + records, found.bytes + size
            else:
                record = await retry_metadata(partial(client.services.store.read_ledger, row.ledger))
                await check_own(client, stream, row.ledger, record.metadata)
        except NoSuchLedger:
            if not is_dead((await streams.read(name)).head, row):
                found.problems.append(f"segment {row.number}: its ledger {row.ledger} does not exist")
        except BuckramError as error:
            foreign = foreign or isinstance(error, ForeignLedger)
            found.problems.append(f"segment {row.number}: {error}")
    if not foreign:
        with suppress(MetadataError):  # A check by an administrator withdraws the notes; others may not.
            await forget_foreign_notes(client.services.store, head.uid)
    return found


def _check_files(name: StreamName, row: Segment, files: SegmentFiles) -> tuple[int, int]:
    """Read all of an offloaded segment; returns its records and the bytes of its files. CorruptEntry, ReadFailed."""
    manifest, records = files.manifest(), 0
    for chunk in files.chunks(0, manifest.summary.last_entry):
        for entry, payload in chunk:
            batch = decode_entry(name, row, Entry(row.ledger, entry, payload, entry, -1))
            if not isinstance(batch, Batch):
                continue
            if batch.first_offset != row.base + records:
                why = f"begins at offset {batch.first_offset}, offset {row.base + records} is expected"
                raise CorruptEntry(str(name), row.ledger, entry, why)
            records += len(batch)
    return records, whole(manifest.parts)
