"""Where entries lie in one segment: the index in memory while it is written, and the footer it becomes.

A LedgerIndex says what one segment holds of one ledger: fixed-size run records in a bytearray, ascending, no object
per run. Adds at or below the highest id go to a small overlay that is merged when the segment is sealed. Footers of
sealed segments are read in segments.py.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from heapq import merge

from buckram.core.storage.ledger_state import STATE_SIZE, StoredLedgerState
from buckram.core.storage.segment_format import (
    DIR_RECORD,
    EVEN,
    KEY_RECORD,
    PAGE,
    PAGE_DATA,
    RUN_RECORD,
    Trailer,
    pack_pages,
    padded,
)
from buckram.types import NO_ENTRY, EntryId, LedgerId

Place = tuple[int, int, int, int, int]
"""A run: first entry, count, frames to skip, file offset, length in bytes. Skipped frames belong to earlier entries. In
an index the third field may be EVEN (all frames have one size); `narrowed` resolves that for readers.

It is a plain tuple, and not a NamedTuple, because each read unpacks some."""

LEDGER_COST, OVERLAY_COST = 600, 250
"""Estimated bytes of memory for a ledger in a segment's index, and for an entry in an overlay."""
_PACK, _UNPACK, _SIZE = RUN_RECORD.pack, RUN_RECORD.unpack_from, RUN_RECORD.size
_ID = KEY_RECORD.unpack_from
_RUNS_AT_ONCE = 32
_SORTED_AT_ONCE = 2000
_SLICE = 100
"""Pages or ledgers handled between two yields: half a millisecond."""


