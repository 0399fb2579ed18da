"""How far a bookie is from somebody, so that reads go to near ones first."""

from __future__ import annotations

from collections.abc import Sequence

from buckram.core.placement.topology import LEVELS, Location, Topology
from buckram.types import BookieId


def distance(here: Location, bookie: BookieId, topology: Topology) -> int:
    """0: on the same host, 1: in the same rack, and so on; a place that is not known is as far as another region."""
    there = topology.location(bookie)
    for far, level in enumerate(reversed(LEVELS)):
        domain = here.domain(level)
        if domain is not None and domain == there.domain(level):
            return far
    return len(LEVELS)


def by_distance(members: Sequence[BookieId], here: Location, topology: Topology) -> Sequence[BookieId]:
    """The same members, near ones first; those that are equally far stay in their order."""
    return sorted(members, key=lambda bookie: distance(here, bookie, topology))


__all__ = ["by_distance", "distance"]
