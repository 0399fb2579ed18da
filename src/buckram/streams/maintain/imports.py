"""Import: the rows of files become records of a stream, range by range, each in one transaction.

    work = await plan_import(...)
    report = await import_files(...)

A range is written to a ledger of its own and published as the next version of the import's transaction, on condition
that the record of the import is as this run has written it. So a range is in the stream once, whatever is killed or
runs twice, and a run goes on after the last one that was published. Threads read and parse rows before they are used:
Arrow parses without holding Python's lock, so blocks of lines are parsed on several processors. Not here: the order of
ranges and the record (`core/streams/external/imports.py`), reading and parsing (`streams/maintain/import_sources.py`,
`streams/maintain/import_source_rows.py`), bulk steps (`write/bulk.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from buckram.client.ledger_client import LedgerClient
from buckram.core.streams.external.imports import (
    FORMATS,
    RANGE_BYTES,
    Import,
    ImportColumns,
    ImportPosition,
    SourceFile,
    application_of,
    continued,
    decode_import,
    encode_import,
    key_of,
    marks_of,
    position_of,
)
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import Transaction
from buckram.core.streams.metadata.purposes import Act, check_act
from buckram.core.streams.metadata.transactions import StepId, newest
from buckram.core.streams.names import StreamName
from buckram.core.streams.policy import Policy, merged
from buckram.errors import (
    BuckramError,
    InvalidArgument,
    KeyExists,
    MalformedSource,
    NoSuchKey,
    RecordTooLarge,
    StaleTransaction,
    StreamError,
    VersionConflict,
)
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.maintain.compaction import ProgressCallback
from buckram.streams.maintain.history.segment_copy import check_software
from buckram.streams.shared.locations import in_thread
from buckram.streams.shared.metadata import StreamStore, retry_metadata
from buckram.streams.shared.namespaces import Namespaces
from buckram.streams.write.bulk import Bulk, BulkLedger
from buckram.types import CheckVersion

if TYPE_CHECKING:
    import pyarrow as pa

    from buckram.streams.maintain.import_source_rows import Step
    from buckram.streams.maintain.import_sources import ImportSource

T = TypeVar("T")
_GROUPS_AHEAD = 3
"""The number of groups of entries (about 4 MiB each) in flight while the next one is encoded."""


@dataclass(frozen=True, slots=True)
class Importable:
    """Plan of an import: the source's files and the last range that was published, at one moment."""

    name: StreamName
    uid: str
    policy: Policy
    application: str
    record: Import
    files: tuple[SourceFile, ...]
    ignored: int
    done: Transaction | None
    """The last range that was published before."""

    @property
    def bytes(self) -> int:
        """The size of the files that are not certainly imported as a whole."""
        first = max(position_of(self.record.done).file, 0) if self.record.done >= 0 else 0
        return sum(file.size for file in self.files[first:])


@dataclass(slots=True)
class ImportReport:
    """Report of an import."""

    stream: str
    source: str
    records: int = 0
    bytes: int = 0
    """The payload that was written, as Arrow counts it."""
    first_offset: int | None = None
    """The first record of this run; None if there was nothing to import."""
    next_offset: int = 0
    """Offset after the last record that was imported from this source; 0 if none was."""
    files: int = 0
    """The number of files that the source has."""
    ranges: int = 0
    """The number of ranges that this run imported."""
    known: int = 0
    """The number of files that were imported wholly by earlier runs."""
    ignored: int = 0
    """The number of files of other kinds, which were left out."""
    last: int = -1
    """The transaction's version of the last range that this run imported; -1: none."""


async def plan_import(
    streams: StreamStore,
    name: StreamName,
    source: ImportSource,
    kind: str,
    columns: ImportColumns,
    *,
    run: str = "",
    range_bytes: int = RANGE_BYTES,
) -> Importable:
    """Return what is to be imported, and write the record of the import.

    `kind` is one of FORMATS, `run` tells imports of the same source from each other. Raises NoSuchStream, MachineLog,
    InvalidArgument for a source without files, or whose files changed since some of them were imported, and ReadFailed.
    """
    if kind not in FORMATS:
        raise InvalidArgument(f"--format {kind!r}: choose one of {', '.join(FORMATS)}")
    check_software()
    head = (await streams.read(name)).head
    check_usable(str(name), head)
    check_act(str(name), head, Act.WRITE)
    policy = merged((await Namespaces(streams).get(name.namespace)).policy, head.policy)
    files, ignored = await in_thread(-1, source.url, partial(source.files, kind))
    application = application_of(source.url, run)
    found = newest(head.transactions, application, "")
    done = None if found is None else found[1]
    given = Import(source.url, kind, columns, range_bytes)
    record = await _record(streams, head.uid, application, given, files, -1 if done is None else done.version)
    return Importable(name, head.uid, policy, application, record, tuple(files), ignored, done)


