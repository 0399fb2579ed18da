"""Explains a placement: why bookies are or are not in an ensemble, and what a cluster has too few of. Pure.

Each reason is a sentence. A shortage is of hosts, racks, zones or regions for the copies of an entry. Not here: the
judgement of an ensemble (`core/placement/judge.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import Candidate, allowed, attainable
from buckram.core.placement.judge import Breach, asks, breaches
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.placement.topology import Topology
from buckram.types import BookieId


@dataclass(frozen=True, slots=True)
class Shortage:
    """New ledgers of a shape have copies in fewer domains of a level than their placement says, wherever they go."""

    level: str
    needed: int
    attainable: int
    there: int
    """Domains of the level with a bookie that takes new entries."""
    quorum: Quorum

    def __str__(self) -> str:
        width, size = self.quorum.write_quorum, self.quorum.ensemble_size
        where = f"{_of(self.attainable, self.level)}, not to {self.needed}"
        there = f"bookies that take entries are in {_of(self.there, self.level)}"
        if self.there >= self.needed:
            there += f", and an ensemble of {size} needs more of them, or more bookies in each"
        return f"the {width} copies of an entry go to {where}: {there}"


def shortages(
    candidates: Sequence[Candidate], quorum: Quorum, policy: PlacementPolicy, topology: Topology
) -> list[Shortage]:
    """Return a shortage for each level whose rule the bookies cannot meet.

    Empty if there are too few bookies for any ledger of the shape, which is worse and reported elsewhere. A rule of
    `all` has no shortage while only one domain of its level is known, such as all bookies on one host.
    """
    if len(candidates) < quorum.ensemble_size:
        return []
    width, limits = quorum.write_quorum, attainable(candidates, quorum, policy, topology)
    found: list[Shortage] = []
    for rule in policy.rules:
        needed, most = rule.needed(width), limits[rule.level]
        domains = {topology.domain(c.bookie_id, rule.level) for c in candidates} - {None}
        silent = rule.as_there_are and not topology.has_several(rule.level)
        if most < needed and asks(rule, topology) and not silent:
            found.append(Shortage(rule.level, needed, most, len(domains), quorum))
    return found


@dataclass(frozen=True, slots=True)
class PlacementState:
    """One state of the placement for operators. `name`: its row in the table of states, which has the cure
    (`core/health/state_table.py`)."""

    name: str
    where: str
    count: int
    why: str


def placement_states(found: Sequence[Shortage], misplaced: int) -> list[PlacementState]:
    """Return the states of the placement. `misplaced`: ledgers that could be placed better, by the last check."""
    states = [PlacementState("too-few-domains", f"level {one.level}", one.there, str(one)) for one in found]
    if misplaced:
        why = "bookies are there that would spread the copies better, as the last check found"
        states.append(PlacementState("ledgers-misplaced", _of(misplaced, "ledger"), misplaced, why))
    return states


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class PlacementReason:
    """One bookie, where it is, and why it was taken or not."""

    bookie: BookieId
    location: str
    taken: bool
    why: str


def explain(
    members: Sequence[BookieId],
    quorum: Quorum,
    policy: PlacementPolicy,
    topology: Topology,
    *,
    unusable: Mapping[BookieId, str],
    avoided: Mapping[BookieId, str] = MappingProxyType({}),
    others: Collection[BookieId],
) -> list[PlacementReason]:
    """Return a reason for each member, in order, and for each of `others` that is no member.

    `unusable`: bookies that cannot be taken now, and why; `avoided`: bookies that are taken only if there is no other
    choice, and why.
    """
    broken = breaches(members, quorum, policy, topology)
    reasons = [
        PlacementReason(b, str(topology.location(b)), True, _why_taken(b, broken, policy, topology, unusable))
        for b in members
    ]
    for bookie in others:
        if bookie not in members:
            why = unusable.get(bookie) or _why_not(bookie, members, quorum, policy, topology, len(broken))
            if bookie in avoided and bookie not in unusable:
                why += f"; it is avoided where there is a choice: {avoided[bookie]}"
            reasons.append(PlacementReason(bookie, str(topology.location(bookie)), False, why))
    return reasons


def _why_taken(
    bookie: BookieId,
    broken: Sequence[Breach],
    policy: PlacementPolicy,
    topology: Topology,
    unusable: Mapping[BookieId, str],
) -> str:
    where = [f"{rule.level} {topology.domain(bookie, rule.level) or 'not known'}" for rule in policy.rules]
    why = f"member, for {', '.join(where)}" if where else "member, drawn by chance"
    hit = [str(one) for one in broken if bookie in one.members]
    why += f"; breaks the rule: {hit[0]}" if hit else ""
    return why + (f"; now {unusable[bookie]}" if bookie in unusable else "")


def _why_not(
    bookie: BookieId,
    members: Sequence[BookieId],
    quorum: Quorum,
    policy: PlacementPolicy,
    topology: Topology,
    broken: int,
) -> str:
    if not allowed(bookie, topology, policy, quorum.write_quorum):
        return _why_never(bookie, quorum, policy, topology)
    if not policy.label_fits(bookie, topology):
        mine = ", ".join(topology.labelled(bookie))
        return f"it is for label {mine}" if mine else f"it has not the label {policy.label}"
    swaps = [[bookie if p == at else m for p, m in enumerate(members)] for at in range(len(members))]
    after = [breaches(swap, quorum, policy, topology) for swap in swaps]
    if after and all(len(found) > broken for found in after):
        level = after[0][0].level
        domain = topology.domain(bookie, level)
        return f"in place of any member it would break `{policy}`: {level} {domain or 'not known'}"
    return "it would do as well and was not drawn"


def _why_never(bookie: BookieId, quorum: Quorum, policy: PlacementPolicy, topology: Topology) -> str:
    labels = topology.labelled(bookie)
    if policy.label and policy.label not in labels:
        return f"it is for label {', '.join(labels)}" if labels else f"it has not the label {policy.label}"
    for rule in policy.rules:
        if rule.enforce and rule.needed(quorum.write_quorum) > 1 and topology.domain(bookie, rule.level) is None:
            cure = f"`buckram placement topology set {bookie} PATH`"
            return f"its {rule.level} is not known and the rule is enforced: {cure}"
    return f"`{policy}` does not allow it"
