"""Finder: finds the entry of a ledger that holds a record, by reading the headers of a few entries.

Not here: finding the ledger (`stream_planner.py`).
"""

from __future__ import annotations

from buckram.client.read.reader import Reader
from buckram.core.streams.names import StreamName
from buckram.streams.shared.recovery import entry_header
from buckram.types import EntryId


class Finder:
    """Finds entries of one ledger by offset, and remembers the entries that it has read."""

    def __init__(self, name: StreamName, reader: Reader, base: int, last: EntryId, records: int) -> None:
        self.base = base
        """The offset of the ledger's first record."""
        self._name, self._reader, self._last, self._records = name, reader, last, records
        self._known: dict[EntryId, tuple[int, int]] = {}

    def first_of(self, entry: EntryId) -> int:
        """Return the offset of the first record of an entry that entry_of has returned."""
        return self._known[entry][0]

    async def entry_of(self, offset: int, guess: EntryId) -> EntryId:
        """Return the entry that holds the record. `guess` is an entry near it, or -1."""
        low, high = 0, self._last
        if guess < 0 and self._records:
            guess = (offset - self.base) * (self._last + 1) // self._records
        probe = min(max(guess, low), high) if guess >= 0 else (low + high) // 2
        step, near = 1, guess >= 0
        while True:
            first, stop = await self._range(probe)
            if first <= offset < stop:
                return probe
            if offset < first:
                high = probe - 1
            else:
                low = probe + 1
            if low > high:
                # There are only entries without records in between, so the ledger does not have this offset.
                return min(max(low, 0), self._last)
            # The search goes from a good guess in doubling steps, and continues as a binary search.
            wanted = probe - step if offset < first else probe + step
            step, near = 2 * step, near and step < 64
            probe = min(max(wanted, low), high) if near else (low + high) // 2

    async def _range(self, entry: EntryId) -> tuple[int, int]:
        known = self._known.get(entry)
        if known is None:
            header = entry_header(self._name, await self._reader.get(entry))
            first = self.base + header.first
            known = self._known[entry] = first, first + header.records
        return known