async def _record(
    streams: StreamStore, uid: str, application: str, given: Import, files: Sequence[SourceFile], done: int
) -> Import:
    """Bring the record of an import up to date, and return it. After this no run with other files can publish."""
    key = f"{streams.layout.imports(uid)}/{key_of(application)}"
    while True:
        try:
            found = await retry_metadata(partial(streams.keys.get, key))
        except NoSuchKey:
            found = None
        try:
            if found is None:
                record = replace(given, marks=marks_of(given.source, files), done=done)
                await streams.keys.create(key, encode_import(record))
                return replace(record, version=0)
            known = decode_import(key, found.value, found.version)
            record = continued(known, given, files, max(done, known.done))
            if record == known:
                return known
            version = await streams.keys.set(key, encode_import(record), known.version)
            return replace(record, version=version)
        except (KeyExists, VersionConflict, NoSuchKey):
            continue  # Another run has changed it since it was read.


async def import_files(
    client: LedgerClient,
    streams: StreamStore,
    work: Importable,
    source: ImportSource,
    *,
    pace: Pace | None = None,
    progress: ProgressCallback = lambda _: None,
) -> ImportReport:
    """Import range after range. It may be stopped at any point, and repeated.

    Raises MalformedSource for rows that are no records, InvalidArgument for columns that do not fit, OpenSegment while
    a writer has the stream, StreamError if another run of the same import took over, and what writing raises.
    """
    record, done = work.record, work.done
    report = ImportReport(str(work.name), source.url, files=len(work.files), ignored=work.ignored)
    report.next_offset = done.next_offset if done is not None else 0
    start = position_of(record.done) if record.done >= 0 else ImportPosition(0, -1)
    report.known = start.file
    publishing = _Publishing(work.name)
    try:
        async with publishing:
            async for one, share in _ranges(client, streams, work, source, start, report):
                await one.write(pace or Pace(None))
                await publishing.begin(one)  # It is published while the next one is written.
                progress(share)
            await publishing.done()
    finally:
        if report.last > record.done:
            with suppress(BuckramError):  # The stream's transaction says the same.
                key = f"{streams.layout.imports(work.uid)}/{key_of(work.application)}"
                await streams.keys.set(key, encode_import(replace(record, done=report.last)), record.version)
    return report


async def _ranges(
    client: LedgerClient,
    streams: StreamStore,
    work: Importable,
    source: ImportSource,
    start: ImportPosition,
    report: ImportReport,
) -> AsyncGenerator[tuple[_Range, int], None]:
    """Yield the ranges after `start`, and how many bytes of the files each is about."""
    from buckram.streams.maintain.import_source_rows import ranges_of

    kind, size = work.record.format, work.record.range_bytes
    for number in range(start.file, len(work.files)):
        file = work.files[number]
        count = await in_thread(-1, source.url, partial(ranges_of, source, file, kind, size))
        first = start.range + 1 if number == start.file else 0
        report.known += number == start.file and first >= count
        for part in range(first, count):
            yield _Range(client, streams, work, source, ImportPosition(number, part), report), file.size // count


