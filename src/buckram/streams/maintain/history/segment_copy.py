"""Copies of sealed segments as files outside the cluster: parts are written, read back and compared.

The manifest follows likewise. Offload and export share them, so their files are the same. Copies are made one after
another, but each is begun once the segment before it has been read: so the machine does not rest while the last files
of a segment are made, checked and listed, and memory holds the end of one segment and the beginning of the next. Not
here: the format of the files (`core/streams/external/history.py`, `streams/shared/history_parts.py`), the use of a copy
(`streams/maintain/offload.py`, `streams/maintain/history/export.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

from buckram.client.ledger_client import LedgerClient
from buckram.core.ledgers.metadata import BIRTH
from buckram.core.security.encryption import key_id_of
from buckram.core.streams.external.exports import cut_row, rebased
from buckram.core.streams.external.history import (
    PART_BYTES,
    PART_ENTRIES,
    Manifest,
    Part,
    decode_manifest,
    digest_of,
    encode_manifest,
    manifest_file,
    part_file,
)
from buckram.core.streams.metadata.head import Segment, Summary
from buckram.core.streams.names import StreamId, StreamName
from buckram.errors import (
    BuckramError,
    ConfigError,
    CorruptEntry,
    MalformedBatch,
    NoSuchEntry,
    StreamError,
    WriteFailed,
)
from buckram.extras import needs
from buckram.runtime.net.pace import Pace
from buckram.runtime.process.tasks import TaskScope
from buckram.streams.maintain.compaction import ProgressCallback
from buckram.streams.read.history_reader import HistoryReader, SegmentReader, open_segment
from buckram.streams.read.locate import entry_of_offset
from buckram.streams.shared.ledgers import Intent, discard, drop_files
from buckram.streams.shared.locations import WITHIN_S, FileLocation, answer_of, away, forget_error
from buckram.streams.shared.metadata import StreamStore
from buckram.types import EntryId, LedgerId, Offset

T = TypeVar("T")
PARTS_AT_ONCE = 3
"""The number of parts that threads make, write and check at the same time; each is in memory, and so is its file."""


# -- one copy ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """The ledger that a copy is made of, as its manifest names it."""

    ledger: LedgerId
    birth: str


@dataclass(slots=True)
class SegmentCopy:
    """One attempt at the files of one segment, from offset `first` on, under the id that has this intent."""

    name: StreamName
    uid: str
    row: Segment
    intent: Intent
    directory: str
    first: Offset
    parts: list[Part] = field(default_factory=list)
    file_bytes: int = 0
    room: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PARTS_AT_ONCE))
    """Semaphore of the parts that may be made at once; concurrent copies share it."""
    making: deque[asyncio.Future[Part]] = field(default_factory=deque)
    """Parts in work, in the order of offsets: for each, a thread makes it, writes its file, reads it back and compares.
    """
    finishing: asyncio.Future[None] | None = None
    """Last job of a thread: writing and checking the manifest. None before it begins."""
    was_read: asyncio.Event = field(default_factory=asyncio.Event)
    """Event: all entries of the segment are in memory or in files."""
    source: StreamId | None = None
    """The stream whose row it is; None: the one that the copy is for."""
    taken: bool = False
    """True if it failed after another process had taken its intent, and with it the files."""

    @property
    def copy(self) -> LedgerId:
        """Id that names the files."""
        return self.intent.ledger

    async def make_or_discard(
        self, client: LedgerClient, streams: StreamStore, pace: Pace, progress: ProgressCallback
    ) -> str:
        """Do what `make` does. A failure leaves nothing, a crash leaves files with an intent."""
        try:
            return await self.make(client, pace, progress)
        except BuckramError:
            self.taken = not await self.discard(client, streams)
            if self.taken:
                await self.drop_late(client)
            raise

    async def make(self, client: LedgerClient, pace: Pace, progress: ProgressCallback) -> str:
        """Write and verify all files, the manifest last; returns its digest.

        Raises WriteFailed or ReadFailed if the location or the bookies cannot be reached, CorruptEntry if the files do
        not give back what was written, StreamError for encrypted entries, NoSuchLedger or NoSuchEntry if the segment
        was truncated meanwhile, ConfigError without pyarrow.
        """
        check_software()
        async with open_segment(client, self.source or StreamId(self.name, self.uid), self.row) as reader:
            origin = await self._origin(reader)
            begin, skipped = 0, self.first - self.row.base
            if skipped > 0:
                begin = await entry_of_offset(self.name, reader, self.row, self.first, _last_of(self.row))
                self.row = cut_row(self.row, self.first, begin)
            await self._write_parts(reader, begin, max(skipped, 0), pace, progress)
        assert self.row.summary is not None
        manifest = Manifest(
            str(self.name),
            self.uid,
            self.copy,
            origin.ledger,
            origin.birth,
            self.row.base,
            self.row.summary,
            tuple(self.parts),
        )
        data = encode_manifest(manifest)
        self.finishing = _in_thread(partial(self._write_manifest, data))
        await answer_of(self.copy, self.directory, self.finishing)
        return digest_of(data)

    async def discard(self, client: LedgerClient, streams: StreamStore) -> bool:
        """Delete the written files after a failure. Those that cannot be deleted now the janitor deletes by the intent.

        Returns False if another process has taken the intent.
        """
        if await self._has_ended():
            with suppress(BuckramError):  # The first error is the one to report.
                return await discard(client, streams, self.uid, self.intent)
        return True

    async def drop_late(self, client: LedgerClient) -> None:
        """Delete the files of a copy that is not listed, after another process took its intent.

        That one has looked for files already, maybe before the last ones were there.
        """
        with suppress(BuckramError):
            await drop_files(client, self.uid, self.directory, self.copy)

    async def _has_ended(self) -> bool:
        """Wait for the threads, since a deletion of the files must find all of them. False if one hangs."""
        calls: list[asyncio.Future[Any]] = [*self.making]
        if self.finishing is not None:
            calls.append(self.finishing)
        if not calls:
            return True
        done, hanging = await asyncio.wait(calls, timeout=WITHIN_S)
        for call in done:
            if not call.cancelled():
                call.exception()  # It was reported, or another error was.
        return not hanging

    async def _origin(self, reader: SegmentReader) -> Origin:
        if isinstance(reader, HistoryReader):
            manifest = await reader.manifest()
            return Origin(manifest.ledger, manifest.birth)
        custom = reader.metadata.custom_metadata
        if key_id_of(custom):
            raise StreamError(
                str(self.name),
                f"the entries of ledger {self.row.ledger} are encrypted, and its files outside the cluster would not "
                "be; take offload_to out of its policy, and do not export it",
            )
        return Origin(self.row.ledger, custom.get(BIRTH, b"").hex())

    async def _write_parts(
        self, reader: SegmentReader, begin: EntryId, skipped: int, pace: Pace, progress: ProgressCallback
    ) -> None:
        """Cut the entries from `begin` on, before which are `skipped` records, into parts.

        While threads make parts, the next one is read.
        """
        last = begin + _last_of(self.row)
        payloads: list[bytes] = []
        first, size, number = 0, 0, 0
        async for chunk in reader.chunks(begin, last):
            read = sum(len(entry.payload) for entry in chunk)
            await pace.take(read)
            progress(read)
            for entry in chunk:
                payloads.append(entry.payload if not skipped else rebased(entry.payload, skipped))
                size += len(entry.payload)
                if size >= PART_BYTES or len(payloads) >= PART_ENTRIES or entry.entry_id == last:
                    await self._begin_part(partial(self._make_part, number, payloads, first))
                    first, payloads, size, number = first + len(payloads), [], 0, number + 1
        self.was_read.set()
        while self.making:
            await self._made()

    async def _begin_part(self, make: Callable[[], Part]) -> None:
        """Have a thread make a part, once there is room for it."""
        while self.making and (self.room.locked() or self.making[0].done()):
            await self._made()
        try:
            async with asyncio.timeout(WITHIN_S):
                await self.room.acquire()  # Parts of another copy may have it.
        except TimeoutError:
            raise away(self.copy, self.directory) from None
        call = _in_thread(make)
        self.making.append(call)
        call.add_done_callback(self._part_ended)

    def _part_ended(self, call: asyncio.Future[Part]) -> None:
        self.room.release()
        forget_error(call)  # Errors are raised in the order of parts; those after the first one are dropped.

    async def _made(self) -> None:
        """Wait for the first part that is being made."""
        part = await answer_of(self.copy, self.directory, self.making[0])
        self.making.popleft()
        self.parts.append(part)
        self.file_bytes += part.bytes

    # -- in a thread --------------------------------------------------------------------------------------

    def _make_part(self, number: int, payloads: list[bytes], first: EntryId) -> Part:
        """Make a part, write it, read it back and compare it with what it was made of.

        Raises WriteFailed, ReadFailed, CorruptEntry.
        """
        from buckram.streams.shared.history_parts import LoadedPart, build_part, describe_part, difference

        file, place = part_file(self.row.base, self.copy, number), FileLocation(self.directory)
        assert self.row.summary is not None
        try:
            data, records = build_part(payloads, first, self.row.base, self.row.summary)
        except MalformedBatch as error:
            raise CorruptEntry(str(self.name), self.row.ledger, first, str(error)) from None
        part = describe_part(file, data, payloads, first, records)
        place.write(file, data, self.copy)
        try:
            why = difference(payloads, LoadedPart(part, self._read_back(place, file)))
        except MalformedBatch as error:
            why = str(error)
        if why:
            raise CorruptEntry(
                str(self.name), self.copy, first, f"{file} at {self.directory} was written and read back: {why}"
            )
        return part

    def _write_manifest(self, data: bytes) -> None:
        place, file = FileLocation(self.directory), manifest_file(self.row.base, self.copy)
        decode_manifest(file, data)  # This proves that the parts are the whole segment.
        place.write(file, data, self.copy)
        if self._read_back(place, file) != data:
            raise CorruptEntry(
                str(self.name), self.copy, 0, f"{file} at {self.directory} was written and read back: other bytes"
            )

    def _read_back(self, place: FileLocation, file: str) -> bytes:
        try:
            return place.read(file, self.copy)
        except NoSuchEntry as error:
            raise WriteFailed(self.copy, f"{file} was written and is not there: {error}") from None


def check_software() -> None:
    """ConfigError without pyarrow."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        raise ConfigError(needs("history", "history")) from None


