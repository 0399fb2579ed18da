"""Reading entries back: from memory when they are recent, else with few and large reads.

An entry is absent only if every index that could know it says so; bytes that do not match their index are an error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from buckram.bookie.commit import GroupCommit
from buckram.bookie.index import Place
from buckram.bookie.ledger_table import LedgerRecord, LedgerTable, Losses
from buckram.bookie.segments import OpenFiles, Segment
from buckram.bookie.store_errors import StoreError
from buckram.core.segment_format import CorruptBytes, walk_run
from buckram.seams import Disk, Read
from buckram.types import EntryId, LedgerId

Outcome = bytes | StoreError | None
READ_BYTES, GAP_BYTES = 1 << 20, 16 << 10
"""Neighbouring runs are fetched by one read of at most READ_BYTES, with at most GAP_BYTES of others between them."""
AHEAD_BYTES, AHEAD_LIMIT = 256 << 10, 32
"""A reader that goes on where its last fetch ended gets AHEAD_BYTES more; so many ledgers' windows are kept."""
_SPANS_LIMIT = 512


class _Fetch:
    """`count` entries from `entry` on in one run; their outcomes belong at `slot` of the caller's list."""

    __slots__ = ("count", "entry", "ledger", "place", "segment", "slot")

    def __init__(
        self, ledger: LedgerId, entry: EntryId, count: int, segment: Segment, place: Place, slot: int
    ) -> None:
        self.ledger, self.entry, self.count = ledger, entry, count
        self.segment, self.place, self.slot = segment, place, slot

    def take(self, data: bytes, at: int) -> Sequence[Outcome]:
        """The outcomes, out of the run's bytes at data[at:]."""
        first, _, skip, _, length = self.place
        try:
            return walk_run(
                data, at, min(len(data), at + length), skip + self.entry - first, self.ledger, self.entry, self.count
            )
        except CorruptBytes as error:
            if self.count == 1:
                return [StoreError("corrupt", str(error))]
        # Only some of them may be broken: one at a time.
        return [
            outcome
            for entry in range(self.entry, self.entry + self.count)
            for outcome in _Fetch(self.ledger, entry, 1, self.segment, self.place, 0).take(data, at)
        ]


