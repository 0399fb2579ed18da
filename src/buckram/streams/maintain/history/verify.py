"""Verification: a stream is compared with another one, or with its files outside the cluster, record by record.

Both sides are read side by side as columns, in the order of offsets, and what is in memory of each is one batch or two
parts. Files count only if they have the digests of their manifests. Not here: finding where two batches differ
(`streams/maintain/history/row_compare.py`), checking the copies on bookies (`client/maintain/replica_audit.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.external.history import Manifest, check_location, copy_of, decode_manifest, directory_of
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.names import StreamName
from buckram.errors import CorruptEntry, InvalidArgument, MalformedBatch, MalformedRecord, NoSuchEntry
from buckram.runtime.net.pace import Pace
from buckram.streams.maintain.compaction import ProgressCallback
from buckram.streams.maintain.history.segment_copy import check_software
from buckram.streams.maintain.history.table import base_of, table_copies
from buckram.streams.read.locate import known_end
from buckram.streams.read.reader import Range, StreamReader
from buckram.streams.shared.locations import FileLocation, answer_of, forget_error, in_thread
from buckram.streams.shared.metadata import StreamStore

if TYPE_CHECKING:
    import pyarrow as pa

COMPARED = ("offset", "value", "key", "headers", "timestamp", "txid", "producer", "sequence")
"""Columns in which two streams must be equal. Append times are each cluster's own; files have those of the stream."""


@dataclass(frozen=True, slots=True)
class ComparedSide:
    """One side of a comparison: a stream from `first` to before `end`, or the files of a directory."""

    name: str
    first: int
    end: int
    client: LedgerClient | None = None
    stream: StreamName | None = None
    manifests: tuple[tuple[str, int], ...] = ()
    """The manifests of the directory with their copies, in the order of offsets."""
    directory: str = ""


@dataclass(frozen=True, slots=True)
class RecordDifference:
    """The first offset at which the sides differ. `column` is empty if one of them has no such record."""

    offset: int
    column: str
    a: str
    b: str


@dataclass(slots=True)
class VerifyReport:
    """Result of a verification."""

    a: str
    b: str
    equal: bool = True
    records: int = 0
    """The number of records that are equal."""
    bytes: int = 0
    first_offset: int = 0
    next_offset: int = 0
    """Offset up to which the sides were compared."""
    a_end: int = 0
    b_end: int = 0
    difference: RecordDifference | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def stream_side(client: LedgerClient, name: StreamName) -> ComparedSide:
    """Return a stream as it is now. Raises NoSuchStream."""
    head = (await StreamStore(client.services.store).read(name)).head
    check_usable(str(name), head)
    end = await known_end(client, name, head)
    return ComparedSide(str(name), head.earliest, end, client, name)


async def files_side(client: LedgerClient, name: StreamName, location: str) -> ComparedSide:
    """Return the files of a stream at a location that it was exported or offloaded to, or in that very directory.

    Where there is a table it says which files count. Raises InvalidArgument if there are none, ReadFailed, and
    ConfigError for a table without pyiceberg.
    """
    check_software()
    head = (await StreamStore(client.services.store).read(name)).head
    check_usable(str(name), head)
    location = check_location(location, "B")
    for directory in (directory_of(location, name, head.uid), location):
        files = await in_thread(-1, directory, FileLocation(directory).files)
        manifests = {copy: file for file in files if file.startswith("_") and (copy := copy_of(file)) is not None}
        if not manifests:
            continue
        known = await table_copies(directory)
        copies = sorted(manifests if known is None else known, key=lambda copy: base_of(manifests.get(copy, "_0-")))
        missing = [copy for copy in copies if copy not in manifests]
        if missing:
            raise CorruptEntry(str(name), missing[0], 0, f"its manifest is missing at {directory}, the table names it")
        if not copies:
            continue
        last = await in_thread(-1, directory, partial(_manifest, name, directory, manifests[copies[-1]], copies[-1]))
        end = last.base + last.summary.records
        parts = tuple((manifests[copy], copy) for copy in copies)
        return ComparedSide(directory, base_of(parts[0][0]), end, stream=name, manifests=parts, directory=directory)
    raise InvalidArgument(f"{location}: there are no files of stream {name}; name the place that it was exported to")


async def verify(
    a: ComparedSide, b: ComparedSide, *, pace: Pace | None = None, progress: ProgressCallback = lambda _: None
) -> VerifyReport:
    """Compare both sides from where both have records; the first difference ends it.

    Of two streams the ends must be the same, too; files may end before the stream does. Raises CorruptEntry for files
    that are not what was written, and what reading raises.
    """
    check_software()
    report = VerifyReport(a.name, b.name, a_end=a.end, b_end=b.end)
    report.first_offset = report.next_offset = max(a.first, b.first)
    files = bool(a.directory or b.directory)
    end = min(a.end, b.end) if files else max(a.end, b.end)
    columns = (*COMPARED, "append_time") if files else COMPARED
    async with (
        aclosing(_batches(a, report.first_offset, end)) as left,
        aclosing(_batches(b, report.first_offset, end)) as right,
    ):
        await _compare(left, right, columns, report, pace or Pace(None), progress)
    report.equal = report.difference is None
    return report