def _in_thread(call: Callable[[], T]) -> asyncio.Future[T]:
    return asyncio.get_running_loop().run_in_executor(None, call)


def _last_of(row: Segment) -> EntryId:
    summary: Summary | None = row.summary
    assert summary is not None, "only sealed segments are copied"
    return summary.last_entry


# -- copies one after another -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """The copy of what `item` says, as it is being made."""

    item: T
    copy: SegmentCopy
    outcome: asyncio.Task[str | BuckramError]

    async def digest(self) -> str:
        """Wait for its end, and return the digest of its manifest. Raises what `SegmentCopy.make` raises."""
        found = await self.outcome
        if isinstance(found, BuckramError):
            raise found
        return found


class CopiesAhead(Generic[T]):
    """Copies what the items say, in their order. Use `async with`: an error there discards the copy that is ahead."""

    def __init__(
        self,
        client: LedgerClient,
        streams: StreamStore,
        items: Iterable[T],
        begin: Callable[[T], Awaitable[SegmentCopy]],
        *,
        pace: Pace | None,
        progress: ProgressCallback,
    ) -> None:
        """`begin` gives the copy of an item, with its intent; it is called once the item before has been read."""
        self._client, self._streams = client, streams
        self._items, self._begin = iter(items), begin
        self._pace, self._progress = pace or Pace(None), progress
        self._room = asyncio.Semaphore(PARTS_AT_ONCE)
        self._scope = TaskScope("copies of segments")
        self._ahead: Attempt[T] | None = None

    async def next(self) -> Attempt[T] | None:
        """Return the attempt at the next item, None after the last one. Raises what `begin` raises."""
        if self._ahead is None:
            self._ahead = await self._start()
        if self._ahead is None:
            return None
        await self._ahead.copy.was_read.wait()
        following = await self._start()
        current, self._ahead = self._ahead, following
        return current

    async def __aenter__(self) -> CopiesAhead[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._scope.close()
        if self._ahead is None or not isinstance(error, BuckramError):
            return  # After a crash the files of the one that is ahead have an intent.
        copy = self._ahead.copy
        if not await copy.discard(self._client, self._streams):
            await copy.drop_late(self._client)

    async def _start(self) -> Attempt[T] | None:
        for item in self._items:
            copy = await self._begin(item)
            copy.room = self._room
            return Attempt(item, copy, self._scope.spawn(self._outcome(copy), f"copy {copy.copy}"))
        return None

    async def _outcome(self, copy: SegmentCopy) -> str | BuckramError:
        """Return an error as a value: it is raised where it is this copy's turn."""
        try:
            return await copy.make_or_discard(self._client, self._streams, self._pace, self._progress)
        except BuckramError as error:
            return error
        finally:
            copy.was_read.set()
