"""Where things are in the tree of keys: Apache's root, and Buckram's own keys beside it.

Pure. Apache's tools refuse to work on a root that holds foreign keys, so ours are never under `root`.
"""

from __future__ import annotations

from dataclasses import dataclass

from buckram.errors import InvalidArgument
from buckram.types import MAX_LEDGER_ID, BookieId, LedgerId

_DIGITS = 19


@dataclass(frozen=True, slots=True)
class Layout:
    """Keys of a flat tree: a ledger's name is its id with leading zeros, so that names sort as ids do."""

    root: str = "/ledgers"
    own: str = "/buckram"

    @property
    def instance_id(self) -> str:
        return f"{self.root}/INSTANCEID"

    @property
    def cookies(self) -> str:
        return f"{self.root}/cookies"

    @property
    def ledgers(self) -> str:
        return f"{self.root}/all"

    @property
    def next_ledger_id(self) -> str:
        return f"{self.own}/next-ledger-id"

    def registrations(self, *, readonly: bool) -> str:
        return f"{self.root}/available/readonly" if readonly else f"{self.root}/available"

    def registration(self, bookie_id: BookieId, *, readonly: bool) -> str:
        return f"{self.registrations(readonly=readonly)}/{bookie_id}"

    def cookie(self, bookie_id: BookieId) -> str:
        return f"{self.cookies}/{bookie_id}"

    def ledger(self, ledger_id: LedgerId) -> str:
        return f"{self.ledgers}/{self.ledger_name(ledger_id)}"

    def ledger_name(self, ledger_id: LedgerId) -> str:
        if not 0 <= ledger_id <= MAX_LEDGER_ID:
            raise InvalidArgument(f"ledger id {ledger_id}: must be between 0 and {MAX_LEDGER_ID}")
        return f"{ledger_id:0{_DIGITS}d}"

    def ledger_id(self, name: str) -> LedgerId | None:
        """The id in a child's name; None for a name that is not a ledger's."""
        if len(name) != _DIGITS or not (name.isascii() and name.isdigit()):
            return None
        return int(name)
