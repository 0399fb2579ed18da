"""Promises of verified headers: all entries up to a LAC were acknowledged, so no ledger ends below it (F19).

A LAC counts if the writer's digest covers it: in the header of any entry (also one above the end that was found, and
one in a late fencing answer) and in a sealed explicit LAC. The presence of an entry promises nothing by itself: it may
never have been acknowledged.
Not here: reading entries and LACs (`client/maintain/recover.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.errors import RecoveryFailed
from buckram.types import NO_ENTRY, BookieId, Entry, EntryId, LedgerId


@dataclass(frozen=True, slots=True)
class Promise:
    """`bookie` showed that everything up to `lac` is confirmed, by the header of `entry` (None: by a sealed LAC)."""

    lac: EntryId
    bookie: BookieId
    entry: EntryId | None

    def __str__(self) -> str:
        proof = "a sealed LAC" if self.entry is None else f"the header of entry {self.entry}"
        return f"{proof} from bookie {self.bookie} says that everything up to {self.lac} was acknowledged"


class Promises:
    """The highest promise that was found during one recovery. The caller passes only what its digest verifies."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.highest: Promise | None = None

    def entry(self, bookie: BookieId, entry: Entry) -> None:
        """Record the LAC in the header of a verified entry."""
        self._record(Promise(entry.last_add_confirmed, bookie, entry.entry_id))

    def sealed_lac(self, bookie: BookieId, lac: EntryId) -> None:
        """Record a verified explicit LAC."""
        self._record(Promise(lac, bookie, None))

    def _record(self, promise: Promise) -> None:
        if promise.lac > (NO_ENTRY if self.highest is None else self.highest.lac):
            self.highest = promise

    def broken_by(self, end: EntryId) -> bool:
        """Return whether a ledger that ends at `end` would lack acknowledged entries."""
        return self.highest is not None and self.highest.lac > end

    def check_end(self, end: EntryId) -> None:
        """Raise RecoveryFailed if a promise reaches beyond the end that was found."""
        if self.broken_by(end):
            assert self.highest is not None
            raise RecoveryFailed(
                self.ledger_id,
                f"its bookies say that entry {end + 1} does not exist, but {self.highest}: acknowledged entries are "
                f"missing. The ledger is not closed. Start every bookie of {self.highest.lac}'s write set with its "
                f"own data and recover again; `buckram ledger check {self.ledger_id}` says what each of them has",
            )
