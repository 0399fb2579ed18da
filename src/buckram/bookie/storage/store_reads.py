"""The reading part of a store: entries as bytes, as frames, or as places in files.

Not here: how entries are found (`bookie/storage/lookup.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

from buckram.bookie.storage.commit import GroupCommit
from buckram.bookie.storage.errors import StoreError
from buckram.bookie.storage.fetching import Outcome
from buckram.bookie.storage.ledger_listing import ledgers_after, live_ledger_ids
from buckram.bookie.storage.ledger_table import LedgerTable
from buckram.bookie.storage.lookup import Lookup
from buckram.core.entries.packed import FrameParts
from buckram.core.wire.located import Located
from buckram.seams import Disk
from buckram.types import EntryId, LedgerId


class ReadableStore:
    """What Store offers to those who read; it sets these parts."""

    _disk: Disk
    _log: GroupCommit
    _table: LedgerTable
    _lookup: Lookup

    def last_entry(self, ledger_id: LedgerId) -> EntryId | None:
        """The highest entry id stored here."""
        record = self._table.find(ledger_id)
        return None if record is None or record.last < 0 else record.last

    def read(self, wanted: Sequence[tuple[LedgerId, EntryId]], done: Callable[[list[Outcome]], None]) -> None:
        """One outcome each: the stored entry, None (certainly absent) or a StoreError. May call back at once."""
        if self._log.failed is not None:
            done([StoreError("io", f"the log failed: {self._log.failed}")] * len(wanted))
            return
        self._lookup.read(wanted, done)

    def read_range(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        max_count: int,
        max_bytes: int,
        done: Callable[[list[bytes] | StoreError], None],
        *,
        from_files: bool = False,
    ) -> None:
        """Consecutive stored entries from `first` on: as many as fit when each costs its size + 4, the first always.

        [] = `first` is certainly absent. Fewer than would fit come only where the next one is not here or unreadable.
        `from_files`: what memory holds of files is not looked at.
        """
        if self._log.failed is not None:
            done(StoreError("io", f"the log failed: {self._log.failed}"))
            return
        self._lookup.read_range(ledger_id, first, max_count, max_bytes, done, from_files=from_files)

    def read_frames(
        self,
        ledger_id: LedgerId,
        first: EntryId,
        max_count: int,
        max_bytes: int,
        done: Callable[[FrameParts | None], None],
        *,
        from_files: bool = False,
    ) -> None:
        """As read_range, with the frames as they are in the log. None where that does not go: ask read_range then."""
        if self._log.failed is not None:
            done(None)
            return
        self._lookup.read_frames(ledger_id, first, max_count, max_bytes, done, from_files=from_files)

    def located(self, ledger_id: LedgerId, first: EntryId, count: int) -> Located | None:
        """Where the log files have so many entries from `first` on, or the first of them; None where they have none, or
        the disk shows its files to nobody."""
        disk = self._disk
        directory = disk.directory() if self._log.failed is None else ""
        extents = self._lookup.extents(ledger_id, first, count) if directory else []
        return Located(directory, disk.identity(), extents) if extents else None

    def entries(self, ledger_id: LedgerId) -> list[tuple[EntryId, int]]:
        """(first, count) of what is stored here, ascending and disjoint. StoreError when an index is unreadable."""
        record = self._table.find(ledger_id)
        return [] if record is None or record.tombstone else self._lookup.entries(record)

    def ledgers(self, after: LedgerId, limit: int) -> list[LedgerId]:
        """Ascending ids above `after` of ledgers that are here and not deleted; [] is the end. StoreError when a page
        of the ledger table is unreadable: an incomplete list never looks complete."""
        return ledgers_after(self._table, after, limit)

    async def live_ledger_ids(self) -> array[int]:
        """All that `ledgers` would give, in slices that leave the loop free. StoreError like there."""
        return await live_ledger_ids(self._table)