class _Publishing:
    """Publishes ranges one after another, beside the writing of the next one. Use `async with`."""

    def __init__(self, name: StreamName) -> None:
        self._scope = TaskScope(f"import into {name}")
        self._task: asyncio.Task[BuckramError | None] | None = None

    async def __aenter__(self) -> _Publishing:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Let a publication that has begun come to its end."""
        if self._task is not None:
            await asyncio.wait([self._task])
        await self._scope.close()

    async def begin(self, one: _Range) -> None:
        """Publish a range after the one before. If that failed this one is discarded, and the error raised."""
        try:
            await self.done()
        except BaseException:
            await one.discard()
            raise
        self._task = self._scope.spawn(_outcome(one.publish()), "publish")

    async def done(self) -> None:
        """Wait for the last publication that has begun. Raises its error."""
        if self._task is not None and (error := await self._task) is not None:
            raise error


async def _outcome(work: Coroutine[Any, Any, None]) -> BuckramError | None:
    """Return the error as a value: it is raised where the result is waited for, and no task fails."""
    try:
        await work
    except BuckramError as error:
        return error
    return None


class _Range:
    """The import of one range."""

    def __init__(
        self,
        client: LedgerClient,
        streams: StreamStore,
        work: Importable,
        source: ImportSource,
        position: ImportPosition,
        report: ImportReport,
    ) -> None:
        self._client, self._streams, self._work, self._source = client, streams, work, source
        self._position, self._report = position, report
        self._bytes = 0
        self._bulk: Bulk | None = None
        self._ledger: BulkLedger | None = None
        self._sending = TaskScope(f"import into {work.name}")
        self._sent: deque[asyncio.Task[BuckramError | None]] = deque()

    async def write(self, pace: Pace) -> None:
        """Write the range to a ledger. A failure leaves nothing, a crash a ledger with an intent."""
        work = self._work
        head = (await self._streams.read(work.name)).head
        step = StepId(work.application, self._position.version)
        bulk = self._bulk = Bulk(self._client, self._streams, work.name, head, work.policy, step)
        if head.uid != work.uid or not bulk.foreseen():
            raise self._taken_over()
        ledger = self._ledger = await bulk.create_ledger()
        try:
            await self._write(ledger, pace)
        except BaseException:
            await self.discard()
            raise

    async def publish(self) -> None:
        """Publish what was written, once. After a failure it is discarded."""
        try:
            await self._publish()
        except BaseException:
            await self.discard()
            raise

    async def discard(self) -> None:
        """Delete the ledger, unless it was published; the janitor deletes it otherwise."""
        await self._sending.close()
        if self._ledger is not None and self._bulk is not None:
            await self._ledger.abandon()
            with suppress(BuckramError):  # The first error is the one to report.
                await self._bulk.abort([self._ledger.ledger_id])

    async def _publish(self) -> None:
        bulk, ledger, report = self._bulk, self._ledger, self._report
        assert bulk is not None
        assert ledger is not None
        while self._sent:
            await self._oldest_sent()
        sealed = await ledger.close()
        key = f"{self._streams.layout.imports(bulk.uid)}/{key_of(self._work.application)}"
        try:
            done = await bulk.publish_if([CheckVersion(key, self._work.record.version)], [sealed])
        except (VersionConflict, NoSuchKey, StaleTransaction):
            raise self._taken_over() from None
        # If another run published the same range first, this ledger is in no list; a listed one is left alone.
        await bulk.abort([sealed.ledger])
        if done.next_offset - done.first_offset != sealed.records:
            raise self._taken_over()
        report.first_offset = done.first_offset if report.first_offset is None else report.first_offset
        report.next_offset = done.next_offset
        report.records += sealed.records
        report.bytes += self._bytes
        report.ranges += 1
        report.last = self._position.version

    def _taken_over(self) -> StreamError:
        return StreamError(
            str(self._work.name),
            f"another run of the import from {self._source.url} took over; import again to go on after it",
        )

    async def _write(self, ledger: BulkLedger, pace: Pace) -> None:
        """Send the entries while threads read and parse the rows of the next ones. The last ones are still under way
        at the end."""
        from buckram.streams.maintain.import_source_rows import steps_of

        record, position = self._work.record, self._position
        file = self._work.files[position.file]
        steps = steps_of(self._source, file, record.format, record.columns, record.range_bytes, position.range)
        async with RowsAhead(steps) as rows:
            while (batch := await rows.next()) is not None:
                self._bytes += batch.nbytes
                groups = ledger.arrow_entries(batch)
                while (group := await self._next_group(file, groups)) is not None:
                    await pace.take(sum(map(len, group)))
                    while len(self._sent) >= _GROUPS_AHEAD:
                        await self._oldest_sent()
                    self._sent.append(self._sending.spawn(_outcome(ledger.append_entries(group)), "append"))

    async def _oldest_sent(self) -> None:
        """Wait for the oldest entries that are under way. Raises their error."""
        if (error := await self._sent.popleft()) is not None:
            raise error

    async def _next_group(self, file: SourceFile, groups: Iterator[list[bytes]]) -> list[bytes] | None:
        """Have a thread encode the next entries; None after the last ones."""
        try:
            return await asyncio.get_running_loop().run_in_executor(None, next, groups, None)
        except RecordTooLarge as error:
            raise MalformedSource(self._source.path(file), 0, f"it has a row that is too large: {error}") from None


# -- rows that threads read ahead -------------------------------------------------------------------------

_AHEAD = 2
"""The number of steps that threads work at, or have done, while the rows of the one before are used."""


class RowsAhead:
    """The rows of the steps that a source consists of. Use `async with`; at its end no thread is at work any more."""

    def __init__(self, steps: Generator[Step, None, None]) -> None:
        self._steps = steps
        self._coming: asyncio.Future[Step | None] | None = None
        self._ahead: deque[asyncio.Future[pa.RecordBatch | None]] = deque()
        self._ended = False

    async def next(self) -> pa.RecordBatch | None:
        """Return the next rows, None after the last ones. Raises what the steps raise."""
        while True:
            while not self._ended and len(self._ahead) <= _AHEAD:
                await self._begin()
            if not self._ahead:
                return None
            found = await self._ahead[0]
            self._ahead.popleft()
            if found is not None:
                return found

    async def _begin(self) -> None:
        """Begin the next step, and read the one after it."""
        step = await (self._coming or self._read())
        if step is None:
            self._coming, self._ended = None, True
            return
        self._ahead.append(_in_thread(step))
        self._coming = None
        self._read()

    def _read(self) -> asyncio.Future[Step | None]:
        self._coming = _in_thread(lambda: next(self._steps, None))
        return self._coming

    async def __aenter__(self) -> RowsAhead:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls: list[asyncio.Future[Step | None] | asyncio.Future[pa.RecordBatch | None]] = [*self._ahead]
        if self._coming is not None:
            calls.append(self._coming)
        if calls:
            await asyncio.wait(calls)  # They read from a file that is closed now.
        for call in calls:
            if not call.cancelled():
                call.exception()  # It was reported, or another error was.
        self._steps.close()


def _in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(None, call)
