"""Mutants of streams: planted bugs, by the part that they break. `base` says what a mutant is."""

from __future__ import annotations

from simulator.streams.mutants import compacting, forking, isolating, keeping, reading, writing
from simulator.streams.mutants.base import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for part in (writing, reading, keeping, compacting, forking, isolating)
    for mutant in part.MUTANTS
}

__all__ = ["MUTANTS", "Mutant"]
