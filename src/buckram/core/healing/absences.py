"""Ledgers that may lack entries because a bookie was away, and the names of the notes that say so. Pure.

All records are walked now and then. A ledger that a walk found closed cannot lack entries on a bookie that was there
from then on. So if a bookie goes, or comes back with another session, the ledgers that were open at a walk are
remembered for it, by their ids and without any clock, with all later ones: their copies are checked first when it is
back. A process that hangs is noticed late, when it wakes or its session ends; therefore the walk before the last one is
used.

Not here: walking and checking (`healing/auditing/absence_checks.py`), the keys (`healing/status_store.py`,
`metadata/records/incomplete_copies.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from buckram.core.ledgers.service_info import SESSION_PROPERTY
from buckram.errors import MalformedRecord
from buckram.types import MAX_LEDGER_ID, BookieId, BookieSet, LedgerId

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


MOST_OPEN = 5_000
"""Maximum number of open ledgers that are remembered by their ids, so that the record stays far below a megabyte."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Ledgers that may have been open at a walk or after it: those in `open`, and all ids from `since` on."""

    since: LedgerId = 0
    open: tuple[LedgerId, ...] = ()

    @classmethod
    def of(cls, since: LedgerId, found_open: Iterable[LedgerId]) -> Unsettled:
        """Return the set of these open ledgers and all from `since` on; with more than MOST_OPEN open ones `since` is
        lowered, so that the set has closed ledgers, too."""
        ids = sorted({ledger for ledger in found_open if ledger < since})
        if len(ids) > MOST_OPEN:
            since, ids = ids[MOST_OPEN], ids[:MOST_OPEN]
        return cls(since, tuple(ids))

    def __contains__(self, ledger: LedgerId) -> bool:
        return ledger >= self.since or ledger in self.open

    def as_json(self) -> dict[str, Any]:
        return {"since": self.since, "open": list(self.open)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Unsettled:
        return cls(int(raw["since"]), tuple(int(ledger) for ledger in raw["open"]))


@dataclass(slots=True)
class Attendance:
    """Presence and absence of all bookies, and the ledgers whose copies have to be checked for that.

    `sessions`: the session of each registered bookie at the last look; "" if it does not register one.
    """

    sessions: dict[BookieId, str] = field(default_factory=dict)
    walks: tuple[Unsettled, Unsettled] | None = None
    """Ledgers that may have been open at the walk before the last one, and at the last one; None: there was no walk."""
    away: dict[BookieId, Unsettled] = field(default_factory=dict)
    """By bookie that is away, or is back and not checked yet: the ledgers whose entries it may lack."""
    left: dict[BookieId, int] = field(default_factory=dict)
    """By bookie that is back: number of ledgers that are still to be checked, if that is known."""

    def seen(self, there: Mapping[BookieId, str], *, anew: bool = False) -> bool:
        """Note the registered bookies with their sessions; "" for one that does not register its session.

        `anew`: another auditor was looking until now, so a bookie without a known session may have been away meanwhile.
        Returns whether anything changed.
        """
        before = dict(self.sessions), dict(self.away)
        for bookie, session in self.sessions.items():
            now = there.get(bookie)
            if now is None or now != session or (anew and not session):
                self._was_away(bookie)
        for bookie in there:
            if bookie not in self.sessions and self.walks is not None:
                self._was_away(bookie)  # it may be an old member that was away since before the first look
        self.sessions = dict(there)
        return (self.sessions, self.away) != before

    def _was_away(self, bookie: BookieId) -> None:
        """Remember the ledgers whose entries a bookie may lack; those of an earlier absence stay until checked."""
        earlier = Unsettled() if self.walks is None else self.walks[0]
        self.away.setdefault(bookie, earlier)
        self.left.pop(bookie, None)

    def walked(self, found: Unsettled) -> None:
        """Note that a walk ended. Call `seen` first, so that bookies that went meanwhile are held to earlier walks."""
        self.walks = (self.walks[1] if self.walks is not None else Unsettled(), found)

    def to_look_at(self, there: Collection[BookieId]) -> dict[BookieId, Unsettled]:
        """Return the bookies that are back, each with the ledgers whose copies are to be checked now."""
        return {bookie: unsettled for bookie, unsettled in self.away.items() if bookie in there}

    def looked_at(self, bookie: BookieId, session: str, rest: Unsettled | None = None) -> bool:
        """Note that all copies of a bookie but those of `rest` were checked while it had this session.

        Returns False, and changes nothing, if it has another session now.
        """
        if self.sessions.get(bookie) != session or bookie not in self.away:
            return False
        if rest is None:
            del self.away[bookie]
            self.left.pop(bookie, None)
        else:
            self.away[bookie] = rest
        return True

    def forget(self, known: Collection[BookieId]) -> None:
        """Drop the absences of bookies that are not `known`, since they are members no more."""
        for bookie in [bookie for bookie in self.away if bookie not in known]:
            del self.away[bookie]
            self.left.pop(bookie, None)

    @property
    def unverified(self) -> dict[BookieId, int | None]:
        """Return the bookies that are back and not checked, each with the number of ledgers left; None: unknown."""
        return {bookie: self.left.get(bookie) for bookie in self.away if bookie in self.sessions}

    def encode(self) -> bytes:
        record = {
            "sessions": self.sessions,
            "walks": None if self.walks is None else [one.as_json() for one in self.walks],
            "away": {bookie: one.as_json() for bookie, one in self.away.items()},
            "left": self.left,
        }
        return json.dumps(record).encode()


def sessions_of(there: BookieSet) -> dict[BookieId, str]:
    """Return the session of each registered bookie; "" for one that does not register it."""
    return {bookie: info.properties.get(SESSION_PROPERTY, "") for bookie, info in there.everybody()}


def parse_attendance(key: str, value: bytes) -> Attendance:
    """Parse the record. Raises MalformedRecord for anything that `encode` did not make."""
    try:
        raw = json.loads(value)
        walks = raw["walks"] and tuple(Unsettled.from_json(one) for one in raw["walks"])
        if walks is not None and len(walks) != 2:
            raise ValueError(f"{len(walks)} walks")
        return Attendance(
            {str(bookie): str(session) for bookie, session in raw["sessions"].items()},
            walks,
            {str(bookie): Unsettled.from_json(one) for bookie, one in raw["away"].items()},
            {str(bookie): int(left) for bookie, left in raw["left"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedRecord(f"{key}: not who was away ({error!r}); delete it, all copies are checked anew") from None
