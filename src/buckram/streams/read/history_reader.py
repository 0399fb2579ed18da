"""Reading offloaded segments: a reader of entries like that of a ledger, over the files of a segment's history.

A file counts only if its digest is the one in the manifest, and the manifest only if its digest is the one in the
segment list. One part is in memory at a time, two while entries are read in order. Not here: parts as bytes
(`shared/history_parts.py`), locations (`streams/shared/locations.py`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from buckram.client.ledger_client import LedgerClient
from buckram.client.read.reader import Reader
from buckram.core.streams.external.history import Manifest, Part, decode_manifest, digest_of, manifest_file, place_of
from buckram.core.streams.metadata.head import HISTORY, Segment
from buckram.core.streams.names import StreamId
from buckram.core.streams.records.batch import Batch
from buckram.core.streams.records.record_format import EntryHeader
from buckram.errors import ConfigError, CorruptEntry, ForeignLedger, MalformedBatch, MalformedRecord, NoSuchEntry
from buckram.extras import needs
from buckram.streams.shared.locations import FileLocation, answer_of, forget_error, in_thread
from buckram.streams.shared.ownership import check_own_files, opened, report_foreign
from buckram.types import Entry, EntryId

if TYPE_CHECKING:
    from buckram.streams.shared.history_parts import LoadedPart

T = TypeVar("T")
_CHUNK_BYTES = 1024 * 1024
_BATCHES = 64
"""Number of entries decoded at once."""
_NO_LENGTH = -1

Reached = Callable[[EntryHeader], bool]
"""Predicate for a binary search: true for the wanted entry and all entries after it."""


class SegmentFiles:
    """The files of one offloaded segment. Calls block.

    Raises ReadFailed if the location is away, NoSuchEntry if a file is missing there, CorruptEntry if its bytes are
    not those that were offloaded, ConfigError without pyarrow or fsspec, ForeignLedger if they are another stream's.
    """

    def __init__(self, stream: StreamId, segment: Segment) -> None:
        location = place_of(segment).location
        check_own_files(stream, segment.ledger, location)
        self._name, self._segment = stream.name, segment
        self._place = FileLocation(location)
        self._manifest: Manifest | None = None
        self._loaded: LoadedPart | None = None

    @property
    def location(self) -> str:
        """The directory of the files."""
        return self._place.location

    def manifest(self) -> Manifest:
        """Return the segment's manifest, which is read once."""
        if self._manifest is None:
            row = self._segment
            file = manifest_file(row.base, row.ledger)
            data = self._place.read(file, row.ledger)
            if digest_of(data) != place_of(row).digest:
                raise self._corrupt(0, f"{file} at {self.location} is not what was offloaded; restore it from a backup")
            try:
                found = decode_manifest(file, data)
            except MalformedRecord as error:
                raise self._corrupt(0, str(error)) from None
            if (found.copy, found.base, found.summary.records) != (row.ledger, row.base, row.end - row.base):
                raise self._corrupt(0, f"{file} at {self.location} is of another segment")
            self._manifest = found
        return self._manifest

    def load(self, part: Part) -> LoadedPart:
        """Return a part, which takes the place of the one in memory."""
        loaded = self._loaded
        if loaded is None or loaded.part is not part:
            self._loaded = None  # Two parts would take twice the memory.
            loaded = self._loaded = self.read_part(part)
        return loaded

    def read_part(self, part: Part) -> LoadedPart:
        """Return a part that is read now."""
        try:
            from buckram.streams.shared.history_parts import LoadedPart
        except ImportError:
            raise ConfigError(needs("history", "history")) from None
        data = self._place.read(part.file, self._segment.ledger)
        try:
            return LoadedPart(part, data)
        except MalformedBatch as error:
            raise self._corrupt(part.first_entry, f"{error}, at {self.location}; restore it from a backup") from None

    def part_of(self, entry: EntryId) -> Part:
        """Return the part that has an entry. NoSuchEntry beyond the last one."""
        parts = self.manifest().parts
        place = bisect_left(parts, entry, key=_last_entry)
        if entry < 0 or place == len(parts):
            raise NoSuchEntry(self._segment.ledger, entry, "the segment's history has no such entry")
        return parts[place]

    def payload(self, entry: EntryId) -> bytes:
        """Return an entry."""
        return self.load(self.part_of(entry)).payload(entry)

    def chunks(self, first: EntryId, last: EntryId) -> Iterator[list[tuple[EntryId, bytes]]]:
        """Yield the entries from `first` to `last` in order, about _CHUNK_BYTES at a time."""
        entry = first
        while entry <= last:
            chunk = self.chunk(entry, last)
            yield chunk
            entry = chunk[-1][0] + 1

    def chunk(self, first: EntryId, last: EntryId) -> list[tuple[EntryId, bytes]]:
        """Return entries from `first` on, about _CHUNK_BYTES of one part, none beyond `last`."""
        return _chunk(self.load(self.part_of(first)), first, last)

    def parts(self, first: EntryId, last: EntryId) -> list[Part]:
        """Return the parts that have the entries from `first` to `last`."""
        return [part for part in self.manifest().parts if part.last_entry >= first and part.first_entry <= last]

    def first_entry(self, reached: Reached) -> EntryId:
        """Return the first entry for which `reached` is true, or the number of entries; at most one part is read."""
        parts = self.manifest().parts
        place = bisect_left(parts, True, key=lambda part: reached(part.end))
        if place == len(parts):
            return parts[-1].last_entry + 1
        part = parts[place]
        return part.first_entry + bisect_left(self.load(part).headers, True, key=reached)

    def _corrupt(self, entry: EntryId, why: str) -> CorruptEntry:
        return CorruptEntry(str(self._name), self._segment.ledger, entry, why)


