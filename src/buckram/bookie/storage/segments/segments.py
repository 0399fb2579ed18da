"""Log segments: their order, and the footers of sealed ones, read page by page through a bounded cache.

Nothing here writes.
Not here: the index of the segment being written (`bookie/storage/segments/index.py`); writing footers
(`bookie/storage/upkeep/log_files.py`); which files exist (`bookie/storage/superblock.py`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Protocol

from buckram.bookie.storage.segments.bad_entries import BadEntries
from buckram.bookie.storage.segments.file_cache import OpenFiles, PageCache
from buckram.bookie.storage.segments.index import Place, SegmentIndex, last_at_or_below, narrowed
from buckram.core.storage.ledger_state import StoredLedgerState, packed_states, state_marks, unpack_state
from buckram.core.storage.segment_format import (
    DIR_RECORD,
    KEY_RECORD,
    PAGE,
    PAGE_DATA,
    RUN_RECORD,
    TRAILER_SIZE,
    CorruptBytes,
    Trailer,
    open_page,
    open_trailer,
)
from buckram.seams import File
from buckram.types import EntryId, LedgerId

_RUNS_A_PAGE = PAGE_DATA // RUN_RECORD.size
_SCAN_PAGES = 64
NO_LIMIT = 1 << 62
MAX_RUNS = 256
"""The most neighbouring runs that one look-up returns."""


class DirEntry:
    """The directory record of one ledger in a sealed segment's footer, with hints for finding its runs."""

    __slots__ = ("bytes", "epoch", "first", "firsts", "hint", "hinted", "last", "ledger", "run_count", "run_index")

    def __init__(self, page: bytes, at: int) -> None:
        (self.ledger, self.first, self.last, self.run_index, self.run_count, self.bytes, self.epoch) = (
            DIR_RECORD.unpack_from(page, at * DIR_RECORD.size)
        )
        # The number of the run that was found last: a sequential reader wants the one after it.
        self.hint: int = self.run_index
        self.hinted: Place | None = None
        # First entry of each page of its runs, -1 where that is not read yet: for the binary search by page.
        self.firsts: array[int] | None = None


class FooterFile(Protocol):
    """Returns the open file of a footer; it may be opened anew each time. Raises OSError."""

    def __call__(self) -> File: ...


