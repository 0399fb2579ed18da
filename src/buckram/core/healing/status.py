"""What can be said of a ledger that lacks copies: why it waits, who copies it, what is lost; and the JSON of that.

Pure. These are records of our own, beside Apache's marks, which have no room for reasons.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from buckram.errors import MalformedRecord
from buckram.types import EntryId, LedgerId

Row: TypeAlias = tuple[EntryId, EntryId]
"""First and last of consecutive ids."""
NAMED_ROWS = 100
"""So many rows of lost entries are kept in a record."""


class Why(enum.StrEnum):
    """Kinds of reasons."""

    NO_BOOKIE = "no-bookie"
    """No bookie can take the copies: too few are writable, or none is where the placement wants it."""
    NO_GOOD_COPY = "no-good-copy"
    """No bookie has these entries in good order, and all that had them were asked: they are lost."""
    COPY_AWAY = "copy-away"
    """Entries whose only copies are on bookies that do not answer."""
    WRITER_LIVES = "writer-lives"
    """It is open, and its writer is at work or may be: nobody may end it."""
    TARGET_FAILED = "target-failed"
    """The bookie that was to take the copies did not."""
    UNREADABLE_RECORD = "unreadable-record"
    """Its metadata cannot be read."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something of a ledger was not repaired. `entries`: rows (first, last) of ids, ascending."""

    why: Why
    text: str
    entries: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A marked ledger that could not be made whole, as the last worker found it."""

    ledger: LedgerId
    reasons: tuple[Reason, ...]
    survivors: int
    """The fewest copies of any entry."""
    worker: str
    at_ms: int
    """When it was found so, by the worker's clock."""

    @property
    def lost(self) -> tuple[Row, ...]:
        """Entries of which no good copy is left anywhere."""
        return tuple(row for reason in self.reasons if reason.why is Why.NO_GOOD_COPY for row in reason.entries)

    def encode(self) -> bytes:
        reasons = [
            {
                "why": reason.why.value,
                "text": reason.text,
                "entries": [list(row) for row in reason.entries[:NAMED_ROWS]],
            }
            for reason in self.reasons
        ]
        record = {"reasons": reasons, "survivors": self.survivors, "worker": self.worker, "at_ms": self.at_ms}
        return json.dumps(record).encode()


def parse_waiting(key: str, ledger: LedgerId, value: bytes) -> Waiting:
    """MalformedRecord for anything but such a record. A kind of reason that is not known becomes OTHER."""
    try:
        record = json.loads(value)
        reasons = tuple(
            Reason(_why(raw["why"]), str(raw["text"]), tuple((int(a), int(b)) for a, b in raw["entries"]))
            for raw in record["reasons"]
        )
        return Waiting(ledger, reasons, int(record["survivors"]), str(record["worker"]), int(record["at_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedRecord(f"{key}: not a reason why a ledger waits ({error!r}); delete it") from None


def _why(text: object) -> Why:
    try:
        return Why(str(text))
    except ValueError:
        return Why.OTHER


def add_to_rows(rows: list[Row], entry: EntryId) -> None:
    """Note one more id; ids that come one after another share a row."""
    if rows and rows[-1][1] == entry - 1:
        rows[-1] = rows[-1][0], entry
    else:
        rows.append((entry, entry))


def named_rows(rows: Sequence[Row], most: int = 5) -> str:
    """For people: "3, 17 to 19 and 4 more"."""
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in rows[:most]]
    left = sum(last - first + 1 for first, last in rows[most:])
    return ", ".join(parts) + (f" and {left} more" if left else "")
