"""Finds where entries are stored, newest segment first, and plans how they are fetched.

An entry is absent only if every index that could know it says so; bytes that do not match their index are an error.
Not here: reading the bytes (`bookie/storage/reading/fetching.py`); the index of one segment
(`bookie/storage/segments/index.py`, `bookie/storage/segments/segments.py`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TypeAlias, TypeVar, cast

from buckram.bookie.storage.ledger_table import LedgerRecord, LedgerTable, Losses
from buckram.bookie.storage.log.group_commit import GroupCommit
from buckram.bookie.storage.read_results import (
    FramesCallback,
    Outcome,
    OutcomesCallback,
    RangeCallback,
    StoreError,
    unless_harmless,
)
from buckram.bookie.storage.reading.fetching import Fetch, Fetcher, FrameFetch
from buckram.bookie.storage.reading.read_ahead import CHUNK_BYTES
from buckram.bookie.storage.segments.bad_entries import Span, union, without
from buckram.bookie.storage.segments.file_cache import OpenFiles
from buckram.bookie.storage.segments.index import Place
from buckram.bookie.storage.segments.segments import MAX_RUNS, DirEntry, FooterRepair, Segment, SegmentList
from buckram.core.entries.packed import FrameParts
from buckram.core.storage.segment_format import CorruptBytes
from buckram.core.wire.adds import FRAME_OVERHEAD
from buckram.core.wire.located import FileExtent, extended
from buckram.seams import Disk
from buckram.types import EntryId, LedgerId

AnyFetch = TypeVar("AnyFetch", bound=Fetch)
MAX_EXTENTS = 1000
"""The most places of frames that one answer lists."""
RunsFound: TypeAlias = tuple[Segment, list[Place], EntryId]
"""The segment, neighbouring runs in it, and the first entry id for which they may not be the newest copy.

