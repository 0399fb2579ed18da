"""Distance of a bookie from a reader, so that reads go to near bookies first."""

from __future__ import annotations

from collections.abc import Sequence

from buckram.core.placement.topology import LEVELS, Location, Topology
from buckram.types import BookieId


def distance(here: Location, bookie: BookieId, topology: Topology) -> int:
    """Return 0 for the same host, 1 for the same rack, and so on; an unknown place is as far as another region."""
    there = topology.location(bookie)
    for far, level in enumerate(reversed(LEVELS)):
        domain = here.domain(level)
        if domain is not None and domain == there.domain(level):
            return far
    return len(LEVELS)


def by_distance(members: Sequence[BookieId], here: Location, topology: Topology) -> Sequence[BookieId]:
    """Return the members, near ones first; those that are equally far keep their order."""
    return sorted(members, key=lambda bookie: distance(here, bookie, topology))


__all__ = ["by_distance", "distance"]