class Footer:
    """Reads a sealed segment's pages, or a ledger table's, which has states only.

    Every method may raise CorruptBytes (a page fails its check) or OSError.
    """

    def __init__(self, trailer: Trailer, file: FooterFile, cache: PageCache) -> None:
        self.trailer, self._file, self._cache = trailer, file, cache
        self._first_run, self._first_state = trailer.first_run_page, trailer.first_state_page
        self._width = trailer.state_size
        self._keys: tuple[array[int], array[int]] | None = None
        # The ledgers with a state here, while the table does not cover them: most searches for a state end with them.
        self.ids: array[int] | None = None

    def _load(self, number: int) -> bytes:
        page = self._file().read(self.trailer.footer_at + number * PAGE, PAGE)
        return open_page(page, self.trailer.segment, number)

    def _page(self, number: int) -> bytes:
        return self._cache.get(self.trailer.segment, number, self._load)

    def _first_keys(self) -> tuple[array[int], array[int]]:
        """Return the first ledger of each directory page and of each state page."""
        if self._keys is None:
            first, data = self.trailer.first_key_page, bytearray()
            while len(data) < self.trailer.keys * KEY_RECORD.size:
                data += self._load(first)
                first += 1
            keys = array("q", [key for (key,) in KEY_RECORD.iter_unpack(data)])
            directories = self.trailer.first_run_page
            self._keys = keys[:directories], keys[directories:]
        return self._keys

    def find(self, ledger: LedgerId) -> DirEntry | None:
        """Return what the segment holds of a ledger."""
        trailer = self.trailer
        if not trailer.lowest <= ledger <= trailer.highest:
            return None
        number = bisect_right(self._first_keys()[0], ledger) - 1
        if number < 0:
            return None
        page = self._page(number)
        at = _search(page, DIR_RECORD.size, ledger)
        return None if at is None else DirEntry(page, at)

    def find_state(self, ledger: LedgerId) -> StoredLedgerState | None:
        """Return the ledger's state as of the sealing."""
        trailer = self.trailer
        if not trailer.lowest <= ledger <= trailer.highest:
            return None
        if self.ids is not None:
            index = bisect_left(self.ids, ledger)
            if index == len(self.ids) or self.ids[index] != ledger:
                return None
            number, at = divmod(index, PAGE_DATA // self._width)
            return unpack_state(self._page(self._first_state + number), at * self._width, self._width)
        number = bisect_right(self._first_keys()[1], ledger) - 1
        if number < 0:
            return None
        page = self._page(self._first_state + number)
        found = _search(page, self._width, ledger)
        return None if found is None else unpack_state(page, found * self._width, self._width)

    def find_run(self, found: DirEntry, entry: EntryId) -> Place | None:
        """Return the run of `found` that covers `entry`."""
        if not found.first <= entry <= found.last:
            return None
        place = found.hinted
        if place is not None:
            behind = entry - place[0] - place[1]
            if entry >= place[0] and behind < 0:
                return place
            if 0 <= behind < place[1] and found.hint + 1 < found.run_index + found.run_count:
                place = self._run(found.hint + 1)
                if place[0] <= entry < place[0] + place[1]:
                    found.hint, found.hinted = found.hint + 1, place
                    return place
        number = self._last_at_or_below(found, entry)
        if number < found.run_index:
            return None
        place = self._run(number)
        if entry >= place[0] + place[1]:
            return None
        found.hint, found.hinted = number, place
        return place

    def first_in(self, found: DirEntry, low: EntryId, high: EntryId) -> EntryId:
        """Return the lowest id of `found` from `low` on, `high` if none is below it."""
        if found.last < low or found.first >= high:
            return high
        number = self._last_at_or_below(found, low)
        if number >= found.run_index:
            place = self._run(number)
            if low < place[0] + place[1]:
                return low
        return min(high, self._run(number + 1)[0])

    def _last_at_or_below(self, found: DirEntry, entry: EntryId) -> int:
        low: int = found.run_index
        end: int = low + found.run_count
        page, last = low // _RUNS_A_PAGE, (end - 1) // _RUNS_A_PAGE
        start = page
        while page < last:
            firsts = found.firsts
            if firsts is None:
                firsts = found.firsts = array("q", [-1]) * (last + 1 - page)
            middle = (page + last + 1) // 2
            first = firsts[middle - start]
            if first < 0:
                first = firsts[middle - start] = self._run(middle * _RUNS_A_PAGE)[0]
            if first <= entry:
                page = middle
            else:
                last = middle - 1
        before, runs = page * _RUNS_A_PAGE, self._page(self._first_run + page)
        return before + last_at_or_below(runs, max(low - before, 0), min(end - before, _RUNS_A_PAGE), entry)

    def _run(self, index: int) -> Place:
        number, at = divmod(index, _RUNS_A_PAGE)
        place: Place = RUN_RECORD.unpack_from(self._page(self._first_run + number), at * RUN_RECORD.size)
        return place

    def runs_behind(self, found: DirEntry) -> Iterator[Place]:
        """Return the runs after the one that `find_run` returned last."""
        for number in range(found.hint + 1, found.run_index + found.run_count):
            place = self._run(number)
            found.hint, found.hinted = number, place
            yield place

    def runs(self, found: DirEntry) -> Iterator[Place]:
        for index in range(found.run_index, found.run_index + found.run_count):
            yield self._run(index)

    def directory(self) -> Iterator[DirEntry]:
        for page in self._scan(0, self.trailer.first_run_page):
            for at in range(len(page) // DIR_RECORD.size):
                yield DirEntry(page, at)

    def states(self, after: LedgerId = -1) -> Iterator[StoredLedgerState]:
        """Return the states of ledgers above `after`, ascending; does not use the cache."""
        begin = max(0, bisect_right(self._first_keys()[1], after) - 1)
        first = self.trailer.first_state_page
        for page in self._scan(first + begin, self.trailer.first_key_page):
            for at in range(0, len(page), self._width):
                state = unpack_state(page, at, self._width)
                if state.ledger_id > after:
                    yield state

    def marks(self, after: LedgerId, limit: int) -> list[tuple[LedgerId, bool]]:
        """Return (ledger, tombstone) of at least `limit` ledgers above `after`, ascending; fewer only at the end."""
        found: list[tuple[LedgerId, bool]] = []
        page = self._first_state + max(0, bisect_right(self._first_keys()[1], after) - 1)
        while len(found) < limit and page < self.trailer.first_key_page:
            marks = state_marks(self._load(page), self._width)
            found += marks if not marks or marks[0][0] > after else [mark for mark in marks if mark[0] > after]
            page += 1
        return found

    def load_states(self, file: File) -> None:
        """Read all pages of states once, in large pieces, into the system's page cache. May run in another thread."""
        end = self.trailer.first_key_page
        for first in range(self._first_state, end, _SCAN_PAGES):
            file.read(self.trailer.footer_at + first * PAGE, min(_SCAN_PAGES, end - first) * PAGE)

    def ranked(self, rank: int) -> Iterator[tuple[LedgerId, int, bytes]]:
        """Return (ledger, `rank`, rest of the packed state), ascending; does not use the cache."""
        for number in range(self._first_state, self.trailer.first_key_page):
            for ledger, rest in packed_states(self._load(number), self._width):
                yield ledger, rank, rest

    def _scan(self, begin: int, end: int) -> Iterator[bytes]:
        while begin < end:
            count = min(_SCAN_PAGES, end - begin)
            data = self._file().read(self.trailer.footer_at + begin * PAGE, count * PAGE)
            for index in range(count):
                yield open_page(data[index * PAGE : (index + 1) * PAGE], self.trailer.segment, begin + index)
            begin += count


def _search(page: bytes, width: int, ledger: LedgerId) -> int | None:
    """Return the index of the record whose first 8 bytes are `ledger`; None if there is none."""
    unpack = KEY_RECORD.unpack_from
    count = len(page) // width
    index = bisect_left(range(count), ledger, key=lambda number: unpack(page, number * width)[0])
    return index if index < count and unpack(page, index * width)[0] == ledger else None


class Segment:
    """One log file in one use of it. `index` is set while it is not sealed, `footer` afterwards.

    `base` plus a file offset is the position in the tail ring; None for segments that this process did not write.
    `log_end` is where its blocks end. The file has been written up to `zeroed_to` and is at least `made` bytes long. No
    block ends beyond `limit`; once blocks pass `grows_at`, the file should be made longer. `damage` identifies the
    loss of its blocks that was counted; 0 for none. `dead_bytes` is an estimate that compaction checks. `readers`
    counts reads under way: the file of a segment that left the list is reused only when there are none. `bad`: entries
    of it that are known to be bad; None for none.
    """

    __slots__ = (
        "bad",
        "base",
        "damage",
        "dead_bytes",
        "file",
        "footer",
        "grows_at",
        "has_states",
        "index",
        "limit",
        "log_end",
        "made",
        "name",
        "readers",
        "runs",
        "seq",
        "zeroed_to",
    )

    def __init__(self, seq: int, name: str, *, has_states: bool = True) -> None:
        self.seq, self.name, self.has_states = seq, name, has_states
        self.file: File | None = None
        self.index: SegmentIndex | None = None
        self.footer: Footer | None = None
        self.base: int | None = None
        self.bad: BadEntries | None = None
        self.limit = self.grows_at = NO_LIMIT
        self.log_end = self.zeroed_to = self.dead_bytes = self.made = self.damage = self.readers = self.runs = 0

    def find(
        self,
        ledger: LedgerId,
        entry: EntryId,
        last: EntryId,
        epoch: int,
        found: DirEntry | None = None,
        most: int = MAX_RUNS,
    ) -> tuple[list[Place], EntryId] | None:
        """Return the run that holds `entry` and the runs after it without a gap up to `last`, at most `most` in all.

        The id that is returned with them is the first one for which the runs may not be the newest copy. Runs whose
        frames have one size are narrowed to the wanted entries. `epoch` selects the live data of the ledger. `found`,
        the ledger's directory entry of a sealed segment, saves a look-up.
        """
        following: Iterable[Place] = ()
        if self.index is not None:
            ledger_index = self.index.ledgers.get(ledger)
            run = None if ledger_index is None or ledger_index.epoch != epoch else ledger_index.find(entry)
            if ledger_index is None or run is None:
                return None
            place = narrowed(run, entry, last)
            end = place[0] + place[1]
            if ledger_index.overlay:
                return [place], ledger_index.overlaid(entry + 1, end)
            if end <= last:
                following = ledger_index.runs_from(end)
        else:
            if self.footer is None:
                return None
            if found is None:
                found = self.footer.find(ledger)
            run = None if found is None or found.epoch != epoch else self.footer.find_run(found, entry)
            if found is None or run is None:
                return None
            place = narrowed(run, entry, last)
            end = place[0] + place[1]
            if end <= last:
                following = self.footer.runs_behind(found)
        places = [place]
        for run in islice(following, most - 1):
            if run[0] != end or end > last:
                break
            places.append(narrowed(run, end, last))
            end += places[-1][1]
        return places, end

    def first_in(self, ledger: LedgerId, epoch: int, low: EntryId, high: EntryId) -> EntryId:
        """Return the lowest id held from `low` on, `high` if none is below it."""
        if self.index is not None:
            ledger_index = self.index.ledgers.get(ledger)
            return high if ledger_index is None or ledger_index.epoch != epoch else ledger_index.first_in(low, high)
        found = None if self.footer is None else self.footer.find(ledger)
        if self.footer is None or found is None or found.epoch != epoch:
            return high
        return self.footer.first_in(found, low, high)

    def places(self, ledger: LedgerId, epoch: int) -> Iterator[Place]:
        if self.index is not None:
            ledger_index = self.index.ledgers.get(ledger)
            if ledger_index is not None and ledger_index.epoch == epoch:
                yield from ledger_index.places()
        elif self.footer is not None:
            found = self.footer.find(ledger)
            if found is not None and found.epoch == epoch:
                yield from self.footer.runs(found)

    def bytes_of(self, ledger: LedgerId, epoch: int) -> int:
        if self.index is not None:
            ledger_index = self.index.ledgers.get(ledger)
            return ledger_index.bytes if ledger_index is not None and ledger_index.epoch == epoch else 0
        found = None if self.footer is None else self.footer.find(ledger)
        return found.bytes if found is not None and found.epoch == epoch else 0

    def state(self, ledger: LedgerId) -> StoredLedgerState | None:
        if self.index is not None:
            ledger_index = self.index.ledgers.get(ledger)
            return None if ledger_index is None else ledger_index.state
        return None if self.footer is None or not self.has_states else self.footer.find_state(ledger)


class SegmentList(Protocol):
    """The segments of a store, and those among them that the ledger table does not cover."""

    def newest_first(self) -> Iterable[Segment]:
        """Return all segments that hold data."""
        ...

    def uncovered(self) -> Iterable[Segment]:
        """Return the segments whose ledger states are not in the table file, newest first."""
        ...


class FooterRepair(Protocol):
    """Repairs damaged footers of sealed segments."""

    def repair_footer(self, segment: Segment | None) -> None:
        """Rebuild the footer of `segment` from its blocks, or mark what is lost; None stands for the ledger table.

        Blocking. Afterwards either the segment has an index or the store is in limbo. Raises StoreError if something
        is short; then nothing has changed.
        """
        ...


def load_footer(segment: Segment, salt: int, files: OpenFiles, cache: PageCache) -> bool:
    """Set `segment.footer` from its file's last page. False if that is no valid trailer. Raises OSError."""
    file = files.get(segment.name)
    trailer = open_trailer(file.read(max(0, file.size() - TRAILER_SIZE), TRAILER_SIZE), segment.seq, salt)
    if trailer is None:
        return False
    segment.footer = Footer(trailer, lambda: files.get(segment.name), cache)
    segment.log_end = trailer.log_end
    return True


__all__ = [
    "CorruptBytes",
    "DirEntry",
    "Footer",
    "FooterRepair",
    "Segment",
    "SegmentList",
    "load_footer",
]