It is a plain tuple, and not a NamedTuple, because each read of a single entry makes one."""
_NOT_SENT = FRAME_OVERHEAD - 4
"""Bytes that a frame has in the log beyond what its entry costs in an answer."""
_SPANS_LIMIT = 512
"""The most ledgers whose segments are cached."""


class Lookup:
    """Finds where entries are stored and reads them."""

    def __init__(
        self,
        disk: Disk,
        files: OpenFiles,
        log: GroupCommit,
        table: LedgerTable,
        losses: Losses,
        segments: SegmentList,
        repair: FooterRepair,
    ) -> None:
        self._table, self._losses, self._newest_first, self._repair = table, losses, segments.newest_first, repair
        self._fetcher = Fetcher(disk, files, log)
        # Which sealed segments hold a ledger, newest first: built on demand, dropped when the list changes.
        self._spans: OrderedDict[tuple[LedgerId, int], list[tuple[Segment, DirEntry | None]]] = OrderedDict()

    @property
    def cached_bytes(self) -> int:
        """Bytes of log files that are in memory for sequential readers."""
        return self._fetcher.cached_bytes

    def segments_changed(self) -> None:
        """Forget which segments hold which ledgers, because the list of segments changed or one was sealed."""
        self._spans.clear()

    # -- where things are

    def locate(self, record: LedgerRecord, entry: EntryId, last: EntryId, most: int = MAX_RUNS) -> RunsFound | None:
        """Return the newest run that holds `entry` and the runs after it without a gap up to `last`, at most `most`.

        The id in the result says nothing about entries above `last`. Raises StoreError if an index cannot be read.
        """
        ledger, epoch = record.ledger_id, record.epoch
        newer: list[tuple[Segment, DirEntry | None]] = []
        for segment, held in self._holders(record):
            if held is not None and not held.first <= entry <= held.last:
                if entry < held.first <= last:
                    newer.append((segment, held))
                continue
            try:
                found = segment.find(ledger, entry, last, epoch, held, most)
            except (CorruptBytes, OSError) as error:
                found = self._again(segment, error).find(ledger, entry, last, epoch, None, most)
            if found is not None:
                places, end = found
                for one, there in newer:
                    if end > entry + 1 and (there is None or there.first < end):
                        end = self._first_in(one, record, entry + 1, end)
                return segment, places, end
            newer.append((segment, held))
        return None

    def _first_in(self, segment: Segment, record: LedgerRecord, low: EntryId, high: EntryId) -> EntryId:
        try:
            return segment.first_in(record.ledger_id, record.epoch, low, high)
        except (CorruptBytes, OSError) as error:
            return self._again(segment, error).first_in(record.ledger_id, record.epoch, low, high)

    def _again(self, segment: Segment, error: Exception) -> Segment:
        unless_harmless(error, f"the index of log file {segment.name}")
        self._repair.repair_footer(segment)
        if segment.index is None:
            raise StoreError("corrupt", f"the index of log file {segment.name} is unreadable")
        self._spans.clear()
        return segment

    def _holders(self, record: LedgerRecord) -> Iterable[tuple[Segment, DirEntry | None]]:
        """Return segments that may hold data of the ledger, newest first; sealed ones with their directory entry."""
        for segment in self._newest_first():
            if segment.index is None:
                break
            yield segment, None
        key = (record.ledger_id, record.epoch)
        sealed = self._spans.get(key)
        if sealed is None:
            sealed = self._sealed_holders(*key)
            self._spans[key] = sealed
            if len(self._spans) > _SPANS_LIMIT:
                self._spans.popitem(last=False)
        yield from sealed

    def _sealed_holders(self, ledger: LedgerId, epoch: int) -> list[tuple[Segment, DirEntry | None]]:
        """Return the holders from the first sealed segment on, with those that have an index again for a repair."""
        found: list[tuple[Segment, DirEntry | None]] = []
        sealed = False
        for segment in list(self._newest_first()):
            sealed = sealed or segment.index is None
            if not sealed:
                continue
            held: DirEntry | None = None
            if segment.footer is not None:
                try:
                    held = segment.footer.find(ledger)
                except (CorruptBytes, OSError) as error:
                    self._again(segment, error)
            if segment.index is not None or (held is not None and held.epoch == epoch):
                found.append((segment, held))
        return found

    def entries(self, record: LedgerRecord) -> list[tuple[EntryId, int]]:
        """Return (first, count) of all entries here, ascending and disjoint. Raises StoreError for a bad index.

        An entry whose newest copy is known to be bad is not here, whatever there is of it in older files.
        """
        held: list[Span] = []
        hidden: list[Span] = []
        for segment, _ in self._holders(record):  # newest first
            try:
                places = list(segment.places(record.ledger_id, record.epoch))
            except (CorruptBytes, OSError) as error:
                places = list(self._again(segment, error).places(record.ledger_id, record.epoch))
            spans: Iterable[Span] = [(place[0], place[0] + place[1]) for place in places]
            bad = () if segment.bad is None else segment.bad.of(record.ledger_id)
            if hidden:
                spans = without(spans, hidden)
            if bad:
                hidden = union([*hidden, *without(bad, union(held))])
                spans = without(spans, hidden)
            held.extend(spans)
        return [(first, end - first) for first, end in union(held)]

    # -- reading

    def read(self, wanted: Sequence[tuple[LedgerId, EntryId]], done: OutcomesCallback) -> None:
        results: list[Outcome] = [None] * len(wanted)
        fetches: list[Fetch] = []
        at, total = 0, len(wanted)
        row = 0  # up to where the wanted entries are consecutive
        while at < total:
            ledger, entry = wanted[at]
            row = max(row, at + 1)
            while row < total and wanted[row] == (ledger, entry + row - at):
                row += 1
            try:
                found = self._find(ledger, entry, entry + row - at - 1, most=1)
            except StoreError as error:
                results[at] = error
                at += 1
                continue
            if found is None:
                at += 1
                continue
            segment, (place, *_), end = found
            count = min(row - at, end - entry, place[0] + place[1] - entry)
            fetches.append(Fetch(ledger, entry, count, segment, [place], at))
            at += count
        self._fetcher.fetch(fetches, results, lambda: done(results))

    def _find(self, ledger: LedgerId, entry: EntryId, last: EntryId, most: int = MAX_RUNS) -> RunsFound | None:
        """Find the run of an entry. Return None only if the entry is certainly absent. Raises StoreError if that is
        unknown."""
        record = self._table.find(ledger)
        if record is None:
            if self._losses.limbo:
                raise StoreError("limbo", f"ledger {ledger}: this bookie may have lost it")
            return None
        if record.tombstone:
            return None
        found = self.locate(record, entry, last, most) if entry >= 0 else None
        if found is None and record.limbo:
            raise StoreError("limbo", f"ledger {ledger} entry {entry}: this bookie may have lost it")
        return found

    def read_range(
        self,
        ledger: LedgerId,
        first: EntryId,
        max_count: int,
        max_bytes: int,
        done: RangeCallback,
        *,
        from_files: bool = False,
    ) -> None:
        """Read as many consecutive entries from `first` on as fit: each costs its size and 4 bytes of `max_bytes`.

        The first one is returned in any case.
        """
        self._read_on([], ledger, first, max_count, max_bytes, done, from_files)

    def _read_on(
        self,
        taken: list[bytes],
        ledger: LedgerId,
        first: EntryId,
        max_count: int,
        room: int,
        done: RangeCallback,
        from_files: bool,
    ) -> None:
        """Continue a range after the entries that are `taken` already; `room` is what is left of its bytes."""
        try:
            fetches = self._plan(ledger, first + len(taken), max_count - len(taken), room, Fetch)
        except StoreError as error:
            done(taken or error)
            return
        results: list[Outcome] = [None] * sum(fetch.count for fetch in fetches)

        def finish() -> None:
            left, ended = take(taken, results, room)
            if isinstance(left, StoreError):
                done(left)
            elif ended or len(taken) >= max_count or left <= 0:
                done(taken)
            else:  # they were smaller than their neighbours in the log: more of them fit
                self._read_on(taken, ledger, first, max_count, left, done, from_files)

        if fetches:
            self._fetcher.fetch(fetches, results, finish, from_files=from_files)
        else:
            done(taken)

    def read_frames(
        self,
        ledger: LedgerId,
        first: EntryId,
        max_count: int,
        max_bytes: int,
        done: FramesCallback,
        *,
        from_files: bool = False,
    ) -> None:
        """Read frames like `read_range`; each costs its size. None if an entry is missing or unreadable."""
        try:
            fetches = self._plan(ledger, first, max_count, max_bytes, FrameFetch)
        except StoreError:
            fetches = []
        if not fetches:
            done(None)
            return

        def finish() -> None:
            parts, count, size = [], 0, 0
            for fetch in fetches:
                frames = fetch.frames
                if frames is None or (count and size + len(frames) > max_bytes):
                    break
                parts.append(frames)
                count, size = count + fetch.count, size + len(frames)
            # A single run that does not fit is cut by read_range, to which the caller falls back.
            done(FrameParts(parts, count) if parts and (size <= max_bytes or count == 1) else None)

        self._fetcher.fetch(fetches, [], finish, from_files=from_files)

    def extents(self, ledger: LedgerId, first: EntryId, count: int) -> list[FileExtent]:
        """Return where files hold `count` entries from `first` on, as far as they are durable; at most MAX_EXTENTS."""
        found: list[FileExtent] = []
        whole = False  # all frames of the last extent are wanted, so that others may follow in it
        entry, end = first, first + count
        while entry < end:
            there = self._next(ledger, entry, end - 1)
            if there is None:
                break
            segment, places, stop = there
            durable = self._fetcher.durable(segment)
            for start, held, skip, offset, length in places:
                taken = min(stop, start + held, end) - entry
                if taken <= 0:
                    break
                bad = segment.bad
                if offset + length > durable or (bad is not None and bad.meets(ledger, entry, taken)):
                    return found
                extent = FileExtent(segment.name, offset, length, skip + entry - start, entry, taken)
                joined = extended(found[-1], extent, CHUNK_BYTES) if whole else None
                if joined is not None:
                    found[-1] = joined
                elif len(found) < MAX_EXTENTS:
                    found.append(extent)
                else:
                    return found
                entry += taken
                whole = entry == start + held
        return found

    def _plan(
        self, ledger: LedgerId, first: EntryId, max_count: int, max_bytes: int, make: type[AnyFetch]
    ) -> list[AnyFetch]:
        """Return the fetches for consecutive entries of about `max_bytes`. Raises StoreError for the first one only."""
        fetches: list[AnyFetch] = []
        entry, left, budget = first, max_count, max_bytes
        while left > 0 and (budget > 0 or not fetches):
            last = entry + left - 1
            found = self._find(ledger, entry, last) if not fetches else self._next(ledger, entry, last)
            if found is None:
                break
            segment, places, end = found
            for runs in side_by_side(places, max_bytes):
                fetch = make(ledger, entry, 0, segment, runs, entry - first)
                start, held, skip, _, length = fetch.place
                # The cost of a frame is an estimate, because sizes may differ; the caller plans again for the rest.
                each = max(1, length // (held + skip) - (_NOT_SENT if make is Fetch else 0))
                room = max(0, budget) // each
                room = room + 1 if make is Fetch else max(room, not fetches)
                count = fetch.count = min(left, end - entry, start + held - entry, room)
                if not count:
                    return fetches
                fetches.append(fetch)
                budget -= each * count
                entry, left = entry + count, left - count
                if entry >= end or left <= 0 or budget <= 0:
                    break
        return fetches

    def _next(self, ledger: LedgerId, entry: EntryId, last: EntryId) -> RunsFound | None:
        """Find entries after the first, as `_find` does; any error just ends the range."""
        try:
            return self._find(ledger, entry, last)
        except StoreError:
            return None


def take(taken: list[bytes], results: Sequence[Outcome], room: int) -> tuple[int | StoreError, bool]:
    """Move what fits from `results` to `taken`.

    Returns the room that is left, and whether an entry did not fit or was missing. Instead of the room it returns a
    StoreError if the very first entry cannot be read.
    """
    # Usually all entries are there, have one size and fit, which needs no step for each of them.
    with suppress(TypeError):
        entries = cast("list[bytes]", results)
        sizes = set(map(len, entries))
        if len(sizes) == 1 and (cost := (sizes.pop() + 4) * len(entries)) <= room:
            taken += entries
            return room - cost, False
    for outcome in results:
        if not isinstance(outcome, bytes):
            return (outcome if outcome is not None and not taken else room), True
        if taken and room < len(outcome) + 4:
            return room, True
        room -= len(outcome) + 4
        taken.append(outcome)
    return room, False


def side_by_side(places: Iterable[Place], limit: int) -> list[list[Place]]:
    """Join runs that are neighbours in the log: at most `limit` bytes, and within one chunk of the read cache."""
    joined: list[list[Place]] = []
    after = size = -1
    for place in places:
        _, _, skip, offset, length = place
        if (
            offset == after
            and not skip
            and size + length <= limit
            and (offset - size) // CHUNK_BYTES == (offset + length - 1) // CHUNK_BYTES
        ):
            joined[-1].append(place)
            size += length
        else:
            joined.append([place])
            size = length
        after = offset + length
    return joined
