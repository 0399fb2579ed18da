"""Operators' wishes about bookies: no ledger names a bookie that is out, none is marked for one in maintenance.

Not here: the commands of operators (`departures.py`, `operations.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from buckram.core.healing.operator_requests import NOTHING, OperatorRequest, parse_wish
from buckram.types import BookieId, KeyValue, LedgerId
from simulator.engine.checkers.facts import write_sets
from simulator.engine.healing_watch import UNDER_WAY_S

if TYPE_CHECKING:
    from simulator.healing.rules import Rules


class Asked:
    """Follows the operators' wishes of one life, and checks that they come true."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._report, self._now = rules, rules.report, rules.now
        self.wishes: dict[BookieId, OperatorRequest] = {}
        self.ever_left: set[BookieId] = set()
        """Bookies that an operator is taking out, or ever took out."""
        self._rests: dict[str, tuple[BookieId, float, float]] = {}
        """The bookie, beginning and end of each maintenance, by its id."""

    def wish_changed(self, who: str, bookie: BookieId, key: str, new: KeyValue | None) -> None:
        wish = self.wishes[bookie] = parse_wish(key, new.value) if new is not None else NOTHING
        if wish.leave:
            self.ever_left.add(bookie)
        if wish.rest and wish.rest not in self._rests:
            self._rests[wish.rest] = bookie, self._now(), self._now() + wish.rest_s
            self._check_gets_by(who, bookie)

    def rested(self, bookie: BookieId) -> bool:
        """Return whether the bookie is in a maintenance, or was a moment ago."""
        return any(one == bookie and self._now() < until + UNDER_WAY_S for one, _, until in self._rests.values())

    def is_out(self, bookie: BookieId, situation: str) -> None:
        """Check that no ledger names a bookie after an operator's command reported that nothing depends on it."""
        self._report.situation(situation)
        named = self._rules.naming(bookie)
        self._report.check("departure", not named, "{}: ledgers {} name {}, which is out", situation, named, bookie)

    def check_mark(self, who: str, ledger: LedgerId, bookie: BookieId) -> None:
        """Check that no auditor marks a ledger for a bookie in maintenance that is away and is not being taken out."""
        machine = self._rules.world.machines.get(bookie)
        if bookie in self.ever_left or (machine is not None and machine.running):
            return
        now = self._now()
        for one, since, until in self._rests.values():
            if one == bookie:
                rests = since + UNDER_WAY_S < now < until - 1.0 and self.wishes[bookie].rest != ""
                text = "{} marks ledger {} for {}, which rests since {:.1f} s"
                self._report.check("maintenance", not rests, text, who, ledger, bookie, now - since)

    def check_ended(self) -> None:
        """Check that every maintenance has ended by itself, long after the last command."""
        for bookie, wish in self.wishes.items():
            self._report.check("maintenance", not wish.rest, "{} rests for ever: {}", bookie, wish)

    def _check_gets_by(self, who: str, bookie: BookieId) -> None:
        """Check that a maintenance leaves each entry Qa copies when it begins; skipped while a bookie is disturbed."""
        world, now = self._rules.world, self._now()
        for machine in world.machines.values():
            if machine.name not in self._rules.lost and not world.steady(machine.name, now - 15.0):
                return
        resting = [one for one, wish in self.wishes.items() if wish.rest and one != bookie]
        for ledger in self._rules.naming(bookie):
            metadata = world.judge.facts.ledger(ledger).metadata
            if metadata is None or not metadata.closed or metadata.last_entry is None:
                continue
            ends = [fragment.first_entry for fragment in metadata.fragments[1:]] + [metadata.last_entry + 1]
            for fragment, end in zip(metadata.fragments, ends, strict=True):
                if end <= fragment.first_entry:
                    continue
                sets = write_sets(fragment, metadata)
                used = [
                    sets[entry % metadata.ensemble_size]
                    for entry in range(fragment.first_entry, min(end, fragment.first_entry + metadata.ensemble_size))
                ]
                for members in [members for members in used if bookie in members]:
                    left = [
                        one for one in members if one != bookie and one not in self._rules.lost and one not in resting
                    ]
                    text = "{} lets {} rest, and ledger {} has {} left of {}"
                    holds = len(left) >= metadata.ack_quorum
                    self._report.check("maintenance", holds, text, who, bookie, ledger, left, members)
