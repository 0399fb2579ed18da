"""Shortages of a placement: a cluster has too few hosts, racks, zones or regions for the copies of an entry. Pure."""

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