async def _compare(
    left: AsyncGenerator[pa.RecordBatch, None],
    right: AsyncGenerator[pa.RecordBatch, None],
    columns: tuple[str, ...],
    report: VerifyReport,
    pace: Pace,
    progress: ProgressCallback,
) -> None:
    from buckram.streams.maintain.history.row_compare import first_difference

    a = b = None
    while True:
        a = a if a is not None and a.num_rows else await anext(left, None)
        b = b if b is not None and b.num_rows else await anext(right, None)
        if a is None and b is None:
            return
        if a is None or b is None:
            there = a if a is not None else b
            assert there is not None
            offset = there.column("offset")[0].as_py()
            ends = ("no record", "a record") if a is None else ("a record", "no record")
            report.difference = RecordDifference(offset, "", *ends)
            return
        count = min(a.num_rows, b.num_rows)
        mine, other = a.slice(0, count), b.slice(0, count)
        found = first_difference(mine, other, columns)
        if found is not None:
            lower = min(batch.column("offset")[found.row].as_py() for batch in (mine, other))
            report.records += found.row
            report.next_offset = lower
            report.difference = RecordDifference(lower, found.column, found.a, found.b)
            return
        report.records += count
        report.next_offset = mine.column("offset")[-1].as_py() + 1
        size = mine.nbytes
        report.bytes += size
        progress(count)
        await pace.take(size)
        a, b = a.slice(count), b.slice(count)


def _batches(side: ComparedSide, first: int, end: int) -> AsyncGenerator[pa.RecordBatch, None]:
    return _from_files(side, first, end) if side.directory else _from_stream(side, first, end)


async def _from_stream(side: ComparedSide, first: int, end: int) -> AsyncGenerator[pa.RecordBatch, None]:
    from buckram.streams.shared.history_parts import batch_rows

    assert side.client is not None
    assert side.stream is not None
    if first >= min(side.end, end):
        return
    space = Range(first, min(side.end, end), None, None, None, False, "error")
    streams = StreamStore(side.client.services.store)
    async with StreamReader(
        side.client, streams, side.stream, space, None, on_open=_nothing, on_closed=_nothing
    ) as reader:
        while (batch := await reader.next_batch()) is not None:
            yield batch_rows(batch)


async def _from_files(side: ComparedSide, first: int, end: int) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield rows of the files; while those of a part are compared, a thread reads the next one."""
    loop, begun = asyncio.get_running_loop(), deque[tuple[int, asyncio.Future[list[Any]]]]()
    try:
        async with aclosing(_loads(side, first, end)) as loads:
            more = True
            while more or begun:
                while more and len(begun) < 2:
                    found = await anext(loads, None)
                    if found is None:
                        more = False
                    else:
                        begun.append((found[0], loop.run_in_executor(None, found[1])))
                if not begun:
                    return
                copy, coming = begun.popleft()
                for batch in await answer_of(copy, side.directory, coming):
                    offset = batch.column("offset")[0].as_py()
                    skip = max(first - offset, 0)
                    yield batch.slice(skip, max(min(batch.num_rows, end - offset) - skip, 0))
    finally:
        for _, coming in begun:
            coming.add_done_callback(forget_error)


async def _loads(side: ComparedSide, first: int, end: int) -> AsyncGenerator[tuple[int, Callable[[], list[Any]]], None]:
    """Yield what loads each part that has records from `first` to before `end`, with the id of its copy."""
    assert side.stream is not None
    for file, copy in side.manifests:
        read = partial(_manifest, side.stream, side.directory, file, copy)
        manifest: Manifest = await in_thread(copy, side.directory, read)
        if manifest.base + manifest.summary.records <= first or manifest.base >= end:
            continue
        records = 0
        for number, part in enumerate(manifest.parts):
            begin, records = manifest.base + records, records + part.records
            if begin + part.records > first and begin < end:
                yield copy, partial(_part, side.stream, side.directory, manifest, number)


def _nothing(_: object) -> None:
    """Ignore the reader: no registry of open readers needs it."""


# -- in a thread ------------------------------------------------------------------------------------------


def _manifest(name: StreamName, directory: str, file: str, copy: int) -> Manifest:
    try:
        return decode_manifest(file, FileLocation(directory).read(file, copy))
    except MalformedRecord as error:
        raise CorruptEntry(str(name), copy, 0, f"{error}, at {directory}") from None


def _part(name: StreamName, directory: str, manifest: Manifest, number: int) -> list[Any]:
    from buckram.streams.shared.history_parts import part_rows

    part = manifest.parts[number]
    try:
        table = part_rows(part, FileLocation(directory).read(part.file, manifest.copy))
    except (MalformedBatch, NoSuchEntry) as error:
        raise CorruptEntry(str(name), manifest.copy, part.first_entry, f"{error}, at {directory}") from None
    found: list[Any] = [batch for batch in table.to_batches() if batch.num_rows]
    return found
