"""Which entry of a ledger holds a record, by reading few of them. Which ledger it is in is stream_plan's business."""

from __future__ import annotations

from buckram.client.read.reader import Reader
from buckram.core.streams.names import StreamName
from buckram.streams.shared.recovery import entry_header
from buckram.types import EntryId


class Finder:
    """Entries of one ledger by offset."""

    def __init__(self, name: StreamName, reader: Reader, base: int, last: EntryId, records: int) -> None:
        self.base = base
        self._name, self._reader, self._last, self._records = name, reader, last, records
        self._known: dict[EntryId, tuple[int, int]] = {}

    def first_of(self, entry: EntryId) -> int:
        """The offset of the first record of an entry that entry_of gave."""
        return self._known[entry][0]

    async def entry_of(self, offset: int, guess: EntryId) -> EntryId:
        """The entry that holds the record; `guess`: where it or a near one is, -1 for none."""
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
                # Entries without records stand between; this does not happen for an offset that is there.
                return min(max(low, 0), self._last)
            # Near a good guess by doubling steps, else by halves.
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


__all__ = ["Finder"]
