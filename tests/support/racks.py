"""Whether an ensemble satisfies a rule of racks, decided without the code under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from buckram.core.cluster.placement import DEFAULT_RACK, RackRule
from buckram.types import BookieId


def spans_enough_racks(
    ensemble: Sequence[BookieId], racks: Mapping[BookieId, str], write_quorum: int, rule: RackRule
) -> bool:
    """Whether every window of the ensemble spans enough racks (M6); unknown racks count as one."""
    where = [racks.get(member, DEFAULT_RACK) for member in ensemble]
    size = len(where)
    needed = rule.racks_needed(write_quorum)
    return all(
        len({where[(start + offset) % size] for offset in range(write_quorum)}) >= needed for start in range(size)
    )
