"""H1 to H5, H8 and M7: which changes of a ledger's metadata healing may make.

Not here: marks and locks (`marks.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from buckram.types import BookieId, LedgerId, LedgerMetadata, LedgerState
from simulator.engine.checkers.facts import entries_of
from simulator.engine.checkers.replaced import check_replaced
from simulator.engine.healers import REPLICATOR

if TYPE_CHECKING:
    from simulator.healing.rules import Rules


class Changes:
    """Judges each change of a ledger's record by a replicator or an operator."""

    def __init__(self, rules: Rules, grace_s: float) -> None:
        self.rules, self.report, self.copies, self._grace_s = rules, rules.report, rules.copies, grace_s
        self.placed: dict[LedgerId, set[BookieId]] = {}
        """Bookies that healing put into each ledger, also during recoveries."""

    def ledger_changed(self, who: str, ledger: LedgerId, old: LedgerMetadata, new: LedgerMetadata) -> None:
        if old.state is not LedgerState.CLOSED and new.state is LedgerState.CLOSED:
            self._check_end(who, ledger, new)
        before = {bookie for fragment in old.fragments for bookie in fragment.ensemble}
        after = {bookie for fragment in new.fragments for bookie in fragment.ensemble}
        self.placed.setdefault(ledger, set()).update(after - before)
        if who.startswith(REPLICATOR):
            self.rules.marks.check_allowed(who, "changes", ledger)
        holds = self.rules.marks.holds_lock(who, ledger)
        self.report.check("H5", holds, "{} changes ledger {} without its lock", who, ledger)
        for fragment in new.fragments:
            twice = len(set(fragment.ensemble)) < len(fragment.ensemble)
            self.report.check("H4", not twice, "{} made {} of ledger {}", who, fragment.ensemble, ledger)
        if old.state is LedgerState.OPEN and new.state is not LedgerState.OPEN:
            self._check_dead(who, ledger)
        if old.state is not new.state or not old.closed:
            if old.state is new.state is LedgerState.OPEN:
                grows = old.last_fragment != new.last_fragment
                self.report.check("H2", not grows, "{} changes the open fragment of ledger {}", who, ledger)
                self._check_replaced(who, ledger, old, new)
            return
        self._check_replaced(who, ledger, old, new)

    def check_placed(self, who: str, ledger: LedgerId, metadata: LedgerMetadata) -> None:
        """Check L12: when healing is done with a ledger, its new members have all copies that are placed on them."""
        for bookie in sorted(self.placed.get(ledger, ())):
            needed = [entry for entry, members in entries_of(metadata) if bookie in members]
            if not needed or bookie in self.rules.lost or ledger in self.rules.gone:
                continue
            held = self.copies.on_disk(bookie, ledger, needed)
            text = "{} is done with ledger {}, and {}, which it put there, lacks {}"
            missing = [entry for entry in needed if entry not in held]
            self.report.check("L12", not missing, text, who, ledger, bookie, missing)

    def _check_dead(self, who: str, ledger: LedgerId) -> None:
        """Check H2: healing closes a ledger only after its writer stood still, and a stream's only without a lease."""
        self.report.situation("a ledger was recovered by healing")
        written = self.rules.written.get(ledger)
        if written is None:
            return
        if written.writer_lives:
            still_s = self.rules.now() - written.last_append_at
            self.report.check("H2", still_s >= self._grace_s, "{} ends ledger {} after {:.1f} s", who, ledger, still_s)
        leased = bool(written.lease) and self.rules.world.metadata.peek(written.lease) is not None
        self.report.check("H2", not leased, "{} ends ledger {}, whose stream has a writer", who, ledger)

    def _check_end(self, who: str, ledger: LedgerId, new: LedgerMetadata) -> None:
        """Check H8: a close keeps the last fragment and acknowledged entries, and entries have Qa copies on disks."""
        last = new.last_entry if new.last_entry is not None else -1
        first = new.last_fragment.first_entry
        self.report.check("H8", last >= first - 1, "{} ends ledger {} at {}, below {}", who, ledger, last, first)
        written = self.rules.written.get(ledger)
        acked = max(written.acked, default=-1) if written is not None else -1
        self.report.check("H8", last >= acked, "{} ends ledger {} at {}, acknowledged: {}", who, ledger, last, acked)
        if written is not None and written.deferred:
            return  # with deferred sync, acknowledged entries are on disks only once they are forced
        for entry, members in entries_of(new):
            copies = sum(bool(self.copies.on_disk(bookie, ledger, [entry])) for bookie in members)
            text = "{} ends ledger {} while entry {} has {} copies on {}"
            holds = copies >= new.ack_quorum or any(bookie in self.rules.lost for bookie in members)
            self.report.check("H8", holds, text, who, ledger, entry, copies, members)

    def _check_replaced(self, who: str, ledger: LedgerId, old: LedgerMetadata, new: LedgerMetadata) -> None:
        self.report.situation("a member was replaced")
        gone_at = self.rules.gone.get(ledger)
        vanished = gone_at is not None and self.rules.began_at.get((who, ledger), -1.0) < gone_at
        check_replaced(self.report, self.copies, who, ledger, old, new, vanished=vanished)
