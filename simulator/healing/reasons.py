"""The truth of reasons why ledgers wait: judged when a worker reports them, and once more at the end of a life.

Not here: which ledgers must be whole at the end (`ending.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from buckram.core.healing.records import parse_mark
from buckram.core.healing.status import Reason, WaitingLedger, Why
from buckram.errors import MalformedRecord
from buckram.types import LedgerId, LedgerMetadata
from simulator.engine.checkers.facts import entries_of

if TYPE_CHECKING:
    from simulator.healing.rules import Rules


_UNDER_WAY_S = 25.0


class Reasons:
    """Judges the reasons of one life."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.world, self.report = rules, rules.world, rules.report

    def said(self, waiting: WaitingLedger) -> None:
        """Check the reasons that a worker reports. A reason that was true a moment ago may be reported."""
        metadata = self.world.judge.facts.ledger(waiting.ledger).metadata
        for reason in waiting.reasons:
            self.report.situation(f"waits: {reason.why.value}")
            holds = self._may_be_unreadable(waiting.ledger, reason)
            if reason.why is Why.OTHER and metadata is not None:
                holds &= not self._marked_for_lost(waiting, metadata)
            if reason.why is Why.NO_GOOD_COPY and metadata is not None:  # a deleted ledger has no copies at once
                holds &= self._copies(waiting.ledger, reason) == 0
            text = "{} says that ledger {} waits because of {}"
            self.report.check("reason", holds, text, waiting.worker, waiting.ledger, reason)

    def is_true_at_the_end(self, waiting: WaitingLedger, metadata: LedgerMetadata, reason: Reason) -> bool:
        ledger = waiting.ledger
        if reason.why is Why.NO_BOOKIE:
            # Members whose entries have no readable copy stay, and the racks of the others must fit beside them.
            stay = any(one.why in (Why.NO_GOOD_COPY, Why.COPY_AWAY) for one in waiting.reasons)
            return any(self.rules.domains.no_spare(metadata, fragment, stay) for fragment in metadata.fragments)
        if reason.why is Why.NO_GOOD_COPY:
            return metadata.closed and self._copies(ledger, reason) == 0
        if reason.why is Why.COPY_AWAY:
            away = self._names_lost(metadata)
            return away and (not metadata.closed or self._copies(ledger, reason) == 0)
        if reason.why is Why.WRITER_LIVES:
            # Writers are dead by now, except a stream's that lost its ledger and keeps its lease.
            lease = self.rules.written[ledger].lease
            return bool(lease) and self.world.metadata.peek(lease) is not None
        return reason.why is Why.UNREADABLE_RECORD and self._unreadable(ledger)

    def _names_lost(self, metadata: LedgerMetadata) -> bool:
        return any(bookie in self.rules.lost for fragment in metadata.fragments for bookie in fragment.ensemble)

    def _copies(self, ledger: LedgerId, reason: Reason) -> int:
        """Return the highest number of copies of an entry that the reason names; -1 if it names none."""
        metadata = self.world.judge.facts.ledger(ledger).metadata
        if metadata is None or not metadata.closed:
            return -1
        copies = [
            self.rules.copies.count(ledger, entry, members)
            for entry, members in entries_of(metadata)
            if any(first <= entry <= last for first, last in reason.entries)
        ]
        return max(copies, default=-1)

    def _may_be_unreadable(self, ledger: LedgerId, reason: Reason) -> bool:
        """Return whether a reason fits the mark's readability; an attempt may end after a change of the mark."""
        since, until = self.rules.marks.unreadable.get(ledger, (1e9, 1e9))
        now = self.world.loop.time()
        if reason.why is Why.UNREADABLE_RECORD:
            return since <= now <= until + _UNDER_WAY_S
        return not since + _UNDER_WAY_S < now < until

    def _marked_for_lost(self, waiting: WaitingLedger, metadata: LedgerMetadata) -> bool:
        """Return whether mark and metadata name a lost bookie: then the copies have a more precise reason than OTHER.

        False if the mark changed since the attempt began.
        """
        ledger = waiting.ledger
        if self.rules.marks.marked_at.get(ledger, 0.0) > self.rules.began_at.get((waiting.worker, ledger), 0.0):
            return False
        key = self.rules.paths.mark(ledger)
        found = self.world.metadata.peek(key)
        if found is None:
            return False
        try:
            named = parse_mark(key, ledger, found.value, found.version).replicas
        except MalformedRecord:
            return False
        return any(b in self.rules.lost and b in named for f in metadata.fragments for b in f.ensemble)

    def _unreadable(self, ledger: LedgerId) -> bool:
        """Return whether the ledger's mark is unreadable now."""
        key = self.rules.paths.mark(ledger)
        found = self.world.metadata.peek(key)
        try:
            if found is not None:
                parse_mark(key, ledger, found.value, found.version)
        except MalformedRecord:
            return True
        return False
