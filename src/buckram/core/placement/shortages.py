"""What a cluster cannot give its placement: too few hosts, racks, zones or regions for the copies of an entry. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buckram.core.ledgers.quorum import Quorum
from buckram.core.placement.choose import Candidate, attainable
from buckram.core.placement.judge import asks
from buckram.core.placement.policy import PlacementPolicy
from buckram.core.placement.topology import Topology


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
    """Of each level that the policy asks for and the bookies cannot give. Nothing where there are too few bookies for
    any ledger of the shape, which is a worse thing, and nothing of hosts where all bookies are on one."""
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
    """One thing about the placement that people should know. `name` is that of its state, which has the cure
    (`core/health/table.py`)."""

    name: str
    where: str
    count: int
    why: str


def placement_states(found: Sequence[Shortage], misplaced: int) -> list[PlacementState]:
    """`misplaced`: ledgers that could be placed better, as the last check counted them."""
    states = [PlacementState("too-few-domains", f"level {one.level}", one.there, str(one)) for one in found]
    if misplaced:
        why = "bookies are there that would spread the copies better, as the last check found"
        states.append(PlacementState("ledgers-misplaced", _of(misplaced, "ledger"), misplaced, why))
    return states


def _of(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


__all__ = ["PlacementState", "Shortage", "placement_states", "shortages"]
