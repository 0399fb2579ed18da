"""Judgement of ensembles: whether every write quorum meets the policy, and whether copies are enough to acknowledge."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from buckram.core.ledgers.quorum import Quorum, SpreadRule
from buckram.core.placement.policy import LevelRule, PlacementPolicy
from buckram.core.placement.topology import Topology
from buckram.types import BookieId


@dataclass(frozen=True, slots=True)
class Breach:
    """One write quorum that spans fewer domains of a level than the rule asks for.

    With `label` as the level: the members without the label of the policy, which is in `found`.
    """

    level: str
    members: tuple[BookieId, ...]
    found: tuple[str, ...]
    needed: int
    lacking: int = 1
    """Number of domains that are needed beyond those found."""

    def __str__(self) -> str:
        names = ", ".join(self.members)
        if self.level == "label":
            return f"{names}: not of label {self.found[0]}"
        places = ", ".join(self.found) or "none that is known"
        return f"level {self.level}: {names} are in {places}, {self.needed} are needed"


NO_LIMITS: Mapping[str, int] = MappingProxyType({})


def breaches(
    ensemble: Sequence[BookieId],
    quorum: Quorum,
    policy: PlacementPolicy,
    topology: Topology,
    attainable: Mapping[str, int] = NO_LIMITS,
) -> list[Breach]:
    """Return where the ensemble does not meet the policy, by level and write quorum. An unknown place is no domain.

    If no bookie has a known place at a level, a rule that is not enforced asks for nothing. A rule of `all` asks for
    nothing if only one domain is known, and for no more of a level than is `attainable`; for it a member at an unknown
    place is in a domain of its own, since the place of a bookie that is away may not be known any more.
    """
    found: list[Breach] = []
    for rule in policy.rules:
        needed = rule.needed(quorum.write_quorum)
        if rule.as_there_are:
            needed = min(needed, attainable.get(rule.level, needed)) if topology.has_several(rule.level) else 1
        if needed < 2 or not asks(rule, topology):
            continue
        for window in quorum.windows():
            members = tuple(ensemble[position] for position in window)
            domains, unknown = _domains(members, rule, topology)
            lacking = needed - len(domains) - (unknown if rule.as_there_are else 0)
            if lacking > 0:
                found.append(Breach(rule.level, members, domains, needed, lacking))
    unlabelled = tuple(b for b in ensemble if policy.label and not policy.label_fits(b, topology))
    if unlabelled:
        found.append(Breach("label", unlabelled, (policy.label,), 0))
    return found


def asks(rule: LevelRule, topology: Topology) -> bool:
    """Return whether a rule applies: if no bookie has a known place at its level, only an enforced one does."""
    return rule.enforce or topology.knows(rule.level)


def badness(
    ensemble: Sequence[BookieId],
    quorum: Quorum,
    policy: PlacementPolicy,
    topology: Topology,
    attainable: Mapping[str, int] = NO_LIMITS,
) -> tuple[int, ...]:
    """Return how far the ensemble is from the policy: the number of members without the label, then the number of
    domains that each level lacks, the widest first. Smaller is better; all are zero if the policy is met."""
    found = breaches(ensemble, quorum, policy, topology, attainable)
    unlabelled = sum(len(one.members) for one in found if one.level == "label")
    return (unlabelled, *(sum(one.lacking for one in found if one.level == rule.level) for rule in policy.rules))


class DomainOf(Protocol):
    def __call__(self, bookie: BookieId, level: str, /) -> str | None:
        """Return the domain of a bookie at a level, at the moment of the call; None if it is unknown."""
        ...


def ack_rules(policy: PlacementPolicy, domain: DomainOf, write_quorum: int) -> tuple[SpreadRule, ...]:
    """Return what the copies of an entry must span to be acknowledged."""
    return tuple(
        SpreadRule(rule.level, rule.acks(write_quorum), rule.enforce, _at(domain, rule.level))
        for rule in policy.rules
        if rule.acks(write_quorum) > 1
    )


def _at(domain: DomainOf, level: str) -> Callable[[BookieId], str | None]:
    return lambda bookie: domain(bookie, level)


def acknowledged(
    copies: Collection[BookieId],
    write_set: Collection[BookieId],
    quorum: Quorum,
    policy: PlacementPolicy,
    topology: Topology,
) -> bool:
    """Return whether copies on these members of a write set are enough: Qa of them, in enough domains of each level."""
    if len(copies) < quorum.ack_quorum:
        return False
    rules = ack_rules(policy, topology.domain, quorum.write_quorum)
    return all(rule.lacking(copies, write_set) <= 0 for rule in rules)


def _domains(members: Sequence[BookieId], rule: LevelRule, topology: Topology) -> tuple[tuple[str, ...], int]:
    """Return the known domains, and the number of members whose domain is unknown."""
    domains = [topology.domain(member, rule.level) for member in members]
    known = tuple(dict.fromkeys(domain for domain in domains if domain is not None))
    return known, domains.count(None)
