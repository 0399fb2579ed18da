"""Planning reads on the driver: which streams there are, how far they go, and which entries of which ledgers to read.

A partition has all that executors need, including ledger metadata and the addresses of bookies, so they do not ask the
metadata store. Reading never fences and never recovers: the end of an open segment is the LAC at planning time. The
records of a slice depend on its offsets only, however the stream is cut. Not here: the arithmetic of cutting
(`planning.py`), reading the partitions (`partition_reader.py`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from pyspark.sql.datasource import InputPartition

from buckram.client.read.open import digest_of
from buckram.client.read.reader import Reader
from buckram.cluster import Client
from buckram.core.ledgers.metadata import BIRTH
from buckram.core.security.encryption import ENCRYPTION, key_id_of
from buckram.core.security.namespace_rules import LEDGER_NAMESPACE
from buckram.core.streams.metadata.changes import check_usable
from buckram.core.streams.metadata.head import HISTORY, Head, Segment
from buckram.core.streams.names import DEFAULT_NAMESPACE, OWNER, OWNER_UID, StreamId, StreamName, stream_name
from buckram.core.wire.introduction import identity_properties
from buckram.errors import (
    NoSuchKey,
    NoSuchLedger,
    NoSuchStream,
    NotReadable,
    ReadFailed,
    RecordsLost,
)
from buckram.spark.shared.bounded_gather import run_in_order
from buckram.spark.shared.stream_partition import Slice, StreamPartition
from buckram.spark.source.entry_finder import Finder
from buckram.spark.source.planning import (
    Extent,
    PartitionSize,
    StreamOptions,
    cut_offsets,
    most_records,
    pack_pieces,
    piece_bytes,
    size_for_partitions,
)
from buckram.streams.read.lag import bytes_between
from buckram.streams.read.locate import Reach, offset_at_time, readable_reach
from buckram.streams.shared.metadata import StreamStore
from buckram.streams.shared.namespaces import Namespaces
from buckram.streams.shared.ownership import check_own, opened
from buckram.types import BookieInfo, EntryId, LedgerId, LedgerMetadata, Versioned

T = TypeVar("T")
log = logging.getLogger("buckram.spark")
_REMEMBERED = 50_000
"""The number of ledgers whose end or entry positions are cached. It should cover all streams of a query; for others
each batch searches again."""
_OPEN_COST_BYTES = 256 * 1024
"""Opening a ledger takes about as long as reading so many bytes."""
_TRIES, _AGAIN_S = 3, 0.2


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream at one moment. `end` is the offset after the last readable record."""

    name: StreamName
    head: Head
    end: int
    open_bytes: int
    """The bytes of the open segment up to `end`."""
    end_time: int = 0
    """When the record before `end` was appended, microseconds UTC; 0 if that was not seen."""

    @property
    def earliest(self) -> int:
        """Return the first offset that can be read."""
        return self.head.earliest

    @property
    def reach(self) -> Reach:
        """Return the readable end of the stream and the bytes of its open segment."""
        return Reach(self.end, self.open_bytes)


@dataclass(frozen=True, slots=True)
class Wanted:
    """The offsets of a stream to read, from `first` to stop - 1."""

    state: StreamState
    first: int
    stop: int


class _Moved(Exception):
    """Segments were truncated or replaced after the head was read, so the plan has to be made again."""

    def __init__(self, stream: str, first: int) -> None:
        super().__init__(stream, first)
        self.stream, self.first = stream, first


