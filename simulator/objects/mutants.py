"""Planted bugs of objects: `python -m buckram.sim --objects --mutants`."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.engine import hunting
from simulator.objects.plan import ObjectsPlan


@dataclass(frozen=True, slots=True)
class Mutant(hunting.Mutant[ObjectsPlan]):
    """A planted bug of objects."""


MUTANTS: dict[str, Mutant] = {}
