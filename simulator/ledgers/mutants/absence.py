"""Planted bugs of recovery: entries taken for absent, LACs ignored or not verified, convictions (F18 to F21)."""

from __future__ import annotations

from typing import Any

from buckram.client.cluster.bookies import BookieWatcher
from buckram.client.maintain import evidence as accusing
from buckram.client.maintain import recover
from buckram.client.read import lac
from buckram.core.entries.entry import Digest
from buckram.core.ledgers.reading import Race, Strategy
from buckram.core.ledgers.recovery import ForwardRead, Promises
from buckram.types import NO_ENTRY
from simulator.engine.plan import Plan
from simulator.engine.planting import nothing, plant
from simulator.ledgers.mutants.base import Mutant


def _end_at_first_denials(self: ForwardRead, entry: int, order: Any) -> Race[Any]:
    members = [self._ensemble[position] for position in self._quorum.write_set(entry)]
    members.sort(key=lambda bookie: order.get(bookie, 0))
    return Race(members, Strategy.WIDENING, enough_negatives=self._quorum.coverage)


def _no_time_left(self: recover._MembersTime) -> None:
    self.left_s = 0.0


def _unverified_lac(ledger_id: int, digest: Digest, packet: bytes | None, stored: bytes | None) -> int:
    """Return the LACs in the answer, without a check of their digests."""
    lacs = [int.from_bytes(packet[8:16], "big", signed=True)] if packet else []
    lacs += [int.from_bytes(stored[16:24], "big", signed=True)] if stored else []
    return max(lacs, default=NO_ENTRY)


candidates = BookieWatcher.candidates


def _candidates_with_convicted(self: BookieWatcher) -> Any:
    kept, self.convicted = self.convicted, frozenset()
    try:
        return candidates(self)
    finally:
        self.convicted = kept


def _any_damage(digest: Digest, ledger: int, entry: int | None, stored: bytes) -> str:
    return "it was answered with other bytes"


def _lying(plan: Plan) -> bool:
    return plan.liar and plan.entries > 0 and plan.shape[2] >= 2


MUTANTS = [
    Mutant(
        "closes-on-first-denials",
        "F18, S1",
        "recovery ends at the first Qw-Qa+1 denials, although other bookies have a copy",
        plant((ForwardRead, "race", _end_at_first_denials)),
        scenarios=("denied",),
        lives=_lying,
    ),
    Mutant(
        "no-time-for-members",
        "F18",
        "recovery gives members that have not answered no time",
        plant((recover._MembersTime, "__init__", _no_time_left)),
        scenarios=("denied",),
        lives=_lying,
    ),
    Mutant(
        "promise-ignored",
        "F19",
        "recovery closes below a LAC that a bookie proved to it",
        plant((Promises, "check_end", nothing)),
        scenarios=("promised",),
        lives=_lying,
        seeds=100,
    ),
    Mutant(
        "unproven-promise",
        "F19, L1",
        "a LAC counts although its digest is wrong",
        plant((lac, "_proven", _unverified_lac)),
        scenarios=("false-promise",),
        lives=_lying,
        seeds=100,
    ),
    Mutant(
        "convicted-chosen",
        "F21",
        "a convicted bookie gets new ensembles",
        plant((BookieWatcher, "candidates", _candidates_with_convicted)),
        scenarios=("mixed",),
        lives=_lying,
        seeds=100,
    ),
    Mutant(
        "damage-convicts",
        "F21",
        "a bookie is convicted for bytes that fail their digest",
        plant((accusing, "shown_for_another", _any_damage)),
        scenarios=("rotten",),
        lives=_lying,
        seeds=100,
    ),
]
