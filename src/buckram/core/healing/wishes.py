"""What an operator asks of one bookie, as a record: take no new entries, give everything away, rest, collect.

Pure. Not here: reading and writing these records (`metadata/wishes`), what a bookie does about its own
(`bookie/wishes`), and what the auditor does about all of them (`healing/auditor`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from buckram.errors import MalformedRecord
from buckram.types import BookieId

BEGUN, DONE, FAILED = "begun", "done", "failed"
"""States of a collection that was asked for, in the bookie's answer."""
RENEW_S = 15.0
"""So often the seconds that are left of a maintenance are written down. Whoever begins to count anew begins there."""


@dataclass(frozen=True, slots=True)
class Wish:
    """All that is asked of one bookie. The default asks for nothing, and is kept as no record at all."""

    readonly: bool = False
    """Be read-only, also after a restart, until it is taken back."""
    leave: bool = False
    """Everything that it holds is to be copied to others, whether it lives or not."""
    target: BookieId = ""
    """The bookie that gets the copies where it can; empty: whichever the placement chooses."""
    rate: int = 0
    """The most bytes that each replicator copies for this in a second; 0: only its own limit counts."""
    out: bool = False
    """Nothing depends on it any more: it takes its registration back, and none is made until it starts anew."""
    rest: str = ""
    """A maintenance: no new ensembles, and no copies although it is away. Another word for each one."""
    rest_s: float = 0.0
    """What is left of it, in seconds of whoever counts: no clock on a wall is asked."""
    collect: str = ""
    """Collect garbage now, and answer under this word."""

    @property
    def asked(self) -> str:
        """ "drain", "maintenance" or "readonly", what weighs most of these; empty: none."""
        asked = {"drain": self.leave or self.out, "maintenance": bool(self.rest), "readonly": self.readonly}
        return next((name for name, wanted in asked.items() if wanted), "")

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


NOTHING = Wish()


def parse_wish(key: str, value: bytes) -> Wish:
    """MalformedRecord for anything but a wish. What a later release added is left out."""
    try:
        found = json.loads(value)
    except ValueError:
        raise MalformedRecord(f"{key}: not JSON; delete it") from None
    if not isinstance(found, dict):
        raise MalformedRecord(f"{key}: not an object of JSON; delete it")
    known = {field.name: found[field.name] for field in fields(Wish) if field.name in found}
    for name, given in known.items():
        wanted = type(getattr(NOTHING, name))
        if type(given) is not wanted and not (wanted is float and type(given) is int):
            raise MalformedRecord(f"{key}: {name} is {given!r}, not a {wanted.__name__}; delete it")
    return Wish(**known)


class Countdown:
    """Counts maintenances down by the monotonic clock of one process, from what the records say.

    Any number of processes may count at the same time, also one after the other: each goes on from the least that was
    written down. A process that takes over after a crash therefore counts at most `RENEW_S` seconds twice, and none
    of them ever believes another machine's clock.
    """

    def __init__(self) -> None:
        self._ends_at: dict[BookieId, tuple[str, float]] = {}

    def seen(self, wishes: Mapping[BookieId, Wish], now: float) -> None:
        """The records as they are now."""
        ends: dict[BookieId, tuple[str, float]] = {}
        for bookie, wish in wishes.items():
            if wish.rest:
                word, at = self._ends_at.get(bookie, ("", 0.0))
                said = now + wish.rest_s
                ends[bookie] = wish.rest, min(at, said) if word == wish.rest else said
        self._ends_at = ends

    def resting(self, now: float) -> frozenset[BookieId]:
        """Whose maintenance is not over."""
        return frozenset(bookie for bookie, (_, at) in self._ends_at.items() if at > now)

    def left_s(self, bookie: BookieId, now: float) -> float:
        """Seconds that are left; 0.0 where there is no maintenance, or it is over."""
        _, at = self._ends_at.get(bookie, ("", now))
        return max(0.0, at - now)

    def changed(self, bookie: BookieId, wish: Wish, now: float) -> Wish | None:
        """What to write for a bookie: without the maintenance when it is over, else what is left of it, now and then.

        None: nothing has to be written now.
        """
        word, at = self._ends_at.get(bookie, ("", 0.0))
        if not wish.rest or wish.rest != word:
            return None
        if at <= now:
            return replace(wish, rest="", rest_s=0.0)
        return replace(wish, rest_s=at - now) if wish.rest_s - (at - now) >= RENEW_S else None

    def next_at(self, wishes: Mapping[BookieId, Wish], now: float) -> float | None:
        """When `changed` has something to write; None: never, if nothing changes."""
        moments = [
            min(at, at - wish.rest_s + RENEW_S)
            for bookie, (word, at) in self._ends_at.items()
            if (wish := wishes.get(bookie)) is not None and wish.rest == word
        ]
        return max(now, min(moments)) if moments else None
