"""Wishes of operators for single bookies, as records: be read-only, drain, be in a maintenance, collect garbage.

Pure. Not here: reading and writing these records (`metadata/records/operator_requests`), fulfilling them as a bookie
(`bookie/operator_requests`) and as the auditor (`healing/auditing/auditor`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace

from buckram.errors import MalformedRecord
from buckram.types import BookieId

BEGUN, DONE, FAILED = "begun", "done", "failed"
"""States of a wished collection, in the answer of the bookie."""
RENEW_S = 15.0
"""Interval at which the remaining seconds of a maintenance are recorded; a process that starts counts on from there."""


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """All wishes for one bookie. The default asks for nothing, and is kept as no record at all."""

    readonly: bool = False
    """Be read-only, also after a restart, until the wish is withdrawn."""
    leave: bool = False
    """Drain: have all its copies made on other bookies, whether it is alive or not."""
    target: BookieId = ""
    """Bookie that gets these copies where it can; empty: the placement chooses."""
    rate: int = 0
    """Maximum bytes a second that each replicator copies for the drain; 0: only its own limit applies."""
    out: bool = False
    """Decommissioned, since no ledger depends on it: it removes its registration, and makes none until it restarts."""
    rest: str = ""
    """Name of the present maintenance, another one each time: the bookie gets no new ensembles, and its ledgers are not
    copied although it is away. Empty: none."""
    rest_s: float = 0.0
    """Remaining seconds of the maintenance, counted by monotonic clocks (`Countdown`)."""
    collect: str = ""
    """Collect garbage now, and answer under this name; empty: no collection."""

    @property
    def asked(self) -> str:
        """Return the gravest wish: "drain", "maintenance" or "readonly"; empty: none of them."""
        asked = {"drain": self.leave or self.out, "maintenance": bool(self.rest), "readonly": self.readonly}
        return next((name for name, wanted in asked.items() if wanted), "")

    def encode(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


NOTHING = OperatorRequest()


def parse_wish(key: str, value: bytes) -> OperatorRequest:
    """Parse a wish; fields of later releases are left out. Raises MalformedRecord for anything else."""
    try:
        found = json.loads(value)
    except ValueError:
        raise MalformedRecord(f"{key}: not JSON; delete it") from None
    if not isinstance(found, dict):
        raise MalformedRecord(f"{key}: not an object of JSON; delete it")
    known = {field.name: found[field.name] for field in fields(OperatorRequest) if field.name in found}
    for name, given in known.items():
        wanted = type(getattr(NOTHING, name))
        if type(given) is not wanted and not (wanted is float and type(given) is int):
            raise MalformedRecord(f"{key}: {name} is {given!r}, not a {wanted.__name__}; delete it")
    return OperatorRequest(**known)


class Countdown:
    """Countdown of maintenances by the monotonic clock of one process, from the seconds in the records.

    Any number of processes may count at the same time, or one after the other: each goes on from the least that was
    recorded. A process that takes over after a crash therefore counts at most `RENEW_S` seconds twice, and none
    ever believes the clock of another machine.
    """

    def __init__(self) -> None:
        self._ends_at: dict[BookieId, tuple[str, float]] = {}

    def seen(self, wishes: Mapping[BookieId, OperatorRequest], now: float) -> None:
        """Take the records as they are now."""
        ends: dict[BookieId, tuple[str, float]] = {}
        for bookie, wish in wishes.items():
            if wish.rest:
                word, at = self._ends_at.get(bookie, ("", 0.0))
                said = now + wish.rest_s
                ends[bookie] = wish.rest, min(at, said) if word == wish.rest else said
        self._ends_at = ends

    def resting(self, now: float) -> frozenset[BookieId]:
        """Return the bookies whose maintenance is not over."""
        return frozenset(bookie for bookie, (_, at) in self._ends_at.items() if at > now)

    def left_s(self, bookie: BookieId, now: float) -> float:
        """Return the remaining seconds of a bookie's maintenance; 0.0 if there is none, or it is over."""
        _, at = self._ends_at.get(bookie, ("", now))
        return max(0.0, at - now)

    def changed(self, bookie: BookieId, wish: OperatorRequest, now: float) -> OperatorRequest | None:
        """Return the record to write for a bookie: without the maintenance when it is over, otherwise, every RENEW_S,
        with its remaining seconds; None: nothing has to be written now."""
        word, at = self._ends_at.get(bookie, ("", 0.0))
        if not wish.rest or wish.rest != word:
            return None
        if at <= now:
            return replace(wish, rest="", rest_s=0.0)
        return replace(wish, rest_s=at - now) if wish.rest_s - (at - now) >= RENEW_S else None

    def next_at(self, wishes: Mapping[BookieId, OperatorRequest], now: float) -> float | None:
        """Return the time at which `changed` has something to write; None: never, if nothing changes."""
        moments = [
            min(at, at - wish.rest_s + RENEW_S)
            for bookie, (word, at) in self._ends_at.items()
            if (wish := wishes.get(bookie)) is not None and wish.rest == word
        ]
        return max(now, min(moments)) if moments else None
