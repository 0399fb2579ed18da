"""Fetches the bytes of located runs: recent ones from memory, others with few and large reads.

Not here: where entries are (`bookie/storage/reading/lookup.py`); chunks kept for sequential readers
(`bookie/storage/reading/read_ahead.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from buckram.bookie.storage.log.group_commit import GroupCommit
from buckram.bookie.storage.read_results import FetchCallback, Outcome, StoreError
from buckram.bookie.storage.reading.read_ahead import CHUNK_BYTES, Chunks
from buckram.bookie.storage.segments.file_cache import OpenFiles
from buckram.bookie.storage.segments.index import Place
from buckram.bookie.storage.segments.segments import Segment
from buckram.core.storage.segment_format import CorruptBytes, padded, run_extent, walk_run
from buckram.seams import Disk, Read
from buckram.types import Buffer, EntryId, LedgerId

READ_BYTES, GAP_BYTES = 1 << 20, 16 << 10
"""Neighbouring runs are fetched by one read of at most READ_BYTES, with at most GAP_BYTES of others between them."""
ALIGNMENT, ALIGNED_FROM = 4096, 64 << 10
"""Reads of at least ALIGNED_FROM begin at multiples of ALIGNMENT: only then may a disk go past the page cache."""
DENSE_BYTES = CHUNK_BYTES // 4
"""A reader whose next entry lies at most this far after the end of its last fetch gets whole chunks of the log."""
FRESH_S = 0.5
"""A read with `from_files` may use chunks that were read within this time, so that it gains from reading ahead."""
_PINNED = 4
"""A part of a buffer is sent without copying it if it is more than one in _PINNED of the buffer."""
_FOLLOWED = 1024
"""The most ledgers whose readers' positions are remembered."""


class Fetch:
    """`count` entries from `entry` on, in runs that are neighbours in the log; `place` is their union.

    The outcomes belong at `result_at` of the caller's list.
    """

    __slots__ = ("count", "entry", "frames", "ledger", "place", "result_at", "runs", "segment")

    def __init__(
        self, ledger: LedgerId, entry: EntryId, count: int, segment: Segment, runs: Sequence[Place], result_at: int
    ) -> None:
        self.ledger, self.entry, self.count = ledger, entry, count
        self.segment, self.runs, self.result_at = segment, runs, result_at
        first, held, skip, offset, length = runs[0]
        for run in runs[1:]:
            held += run[1]
            length += run[4]
        self.place: Place = (first, held, skip, offset, length)
        self.frames: Buffer | None = None

    def deliver(self, results: list[Outcome], data: bytes, at: int) -> None:
        """Put the outcomes into `results`; the runs' bytes are data[at:]."""
        outcomes, bad = self.take(data, at), self.segment.bad
        if bad is not None:
            outcomes = bad.masked(outcomes, self.ledger, self.entry)
        results[self.result_at : self.result_at + self.count] = outcomes

    def take(self, data: bytes, at: int) -> Sequence[Outcome]:
        """Return the outcomes from the runs' bytes at data[at:]."""
        first, _, skip, offset, length = self.place
        try:
            return walk_run(
                data, at, min(len(data), at + length), skip + self.entry - first, self.ledger, self.entry, self.count
            )
        except CorruptBytes as error:
            if self.count == 1 and len(self.runs) == 1:
                return [StoreError("corrupt", str(error))]
        # Only some entries may be damaged: try one run at a time, and in a single run one entry at a time.
        outcomes: list[Outcome] = []
        end = self.entry + self.count
        for run in self.runs:
            low, high = max(self.entry, run[0]), min(end, run[0] + run[1])
            step = 1 if len(self.runs) == 1 else max(1, high - low)
            for entry in range(low, high, step):
                part = Fetch(self.ledger, entry, min(step, high - entry), self.segment, [run], 0)
                outcomes += part.take(data, at + run[3] - offset)
        return outcomes


class FrameFetch(Fetch):
    """A Fetch that puts the frames themselves into `frames`, as a part of what was read; None if they are damaged."""

    __slots__ = ()

    def deliver(self, results: list[Outcome], data: bytes, at: int) -> None:
        first, _, skip, _, length = self.place
        bad = self.segment.bad
        if bad is not None and bad.meets(self.ledger, self.entry, self.count):
            return
        try:
            start, end = run_extent(
                data, at, min(len(data), at + length), skip + self.entry - first, self.ledger, self.entry, self.count
            )
        except CorruptBytes:
            return
        # An unsent answer must not keep much more in memory than it is charged for.
        self.frames = memoryview(data)[start:end] if (end - start) * _PINNED > len(data) else data[start:end]


