"""Incarnations of a bookie id: the newest one that the store knows is the only member. Pure.

A directory is born with an incarnation. The witness key of an id keeps the incarnation that has it, and a generation,
which grows by one with each take-over of the id. A bookie that reads a later claim than its own was replaced; one that
knows of a later claim than the store does knows that the store went back.

Not here: reading the key and the cookie (`bookie/trust/witness.py`), the first claim of an empty directory
(`bookie/trust/cookie.py`), what shows that a store went back (`core/cluster/store_history.py`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime

from buckram.core.cluster.store_history import Judgement, WitnessStatement
from buckram.types import BookieId


class Standing(enum.Enum):
    """Status of a bookie in its cluster."""

    MEMBER = "member"
    """The bookie has the id; it may still suspect that the store went back."""
    RETURNING = "returning"
    """The metadata were restored and that is not accepted yet, and they lack its cookie: it writes the cookie again."""
    REPLACED = "replaced"
    """A later incarnation has the id."""
    REMOVED = "removed"
    """Its cookie was removed: it was decommissioned or forgotten."""


@dataclass(frozen=True, slots=True)
class IncarnationVerdict:
    """`suspicion`: how the store shows that it went back; "" if it does not."""

    standing: Standing
    suspicion: str = ""

    @property
    def out(self) -> bool:
        """Return whether the bookie has permanently ceased to be a member."""
        return self.standing in (Standing.REPLACED, Standing.REMOVED)


def decide(
    mine: str,
    known: WitnessStatement | None,
    found: WitnessStatement | None,
    past: Judgement,
    *,
    has_cookie: bool,
    restored: bool,
) -> IncarnationVerdict:
    """Decide what the incarnation `mine` is.

    `known`: what the store confirmed to it last; `found`: what the witness key of its id says; `past`: whether the
    store went back; `has_cookie`: whether the store has a cookie of this bookie; `restored`: a restore of the metadata
    waits to be accepted.
    """
    if found is not None and found.incarnation != mine:
        theirs, ours = _rank(found), _rank(known)
        unnumbered = not found.generation and not past.why and not past.adopt  # a bookie of an earlier release wrote it
        if theirs > ours or unnumbered or (theirs == ours and not past.why):
            return IncarnationVerdict(Standing.REPLACED)
        if not past.why and not past.adopt:
            past = Judgement(
                f"its witness key names incarnation {found.incarnation} (generation {found.generation}), whose id this "
                f"one took over as generation {ours[1]}"
            )
    if has_cookie:
        return IncarnationVerdict(Standing.MEMBER, past.why)
    if restored:
        return IncarnationVerdict(Standing.RETURNING, past.why)
    return IncarnationVerdict(Standing.MEMBER, past.why) if past.why else IncarnationVerdict(Standing.REMOVED)


def _rank(statement: WitnessStatement | None) -> tuple[int, int]:
    """Return the order of a claim: an accepted epoch outranks a generation of an earlier epoch."""
    return (0, 0) if statement is None else (statement.epoch, statement.generation)


def next_generation(mine: str, known: WitnessStatement | None, found: WitnessStatement | None) -> int:
    """Return the generation with which the incarnation `mine` writes the key. In keys of earlier releases it is 0."""
    own = 0 if known is None else known.generation
    if found is None:
        return max(own, 1)
    if found.incarnation == mine:
        return max(own, found.generation, 1)
    return max(own, found.generation) + 1


def why_replaced(bookie: BookieId, mine: str, found: WitnessStatement) -> str:
    """Say in words that a later incarnation has the id, and how the machine comes back."""
    since = f" at {datetime.fromtimestamp(found.since, UTC):%Y-%m-%d %H:%M:%S} UTC" if found.since else ""
    return (
        f"bookie {bookie} was replaced: this directory is its incarnation {mine}, and incarnation {found.incarnation} "
        f"(generation {found.generation}) took the id over{since}. No request is served from here, because this "
        f"directory lacks all entries that were written since. {_COME_BACK}"
    )


def why_removed(bookie: BookieId, mine: str) -> str:
    """Say in words that the cookie was removed while the bookie ran, and how the machine comes back."""
    return (
        f"bookie {bookie} was taken out of the cluster (`buckram bookie decommission`, `forget`, `replace` or "
        f"`rejoin`) while its process hung or ran: the cluster has no cookie of it, incarnation {mine} serves nothing "
        "any more. If the cookie is missing because metadata was restored from a backup older than this "
        "bookie: `buckram cluster "
        f"restore` that backup again, start all bookies, and only then `buckram cluster accept-restore`. {_COME_BACK}"
    )


_COME_BACK = (
    "No ledger named the id when it was given away, so the files here are needed only if `buckram ledger check` finds "
    "one that lacks entries: keep them until then. Start this machine again with an empty directory: `buckram bookie "
    "run --data EMPTY-DIRECTORY --id NEW-ID`; for the same id, once no bookie runs under it, `buckram bookie rejoin` "
    "it first"
)
