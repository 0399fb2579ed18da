"""Which ledgers may lack entries because a bookie was away: remembered by ids of ledgers, and by no clock. Pure.

All records are walked now and then. A ledger that a walk found closed cannot lack entries of a bookie that was there
from then on. So of one that goes, or comes back as another session, what was open at a walk is remembered, with all
ledgers that came later: those are looked at first when it is back. A process that hangs is noticed late, when it wakes
or when its session ends; therefore the walk before the last one counts.

Not here: walking and looking (`healing/first_checks.py`), the key (`healing/board.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from buckram.core.ledgers.service_info import SESSION_PROPERTY
from buckram.errors import MalformedRecord
from buckram.types import BookieId, BookieSet, LedgerId

MOST_OPEN = 5_000
"""So many open ledgers are remembered one by one, so that the record stays far below a megabyte."""


@dataclass(frozen=True, slots=True)
class Unsettled:
    """Ledgers that may have been open at a walk or after it: these, and all from `since` on."""

    since: LedgerId = 0
    open: tuple[LedgerId, ...] = ()

    @classmethod
    def of(cls, since: LedgerId, found_open: Iterable[LedgerId]) -> Unsettled:
        """The smallest such set that is remembered: with too many open ledgers it has closed ones, too."""
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
    """What is known of all bookies. `sessions`: what each one's registration says of its session, at the last look."""

    sessions: dict[BookieId, str] = field(default_factory=dict)
    walks: tuple[Unsettled, Unsettled] | None = None
    """After the walk before the last one, and after the last one; None: there was none."""
    away: dict[BookieId, Unsettled] = field(default_factory=dict)
    """Bookies that are away, or are back and not looked at, with what they may lack entries of."""
    left: dict[BookieId, int] = field(default_factory=dict)
    """Of those that are back: how many ledgers are still to be looked at, as far as it is known."""

    def seen(self, there: Mapping[BookieId, str], *, anew: bool = False) -> bool:
        """Take note of who is registered, and as which session; "" for one that does not tell.

        `anew`: somebody else looked until now, so one that does not tell may have been away meanwhile. Returns whether
        anything changed.
        """
        before = dict(self.sessions), dict(self.away)
        for bookie, session in self.sessions.items():
            now = there.get(bookie)
            if now is None or now != session or (anew and not session):
                self._was_away(bookie)
        for bookie in there:
            if bookie not in self.sessions and self.walks is not None:
                self._was_away(bookie)  # it may be an old one that was away since before the first look
        self.sessions = dict(there)
        return (self.sessions, self.away) != before

    def _was_away(self, bookie: BookieId) -> None:
        """What was remembered before stays: it has not been looked at."""
        earlier = Unsettled() if self.walks is None else self.walks[0]
        self.away.setdefault(bookie, earlier)
        self.left.pop(bookie, None)

    def walked(self, found: Unsettled) -> None:
        """A walk ended. Who went meanwhile was seen before this."""
        self.walks = (self.walks[1] if self.walks is not None else Unsettled(), found)

    def to_look_at(self, there: Collection[BookieId]) -> dict[BookieId, Unsettled]:
        """Bookies that are back, and of which ledgers their copies are looked at now."""
        return {bookie: unsettled for bookie, unsettled in self.away.items() if bookie in there}

    def looked_at(self, bookie: BookieId, session: str, rest: Unsettled | None = None) -> bool:
        """All its copies but those of `rest` were looked at while it had this session. False where it has another one
        now: then nothing counts."""
        if self.sessions.get(bookie) != session or bookie not in self.away:
            return False
        if rest is None:
            del self.away[bookie]
            self.left.pop(bookie, None)
        else:
            self.away[bookie] = rest
        return True

    def forget(self, known: Collection[BookieId]) -> None:
        """Bookies that are no members any more are not waited for."""
        for bookie in [bookie for bookie in self.away if bookie not in known]:
            del self.away[bookie]
            self.left.pop(bookie, None)

    @property
    def unverified(self) -> dict[BookieId, int | None]:
        """Bookies that are back and were not looked at, with the number of ledgers that are left; None: not known."""
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
    """What each registered bookie says of its session; "" where it does not tell."""
    return {bookie: info.properties.get(SESSION_PROPERTY, "") for bookie, info in there.everybody()}


def parse_attendance(key: str, value: bytes) -> Attendance:
    """MalformedRecord for anything but such a record."""
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


__all__ = ["MOST_OPEN", "Attendance", "Unsettled", "parse_attendance", "sessions_of"]
