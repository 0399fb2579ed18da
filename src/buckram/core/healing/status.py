"""Status of ledgers that lack copies: why each waits, by which worker, which entries are lost; and its JSON. Pure.

These are records of our own, beside Apache's marks, which have no field for reasons. Beside them are the reasons why it
is not certain that all copies exist, although no ledger is known to lack any (`Shortfall`). Those are warnings: the
cluster goes on, and machines may be restarted in turn.

Not here: the queue of marked and noted ledgers (`healing/overview.py`).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from buckram.errors import MalformedRecord
from buckram.types import BookieId, EntryId, LedgerId

Row: TypeAlias = tuple[EntryId, EntryId]
"""First and last of a row of consecutive ids."""

NAMED_ROWS = 100
"""Maximum number of rows of entries that a record keeps for each reason."""


class Why(enum.StrEnum):
    """Kinds of reasons why a ledger was not repaired."""

    NO_BOOKIE = "no-bookie"
    """No bookie can take the copies: too few are writable, or none is where the placement wants it."""
    NO_GOOD_COPY = "no-good-copy"
    """No bookie has good copies of these entries, and all that had any were asked: the entries are lost."""
    COPY_AWAY = "copy-away"
    """The only copies of these entries are on bookies that do not answer."""
    WRITER_LIVES = "writer-lives"
    """The ledger is open, and its writer is or may be at work, so it may not be closed."""
    TARGET_FAILED = "target-failed"
    """The bookie that was chosen for the copies did not take them."""
    UNREADABLE_RECORD = "unreadable-record"
    """The metadata of the ledger cannot be read."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Reason:
    """Reason why a part of a ledger was not repaired. `entries`: rows (first, last) of ids, ascending."""

    why: Why
    text: str
    entries: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitingLedger:
    """A marked ledger that could not be made whole, as the last worker found it."""

    ledger: LedgerId
    reasons: tuple[Reason, ...]
    survivors: int
    """Fewest copies that any entry has left."""
    worker: str
    at_ms: int
    """Time of this finding by the worker's clock, milliseconds since 1970."""

    @property
    def lost(self) -> tuple[Row, ...]:
        """Return the entries of which no good copy is left anywhere."""
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


def parse_waiting(key: str, ledger: LedgerId, value: bytes) -> WaitingLedger:
    """Parse the record; an unknown kind of reason becomes OTHER. Raises MalformedRecord for anything else."""
    try:
        record = json.loads(value)
        reasons = tuple(
            Reason(_why(raw["why"]), str(raw["text"]), tuple((int(a), int(b)) for a, b in raw["entries"]))
            for raw in record["reasons"]
        )
        return WaitingLedger(ledger, reasons, int(record["survivors"]), str(record["worker"]), int(record["at_ms"]))
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedRecord(f"{key}: not a reason why a ledger waits ({error!r}); delete it") from None


def _why(text: object) -> Why:
    try:
        return Why(str(text))
    except ValueError:
        return Why.OTHER


def add_to_rows(rows: list[Row], entry: EntryId) -> None:
    """Add an id to the rows; consecutive ids share a row."""
    if rows and rows[-1][1] == entry - 1:
        rows[-1] = rows[-1][0], entry
    else:
        rows.append((entry, entry))


def named_rows(rows: Sequence[Row], most: int = 5) -> str:
    """Return rows in words: "3, 17 to 19 and 4 more", where `most` rows are named and further ids are counted."""
    parts = [str(first) if first == last else f"{first} to {last}" for first, last in rows[:most]]
    left = sum(last - first + 1 for first, last in rows[most:])
    return ", ".join(parts) + (f" and {left} more" if left else "")


# -- doubts about the completeness of copies ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One such reason. `state`: "unverified" or "degraded"; `where`: a bookie, or "cluster"."""

    state: str
    where: str
    why: str


def shortfalls(
    unverified: Mapping[BookieId, int | None],
    degraded: Mapping[BookieId, str],
    *,
    checked: bool,
    attended: bool,
    untold: int = 0,
) -> list[Shortfall]:
    """Return the reasons: of the whole cluster first, then of single bookies.

    `unverified`: bookies that were away, each with the number of ledgers still to be checked (None: unknown).
    `degraded`: slow bookies, each with the reason. `checked`: whether a check of all copies was ever complete.
    `attended`: whether an auditor has begun to watch which bookies are away. `untold`: number of ledgers that the
    newest check of all copies could not judge.
    """
    found: list[Shortfall] = []
    if not checked:
        why = "no check of all copies has been completed yet, so it is not known which copies lack entries"
        found.append(Shortfall("unverified", "cluster", why))
    elif not attended:
        why = (
            "no auditor has watched yet which bookies were away, so it is not known what they lack since the last check"
        )
        found.append(Shortfall("unverified", "cluster", why))
    if untold:
        many = "1 ledger" if untold == 1 else f"{untold} ledgers"
        why = (
            f"the last check of all copies could not check {many}: a record was not readable, or a bookie did not "
            "answer"
        )
        found.append(Shortfall("unverified", "cluster", why))
    for bookie, left in unverified.items():
        many = "the ledgers" if left is None else "1 ledger" if left == 1 else f"{left} ledgers"
        why = f"it was away, and its copies of {many} written meanwhile have not been checked yet"
        found.append(Shortfall("unverified", bookie, why))
    found += [Shortfall("degraded", bookie, why) for bookie, why in degraded.items()]
    return found
