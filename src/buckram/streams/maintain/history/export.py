"""Export: sealed segments are copied to files outside the cluster, in the order of offsets, and stay in the stream.

    work = await plan_export(...)
    report = await export_stream(...)

The files are those of an offload, and what is offloaded to the same directory counts as exported. Each copy gets an
intent, its files are written and verified, then one multi publishes it in the record of the export and takes the
intent away. So a crash leaves a copy that is published, or one with an intent, which the next export deletes. Of two
exports to one directory at the same time the later one goes on: it takes the intent of the other's copy. Not here:
which segments are due (`core/streams/external/exports.py`), copying (`streams/maintain/history/segment_copy.py`), the
table (`streams/maintain/history/table.py`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.external.exports import Due, Export, advanced, due_of
from buckram.core.streams.external.history import check_location, copy_of, directory_of
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import Head
from buckram.core.streams.metadata.purposes import Act, check_act
from buckram.core.streams.names import StreamName
from buckram.errors import (
    BuckramError,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchKey,
    NoSuchLedger,
    StreamError,
    VersionConflict,
)
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain.compaction import ProgressCallback
from buckram.streams.maintain.history.segment_copy import Attempt, CopiesAhead, SegmentCopy, check_software
from buckram.streams.maintain.history.table import base_of, change_export, is_in, read_export, update_table, withdraw
from buckram.streams.shared.ledgers import (
    EXPORT,
    Intent,
    discard,
    drop_files,
    list_intents,
    make_history_id,
    read_intent,
)
from buckram.streams.shared.locations import FileLocation, in_thread
from buckram.streams.shared.metadata import StreamStore, head_retries
from buckram.types import Delete, LedgerId, Offset

_INTENTS = 1000


@dataclass(frozen=True, slots=True)
class Exportable:
    """Segments of a stream that a location lacks, at one moment."""

    name: StreamName
    uid: str
    epoch: int
    earliest: int
    directory: str
    export: Export
    due: tuple[Due, ...]

    @property
    def bytes(self) -> int:
        """Payload bytes of all segments that are to be copied."""
        return sum(due.row.summary.bytes for due in self.due if due.row.summary is not None and not due.present)


@dataclass(slots=True)
class ExportReport:
    """Report of an export."""

    stream: str
    location: str
    """The directory of the files."""
    first_offset: int
    """Offset at which this run began."""
    next_offset: int
    """Every sealed record below it is in the location now, or was truncated before."""
    table: str = ""
    """Location of the Iceberg table; empty without pyiceberg."""
    segments: int = 0
    """The number of segments that were copied."""
    records: int = 0
    bytes: int = 0
    file_bytes: int = 0
    missed: int = 0
    """The number of records that were truncated before they were exported."""
    pruned: int = 0
    """The number of copies that were taken out, because all of their records are truncated."""


async def plan_export(streams: StreamStore, name: StreamName, to: str) -> Exportable:
    """Return what a location lacks. Raises NoSuchStream, MachineLog, InvalidArgument for a location that is none."""
    location = check_location(to, "--to")
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    check_act(str(name), head, Act.EXPORT)
    directory = directory_of(location, name, head.uid)
    export = await read_export(streams, head.uid, directory)
    rows = [row async for row in streams.segments(head)]
    due = tuple(due_of(head, rows, export))
    return Exportable(name, head.uid, head.epoch, head.earliest, directory, export, due)


async def export_stream(
    client: LedgerClient,
    streams: StreamStore,
    work: Exportable,
    *,
    prune: bool = False,
    pace: Pace | None = None,
    progress: ProgressCallback = lambda _: None,
) -> ExportReport:
    """Copy what is due, segment after segment, and bring the table up to date. It may be stopped at any point.

    `prune`: delete the copies whose records are all truncated. Raises WriteFailed or ReadFailed if the location or the
    bookies cannot be reached, CorruptEntry if the files do not give back what was written, StreamError for encrypted
    entries or if another export to the same directory took over.
    """
    check_software()
    start = work.due[0].first if work.due else work.export.next
    report = ExportReport(str(work.name), work.directory, start, work.export.next)
    await _discard_leftovers(client, streams, work.name, work.uid, work.directory)
    await _check_known(streams, work)
    try:
        missing, begin = (due for due in work.due if not due.present), partial(_begin, client, streams, work)
        async with CopiesAhead(client, streams, missing, begin, pace=pace, progress=progress) as copies:
            for due in work.due:
                await _export_segment(client, streams, work, due, None if due.present else await copies.next(), report)
        if prune:
            report.pruned = await _prune(client, streams, work)
        replaced = await _withdraw_replaced(client, streams, work.name, work.uid, work.directory)
    except BuckramError:
        with suppress(BuckramError):  # What was published is in the table; the first error is the one to report.
            await update_table(streams, work.name, work.uid, work.directory)
        raise
    report.table = await update_table(streams, work.name, work.uid, work.directory)
    if report.pruned or replaced:
        await _discard_leftovers(client, streams, work.name, work.uid, work.directory)
    return report


async def _export_segment(
    client: LedgerClient,
    streams: StreamStore,
    work: Exportable,
    due: Due,
    attempt: Attempt[Due] | None,
    report: ExportReport,
) -> None:
    """Publish a segment: its copy that is being made, or what is there already (None)."""
    expected = report.next_offset
    if attempt is None:
        await _publish(client, streams, work, due, None)
    else:
        try:
            await _publish_made(client, streams, work, attempt)
        except (NoSuchLedger, NoSuchEntry):
            if not await _was_truncated(streams, work, due):
                raise
            return  # The segment after it says how many records were missed.
        report.segments += 1
        report.records += due.row.end - due.first
        report.bytes += due.row.summary.bytes if due.row.summary is not None else 0
        report.file_bytes += attempt.copy.file_bytes
    report.missed += due.first - expected if expected else 0
    report.next_offset = due.row.end


async def _begin(client: LedgerClient, streams: StreamStore, work: Exportable, due: Due) -> SegmentCopy:
    intent = await make_history_id(client, streams, work.uid, work.directory, epoch=work.epoch, purpose=EXPORT)
    return SegmentCopy(work.name, work.uid, due.row, intent, work.directory, due.first)


async def _publish_made(client: LedgerClient, streams: StreamStore, work: Exportable, attempt: Attempt[Due]) -> None:
    """Wait until a copy is made, and publish it. A failure leaves nothing."""
    try:
        await attempt.digest()
    except BuckramError:
        if attempt.copy.taken:
            raise _taken_over(work, (await read_export(streams, work.uid, work.directory)).next) from None
        raise
    try:
        await _publish(client, streams, work, attempt.item, attempt.copy.intent)
    except MetadataUnavailable:
        raise  # It may have been published; if not, the next export deletes it by its intent.
    except BuckramError:
        await attempt.copy.discard(client, streams)
        raise


async def _publish(
    client: LedgerClient, streams: StreamStore, work: Exportable, due: Due, intent: Intent | None
) -> None:
    """Publish a copy, or a segment that is there already, in one step. StreamError if another export took over."""
    copy = None if intent is None else intent.ledger
    ops = [] if intent is None else [Delete(streams.layout.intent(work.uid, intent.ledger), intent.version)]
    retries, change = head_retries(), partial(_advance, str(work.name), due=due, copy=copy)
    while True:
        try:
            if await change_export(streams, work.uid, work.directory, change, ops) is not None:
                return
        except (NoSuchKey, VersionConflict):
            pass  # Another process took the intent, or an earlier request published the copy and its reply was lost.
        except MetadataUnavailable as error:
            await retries.wait(error)
            continue
        export = await read_export(streams, work.uid, work.directory)
        if export.next >= due.row.end and (copy is None or copy in export.copies):
            return
        if intent is not None and await read_intent(streams, work.uid, intent.ledger) is None:
            # The process that took the intent has looked for files already, maybe before the last ones were there.
            await drop_files(client, work.uid, work.directory, intent.ledger)
        raise _taken_over(work, export.next)


def _taken_over(work: Exportable, at: Offset) -> StreamError:
    text = f"another export to {work.directory} took over at offset {at}; this one has ended"
    return StreamError(str(work.name), text)


def _advance(name: str, export: Export, *, due: Due, copy: LedgerId | None) -> Export | None:
    return advanced(name, export, due, copy)


async def _was_truncated(streams: StreamStore, work: Exportable, due: Due) -> bool:
    head: Head = (await streams.read(work.name)).head
    return head.uid == work.uid and due.row.end <= head.earliest


async def _discard_leftovers(
    client: LedgerClient, streams: StreamStore, name: StreamName, uid: str, directory: str
) -> None:
    """Delete the files of copies to this directory that were not published, or are no longer."""
    leftovers: list[Intent] = []
    after = -1
    while found := await list_intents(streams, uid, after=after, limit=_INTENTS):
        after = found[-1].ledger
        leftovers += [one for one in found if one.purpose == EXPORT and one.place == directory]
    if leftovers:
        await update_table(streams, name, uid, directory, create=False)  # It may still name files of some of them.
    for intent in leftovers:
        await discard(client, streams, uid, intent)


async def _check_known(streams: StreamStore, work: Exportable) -> None:
    """StreamError if the location has copies that the metadata know nothing of: those were restored since.

    They may be all that is left of their records, and what is exported next would have the same offsets.
    """
    unknown = await _unknown(streams, work)
    if unknown:
        unknown = {copy: base for copy, base in (await _unknown(streams, work)).items() if copy in unknown}
    if unknown:
        first = min(unknown.values())
        raise StreamError(
            str(work.name),
            f"{work.directory} has {len(unknown)} copies that the metadata do not know, from offset {first} on: the "
            "metadata were restored after they were exported, and the stream may have other records there now. Export "
            "to another location; or compare them (`buckram stream verify`), move their files away and export again",
        )


async def _unknown(streams: StreamStore, work: Exportable) -> dict[LedgerId, int]:
    """Return the first offset of each copy in the location that is neither published, nor listed, nor in an intent.

    The files are listed first: each copy has an intent before its files, and until they are gone.
    """
    found = await _bases(work.directory)
    after = -1
    while found and (intents := await list_intents(streams, work.uid, after=after, limit=_INTENTS)):
        after = intents[-1].ledger
        found = {copy: base for copy, base in found.items() if all(copy != one.ledger for one in intents)}
    if not found:
        return {}
    known = dict.fromkeys((await read_export(streams, work.uid, work.directory)).copies)
    head = (await streams.read(work.name)).head
    known |= {row.ledger: None async for row in streams.segments(head)}
    return {copy: base for copy, base in found.items() if copy not in known}


async def _prune(client: LedgerClient, streams: StreamStore, work: Exportable) -> int:
    """Take copies out of the export that end at or below the earliest offset; returns how many."""
    head = (await streams.read(work.name)).head
    export = await read_export(streams, work.uid, work.directory)
    bases = await _bases(work.directory)
    known = [copy for copy in export.copies if copy in bases]
    if not known:
        return 0
    ends = [bases[copy] for copy in known[1:]] + [export.next]
    dead = [copy for copy, end in zip(known, ends, strict=True) if end <= head.earliest]
    return len(await withdraw(streams, work.uid, work.directory, dead, head.epoch, client.services.clocks.now()))


async def _bases(directory: str) -> dict[LedgerId, int]:
    """Return the first offset of each copy in the directory."""
    files = await in_thread(-1, directory, FileLocation(directory).files)
    return {copy: base_of(file) for file in files if file.startswith("_") and (copy := copy_of(file)) is not None}


async def replace_exported(
    client: LedgerClient, streams: StreamStore, name: StreamName, uid: str, directory: str
) -> str:
    """Bring the table up to date after an offload, and return where it is; "" without pyiceberg.

    Exported copies in this directory of records that are offloaded to it are taken out and deleted.
    """
    gone = await _withdraw_replaced(client, streams, name, uid, directory)
    table = await update_table(streams, name, uid, directory)
    if gone:
        await _discard_leftovers(client, streams, name, uid, directory)
    return table


async def _withdraw_replaced(
    client: LedgerClient, streams: StreamStore, name: StreamName, uid: str, directory: str
) -> list[LedgerId]:
    """Take exported copies out whose records are history in this directory; returns them.

    An export does so, too: what it copied may have become history meanwhile, and an offload may have been killed.
    """
    export = await read_export(streams, uid, directory)
    if not export.copies:
        return []
    head = (await streams.read(name)).head
    rows = [row async for row in streams.segments(head)]
    ranges = [(row.base, row.end) for row in rows if is_in(row, directory)]
    if not ranges:
        return []
    bases = await _bases(directory)
    same = [copy for copy in export.copies if copy in bases and any(base <= bases[copy] < end for base, end in ranges)]
    return await withdraw(streams, uid, directory, same, head.epoch, client.services.clocks.now())
