"""Planted bugs of administration: `python -m buckram.sim --administration --mutants`."""

from __future__ import annotations

from simulator.administration.plan import AdminPlan
from simulator.engine import hunting

MUTANTS: dict[str, hunting.Mutant[AdminPlan]] = {}
