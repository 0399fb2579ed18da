"""Tells ledgers with the same id apart by their birth, because ids have been used again.

Our clients name a ledger's birth once per connection, before the first request about it; the store keeps the birth that
admission learned. If both are known and differ, the stored data belongs to another ledger and says nothing about the
requested one. Births are compared for equality, never ordered.
"""

from __future__ import annotations

from buckram.bookie.storage.ledger_table import LedgerRecord
from buckram.types import NO_BIRTH, LedgerId

MAX_NAMED = 8192
"""The most births that are kept for one connection; clients rely on fewer (core/wire/client_protocol)."""


class Births:
    """The births that one connection has named, and the ledgers that were checked for it without a name."""

    __slots__ = ("checked", "named")

    def __init__(self) -> None:
        self.named: dict[LedgerId, bytes] = {}
        self.checked: dict[LedgerId, None] = {}
        """Ledgers without a name whose adds were compared with metadata."""

    def name(self, ledger_id: LedgerId, birth: bytes) -> None:
        """Record that the connection's requests about this id mean the ledger of this birth."""
        named = self.named
        named.pop(ledger_id, None)
        named[ledger_id] = birth
        if len(named) > MAX_NAMED:
            del named[next(iter(named))]

    def check(self, ledger_id: LedgerId) -> None:
        """Record that metadata was asked about adds without a name."""
        self.checked[ledger_id] = None
        if len(self.checked) > MAX_NAMED:
            del self.checked[next(iter(self.checked))]


def is_other(record: LedgerRecord | None, birth: bytes | None) -> bool:
    """Return whether the stored data certainly belongs to another ledger than the one of this birth (None: none
    named)."""
    return bool(birth) and record is not None and record.birth != birth and record.birth != NO_BIRTH
