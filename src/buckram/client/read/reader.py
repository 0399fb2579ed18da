"""Reader: reads one ledger without ever fencing it.

Large ranges are a pipeline of chunks: a chunk is a batch read (E == Qw, v2 wire) or a bundle of single reads, a few
chunks are in flight, results come in order. Every entry is verified (S17) and nothing beyond the last confirmed
entry is returned, except by read_unconfirmed (S16).

Not here: tailing (`tail.py`), races among replicas (`replicas.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import TypeVar

from buckram.client.read.lac import read_last_confirmed, read_last_stored
from buckram.client.read.local import LocalReads
from buckram.client.read.replicas import LedgerReads, RangeOpener, run_race
from buckram.client.read.single_reads import SingleReads
from buckram.client.read.tail import Tail
from buckram.client.shared.handles import NotBlocking
from buckram.client.shared.ledger_metadata import LedgerFollower
from buckram.client.shared.services import Services
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.answers import Answer, Failure, Negative, Positive, Unknown, raise_failure
from buckram.core.ledgers.reading import Race, Span, ensemble_of, readable_until, span_of
from buckram.core.ledgers.recovery import quorum_of
from buckram.errors import BuckramError, HandleClosed, InvalidArgument, MetadataUnavailable, NoSuchEntry, ReadFailed
from buckram.runtime.process.tasks import TaskScope
from buckram.types import NO_ENTRY, BookieId, Entry, EntryId, LedgerId, LedgerMetadata, Versioned

T = TypeVar("T")
_Part = tuple[list[T], Failure | BuckramError | None]
_CHUNKS_AHEAD = 3
_FIRST_CHUNK = 16
_SINGLE_READS = 64


OnReaderClosed = Callable[["Reader"], None]
"""Called once with a reader that was closed."""


class Reader(NotBlocking):
    """The handle for reading one ledger; use `async with`, or call `close()`. Many calls may run at the same time.

    A closed ledger is read up to its last entry, an open one up to the last confirmed entry, which is looked up
    again when more is asked for. Errors: NoSuchEntry (beyond the end, or certainly absent), ReadFailed (retryable:
    no good copy could be had), Unauthorized, HandleClosed.
    """

    def __init__(
        self,
        services: Services,
        ledger_id: LedgerId,
        versioned: Versioned,
        digest: Digest,
        last_confirmed: EntryId,
        *,
        on_closed: OnReaderClosed | None = None,
    ) -> None:
        self._services = services
        self._on_closed = on_closed
        self._digest = digest
        self._scope = TaskScope(f"reader {ledger_id}")
        self._reads = LedgerReads(services, ledger_id, digest, self._scope)
        self._follower = LedgerFollower(services.store, ledger_id, versioned, self._scope)
        self._quorum = quorum_of(versioned.metadata)
        self._write_sets = self._quorum.write_sets()
        self._batches = self._quorum.mirrored and services.config.wire_protocol == 2
        self._singles = SingleReads(services, self._reads, self._scope)
        self._local = LocalReads(services, ledger_id, digest, self._scope)
        self._known_lac = last_confirmed
        # So far single entries are known to be readable; the truth may be further, never less (S12).
        self._readable = NO_ENTRY
        self._chunk = _FIRST_CHUNK
        self._sized = False
        metadata = versioned.metadata
        if metadata.last_entry is not None and metadata.last_entry >= 0 and metadata.length is not None:
            entries = metadata.last_entry + 1
            self._adapt(entries, metadata.length + entries * digest.overhead)
        self._closed = False
        self.ledger_id = ledger_id
        """The ledger's id."""

    def __repr__(self) -> str:
        state = "closed" if self.metadata.closed else "open"
        return f"<Reader ledger={self.ledger_id} {state} last_confirmed={self.last_confirmed}>"

    # -- what is known -----------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """Return the ledger's metadata as last seen."""
        return self._follower.metadata

    @property
    def last_confirmed(self) -> EntryId:
        """Return the last entry known to be readable; -1 if none. It never decreases (S12)."""
        return readable_until(self._follower.metadata, self._known_lac)

    @property
    def length(self) -> int | None:
        """Return the payload bytes of a closed ledger; None while it is open."""
        return self.metadata.length

    async def read_last_confirmed(self) -> EntryId:
        """Look up the metadata and the last confirmed entry now; return the latter, -1 if there is none."""
        self._check_open()
        if not self.metadata.closed:
            metadata = await self._follower.refresh()
            lac = await read_last_confirmed(self._services, self.ledger_id, metadata, self._digest, self._scope)
            self._raise_lac(lac)
        return self.last_confirmed

    async def last_stored(self) -> Entry | None:
        """Return the last entry that bookies have, acknowledged or not; None if there is none.

        Use it as a bound, never as data: no entry that was acknowledged before the call has a greater id.
        """
        self._check_open()
        metadata = await self._follower.refresh()
        if not metadata.closed:
            found = await read_last_stored(self._services, self.ledger_id, metadata, self._digest, self._scope)
            last = metadata.last_fragment.first_entry - 1
            if found is not None and found.entry_id >= last:
                return found
        else:
            last = self.last_confirmed
        return await self.get(last) if last >= 0 else None

    # -- reading -----------------------------------------------------------------------------------------

    async def read(self, first: EntryId, last: EntryId) -> list[Entry]:
        """Read the entries first..last, both inclusive; raises the error of the lowest one that failed.

        Errors: NoSuchEntry (every replica says that it does not hold it, or it lies beyond the last confirmed one),
        ReadFailed, DigestMismatch (bytes that fail their checks; both retryable).
        """
        await self._check_range(first, last)
        return await self._gather(first, last, self._digest.open_prefix)

    async def read_payloads(self, first: EntryId, last: EntryId) -> list[bytes]:
        """Read the payloads of first..last, both inclusive: the fastest way to read in bulk.

        Reads of more than `local_read_bytes` use the files of bookies on this machine, where that is possible (the
        setting 0 turns this off).
        """
        await self._check_range(first, last)
        return await self._gather(first, last, self._digest.open_payloads)

    async def get(self, entry: EntryId) -> Entry:
        """Read one entry; errors as for `read`."""
        if 0 <= entry <= self._readable:
            self._check_open()
        else:
            await self._check_range(entry, entry)
            self._readable = self.last_confirmed
        ensemble = ensemble_of(self._follower.metadata, entry)
        outcome = await self._singles.read(self._write_set(ensemble, entry), entry)
        return outcome.value if isinstance(outcome, Positive) else await self._get_again(ensemble, entry, outcome)

    async def read_unconfirmed(self, first: EntryId, last: EntryId) -> list[Entry]:
        """Read entries that may not be confirmed yet; recovery may still cut them off."""
        _check_order(first, last)
        self._check_open()
        return await self._gather(first, last, self._digest.open_prefix)

    async def entries(self, first: EntryId = 0, last: EntryId | None = None) -> AsyncIterator[Entry]:
        """Iterate over first..last (default: up to what is confirmed now), reading ahead."""
        async for chunk in self.chunks(first, last):
            for entry in chunk:
                yield entry

    def chunks(self, first: EntryId = 0, last: EntryId | None = None) -> AsyncGenerator[list[Entry], None]:
        """Iterate over the same entries as `entries`, in lists as they were read."""
        return self._chunks(first, last, self._digest.open_prefix)

    def payload_chunks(self, first: EntryId = 0, last: EntryId | None = None) -> AsyncGenerator[list[bytes], None]:
        """Iterate over lists of payloads: the fastest way through much data, in the memory of a few chunks."""
        return self._chunks(first, last, self._digest.open_payloads)

    async def _chunks(
        self, first: EntryId, last: EntryId | None, opener: RangeOpener[T]
    ) -> AsyncGenerator[list[T], None]:
        if last is None:
            last = await self.read_last_confirmed()
            if first > last:
                return
        await self._check_range(first, last)
        async with aclosing(self._stream(first, last, opener)) as stream:
            async for chunk in stream:
                yield chunk

    def tail(self, start: EntryId = 0) -> Tail:
        """Iterate over entries from `start` on as they are confirmed: `async for entry in reader.tail()`.

        Ends after the last entry once the ledger is closed. One tail belongs to one consumer.
        """
        self._check_open()
        if start < 0:
            raise InvalidArgument(f"start {start}: entry ids begin at 0")
        stream = partial(self._stream, opener=self._digest.open_prefix)
        known = self.last_confirmed
        return Tail(self._services, self._reads, self._follower, self._scope, stream, self._raise_lac, start, known)

    # -- life --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End all reads and tails of this handle; idempotent. The ledger is untouched."""
        if not self._closed:
            self._services.check_loop()
            self._closed = True
            if self._on_closed is not None:
                self._on_closed(self)
        await self._scope.close()

    async def __aenter__(self) -> Reader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _check_open(self) -> None:
        self._services.guard()
        if self._closed:
            raise HandleClosed(f"reader of ledger {self.ledger_id} is closed; open the ledger again")

    # -- inside ------------------------------------------------------------------------------------------

    async def _check_range(self, first: EntryId, last: EntryId) -> None:
        _check_order(first, last)
        self._check_open()
        end = self.last_confirmed
        if last > end:
            end = await self.read_last_confirmed()
        if last > end:
            beyond = max(first, end + 1)
            if self.metadata.closed:
                raise NoSuchEntry(self.ledger_id, beyond, f"the ledger is closed, its last entry is {end}")
            raise NoSuchEntry(
                self.ledger_id, beyond, f"the last confirmed entry is {end}; use tail() to wait or read_unconfirmed()"
            )

    def _raise_lac(self, lac: EntryId) -> None:
        self._known_lac = max(self._known_lac, lac)

    def _write_set(self, ensemble: Sequence[BookieId], entry: EntryId) -> Sequence[BookieId]:
        members = [ensemble[position] for position in self._write_sets[entry % len(self._write_sets)]]
        return self._services.bookies.read_order(members)

    async def _get_again(self, ensemble: tuple[BookieId, ...], entry: EntryId, failure: Failure) -> Entry:
        outcome: Answer[Entry] | Span = await self._moved(Span(ensemble, entry, entry), failure)
        if isinstance(outcome, Span):
            outcome = await self._singles.read(self._write_set(outcome.ensemble, entry), entry)
        if not isinstance(outcome, Positive):
            raise_failure(self.ledger_id, entry, outcome)
        return outcome.value

    async def _moved(self, span: Span, failure: Failure) -> Span | Failure:
        """After a total failure, return where the entries are now by newer metadata (4.9), or the error to report."""
        try:
            metadata = await self._follower.refresh()
        except MetadataUnavailable as error:
            # The ensemble asked may be out of date: its denials are evidence of nothing (S18).
            return Unknown(ReadFailed(self.ledger_id, str(error))) if isinstance(failure, Negative) else failure
        fresh = span_of(metadata, span.first, span.last)
        return fresh if fresh.ensemble != span.ensemble else failure

    async def _gather(self, first: EntryId, last: EntryId, opener: RangeOpener[T]) -> list[T]:
        found: list[T] = []
        async with aclosing(self._stream(first, last, opener)) as stream:
            async for chunk in stream:
                found += chunk
        return found

    async def _stream(self, first: EntryId, last: EntryId, opener: RangeOpener[T]) -> AsyncGenerator[list[T], None]:
        """Yield chunks of first..last in order, from files of this machine or, where that fails, from bookies."""
        cursor = first
        try:
            if self._worth_files(first, last):
                async with aclosing(self._from_files(first, last, opener)) as files:
                    async for chunk in files:
                        yield chunk
                        cursor += len(chunk)
            if cursor <= last:
                async with aclosing(self._from_bookies(cursor, last, opener)) as bookies:
                    async for chunk in bookies:
                        yield chunk
        except asyncio.CancelledError:
            # The scope was closed under us: say so, unless it is the caller who is cancelled.
            if self._closed and not _being_cancelled():
                self._check_open()
            raise

    def _worth_files(self, first: EntryId, last: EntryId) -> bool:
        config = self._services.config
        if not (self._batches and self._sized and config.local_read_bytes and self._local.may()):
            return False
        return (last - first + 1) * config.read_batch_bytes > self._chunk * config.local_read_bytes

    async def _from_files(self, first: EntryId, last: EntryId, opener: RangeOpener[T]) -> AsyncGenerator[list[T], None]:
        """Yield a part of the range from `first` on, maybe nothing."""
        while first <= last:
            self._check_open()
            span = span_of(self._follower.metadata, first, last)
            async with aclosing(self._local.chunks(span, self._write_set(span.ensemble, first), opener)) as chunks:
                async for chunk in chunks:
                    first += len(chunk)
                    yield chunk
                    self._check_open()
            if first <= span.last:
                return

    async def _from_bookies(
        self, first: EntryId, last: EntryId, opener: RangeOpener[T]
    ) -> AsyncGenerator[list[T], None]:
        """Yield chunks, reading a few of them at the same time; where one came short, its rest is read next."""
        ahead: deque[tuple[Span, asyncio.Task[_Part[T]]]] = deque()
        cursor = first

        def begin(span: Span) -> tuple[Span, asyncio.Task[_Part[T]]]:
            return span, self._scope.spawn(self._read_chunk(span, opener), f"read {span.first}")

        try:
            while cursor <= last or ahead:
                self._check_open()
                # Until their size is known entries may be of any: then one small chunk at a time.
                while cursor <= last and len(ahead) < (_CHUNKS_AHEAD if self._sized else 1):
                    span = span_of(self._follower.metadata, cursor, min(last, cursor + self._chunk - 1))
                    ahead.append(begin(span))
                    cursor = span.last + 1
                span, task = ahead.popleft()
                chunk, failure = await task
                rest = span.first + len(chunk)
                if isinstance(failure, BuckramError):
                    raise failure
                if failure is not None:
                    raise_failure(self.ledger_id, rest, failure)
                if rest <= span.last:
                    ahead.appendleft(begin(span_of(self._follower.metadata, rest, span.last)))
                yield chunk
        finally:
            for _, task in ahead:
                task.cancel()

    async def _read_chunk(self, span: Span, opener: RangeOpener[T]) -> _Part[T]:
        """Return a non-empty verified prefix of the span, or why its first entry failed. Does not raise."""
        try:
            outcome = await self._read_some(span, opener)
            if not isinstance(outcome, Positive):
                moved = await self._moved(span, outcome)
                outcome = await self._read_some(moved, opener) if isinstance(moved, Span) else moved
        except BuckramError as error:
            return [], error
        return (outcome.value, None) if isinstance(outcome, Positive) else ([], outcome)

    async def _read_some(self, span: Span, opener: RangeOpener[T]) -> Answer[list[T]]:
        """Return a non-empty verified prefix of the span."""
        first, count = span.first, span.last - span.first + 1
        if not self._batches:
            return await self._read_singles(span, opener)
        race: Race[list[T]] = Race(self._write_set(span.ensemble, first))
        return await run_race(
            race,
            lambda b: self._reads.batch(b, first, count, partial(opener, self.ledger_id, first), self._adapt),
            self._services,
            self._scope,
        )

    async def _read_singles(self, span: Span, opener: RangeOpener[T]) -> Answer[list[T]]:
        last = min(span.last, span.first + _SINGLE_READS - 1)
        tasks = [
            self._scope.spawn(self._stored(span.ensemble, entry, opener), f"read {entry}")
            for entry in range(span.first, last + 1)
        ]
        found: list[T] = []
        try:
            for task in tasks:
                outcome = await task
                if not isinstance(outcome, Positive):
                    return Positive(found) if found else outcome
                found += outcome.value
        finally:
            for task in tasks:
                task.cancel()
        return Positive(found)

    async def _stored(self, ensemble: tuple[BookieId, ...], entry: EntryId, opener: RangeOpener[T]) -> Answer[list[T]]:
        race: Race[list[T]] = Race(self._write_set(ensemble, entry))
        one = partial(opener, self.ledger_id, entry)
        return await run_race(
            race, lambda b: self._reads.single(b, entry, one, self._adapt), self._services, self._scope
        )

    def _adapt(self, entries: int, size: int) -> None:
        """Size the next chunks so that one fills one batch read; `size` bytes came for `entries`."""
        config = self._services.config
        fitting = config.read_batch_bytes * entries // max(1, size + 4 * entries)
        self._chunk = max(1, min(config.read_ahead_entries // _CHUNKS_AHEAD, fitting))
        self._sized = True


def _check_order(first: EntryId, last: EntryId) -> None:
    if not 0 <= first <= last:
        raise InvalidArgument(f"entries {first} to {last}: needs 0 <= first <= last, both inclusive")


def _being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