class Planner:
    """Plans batch reads and micro-batches. It caches the ends of open ledgers, and where the last micro-batch ended."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.streams = StreamStore(client.services.store)
        self._places: dict[tuple[LedgerId, int], EntryId] = {}
        self._ends: dict[LedgerId, tuple[EntryId, int, int, int]] = {}

    # -- which streams, and how far they go ---------------------------------------------------------------

    async def names(self, options: StreamOptions) -> list[str]:
        """Return the full names of the streams to read: as given, or all that match the pattern now, in order."""
        if options.pattern is None:
            return list(options.streams)
        matches = re.compile(options.pattern).fullmatch
        if "/" not in options.pattern:
            bare = await self._all(DEFAULT_NAMESPACE)
            return [f"{DEFAULT_NAMESPACE}/{name}" for name in bare if matches(name)]
        found: list[str] = []
        spaces, after = Namespaces(self.streams), ""
        while page := await spaces.list(after=after):
            after = page[-1]
            for space in page:
                found += [full for name in await self._all(space) if matches(full := f"{space}/{name}")]
        return found

    async def _all(self, namespace: str) -> list[str]:
        found: list[str] = []
        while page := await self.streams.streams(namespace, after=found[-1] if found else ""):
            found += page
        return found

    async def read_states(self, names: Sequence[str], *, may_miss: bool = False) -> dict[str, StreamState]:
        """Read how far each stream goes now. With `may_miss` missing streams are left out; else NoSuchStream."""
        find = self._read_state_or_none if may_miss else self._read_state
        found = await run_in_order([_later(find, stream_name(name)) for name in names])
        return {name: state for name, state in zip(names, found, strict=True) if state is not None}

    async def _read_state_or_none(self, name: StreamName) -> StreamState | None:
        try:
            return await self._read_state(name)
        except NoSuchStream:
            return None

    async def _read_state(self, name: StreamName) -> StreamState:
        for last_try in (*[False] * (_TRIES - 1), True):
            head = (await self.streams.read(name)).head
            check_usable(str(name), head)
            segment = head.open_segment
            if segment is None:
                return StreamState(name, head, head.end, 0, head.last_append)
            try:
                async with opened(self.client, StreamId(name, head.uid), segment.ledger) as reader:
                    return StreamState(name, head, *await self._end(name, segment, reader))
            except NoSuchLedger:  # The segment was truncated or replaced after the head was read.
                if last_try:
                    raise
            except ReadFailed as failed:
                seen = self._ends.get(segment.ledger)
                if seen is None:
                    raise
                # A running query reads up to the end that it has seen before; Spark retries its tasks.
                log.warning("stream %s: %s; going as far as was seen before", name, failed)
                return StreamState(name, head, *seen[1:])
        raise AssertionError

    async def _reread_state(self, state: StreamState) -> StreamState:
        """Read how far the same stream goes now. RecordsLost if another one has its name."""
        now = await self._read_state(state.name)
        if now.head.uid != state.head.uid:
            raise RecordsLost(str(state.name), state.earliest, now.earliest, "the stream was deleted and made anew")
        return now

    async def offset_at(self, state: StreamState, time: int) -> int:
        """Return the first offset appended at or after `time` (microseconds UTC); the end if there is none."""
        found = await offset_at_time(self.client, self.streams, state.name, state.head, time)
        return min(max(found, state.earliest), state.end)

    async def reach(self, state: StreamState, first: int, stop: int, size: int) -> int:
        """Return the offset up to which the records from `first` on have about `size` bytes.

        It is at least one record further than `first`, and at most `stop`.
        """
        try:
            row = await self.streams.segment_of(state.head, first)
        except NoSuchKey:
            return stop  # The segment was truncated meanwhile; planning the partitions reports that.
        at = first
        async for segment in self.streams.segments(state.head, from_number=row.number if row else 0):
            begin, end = max(at, segment.base), min(stop, segment.end if segment.sealed else state.end)
            if begin < end:
                weight = bytes_between(segment, state.reach, begin, end)
                if weight >= size:
                    return max(first + 1, begin + (end - begin) * size // weight)
                size -= weight
                at = end
            if end >= stop:
                break
        return stop

    async def _end(self, name: StreamName, segment: Segment, reader: Reader) -> tuple[int, int, int]:
        """Return the readable end of an open segment, the bytes up to there, and when its last record was appended.

        An idle query asks often, so the last entry is read only when there is a new one.
        """
        last = reader.last_confirmed
        if last < 0:
            return segment.base, 0, 0
        known = self._ends.get(segment.ledger)
        if known is None or known[0] != last:
            reach = await readable_reach(name, reader, segment)
            while len(self._ends) >= _REMEMBERED:
                del self._ends[next(iter(self._ends))]
            known = self._ends[segment.ledger] = last, *reach
        return known[1:]

    # -- which entries ------------------------------------------------------------------------------------

    async def partitions(self, wanted: Sequence[Wanted], options: StreamOptions) -> list[InputPartition]:
        """Cut the wanted offsets into partitions, in the order of streams and offsets.

        Raises RecordsLost, NoSuchStream, and NotReadable if less is readable now than when the batch was recorded.
        """
        for _ in range(_TRIES):
            try:
                return await self._partitions(wanted, options)
            except _Moved as moved:
                last = moved
            await asyncio.sleep(_AGAIN_S)
            wanted = [Wanted(await self._reread_state(want.state), want.first, want.stop) for want in wanted]
        for want in wanted:
            if want.state.end < want.stop:
                raise NotReadable(str(want.state.name), want.stop, want.state.end)
        raise RecordsLost(last.stream, last.first, None, "was truncated while the read was planned")

    async def _partitions(self, wanted: Sequence[Wanted], options: StreamOptions) -> list[InputPartition]:
        rows: list[tuple[Wanted, Segment, Extent]] = []
        extents = await run_in_order([_later(self._extents, want, options) for want in wanted])
        for want, found in zip(wanted, extents, strict=True):
            rows += [(want, row, extent) for row, extent in found]
        total = sum(extent.bytes for _, _, extent in rows)
        size = piece_bytes(total, options.partition_bytes, options.min_partitions, os.cpu_count() or 1)
        size = size_for_partitions([extent for _, _, extent in rows], size, options.min_partitions)
        records = sum(extent.stop - extent.first for _, _, extent in rows)
        cut = PartitionSize(size, most_records(records, options.partition_records), options.min_partitions == 1)
        parts = await run_in_order([_later(self._slices, want, row, extent, cut) for want, row, extent in rows])
        ledgers: dict[LedgerId, LedgerMetadata] = {}
        slices: list[Slice] = []
        for pieces, metadata in parts:
            slices += pieces
            if metadata is not None:
                ledgers.update({piece.ledger: metadata for piece in pieces})
        weights = [(s.stream, cut.weight(s.bytes + _OPEN_COST_BYTES, s.stop - s.first)) for s in slices]
        groups = pack_pieces(weights, size, options.min_partitions)
        return [self._partition([slices[at] for at in group], ledgers) for group in groups]

    async def _extents(self, want: Wanted, options: StreamOptions) -> list[tuple[Segment, Extent]]:
        """Return the segments that hold the wanted offsets, each with its part of them. RecordsLost, _Moved."""
        state, stream = want.state, str(want.state.name)
        first = want.first
        if first < state.earliest and first < want.stop:
            if options.fail_on_loss:
                raise RecordsLost(stream, first, state.earliest, "was truncated")
            first = state.earliest
        if first >= want.stop:
            return []
        try:
            row = await self.streams.segment_of(state.head, first)
        except NoSuchKey:  # A page was trimmed after the head was read.
            raise _Moved(stream, first) from None
        found: list[tuple[Segment, Extent]] = []
        async for segment in self.streams.segments(state.head, from_number=row.number if row else 0):
            begin, stop = max(first, segment.base), min(want.stop, segment.end if segment.sealed else state.end)
            if begin < stop:
                if begin != first:
                    break
                size = bytes_between(segment, state.reach, begin, stop)
                found.append((segment, Extent(stream, segment.ledger, begin, stop, size)))
                first = stop
            if segment.base >= want.stop:
                break
        if first < want.stop:  # A page was trimmed, or less is readable than when the batch was recorded.
            raise _Moved(stream, first)
        return found

    async def _slices(
        self, want: Wanted, segment: Segment, extent: Extent, cut: PartitionSize
    ) -> tuple[list[Slice], LedgerMetadata | None]:
        """Cut the extent into slices. An offloaded segment has no ledger and so no metadata."""
        name, summary = want.state.name, segment.summary
        if segment.kind == HISTORY:
            return _of_history(want.state.head.uid, segment, extent, cut), None
        try:
            metadata = (await self.client.services.store.read_ledger(segment.ledger)).metadata
        except NoSuchLedger:
            raise _Moved(str(name), extent.first) from None
        stream = StreamId(name, want.state.head.uid)
        await check_own(self.client, stream, segment.ledger, metadata)
        edges = cut_offsets(extent, cut.size, cut.most)
        whole = summary is not None and extent.first == segment.base and extent.stop == segment.end
        times = None if summary is None else (summary.first_append, summary.last_append)
        if whole and len(edges) == 2 and summary is not None:
            piece = Slice(
                extent.stream,
                want.state.head.uid,
                segment.ledger,
                segment.base,
                extent.first,
                extent.stop,
                0,
                summary.last_entry,
                extent.bytes,
                times,
            )
            return [piece], metadata
        async with await self._reader(segment, metadata, extent.stop) as reader:
            last = summary.last_entry if summary is not None else reader.last_confirmed
            metadata = reader.metadata
            finder = Finder(name, reader, segment.base, last, summary.records if summary is not None else 0)
            pieces = await self._cut(finder, want.state.head.uid, extent, edges, times, cut.snap)
        return pieces, metadata

    async def _cut(
        self, finder: Finder, uid: str, extent: Extent, edges: list[int], times: tuple[int, int] | None, snap: bool
    ) -> list[Slice]:
        ledger, known = extent.ledger, self._places.pop((extent.ledger, extent.first), -1)
        begin = await finder.entry_of(extent.first, known)
        final = await finder.entry_of(extent.stop - 1, -1 if known < 0 else begin)
        self._places[ledger, extent.stop] = final
        while len(self._places) > _REMEMBERED:
            del self._places[next(iter(self._places))]
        snap = snap and final - begin + 1 >= 4 * (len(edges) - 1)
        pieces: list[Slice] = []
        first, entry = extent.first, begin
        for edge in edges[1:]:
            stop, beyond, last = edge, entry, final
            if edge < extent.stop:
                beyond = await finder.entry_of(edge, -1)
                at = finder.first_of(beyond)
                stop, last = (at, beyond - 1) if snap or at == edge else (edge, beyond)
            if stop > first:
                weight = extent.bytes * (stop - first) // (extent.stop - extent.first)
                pieces.append(Slice(extent.stream, uid, ledger, finder.base, first, stop, entry, last, weight, times))
                first, entry = stop, beyond
        return pieces

    async def _reader(self, segment: Segment, metadata: LedgerMetadata, stop: int) -> Reader:
        """Open the ledger without asking bookies for the LAC if it is closed or was seen to reach `stop`."""
        seen = self._ends.get(segment.ledger)
        if not metadata.closed and (seen is None or seen[1] < stop):
            return await self.client.open(segment.ledger)
        services = self.client.services
        plain = digest_of(segment.ledger, metadata, b"", None)
        digest = await services.encryption.reading_soon(segment.ledger, metadata, plain)
        return Reader(services, segment.ledger, Versioned(metadata, -1), digest, -1 if seen is None else seen[0])

    def _partition(self, slices: list[Slice], known: dict[LedgerId, LedgerMetadata]) -> StreamPartition:
        # A partition is pickled, so it has only what is needed for reading.
        ledgers = {piece.ledger: _needed(known[piece.ledger]) for piece in slices if piece.history is None}
        services = self.client.services
        watcher = services.bookies
        bookies: dict[str, BookieInfo] = {}
        for metadata in ledgers.values():
            for fragment in metadata.fragments:
                for bookie in fragment.ensemble:
                    address = watcher.resolve(bookie)
                    if address is not None:
                        bookies[bookie] = BookieInfo(bookie, address, identity_properties(watcher.last_info(bookie)))
        return StreamPartition(
            slices,
            ledgers,
            list(bookies.values()),
            services.identities.cluster,
            services.identities.past.history,
            watcher.identity_required,
        )


def _of_history(uid: str, segment: Segment, extent: Extent, cut: PartitionSize) -> list[Slice]:
    """Cut an offloaded segment by offsets alone: the executors find the entries in its files."""
    summary, edges = segment.summary, cut_offsets(extent, cut.size, cut.most)
    assert summary is not None
    times, last = (summary.first_append, summary.last_append), summary.last_entry
    pieces: list[Slice] = []
    for first, stop in pairwise(edges):
        weight = extent.bytes * (stop - first) // (extent.stop - extent.first)
        place = (segment.ledger, segment.base, first, stop, 0, last, weight, times, segment)
        pieces.append(Slice(extent.stream, uid, *place))
    return pieces


def _needed(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return the metadata that a reader needs; of custom metadata that is the ledger's birth, and its namespace and key
    if it is encrypted."""
    kept = (BIRTH, ENCRYPTION, LEDGER_NAMESPACE, OWNER, OWNER_UID) if key_id_of(metadata.custom_metadata) else (BIRTH,)
    custom = {key: value for key, value in metadata.custom_metadata.items() if key in kept}
    return replace(metadata, custom_metadata=custom)


def _later(function: Callable[..., Awaitable[T]], *arguments: object) -> Callable[[], Awaitable[T]]:
    """Return a job for `run_in_order` that calls `function` with these arguments."""
    return lambda: function(*arguments)