class Fetcher:
    """Fills lists of outcomes for all reads of a store."""

    def __init__(self, disk: Disk, files: OpenFiles, log: GroupCommit) -> None:
        self._disk, self._files, self._log = disk, files, log
        self._chunks = Chunks(disk, files)
        # Where the last fetch of a ledger ended: segment number, next entry, file offset.
        self._followed: OrderedDict[LedgerId, tuple[int, EntryId, int]] = OrderedDict()

    @property
    def cached_bytes(self) -> int:
        """Bytes of log files that are in memory for sequential readers."""
        return self._chunks.held_bytes

    def fetch(
        self,
        fetches: Sequence[Fetch],
        results: list[Outcome],
        finished: FetchCallback,
        *,
        from_files: bool = False,
    ) -> None:
        """Fill `results` from memory, by chunks for sequential readers, and for the rest with one batch of reads.

        `from_files`: take from memory only what is not written yet, and chunks only if they were read within FRESH_S.
        """
        exact: list[Fetch] = []
        chunked: list[Fetch] = []
        jumping: set[LedgerId] = set()
        for fetch in fetches:
            _, _, _, offset, length = fetch.place
            data: bytes | None = None
            at = 0
            if not from_files or not self._log.written(fetch.segment, offset + length):
                data = self._log.recent(fetch.segment, offset, length)
            else:
                self._chunks.forget_older(fetch.segment, offset, length, FRESH_S)
            if data is None:
                cut = self._chunks.cut(fetch.segment, offset, length)
                if cut is None:
                    # Consecutive fetches of one request do not make a sequential reader if the first was a jump.
                    in_order = fetch.ledger not in jumping and self._in_order(fetch)
                    if not in_order:
                        jumping.add(fetch.ledger)
                    (chunked if in_order else exact).append(fetch)
                    self._follow(fetch, ahead=in_order)
                    continue
                data, at = cut
                self._follow(fetch, ahead=fetch.ledger not in jumping)
            fetch.deliver(results, data, at)
        if chunked:
            self._fetch_chunks(chunked, exact, results, finished)
        elif exact:
            if from_files:
                # Open the names anew, as a restart would: files may have been removed or replaced.
                for name in dict.fromkeys(fetch.segment.name for fetch in exact):
                    self._files.forget(name)
            _DiskFetch(self, exact, results, finished).start()
        else:
            finished()

    def _fetch_chunks(
        self, chunked: list[Fetch], exact: list[Fetch], results: list[Outcome], finished: FetchCallback
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
                    # The chunk failed or was evicted already: read the runs by themselves and report their error.
                    exact.append(fetch)
                else:
                    fetch.deliver(results, *cut)
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
        """Return up to which offset chunks of the segment are complete."""
        durable = self.durable(segment)
        return durable if segment.index is None else durable // CHUNK_BYTES * CHUNK_BYTES

    def durable(self, segment: Segment) -> int:
        """Return an offset up to which the file certainly has what was added."""
        if segment.index is None or segment.base is None:
            return segment.log_end
        # Bytes that wait for the disk are never older than half of the ring.
        return max(0, self._log.ring.head - self._log.ring.size // 2 - segment.base)

    def _in_order(self, fetch: Fetch) -> bool:
        """Return whether the fetch continues the ledger's last one, close by in the log, where chunks are complete."""
        last = self._followed.get(fetch.ledger)
        _, _, _, offset, length = fetch.place
        if last is None or last[1] != fetch.entry or length > CHUNK_BYTES:
            return False
        if last[0] == fetch.segment.seq and not 0 <= offset + CHUNK_BYTES - last[2] <= DENSE_BYTES + CHUNK_BYTES:
            return False
        settled = self._settled(fetch.segment)
        return min(padded(offset + length, CHUNK_BYTES), fetch.segment.log_end) <= settled

    def _follow(self, fetch: Fetch, *, ahead: bool) -> None:
        """Remember where the reader is and, for a sequential one, load the next chunk in time."""
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
    """One batch of reads from files."""

    def __init__(self, fetcher: Fetcher, missing: list[Fetch], results: list[Outcome], finished: FetchCallback) -> None:
        self._fetcher, self._results, self._finished = fetcher, results, finished
        self._missing = sorted(missing, key=lambda fetch: (fetch.segment.seq, fetch.place[3]))
        self._spans: list[tuple[Segment, int, int]] = []
        self._starts: list[tuple[int, int]] = []
        self._begins: list[int] = []
        self._held: list[Segment] = []

    def start(self) -> None:
        fetcher = self._fetcher
        for fetch in self._missing:
            self._add(fetch)
        self._starts = [(segment.seq, start) for segment, start, _ in self._spans]
        reads: list[Read] = []
        try:
            for segment, start, end in self._spans:
                begin = start // ALIGNMENT * ALIGNMENT if end - start >= ALIGNED_FROM else start
                self._begins.append(begin)
                reads.append(Read(fetcher._files.hold(segment.name), begin, end - begin))
                segment.readers += 1
                self._held.append(segment)
        except OSError as error:
            self._done(error)
            return
        fetcher._disk.read(reads, self._done)

    def _add(self, fetch: Fetch) -> None:
        segment, (_, _, _, start, length) = fetch.segment, fetch.place
        end = start + length
        if self._spans:
            last, begin, so_far = self._spans[-1]
            if last is segment and start - so_far <= GAP_BYTES and max(end, so_far) - begin <= READ_BYTES:
                self._spans[-1] = (last, begin, max(end, so_far))
                return
        self._spans.append((segment, start, end))

    def _done(self, outcome: list[bytes] | OSError) -> None:
        fetcher = self._fetcher
        for segment in self._held:
            segment.readers -= 1
            fetcher._files.release(segment.name)
        for fetch in self._missing:
            if isinstance(outcome, OSError):
                error = StoreError("io", f"reading log file {fetch.segment.name} failed: {outcome}")
                self._results[fetch.result_at : fetch.result_at + fetch.count] = [error] * fetch.count
                continue
            number = bisect_left(self._starts, (fetch.segment.seq, fetch.place[3] + 1)) - 1
            at = fetch.place[3] - self._begins[number]
            fetch.deliver(self._results, outcome[number], at)
        self._finished()
