"""Names of notes that a member may lack entries of a ledger. Pure.

Not here: their keys (`metadata/records/incomplete_copies.py`).
"""

from __future__ import annotations

from buckram.types import MAX_LEDGER_ID, BookieId, LedgerId

_DIGITS = 19


def note_name(ledger: LedgerId, bookie: BookieId) -> str:
    """Return the name of a note. Names sort in the order of ledger ids."""
    return f"{ledger:0{_DIGITS}d}@{bookie}"


def parse_note(name: str) -> tuple[LedgerId, BookieId] | None:
    """Return the ledger and the member of a note; None for a name that is not a note's."""
    digits, _, bookie = name.partition("@")
    if len(digits) != _DIGITS or not (digits.isascii() and digits.isdigit()) or not bookie:
        return None
    ledger = int(digits)
    return (ledger, bookie) if ledger <= MAX_LEDGER_ID else None
