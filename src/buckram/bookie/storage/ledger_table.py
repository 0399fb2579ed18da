"""Ledger states: what the bookie knows of each ledger besides its entries, with bounded memory.

On disk, footers of sealed segments hold the states of the ledgers they touched, and a sorted table file holds the
newest state from all segments up to one (`covered`). In memory are the records that an unsealed segment touched and the
most recently used others.
Not here: how the table file is recorded (`bookie/storage/superblock.py`).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from buckram.bookie.storage.read_results import unless_harmless
from buckram.bookie.storage.segments.index import LedgerIndex
from buckram.bookie.storage.segments.segments import Footer, FooterRepair, Segment, SegmentList
from buckram.core.storage.ledger_state import STATE_SIZE, StoredLedgerState
from buckram.core.storage.segment_format import KEY_RECORD, PAGE, PAGE_DATA, CorruptBytes, Trailer, pack_page
from buckram.types import LedgerId

_STATES_A_PAGE = PAGE_DATA // STATE_SIZE
_CHUNK = 1 << 20
RECORD_COST = 500
"""Estimated bytes of memory for a record and its place in a dictionary."""


@dataclass(slots=True, eq=False)
class LedgerRecord(StoredLedgerState):
    """The live state of a ledger. Valid until the next await: ask the store again afterwards.

    `limbo`: the store may have lost part of this ledger, so absence proves nothing.
    """

    limbo: bool = False
    active_index: LedgerIndex | None = None

    def snapshot(self) -> StoredLedgerState:
        return StoredLedgerState(
            self.ledger_id,
            self.master_key,
            self.fenced,
            self.tombstone,
            self.admitted,
            self.born,
            self.epoch,
            self.lac,
            self.last,
            self.explicit_lac,
            self.birth,
            self.proven,
        )


def record_of(state: StoredLedgerState) -> LedgerRecord:
    return LedgerRecord(
        state.ledger_id,
        state.master_key,
        state.fenced,
        state.tombstone,
        state.admitted,
        state.born,
        state.epoch,
        state.lac,
        state.last,
        state.explicit_lac,
        state.birth,
        state.proven,
    )


@dataclass(slots=True)
class Losses:
    """Number of times that the store may have lost data (`count`), and whether limbo is in force (`limbo`)."""

    count: int = 0
    limbo: bool = False

    def marks(self, state: StoredLedgerState) -> bool:
        """Return whether the ledger is in limbo: it is not known to be younger than the newest loss."""
        return self.limbo and state.born < self.count


class LedgerTable:
    """Finds records: in memory, in the footers of segments that the table does not cover, and in the table file.

    `limit` is how many records are kept in memory besides the pinned ones.
    """

    def __init__(self, limit: int, losses: Losses, segments: SegmentList, repair: FooterRepair) -> None:
        self._limit, self._losses = limit, losses
        self._uncovered, self._repair = segments.uncovered, repair
        self.pinned: dict[LedgerId, LedgerRecord] = {}
        self._cached: OrderedDict[LedgerId, LedgerRecord] = OrderedDict()
        self.file: Footer | None = None

    def find(self, ledger: LedgerId) -> LedgerRecord | None:
        """Return the record of a ledger; None if nothing is known of it. StoreError as in `load`."""
        record = self.pinned.get(ledger)
        if record is not None:
            return record
        record = self._cached.get(ledger)
        if record is not None:
            self._cached.move_to_end(ledger)
            return record
        state = self.load(ledger)
        if state is None:
            return None
        record = record_of(state)
        record.limbo = self._losses.marks(record)
        self._remember(record)
        return record

    @property
    def cached(self) -> int:
        """Return the number of records in memory besides the pinned ones."""
        return len(self._cached)

    def _remember(self, record: LedgerRecord) -> None:
        self._cached[record.ledger_id] = record
        if len(self._cached) > self._limit:
            self._cached.popitem(last=False)

    def load(self, ledger: LedgerId) -> StoredLedgerState | None:
        """Return the ledger's newest state in segments and table; changes in the active segment are only in `pinned`.

        Raises StoreError if they cannot be read just now.
        """
        for segment in self._uncovered():
            try:
                state = segment.state(ledger)
            except (CorruptBytes, OSError) as error:
                unless_harmless(error, f"the index of log file {segment.name}")
                self._repair.repair_footer(segment)
                if segment.index is None:
                    # Beyond repair, so the store is in limbo; an older state could lack a fence.
                    return None
                state = segment.state(ledger)
            if state is not None:
                return state
        if self.file is None:
            return None
        try:
            return self.file.find_state(ledger)
        except (CorruptBytes, OSError) as error:
            unless_harmless(error, "the ledger table")
            self._repair.repair_footer(None)
            return None

    def pin(self, record: LedgerRecord) -> None:
        """Keep in memory a record that the active segment touched, until that segment is sealed."""
        self._cached.pop(record.ledger_id, None)
        self.pinned[record.ledger_id] = record

    def unpin(self, ledger_index: LedgerIndex) -> None:
        """Unpin the record of a segment that is sealed now, unless a later segment has touched it, too."""
        record = self.pinned.get(ledger_index.record.ledger_id)
        if record is not None and record.active_index is ledger_index:
            record.active_index = None
            del self.pinned[record.ledger_id]
            self._remember(record)

    def refresh_limbo(self) -> None:
        """Mark all records in memory anew, after `Losses` changed."""
        for records in (self.pinned, self._cached):
            for record in records.values():
                record.limbo = self._losses.marks(record)

    def in_memory(self) -> list[list[LedgerId]]:
        """Return the pinned ledgers, then the ledgers of each unsealed segment, as copies in no order."""
        indexes = [segment.index for segment in self._uncovered() if segment.index is not None]
        return [list(self.pinned), *(list(index.ledgers) for index in indexes)]

    @property
    def highest(self) -> LedgerId:
        """Return the highest ledger that is or was here, deleted ones included; -1 if there never was one."""
        highest = max(self.pinned, default=-1)
        for segment in self._uncovered():
            if segment.index is not None:
                highest = max(highest, max(segment.index.ledgers, default=-1))
            elif segment.footer is not None:
                highest = max(highest, segment.footer.trailer.highest)
        return highest if self.file is None else max(highest, self.file.trailer.highest)

    def marks(self, after: LedgerId, limit: int) -> tuple[dict[LedgerId, bool], LedgerId | None]:
        """Return whether it is deleted for each ledger above `after` that sealed segments and the table know.

        The mapping is complete up to the id that is returned with it (None: to the end). About `limit` ledgers are read
        of each file. Raises CorruptBytes and OSError.
        """
        footers = [one.footer for one in self._uncovered() if one.footer is not None]
        if self.file is not None:
            footers.append(self.file)
        up_to: LedgerId | None = None
        found: list[tuple[int, list[tuple[LedgerId, bool]]]] = []
        for rank, footer in sorted(enumerate(footers), key=lambda one: one[1].trailer.lowest):
            if footer.trailer.highest <= after:
                continue
            if up_to is not None and footer.trailer.lowest > up_to:
                break
            marks = footer.marks(after, limit)
            if len(marks) >= limit:
                up_to = marks[-1][0] if up_to is None else min(up_to, marks[-1][0])
            found.append((rank, marks))
        newest: dict[LedgerId, bool] = {}
        for _, marks in sorted(found, key=lambda one: -one[0]):
            newest.update(marks)
        return newest, up_to

    def records(self, newest_first: Sequence[Segment]) -> Iterator[tuple[LedgerId, bytes]]:
        """Return the newest packed state of each ledger of these sealed segments and the table, in ascending order.

        A state is returned as the ledger's id and the remaining bytes. Raises CorruptBytes or OSError for a bad page.
        """
        footers = [segment.footer for segment in newest_first if segment.footer is not None]
        if self.file is not None:
            footers.append(self.file)
        previous = -1
        for ledger, _, rest in heapq.merge(*(footer.ranked(rank) for rank, footer in enumerate(footers))):
            if ledger != previous:
                previous = ledger
                yield ledger, rest

    def states(self, after: LedgerId) -> Iterator[StoredLedgerState]:
        """Return the newest state of each ledger above `after`, ascending. Raises CorruptBytes or OSError."""
        mine = sorted(ledger for ledger in self.pinned if ledger > after)
        sources: list[Iterator[tuple[LedgerId, int, StoredLedgerState]]] = []
        sources.append((ledger, 0, self.pinned[ledger]) for ledger in mine)
        for rank, segment in enumerate(self._uncovered(), 1):
            sources.append(_ranked(rank, _states_of(segment, after)))
        if self.file is not None:
            sources.append(_ranked(1 << 30, self.file.states(after)))
        previous = -1
        for ledger, _, state in heapq.merge(*sources, key=lambda item: item[:2]):
            if ledger != previous:
                previous = ledger
                yield state


def _ranked(rank: int, states: Iterator[StoredLedgerState]) -> Iterator[tuple[LedgerId, int, StoredLedgerState]]:
    for state in states:
        yield state.ledger_id, rank, state


def _states_of(segment: Segment, after: LedgerId) -> Iterator[StoredLedgerState]:
    if segment.index is not None:
        ledgers = segment.index.ledgers
        return (ledgers[ledger].state for ledger in sorted(ledgers) if ledger > after)
    return iter(()) if segment.footer is None or not segment.has_states else segment.footer.states(after)


class TableWriter:
    """Turns ascending states into the bytes of a table file, a megabyte at a time."""

    def __init__(self, number: int, salt: int) -> None:
        self._number, self._salt = number, salt
        self._page, self._keys = bytearray(), bytearray()
        self._out: list[bytes] = []
        self._pages = self.states = 0
        self._highest = -1

    def add(self, ledger: LedgerId, rest: bytes) -> bytes | None:
        """Add a packed state. Returns the bytes to write next, or None while there is less than a megabyte."""
        key = KEY_RECORD.pack(ledger)
        if not self._page:
            self._keys += key
        self._page += key
        self._page += rest
        self._highest = ledger
        self.states += 1
        if len(self._page) == _STATES_A_PAGE * STATE_SIZE:
            self._flush_page()
        return self._take() if len(self._out) * PAGE >= _CHUNK else None

    def _flush_page(self) -> None:
        self._out.append(pack_page(self._number, self._pages, bytes(self._page)))
        self._pages += 1
        self._page.clear()

    def _take(self) -> bytes:
        data = b"".join(self._out)
        self._out.clear()
        return data

    def finish(self) -> bytes:
        """Return the last bytes: the remaining states, the keys and the trailer."""
        if self._page:
            self._flush_page()
        step = PAGE_DATA // KEY_RECORD.size * KEY_RECORD.size
        for start in range(0, len(self._keys), step):
            self._out.append(pack_page(self._number, self._pages, bytes(self._keys[start : start + step])))
            self._pages += 1
        lowest = KEY_RECORD.unpack_from(self._keys)[0] if self._keys else 0
        self._out.append(Trailer(self._number, 0, 0, 0, 0, self.states, self._salt, lowest, self._highest, 0).pack())
        return self._take()
