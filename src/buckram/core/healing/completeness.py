"""Reasons why it is not certain that all copies exist, although no ledger is known to lack any. Pure.

These are warnings: the cluster goes on, and machines may be restarted in turn. Ledgers that are known to lack copies
are in the queue of marked and noted ledgers (`healing/overview.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from buckram.types import BookieId


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
        why = "no check of all copies was complete yet: what lacked before is not known"
        found.append(Shortfall("unverified", "cluster", why))
    elif not attended:
        why = "no auditor has watched yet which bookies were away: what they lack since the last check is not known"
        found.append(Shortfall("unverified", "cluster", why))
    if untold:
        many = "1 ledger" if untold == 1 else f"{untold} ledgers"
        why = (
            f"the last check of all copies could not tell of {many}: a record was not readable, or a bookie did not "
            "answer"
        )
        found.append(Shortfall("unverified", "cluster", why))
    for bookie, left in unverified.items():
        many = "the ledgers" if left is None else "1 ledger" if left == 1 else f"{left} ledgers"
        why = f"it was away, and its copies of {many} written meanwhile were not looked at yet"
        found.append(Shortfall("unverified", bookie, why))
    found += [Shortfall("degraded", bookie, why) for bookie, why in degraded.items()]
    return found


__all__ = ["Shortfall", "shortfalls"]