class Lookup:
    """`segments()` gives all segments, newest first; `mend(segment)` repairs a damaged footer or marks the loss."""

    def __init__(
        self, disk: Disk, files: OpenFiles, log: GroupCommit, table: LedgerTable, losses: Losses,
        segments: Callable[[], Iterable[Segment]], mend: Callable[[Segment | None], None],
    ) -> None:
        self._disk, self._files, self._log, self._table = disk, files, log, table
        self._losses, self._segments, self._mend = losses, segments, mend
        # Which sealed segments hold a ledger, newest first: built on demand, dropped when the list changes.
        self._spans: OrderedDict[tuple[LedgerId, int], list[Segment]] = OrderedDict()
        self._ahead: OrderedDict[LedgerId, tuple[Segment, int, bytes]] = OrderedDict()
        self._expected: OrderedDict[LedgerId, EntryId] = OrderedDict()

    def segments_changed(self) -> None:
        self._spans.clear()
        self._ahead.clear()

    # -- where things are

    def locate(self, record: LedgerRecord, entry: EntryId) -> tuple[Segment, Place, EntryId] | None:
        """The newest run that holds the entry, and the id up to which no newer copy exists (exclusive).

        StoreError when an index cannot be read.
        """
        ledger, epoch = record.ledger_id, record.epoch
        newer: list[Segment] = []
        for segment in self._holders(record):
            try:
                found = segment.find(ledger, entry, epoch)
            except (CorruptBytes, OSError):
                found = self._again(segment).find(ledger, entry, epoch)
            if found is not None:
                place, end = found
                for one in newer:
                    end = self._first_in(one, record, entry + 1, end)
                return segment, place, end
            newer.append(segment)
        return None

    def _first_in(self, segment: Segment, record: LedgerRecord, low: EntryId, high: EntryId) -> EntryId:
        try:
            return segment.first_in(record.ledger_id, record.epoch, low, high)
        except (CorruptBytes, OSError):
            return self._again(segment).first_in(record.ledger_id, record.epoch, low, high)

    def _again(self, segment: Segment) -> Segment:
        self._mend(segment)
        if segment.index is None:
            raise StoreError("corrupt", f"the index of log file {segment.name} is unreadable")
        return segment

    def _holders(self, record: LedgerRecord) -> Iterable[Segment]:
        """Segments that may hold data of the ledger, newest first."""
        for segment in self._segments():
            if segment.index is None:
                break
            yield segment
        key = (record.ledger_id, record.epoch)
        sealed = self._spans.get(key)
        if sealed is None:
            sealed = self._spans[key] = self._sealed_holders(*key)
            if len(self._spans) > _SPANS_LIMIT:
                self._spans.popitem(last=False)
        yield from sealed

    def _sealed_holders(self, ledger: LedgerId, epoch: int) -> list[Segment]:
        """From the first sealed segment on; those among them that have an index again are being mended."""
        found, sealed = [], False
        for segment in list(self._segments()):
            sealed = sealed or segment.index is None
            if not sealed:
                continue
            try:
                holds = segment.index is not None or segment.bytes_of(ledger, epoch) > 0
            except (CorruptBytes, OSError):
                holds = self._again(segment).bytes_of(ledger, epoch) > 0
            if holds:
                found.append(segment)
        return found

    def entries(self, record: LedgerRecord) -> list[tuple[EntryId, int]]:
        """(first, count) of all entries here, ascending and disjoint. StoreError when an index cannot be read."""
        spans: list[tuple[EntryId, EntryId]] = []
        for segment in self._holders(record):
            try:
                places = list(segment.places(record.ledger_id, record.epoch))
            except (CorruptBytes, OSError):
                places = list(self._again(segment).places(record.ledger_id, record.epoch))
            spans.extend((place[0], place[0] + place[1]) for place in places)
        spans.sort()
        merged: list[tuple[EntryId, int]] = []
        for first, end in spans:
            if merged and first <= merged[-1][0] + merged[-1][1]:
                begin, count = merged[-1]
                merged[-1] = (begin, max(count, end - begin))
            else:
                merged.append((first, end - first))
        return merged

    # -- reading

    def read(self, wanted: Sequence[tuple[LedgerId, EntryId]], done: Callable[[list[Outcome]], None]) -> None:
        results: list[Outcome] = [None] * len(wanted)
        fetches: list[_Fetch] = []
        at, total = 0, len(wanted)
        while at < total:
            ledger, entry = wanted[at]
            try:
                found = self._find(ledger, entry)
            except StoreError as error:
                results[at] = error
                at += 1
                continue
            if found is None:
                at += 1
                continue
            segment, place, end = found
            last = min(total - at, end - entry)
            count = 1
            while count < last and wanted[at + count] == (ledger, entry + count):
                count += 1
            fetches.append(_Fetch(ledger, entry, count, segment, place, at))
            at += count
        self._fetch(fetches, results, lambda: done(results))

    def _find(self, ledger: LedgerId, entry: EntryId) -> tuple[Segment, Place, EntryId] | None:
        """None = certainly absent; StoreError otherwise."""
        record = self._table.find(ledger)
        if record is None:
            if self._losses.limbo:
                raise StoreError("limbo", f"ledger {ledger}: this bookie may have lost it")
            return None
        if record.tombstone:
            return None
        found = self.locate(record, entry) if entry >= 0 else None
        if found is None and record.limbo:
            raise StoreError("limbo", f"ledger {ledger} entry {entry}: this bookie may have lost it")
        return found

    def read_range(
        self, ledger: LedgerId, first: EntryId, max_count: int, max_bytes: int,
        done: Callable[[list[bytes] | StoreError], None],
    ) -> None:
        """Consecutive entries from `first` on; each costs its size and 4 bytes of `max_bytes`, the first is free."""
        fetches: list[_Fetch] = []
        entry, left, budget = first, max_count, max_bytes
        try:
            while left > 0 and (budget > 0 or not fetches):
                found = self._find(ledger, entry) if not fetches else self._next(ledger, entry)
                if found is None:
                    break
                segment, place, end = found
                # What a frame costs is an estimate, they need not be equal; the caller may ask again.
                each = max(1, place[4] // (place[1] + place[2]))
                count = min(left, end - entry, max(0, budget) // each + 1)
                fetches.append(_Fetch(ledger, entry, count, segment, place, entry - first))
                budget -= each * count
                entry, left = entry + count, left - count
        except StoreError as error:
            done(error)
            return
        results: list[Outcome] = [None] * (entry - first)

        def finish() -> None:
            taken: list[bytes] = []
            room = max_bytes
            for outcome in results:
                if not isinstance(outcome, bytes):
                    if not taken and outcome is not None:
                        done(outcome)
                        return
                    break
                room -= len(outcome) + 4
                if taken and room < 0:
                    break
                taken.append(outcome)
            done(taken)

        self._fetch(fetches, results, finish)

    def _next(self, ledger: LedgerId, entry: EntryId) -> tuple[Segment, Place, EntryId] | None:
        """Like _find, for entries behind the first: whatever is wrong with them just ends the range."""
        try:
            return self._find(ledger, entry)
        except StoreError:
            return None

    def _fetch(self, fetches: list[_Fetch], results: list[Outcome], finished: Callable[[], None]) -> None:
        """Fill `results`; bytes in memory at once, the rest with one batch of reads."""
        missing: list[_Fetch] = []
        for fetch in fetches:
            _, _, _, offset, length = fetch.place
            data = self._log.recent(fetch.segment, offset, length)
            if data is not None:
                results[fetch.slot : fetch.slot + fetch.count] = fetch.take(data, 0)
                continue
            window = self._ahead.get(fetch.ledger)
            if window is not None and window[0] is fetch.segment:
                at = offset - window[1]
                if at >= 0 and at + length <= len(window[2]):
                    results[fetch.slot : fetch.slot + fetch.count] = fetch.take(window[2], at)
                    self._remember(self._expected, fetch.ledger, fetch.entry + fetch.count)
                    continue
            missing.append(fetch)
        if missing:
            _DiskFetch(self, missing, results, finished).start()
        else:
            finished()

    def _remember(self, memory: OrderedDict[LedgerId, EntryId], ledger: LedgerId, entry: EntryId) -> None:
        memory[ledger] = entry
        memory.move_to_end(ledger)
        if len(memory) > AHEAD_LIMIT:
            memory.popitem(last=False)


class _DiskFetch:
    """The reads of one batch."""

    def __init__(
        self, lookup: Lookup, missing: list[_Fetch], results: list[Outcome], finished: Callable[[], None]
    ) -> None:
        self._lookup, self._results, self._finished = lookup, results, finished
        self._missing = sorted(missing, key=lambda fetch: (fetch.segment.seq, fetch.place[3]))
        self._spans: list[tuple[Segment, int, int]] = []
        self._starts: list[tuple[int, int]] = []
        self._held: list[Segment] = []

    def start(self) -> None:
        lookup = self._lookup
        for fetch in self._missing:
            self._add(fetch)
        self._starts = [(segment.seq, start) for segment, start, _ in self._spans]
        reads: list[Read] = []
        try:
            for segment, start, end in self._spans:
                reads.append(Read(lookup._files.hold(segment.name), start, end - start))
                segment.readers += 1
                self._held.append(segment)
        except OSError as error:
            self._done(error)
            return
        lookup._disk.read(reads, self._done)

    def _add(self, fetch: _Fetch) -> None:
        segment, (_, _, _, start, length) = fetch.segment, fetch.place
        end = start + length
        if self._lookup._expected.get(fetch.ledger) == fetch.entry:
            end = max(end, min(start + AHEAD_BYTES, segment.log_end))
        if self._spans:
            last, begin, so_far = self._spans[-1]
            if last is segment and start - so_far <= GAP_BYTES and max(end, so_far) - begin <= READ_BYTES:
                self._spans[-1] = (last, begin, max(end, so_far))
                return
        self._spans.append((segment, start, end))

    def _done(self, outcome: list[bytes] | OSError) -> None:
        lookup = self._lookup
        for segment in self._held:
            segment.readers -= 1
            lookup._files.release(segment.name)
        for fetch in self._missing:
            if isinstance(outcome, OSError):
                error = StoreError("io", f"reading log file {fetch.segment.name} failed: {outcome}")
                self._results[fetch.slot : fetch.slot + fetch.count] = [error] * fetch.count
                continue
            number = bisect_left(self._starts, (fetch.segment.seq, fetch.place[3] + 1)) - 1
            segment, start, _ = self._spans[number]
            data = outcome[number]
            self._results[fetch.slot : fetch.slot + fetch.count] = fetch.take(data, fetch.place[3] - start)
            if len(data) > fetch.place[3] - start + fetch.place[4]:
                self._keep(fetch.ledger, (segment, start, data))
            lookup._remember(lookup._expected, fetch.ledger, fetch.entry + fetch.count)
        self._finished()

    def _keep(self, ledger: LedgerId, window: tuple[Segment, int, bytes]) -> None:
        ahead = self._lookup._ahead
        ahead[ledger] = window
        ahead.move_to_end(ledger)
        if len(ahead) > AHEAD_LIMIT:
            ahead.popitem(last=False)
