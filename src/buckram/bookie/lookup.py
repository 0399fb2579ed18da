"""Reading entries back: from memory when they are recent, else with few and large reads.

An entry is absent only if every index that could know it says so; bytes that do not match their index are an error.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from buckram.bookie.commit import GroupCommit
from buckram.bookie.index import Place
from buckram.bookie.ledger_table import LedgerRecord, LedgerTable, Losses
from buckram.bookie.read_ahead import CHUNK_BYTES, Chunks
from buckram.bookie.segments import DirEntry, OpenFiles, Segment
from buckram.bookie.store_errors import StoreError
from buckram.core.segment_format import CorruptBytes, padded, walk_run
from buckram.seams import Disk, Read
from buckram.types import EntryId, LedgerId

Outcome = bytes | StoreError | None
READ_BYTES, GAP_BYTES = 1 << 20, 16 << 10
"""Neighbouring runs are fetched by one read of at most READ_BYTES, with at most GAP_BYTES of others between them."""
DENSE_BYTES = CHUNK_BYTES // 4
"""A reader that goes on where its last fetch ended, at most so far behind it, gets whole chunks of the log."""
_FOLLOWED, _SPANS_LIMIT = 1024, 512
"""Ledgers whose readers' positions, and whose segments, are remembered."""


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
        self._chunks = Chunks(disk, files)
        # Which sealed segments hold a ledger, newest first: built on demand, dropped when the list changes.
        self._spans: OrderedDict[tuple[LedgerId, int], list[tuple[Segment, DirEntry | None]]] = OrderedDict()
        # Where the last fetch of a ledger ended: segment number, next entry, file offset.
        self._followed: OrderedDict[LedgerId, tuple[int, EntryId, int]] = OrderedDict()

    def segments_changed(self) -> None:
        self._spans.clear()

    # -- where things are

    def locate(self, record: LedgerRecord, entry: EntryId) -> tuple[Segment, Place, EntryId] | None:
        """The newest run that holds the entry, and the id up to which no newer copy exists (exclusive).

        StoreError when an index cannot be read.
        """
        ledger, epoch = record.ledger_id, record.epoch
        newer: list[tuple[Segment, DirEntry | None]] = []
        for segment, held in self._holders(record):
            if held is not None and not held.first <= entry <= held.last:
                if held.first > entry:
                    newer.append((segment, held))
                continue
            try:
                found = segment.find(ledger, entry, epoch, held)
            except (CorruptBytes, OSError):
                found = self._again(segment).find(ledger, entry, epoch)
            if found is not None:
                place, end = found
                for one, there in newer:
                    if there is None or there.first < end:
                        end = self._first_in(one, record, entry + 1, end)
                return segment, place, end
            newer.append((segment, held))
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
        self._spans.clear()
        return segment

    def _holders(self, record: LedgerRecord) -> Iterable[tuple[Segment, DirEntry | None]]:
        """Segments that may hold data of the ledger, newest first; for sealed ones with what their directory says."""
        for segment in self._segments():
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
        """From the first sealed segment on; those among them that have an index again are being mended."""
        found: list[tuple[Segment, DirEntry | None]] = []
        sealed = False
        for segment in list(self._segments()):
            sealed = sealed or segment.index is None
            if not sealed:
                continue
            held: DirEntry | None = None
            if segment.footer is not None:
                try:
                    held = segment.footer.find(ledger)
                except (CorruptBytes, OSError):
                    self._again(segment)
            if segment.index is not None or (held is not None and held.epoch == epoch):
                found.append((segment, held))
        return found

    def entries(self, record: LedgerRecord) -> list[tuple[EntryId, int]]:
        """(first, count) of all entries here, ascending and disjoint. StoreError when an index cannot be read."""
        spans: list[tuple[EntryId, EntryId]] = []
        for segment, _ in self._holders(record):
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
            # Usually all is here and fits, which is seen without looking at each.
            if set(map(type, results)) == {bytes}:
                entries = cast("list[bytes]", results)
                if sum(map(len, entries)) + 4 * len(entries) <= max_bytes:
                    done(entries)
                    return
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
        """Fill `results`: from memory, by chunks for readers that go on in order, the rest by one batch of reads."""
        exact: list[_Fetch] = []
        chunked: list[_Fetch] = []
        for fetch in fetches:
            _, _, _, offset, length = fetch.place
            data, at = self._log.recent(fetch.segment, offset, length), 0
            if data is None:
                cut = self._chunks.cut(fetch.segment, offset, length)
                if cut is None:
                    in_order = self._in_order(fetch)
                    (chunked if in_order else exact).append(fetch)
                    self._follow(fetch, ahead=in_order)
                    continue
                data, at = cut
                self._follow(fetch, ahead=True)
            results[fetch.slot : fetch.slot + fetch.count] = fetch.take(data, at)
        if chunked:
            self._fetch_chunks(chunked, exact, results, finished)
        elif exact:
            _DiskFetch(self, exact, results, finished).start()
        else:
            finished()

    def _fetch_chunks(
        self, chunked: list[_Fetch], exact: list[_Fetch], results: list[Outcome], finished: Callable[[], None]
    ) -> None:
        waiting = 1

        def loaded(error: OSError | None) -> None:
            nonlocal waiting
            waiting -= 1
            if waiting:
                return
            for fetch in chunked:
                cut = self._chunks.cut(fetch.segment, fetch.place[3], fetch.place[4])
                if cut is None:
                    # Failed, or already displaced by others: read it by itself, and report errors by itself.
                    exact.append(fetch)
                else:
                    results[fetch.slot : fetch.slot + fetch.count] = fetch.take(*cut)
            if exact:
                _DiskFetch(self, exact, results, finished).start()
            else:
                finished()

        for fetch in chunked:
            waiting += 1
            offset, length = fetch.place[3:]
            self._chunks.load(fetch.segment, offset, offset + length, self._settled(fetch.segment), loaded)
        loaded(None)

    def _settled(self, segment: Segment) -> int:
        """Up to where chunks of the segment may be read: durable bytes that nothing will be added to."""
        if segment.index is None:
            return segment.log_end
        if segment.base is None:
            return segment.log_end // CHUNK_BYTES * CHUNK_BYTES
        # Nothing that waits for the disk is as old as half of the ring.
        end = self._log.ring.head - self._log.ring.size // 2 - segment.base
        return max(0, end // CHUNK_BYTES * CHUNK_BYTES)

    def _in_order(self, fetch: _Fetch) -> bool:
        """The fetch goes on where the ledger's last one ended, close by in the log, and a chunk may be read there."""
        last = self._followed.get(fetch.ledger)
        _, _, _, offset, length = fetch.place
        if last is None or last[1] != fetch.entry or length > CHUNK_BYTES:
            return False
        if last[0] == fetch.segment.seq and not 0 <= offset + CHUNK_BYTES - last[2] <= DENSE_BYTES + CHUNK_BYTES:
            return False
        settled = self._settled(fetch.segment)
        return min(padded(offset + length, CHUNK_BYTES), fetch.segment.log_end) <= settled

    def _follow(self, fetch: _Fetch, *, ahead: bool) -> None:
        """Remember where the reader is and, for one that goes on in order, have the next chunk ready in time."""
        end = fetch.place[3] + fetch.place[4]
        self._followed[fetch.ledger] = (fetch.segment.seq, fetch.entry + fetch.count, end)
        self._followed.move_to_end(fetch.ledger)
        if len(self._followed) > _FOLLOWED:
            self._followed.popitem(last=False)
        if ahead and end % CHUNK_BYTES >= CHUNK_BYTES // 4:
            begin, settled = padded(end, CHUNK_BYTES), self._settled(fetch.segment)
            if min(begin + CHUNK_BYTES, fetch.segment.log_end) <= settled and begin < settled:
                self._chunks.load(fetch.segment, begin, begin + 1, settled, None)


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
        self._finished()
