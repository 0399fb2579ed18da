"""Planted bugs of placement: copies and members are counted without regard to their places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buckram.client.cluster.bookies import BookieWatcher
from buckram.core.ledgers.quorum import Quorum, SpreadGroups
from buckram.core.ledgers.recovery import WriteBack
from buckram.core.placement.choose import Chosen
from buckram.core.placement.policy import ANYWHERE, PlacementPolicy
from buckram.types import BookieId, EntryId
from simulator.engine.edits import edited
from simulator.engine.plan import Plan
from simulator.engine.planting import plant
from simulator.ledgers.mutants.base import Mutant


def _anywhere(self: SpreadGroups, window: int, marks: Sequence[EntryId], head: EntryId, reached: EntryId) -> EntryId:
    return reached


_replace = BookieWatcher.replace


def _replace_anywhere(self: BookieWatcher, *args: Any, **kwargs: Any) -> dict[int, BookieId]:
    return _replace(self, *args, **{**kwargs, "policy": ANYWHERE})


def _fewer_acks_than_copies(plan: Plan) -> bool:
    return plan.racks > 0 and plan.shape[2] < plan.shape[1]


_choose = BookieWatcher.choose


def _choose_anywhere(self: BookieWatcher, quorum: Quorum, policy: PlacementPolicy | None = None) -> Chosen:
    return _choose(self, quorum, ANYWHERE)


MUTANTS = (
    Mutant(
        "racks-not-counted",
        "M5",
        "An entry is acknowledged by Qa members, although all are in one rack.",
        plant((SpreadGroups, "reached", _anywhere)),
        lives=_fewer_acks_than_copies,
        seeds=2000,
    ),
    Mutant(
        "recovery-in-one-rack",
        "M5",
        "A recovery closes a ledger as soon as Qa members have its entries, although all are in one rack.",
        plant((WriteBack, "_unspread", lambda self, entry, pending: False)),
        lives=_fewer_acks_than_copies,
        seeds=2000,
    ),
    Mutant(
        "replacement-in-any-rack",
        "M6",
        "A failed member is replaced by any bookie, whatever rack it is in.",
        plant((BookieWatcher, "replace", _replace_anywhere)),
        lives=lambda plan: plan.racks > 0 and plan.bookies > plan.shape[0],
        seeds=2000,
    ),
    Mutant(
        "hosts-ignored",
        "M6",
        "Copies go to bookies of one host although others are there.",
        plant((BookieWatcher, "choose", _choose_anywhere)),
        lives=lambda plan: plan.sites > 1 and plan.bookies > plan.shape[0],
        seeds=500,
    ),
    Mutant(
        "hosts-not-read",
        "M6",
        "What bookies register of their hosts is ignored, and their addresses count.",
        edited(
            ("buckram.core.placement.topology:_registered", "info.properties.get(HOST_PROPERTY) or None", "None"),
            ("buckram.core.placement.topology:_registered", "said.get(info.address.host, ())", "()"),
        ),
        lives=lambda plan: plan.sites > 1 and plan.bookies > plan.shape[0],
        seeds=500,
    ),
    Mutant(
        "replacement-on-a-host-that-has-one",
        "M6",
        "A failed member is replaced by any bookie, whatever host it is on.",
        plant((BookieWatcher, "replace", _replace_anywhere)),
        lives=lambda plan: plan.sites > 1 and plan.bookies > plan.shape[0],
        seeds=2000,
    ),
)
