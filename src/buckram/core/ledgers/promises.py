"""What verified headers promise: a LAC says that all up to it was acknowledged, so no ledger ends below it (F19).

A LAC counts where the writer's digest covers it: in the header of any entry (also one above the end that was found, and
one in a fencing answer that comes late) and in a sealed explicit LAC. That an entry is there promises nothing of
itself: it may never have been acknowledged. Asking is client/maintain/recover's.
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
    """The highest promise that was heard during one recovery. Only what passed its digest may be told of."""

    def __init__(self, ledger_id: LedgerId) -> None:
        self.ledger_id = ledger_id
        self.highest: Promise | None = None

    def entry(self, bookie: BookieId, entry: Entry) -> None:
        self._heard(Promise(entry.last_add_confirmed, bookie, entry.entry_id))

    def sealed_lac(self, bookie: BookieId, lac: EntryId) -> None:
        self._heard(Promise(lac, bookie, None))

    def _heard(self, promise: Promise) -> None:
        if promise.lac > (NO_ENTRY if self.highest is None else self.highest.lac):
            self.highest = promise

    def broken_by(self, end: EntryId) -> bool:
        """Whether a ledger that ends here would have lost what was acknowledged."""
        return self.highest is not None and self.highest.lac > end

    def check_end(self, end: EntryId) -> None:
        """RecoveryFailed where a promise reaches beyond the end that was found."""
        if self.highest is not None and self.highest.lac > end:
            raise RecoveryFailed(
                self.ledger_id,
                f"its bookies say that entry {end + 1} does not exist, but {self.highest}: acknowledged entries are "
                f"missing. The ledger is not closed. Start every bookie of {self.highest.lac}'s write set with its "
                "own data and recover again; `ledger delete --force` gives the ledger up",
            )
