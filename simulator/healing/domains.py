"""Fault domains: a whole one that goes at once is no loss; and which bookies may replace others under the rule (M6).

This is a second calculation from registrations and racks: it calls no code of placement or of losses.
"""

from __future__ import annotations

import json
from itertools import permutations
from typing import TYPE_CHECKING

from buckram.types import BookieId, Fragment, KeyValue, LedgerId, LedgerMetadata
from simulator.engine.checkers.facts import write_sets
from simulator.engine.plan import Plan

if TYPE_CHECKING:
    from simulator.healing.rules import Rules

LATE_S = 2.0
"""Maximum delay between two auditors' sight of bookies that went at the same moment, seconds."""

FIRST_LOOK_S = 2.0
"""Time before which an auditor that is cut off may never have seen the bookies' racks, seconds."""


class Domains:
    """Racks of one life; without racks everything is allowed."""

    def __init__(self, rules: Rules, cluster: Plan) -> None:
        self._rules, self._cluster, self._now = rules, cluster, rules.now
        self._there: dict[BookieId, set[str]] = {}
        """The registration folders (writable, read-only) that list each bookie now, by bookie that ever registered."""
        self.gone_at: dict[BookieId, float] = {}
        self._unseen_by: dict[BookieId, set[str]] = {}
        """Hosts that were cut off from the beginning until the bookie went, by bookie: they never learned its rack."""
        self._allowed: set[BookieId] = set()
        """Bookies for which an operator let copying go on."""

    def key_changed(self, key: str, new: KeyValue | None) -> None:
        """Note a change of a key that may be a registration."""
        folder, _, bookie = key.rpartition("/")
        layout = self._rules.world.stores.layout
        if folder not in (layout.registrations(readonly=False), layout.registrations(readonly=True)):
            return
        if bookie not in self._rules.world.machines:
            return
        keys = self._there.setdefault(bookie, set())
        if new is not None:
            keys.add(folder)
        elif folder in keys:
            keys.remove(folder)
            self.gone_at[bookie] = self._now()
            self._unseen_by[bookie] = self._rules.world.fabric.blocked_before(FIRST_LOOK_S, "meta")

    def proceeds(self, new: KeyValue | None) -> None:
        if new is not None and new.value:
            self._allowed |= set(json.loads(new.value).get("bookies", ()))

    def is_registered(self, bookie: BookieId) -> bool:
        return bool(self._there.get(bookie))

    # -- the brake

    def check_mark(self, who: str, ledger: LedgerId, bookie: BookieId) -> None:
        """Check that no ledger is marked for a bookie whose whole rack went at once, unless an operator allowed it."""
        rack = self._rules.world.machines[bookie].rack if bookie in self._rules.world.machines else None
        if rack is None or bookie in self._allowed or bookie in self._rules.asked.ever_left:
            return
        peers = [machine.name for machine in self._rules.world.machines.values() if machine.rack == rack]
        gone = [self.gone_at[one] for one in peers if one in self.gone_at and not self.is_registered(one)]
        asked = self._rules.asked
        named = [one for one in peers if self._rules.naming(one) and not (one in asked.ever_left or asked.rested(one))]
        whole = len(gone) == len(peers) and len(named) >= 2 and named == peers
        now = self._now()
        delay_s = min(seconds for at, seconds in self._rules.delays[-2:])
        unseen = any(who in self._unseen_by.get(one, ()) for one in peers)
        at_once = whole and not unseen and max(gone) - min(gone) <= delay_s - LATE_S and now - max(gone) > LATE_S
        self._rules.report.check(
            "domain",
            not at_once,
            "{} marks ledger {} for {} although all of {} went at once",
            who,
            ledger,
            bookie,
            rack,
        )

    # -- the rule

    def no_spare(self, metadata: LedgerMetadata, fragment: Fragment, stay: bool = False) -> bool:
        """Return whether the lost members of the fragment cannot all be replaced under the rule of this life.

        `stay`: some of them stay, so it is enough that one of them cannot be replaced beside the others.
        """
        lost = [at for at, bookie in enumerate(fragment.ensemble) if bookie in self._rules.lost]
        if self._cannot_go(metadata, fragment, lost):
            return True
        return stay and any(self._cannot_go(metadata, fragment, [one]) for one in lost)

    def _cannot_go(self, metadata: LedgerMetadata, fragment: Fragment, lost: list[int]) -> bool:
        """Return whether no choice of bookies for these places, with the others as they are, keeps the rule."""
        machines = self._rules.world.machines
        there = [one.name for one in machines.values() if one.running and one.name not in fragment.ensemble]
        if not lost:
            return False
        for chosen in permutations(there, len(lost)):
            ensemble = list(fragment.ensemble)
            for at, bookie in zip(lost, chosen, strict=True):
                ensemble[at] = bookie
            if self._spans(metadata, Fragment(fragment.first_entry, tuple(ensemble)), lost):
                return False
        return True

    def _spans(self, metadata: LedgerMetadata, fragment: Fragment, replaced: list[int]) -> bool:
        if not self._cluster.racks:
            return True
        fresh = [fragment.ensemble[at] for at in replaced]
        machines = self._rules.world.machines
        return all(
            len({machines[bookie].rack for bookie in members}) >= 2
            for members in write_sets(fragment, metadata)
            if any(bookie in fresh for bookie in members)
        )