class HistoryReader:
    """Reads the entries of an offloaded segment as a ledger's Reader does. Errors are those of SegmentFiles."""

    def __init__(self, stream: StreamId, segment: Segment) -> None:
        self._name, self._segment = stream.name, segment
        self._files = SegmentFiles(stream, segment)
        self._copy = segment.ledger
        self._last = segment.summary.last_entry if segment.summary is not None else -1

    @property
    def last_confirmed(self) -> EntryId:
        """The segment's last entry."""
        return self._last

    async def manifest(self) -> Manifest:
        """Return the segment's manifest."""
        return await self._run(self._files.manifest)

    async def get(self, entry: EntryId) -> Entry:
        """Return one entry; its `length` is not known."""
        return self._entry(entry, await self._run(partial(self._files.payload, entry)))

    async def chunks(self, first: EntryId = 0, last: EntryId | None = None) -> AsyncGenerator[list[Entry], None]:
        """Yield the entries in order, many at a time. While those of a part are used a thread reads the next part."""
        end = self._last if last is None else last
        async with aclosing(self._parts(first, end)) as parts:
            async for loaded in parts:
                entry = max(first, loaded.part.first_entry)
                while entry <= min(end, loaded.part.last_entry):
                    chunk = [self._entry(number, payload) for number, payload in _chunk(loaded, entry, end)]
                    entry = chunk[-1].entry_id + 1
                    yield chunk

    async def decoded(self, first: EntryId, last: EntryId) -> AsyncGenerator[list[Batch | EntryHeader], None]:
        """Yield the same entries as batches, or as headers of those without records, with nothing copied if possible.

        CorruptEntry for one that is none.
        """
        base, copy = self._segment.base, self._copy
        async with aclosing(self._parts(first, last)) as parts:
            async for loaded in parts:
                begin, end = max(first, loaded.part.first_entry), min(last, loaded.part.last_entry) + 1
                for at in range(begin, end, _BATCHES):
                    numbers = range(at, min(at + _BATCHES, end))
                    try:
                        found = [loaded.decoded(entry, base, copy) for entry in numbers]
                    except MalformedBatch as error:
                        raise CorruptEntry(str(self._name), copy, at, str(error)) from None
                    yield found

    async def _parts(self, first: EntryId, end: EntryId) -> AsyncGenerator[LoadedPart, None]:
        """Yield the parts that have the entries from `first` to `end`; the next one is read meanwhile."""
        parts = await self._run(partial(self._files.parts, first, end)) if first <= end else []
        coming: asyncio.Future[LoadedPart] | None = None
        try:
            for place, part in enumerate(parts):
                loaded = await answer_of(self._copy, self._files.location, coming or self._begin(part))
                coming = self._begin(parts[place + 1]) if place + 1 < len(parts) else None
                yield loaded
            known = parts[-1].last_entry + 1 if parts else first
            if known <= end:
                raise NoSuchEntry(self._copy, known, "the segment's history has no such entry")
        finally:
            if coming is not None:
                coming.add_done_callback(forget_error)

    async def first_entry(self, reached: Reached) -> EntryId:
        """Return the first entry whose header is `reached`, or the number of entries; at most one part is read."""
        return await self._run(partial(self._files.first_entry, reached))

    async def close(self) -> None:
        """Do nothing: no file is held open."""

    async def __aenter__(self) -> HistoryReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(self, part: Part) -> asyncio.Future[LoadedPart]:
        return asyncio.get_running_loop().run_in_executor(None, self._files.read_part, part)

    async def _run(self, call: Callable[[], T]) -> T:
        return await in_thread(self._copy, self._files.location, call)

    def _entry(self, entry: EntryId, payload: bytes) -> Entry:
        return Entry(self._copy, entry, payload, self._last, _NO_LENGTH)


SegmentReader: TypeAlias = Reader | HistoryReader


def open_segment(
    client: LedgerClient, stream: StreamId, segment: Segment
) -> AbstractAsyncContextManager[SegmentReader]:
    """Return a reader of a segment's entries, wherever they are; use `async with`.

    Raises NoSuchLedger, ReadFailed, ForeignLedger.
    """
    if segment.kind == HISTORY:
        return _history(client, stream, segment)
    return opened(client, stream, segment.ledger)


@asynccontextmanager
async def _history(client: LedgerClient, stream: StreamId, segment: Segment) -> AsyncIterator[SegmentReader]:
    try:
        reader = HistoryReader(stream, segment)
    except ForeignLedger as error:
        raise await report_foreign(client, stream, error) from None
    async with reader:
        yield reader


def _chunk(loaded: LoadedPart, first: EntryId, last: EntryId) -> list[tuple[EntryId, bytes]]:
    """Return entries of a part from `first` on, about _CHUNK_BYTES, none beyond `last`."""
    found: list[tuple[EntryId, bytes]] = []
    size = 0
    for entry in range(first, min(last, loaded.part.last_entry) + 1):
        found.append((entry, loaded.payload(entry)))
        size += len(found[-1][1])
        if size >= _CHUNK_BYTES:
            break
    return found


def _last_entry(part: Part) -> EntryId:
    return part.last_entry
