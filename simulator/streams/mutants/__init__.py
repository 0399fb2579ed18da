"""Mutants of streams: planted bugs, by the part that they break. `base` says what a mutant is."""

from __future__ import annotations

from simulator.streams.mutants import compacting, forking, keeping, reading, writing
from simulator.streams.mutants.base import Mutant

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (*writing.MUTANTS, *reading.MUTANTS, *keeping.MUTANTS, *compacting.MUTANTS, *forking.MUTANTS)
}

__all__ = ["MUTANTS", "Mutant"]