class LedgerIndex:
    """One ledger in one unsealed segment. `last` is its highest entry id in this segment."""

    __slots__ = ("bytes", "epoch", "frozen", "last", "overlay", "record", "runs", "segment")

    def __init__(self, segment: int, record: StoredLedgerState) -> None:
        self.segment, self.record, self.epoch = segment, record, record.epoch
        self.last: EntryId = NO_ENTRY
        self.runs = bytearray()
        self.overlay: dict[EntryId, tuple[int, int, int]] | None = None
        self.bytes = 0
        # The record as it was when a later segment took it over; None while the live record is valid.
        self.frozen: StoredLedgerState | None = None

    @property
    def state(self) -> StoredLedgerState:
        return self.record if self.frozen is None else self.frozen

    def insert(self, first: EntryId, count: int, offset: int, length: int, *, even: bool) -> int:
        """Add a run; the newest place of an id wins. Returns the overlay's growth."""
        if first <= self.last:
            return self._insert_again(first, count, offset, length)
        self.runs += _PACK(first, count, EVEN if even else 0, offset, length)
        self.last = first + count - 1
        return 0

    def _insert_again(self, first: EntryId, count: int, offset: int, length: int) -> int:
        """Add a run that begins at or below `last`."""
        overlay = self.overlay
        if overlay is None:
            overlay = self.overlay = {}
        before = len(overlay)
        below = min(count, self.last + 1 - first)
        for skip in range(below):
            overlay[first + skip] = (skip, offset, length)
        if below < count:
            self.runs += _PACK(first + below, count - below, below, offset, length)
            self.last = first + count - 1
        return len(overlay) - before

    def clear(self, epoch: int) -> None:
        """Forget the runs, because the ledger was deleted; `epoch` is the one after the deletion."""
        self.runs, self.overlay, self.last, self.epoch = bytearray(), None, NO_ENTRY, epoch

    def first_in(self, low: EntryId, high: EntryId) -> EntryId:
        """Return the lowest id held from `low` on, `high` if none is below it."""
        if low > self.last:
            return high
        number = last_at_or_below(self.runs, 0, len(self.runs) // _SIZE, low)
        if number >= 0:
            first, count, _, _, _ = _UNPACK(self.runs, number * _SIZE)
            if low < first + count:
                return low
        if (number + 1) * _SIZE < len(self.runs):
            high = min(high, _UNPACK(self.runs, (number + 1) * _SIZE)[0])
        return self.overlaid(low, high)

    def overlaid(self, low: EntryId, high: EntryId) -> EntryId:
        """Return the lowest id in the overlay from `low` on, `high` if none is below it."""
        if self.overlay:
            if high - low > len(self.overlay):
                return min((entry for entry in self.overlay if low <= entry < high), default=high)
            for entry in range(low, high):
                if entry in self.overlay:
                    return entry
        return high

    def find(self, entry: EntryId) -> Place | None:
        """Return the run that holds `entry`. The overlay may have newer copies of its later entries, see `overlaid`."""
        if entry > self.last:
            return None
        if self.overlay is not None:
            place = self.overlay.get(entry)
            if place is not None:
                return (entry, 1, *place)
        return find_run(self.runs, len(self.runs) // _SIZE, entry)

    def runs_from(self, entry: EntryId) -> Iterator[Place]:
        """Return some of the runs that begin at or above `entry`, ascending, without regard to the overlay."""
        at = (last_at_or_below(self.runs, 0, len(self.runs) // _SIZE, entry - 1) + 1) * _SIZE
        yield from RUN_RECORD.iter_unpack(self.runs[at : at + _RUNS_AT_ONCE * _SIZE])

    def places(self) -> Iterator[Place]:
        """Return all runs, ascending and disjoint, with the overlay merged in."""
        if not self.overlay:
            yield from RUN_RECORD.iter_unpack(self.runs)
            return
        extra = sorted(self.overlay)
        at = 0
        for run in RUN_RECORD.iter_unpack(self.runs):
            first, end = run[0], run[0] + run[1]
            while at < len(extra) and extra[at] < end:
                entry = extra[at]
                if entry > first:
                    yield _piece(run, first, entry)
                yield (entry, 1, *self.overlay[entry])
                at += 1
                first = max(first, entry + 1)
            if first < end:
                yield _piece(run, first, end)
        for entry in extra[at:]:
            yield (entry, 1, *self.overlay[entry])

    def merged(self) -> bytes | bytearray:
        """Return the run records for the footer."""
        if not self.overlay:
            return self.runs
        return b"".join([_PACK(*place) for place in self.places()])


def _piece(run: Place, first: EntryId, end: EntryId) -> Place:
    """Return the part of a run from `first` to before `end`. Its bytes may extend beyond if frames differ in size."""
    if first == run[0] and end == first + run[1]:
        return run
    if run[2] == EVEN:
        return narrowed(run, first, end - 1)
    return first, end - first, run[2] + first - run[0], run[3], run[4]


def narrowed(run: Place, entry: EntryId, last: EntryId) -> Place:
    """Return the place of the entries from `entry`, which the run holds, to `last`, as far as they are in the run.

    If all frames have one size, it has only these entries, otherwise it is the whole run.
    """
    first, count, skip, offset, length = run
    if skip != EVEN:
        return run
    stride, held = length // count, min(last + 1 - entry, first + count - entry)
    return entry, held, 0, offset + (entry - first) * stride, held * stride


def last_at_or_below(records: bytes | bytearray, low: int, high: int, entry: EntryId) -> int:
    """Return the number of the last record that begins at or below `entry`; low - 1 if none does.

    The records from number `low` to before `high` are searched; they are ascending.
    """
    while low < high:
        middle = (low + high) // 2
        if _ID(records, middle * _SIZE)[0] <= entry:
            low = middle + 1
        else:
            high = middle
    return low - 1


def find_run(records: bytes | bytearray, count: int, entry: EntryId) -> Place | None:
    """Return the record among `count` ascending ones that covers `entry`; None if there is none."""
    number = last_at_or_below(records, 0, count, entry)
    if number < 0:
        return None
    place: Place = _UNPACK(records, number * _SIZE)
    return place if entry < place[0] + place[1] else None


class SegmentIndex:
    """The index of one unsealed segment, by ledger; `cost` estimates its memory in bytes."""

    __slots__ = ("ledgers", "overlays")

    def __init__(self) -> None:
        self.ledgers: dict[LedgerId, LedgerIndex] = {}
        self.overlays = 0

    def cost(self, runs: int) -> int:
        return len(self.ledgers) * LEDGER_COST + self.overlays * OVERLAY_COST + runs * _SIZE


class FooterBuilder:
    """Collects ledgers in ascending order and lays them out as the pages and trailer of a sealed segment."""

    def __init__(self, segment: int, salt: int) -> None:
        self._segment, self._salt = segment, salt
        self._directory, self._runs, self._states = bytearray(), bytearray(), bytearray()
        self.ids: array[int] = array("q")
        """The ledgers with a state, ascending."""
        self._data_bytes = 0
        self._lowest, self._highest = 2**63 - 1, -1

    def add(self, ledger: LedgerId, runs: bytes | bytearray, data_bytes: int, epoch: int) -> None:
        """Add the run records of one ledger, ascending and disjoint. No-op without records."""
        if not runs:
            return
        first = _UNPACK(runs, 0)[0]
        tail = _UNPACK(runs, len(runs) - _SIZE)
        self._directory += DIR_RECORD.pack(
            ledger, first, tail[0] + tail[1] - 1, len(self._runs) // _SIZE, len(runs) // _SIZE, data_bytes, epoch
        )
        self._runs += runs
        self._data_bytes += data_bytes
        self._seen(ledger)

    def add_state(self, state: StoredLedgerState) -> None:
        self._states += state.pack()
        self.ids.append(state.ledger_id)
        self._seen(state.ledger_id)

    def _seen(self, ledger: LedgerId) -> None:
        self._lowest, self._highest = min(self._lowest, ledger), max(self._highest, ledger)

    def lay_out(self, log_end: int, file_size: int, parts: list[bytes]) -> Iterator[None]:
        """Append the footer's bytes to `parts`, with pauses. It ends where the file ends, or beyond if it must.

        The trailer is the last page of the file; `Trailer.footer_at` is read back with open_trailer(parts[-1], ...).
        """
        keys = _page_keys(self._directory, DIR_RECORD.size) + _page_keys(self._states, STATE_SIZE)
        trailer = Trailer(
            self._segment,
            log_end,
            0,
            len(self._directory) // DIR_RECORD.size,
            len(self._runs) // _SIZE,
            len(self._states) // STATE_SIZE,
            self._salt,
            self._lowest,
            self._highest,
            self._data_bytes,
        )
        size = (trailer.pages + 1) * PAGE
        # Both ends on page boundaries: a direct write must be aligned.
        start = max(padded(log_end, PAGE), padded(file_size, PAGE) - size)
        number = 0
        for records, width in (
            (self._directory, DIR_RECORD.size),
            (self._runs, _SIZE),
            (self._states, STATE_SIZE),
            (keys, KEY_RECORD.size),
        ):
            for page in pack_pages(self._segment, number, records, width):
                parts.append(page)
                number += 1
                if number % _SLICE == 0:
                    yield
        parts.append(
            Trailer(
                trailer.segment,
                log_end,
                start,
                trailer.directory,
                trailer.runs,
                trailer.states,
                trailer.salt,
                trailer.lowest,
                trailer.highest,
                trailer.data_bytes,
            ).pack()
        )


def _page_keys(records: bytearray, width: int) -> bytes:
    """Return the ledger ids (8 bytes each) of the first record of each page."""
    step = PAGE_DATA // width * width
    return b"".join([records[start : start + 8] for start in range(0, len(records), step)])


def build_footer(builder: FooterBuilder, index: SegmentIndex) -> Iterator[None]:
    """Feed a whole index to `builder`, with pauses. The index must not change meanwhile: its segment is full."""
    indexes = index.ledgers
    ledgers, pieces = list(indexes), []
    for start in range(0, len(ledgers), _SORTED_AT_ONCE):
        pieces.append(sorted(ledgers[start : start + _SORTED_AT_ONCE]))
        yield
    for number, ledger in enumerate(merge(*pieces)):
        ledger_index = indexes[ledger]
        builder.add(ledger, ledger_index.merged(), ledger_index.bytes, ledger_index.epoch)
        builder.add_state(ledger_index.state)
        if number % _SLICE == _SLICE - 1 or ledger_index.overlay:
            yield
