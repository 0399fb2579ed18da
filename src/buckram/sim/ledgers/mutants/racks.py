"""A planted bug of fault domains: copies are counted without regard to their racks."""

from __future__ import annotations

from collections.abc import Sequence

from buckram.core.ledgers.spread import SpreadGroups
from buckram.sim.engine.plan import Plan
from buckram.sim.engine.planting import plant
from buckram.sim.ledgers.mutants.base import Mutant
from buckram.types import EntryId


def _anywhere(self: SpreadGroups, window: int, marks: Sequence[EntryId], head: EntryId, reached: EntryId) -> EntryId:
    return reached


def _fewer_acks_than_copies(plan: Plan) -> bool:
    return plan.racks > 0 and plan.shape[2] < plan.shape[1]


MUTANTS = (
    Mutant(
        "racks-not-counted",
        "M5",
        "An entry is acknowledged by Qa members, although all are in one rack.",
        plant((SpreadGroups, "reached", _anywhere)),
        lives=_fewer_acks_than_copies,
        seeds=2000,
    ),
)
