"""Conclusions of clients from replies of bookies that must not occur: suspicion, or conviction (F21). Pure functions.

A conviction needs evidence that no accident can produce: an entry returned under another entry's id with a digest made
with a key that bookies never see, or an entry that a bookie acknowledged to the accusing client and that the same
incarnation denied a moment later. Everything else may be bit rot or a lost directory, and only makes a suspect.

Not here: the keys that record verdicts (`metadata/records/bookie_health.py`).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from buckram.core.entries.entry import Digest
from buckram.errors import DigestMismatch, MalformedRecord
from buckram.types import BookieId, DigestType, EntryId, LedgerId

UNFIT = "its bytes do not fit the digest that only the writer can make: damage, or a lie"
_KEPT = 10
"""The most pieces of evidence that are kept."""


class Deed(enum.Enum):
    """Misbehaviour of a bookie; the value is its name in the record."""

    MIXED = "mixed"
    UNSTORED = "unstored"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation. `incarnation` is that of the bookie, "" if it sends none; UNSTORED then convicts nobody."""

    deed: Deed
    bookie: BookieId
    incarnation: str
    ledger: LedgerId
    entry: EntryId
    detail: str
    at_us: int = 0

    @property
    def convicts(self) -> bool:
        return self.deed is Deed.MIXED or (self.deed is Deed.UNSTORED and bool(self.incarnation))

    def __str__(self) -> str:
        return f"{self.deed.value}: entry {self.entry} of ledger {self.ledger}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Accused:
    """All evidence against one bookie, oldest first."""

    bookie: BookieId
    evidence: tuple[Evidence, ...] = field(default_factory=tuple)

    @property
    def convicted(self) -> bool:
        return any(one.convicts for one in self.evidence)

    @property
    def verdict(self) -> str:
        return "convicted" if self.convicted else "suspect"

    def plus(self, more: Sequence[Evidence]) -> Accused:
        """Return the record with more evidence: each deed is kept once for a ledger and incarnation.

        Evidence that convicts is never dropped in favour of evidence that does not.
        """
        known = {(one.deed, one.ledger, one.incarnation): one for one in reversed((*self.evidence, *more))}
        found = sorted(known.values(), key=lambda one: (not one.convicts, one.at_us))[:_KEPT]
        return Accused(self.bookie, tuple(sorted(found, key=lambda one: one.at_us)))

    def encode(self) -> bytes:
        rows = [
            {
                "deed": one.deed.value,
                "incarnation": one.incarnation,
                "ledger": one.ledger,
                "entry": one.entry,
                "detail": one.detail,
                "at_us": one.at_us,
            }
            for one in self.evidence
        ]
        return json.dumps({"bookie": self.bookie, "verdict": self.verdict, "evidence": rows}).encode()


def parse_accused(key: str, value: bytes) -> Accused:
    """Parse what `encode` made. Raises MalformedRecord, with `key`, for anything else."""
    try:
        record = json.loads(value)
        rows = tuple(
            Evidence(
                Deed(row["deed"]),
                str(record["bookie"]),
                str(row["incarnation"]),
                int(row["ledger"]),
                int(row["entry"]),
                str(row["detail"]),
                int(row["at_us"]),
            )
            for row in record["evidence"]
        )
        return Accused(str(record["bookie"]), rows)
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedRecord(f"{key}: no record of an accused bookie: {error}") from error


def shown_for_another(digest: Digest, ledger: LedgerId, entry: EntryId | None, stored: bytes) -> str:
    """Return in words which sealed entry these bytes are, if it is not the requested one; "" otherwise.

    Only a MAC proves that: bookies cannot make such bytes, and damage does not.
    """
    if digest.kind is not DigestType.MAC or len(stored) < 32:
        return ""
    really = int.from_bytes(stored[:8], "big", signed=True)
    try:
        found = digest.open(really, None, stored)
    except DigestMismatch:
        return ""
    if really == ledger and (entry is None or found.entry_id == entry):
        return ""
    return f"it was answered with the sealed entry {found.entry_id} of ledger {really}"
