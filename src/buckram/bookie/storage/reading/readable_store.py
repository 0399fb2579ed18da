"""The reading part of a store: entries as bytes, as frames, or as places in files.

Not here: how entries are found (`bookie/storage/reading/lookup.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from buckram.bookie.storage.ledger_table import LedgerTable
from buckram.bookie.storage.log.group_commit import GroupCommit
from buckram.bookie.storage.read_results import FramesCallback, OutcomesCallback, RangeCallback, StoreError
from buckram.bookie.storage.reading.ledger_listing import ledgers_after, live_ledger_ids
from buckram.bookie.storage.reading.lookup import Lookup
from buckram.core.wire.located import Located
from buckram.seams import Disk
from buckram.types import EntryId, LedgerId


class ReadableStore:
    """The reading methods of Store, which sets these attributes."""

    _disk: Disk
    _log: GroupCommit
    _table: LedgerTable
    _lookup: Lookup

    def last_entry(self, ledger_id: LedgerId) -> EntryId | None:
        """Return the highest entry id stored here; None if there is none."""
        record = self._table.find(ledger_id)
        return None if record is None or record.last < 0 else record.last

    def read(self, wanted: Sequence[tuple[LedgerId, EntryId]], done: OutcomesCallback) -> None:
        """Pass one outcome per entry to `done`: the entry, None (certainly absent) or a StoreError.

        The call may come before this method returns.
        """
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
        done: RangeCallback,
        *,
        from_files: bool = False,
    ) -> None:
        """Read consecutive entries from `first`: as many as fit if each costs its size + 4, but always the first.

        [] means that `first` is certainly absent. Fewer than would fit are returned only if the next one is absent or
        unreadable. `from_files`: read past the copies of files in memory.
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
        done: FramesCallback,
        *,
        from_files: bool = False,
    ) -> None:
        """Read raw frames, as read_range reads entries. `done` gets None if they are unavailable: fall back to
        read_range."""
        if self._log.failed is not None:
            done(None)
            return
        self._lookup.read_frames(ledger_id, first, max_count, max_bytes, done, from_files=from_files)

    def located(self, ledger_id: LedgerId, first: EntryId, count: int) -> Located | None:
        """Return where the log files hold up to `count` entries from `first`.

        None if they hold none, or if the disk does not share its files.
        """
        disk = self._disk
        directory = disk.directory() if self._log.failed is None else ""
        extents = self._lookup.extents(ledger_id, first, count) if directory else []
        return Located(directory, disk.identity(), extents) if extents else None

    def entries(self, ledger_id: LedgerId) -> list[tuple[EntryId, int]]:
        """Return (first, count) of the stored ranges, ascending and disjoint. StoreError if an index is unreadable."""
        record = self._table.find(ledger_id)
        return [] if record is None or record.tombstone else self._lookup.entries(record)

    def ledgers(self, after: LedgerId, limit: int) -> list[LedgerId]:
        """Return up to `limit` ids of live ledgers above `after`, ascending; [] is the end.

        Raises StoreError if a page of the ledger table is unreadable, rather than return an incomplete list.
        """
        return ledgers_after(self._table, after, limit)

    async def live_ledger_ids(self) -> array[int]:
        """Return the ids of all live ledgers, in slices that leave the loop free. StoreError as in `ledgers`."""
        return await live_ledger_ids(self._table)
