"""H6, H7, H9, L12, the brake, the delay and maintenances: which changes of marks and locks are allowed, and when.

Not here: the records of ledgers (`changes.py`), the reasons of ledgers that wait (`reasons.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from buckram.core.healing.records import EVERY_MEMBER, parse_holder, parse_mark
from buckram.core.healing.status import WaitingLedger
from buckram.errors import MalformedRecord
from buckram.types import BookieId, KeyValue, LedgerId
from simulator.engine.checkers.facts import entries_of, fragment_of, members_of
from simulator.engine.healers import AUDITOR, REPLICATOR
from simulator.engine.healing_watch import STOPPED_S, UNDER_WAY_S

if TYPE_CHECKING:
    from simulator.healing.rules import Rules

OPERATOR = "o"
"""First letter of the hosts of operators."""


class Marks:
    """Judges each change of a mark or a lock."""

    def __init__(self, rules: Rules) -> None:
        self.rules, self.world, self.report, self._now = rules, rules.world, rules.report, rules.now
        self.lock_gone_at: dict[tuple[LedgerId, str], float] = {}
        self.marked_at: dict[LedgerId, float] = {}
        self.unreadable: dict[LedgerId, tuple[float, float]] = {}
        """The times since which and until which the mark of a ledger was unreadable, by ledger."""

    def lock_changed(self, who: str, ledger: LedgerId | None, old: KeyValue | None, new: KeyValue | None) -> None:
        if ledger is None:
            return
        if new is None:
            if old is not None:
                self.lock_gone_at[ledger, parse_holder(old.value)] = self._now()
            return
        self.check_allowed(who, "takes", ledger)

    def check_allowed(self, who: str, does: str, ledger: LedgerId) -> None:
        """Check H9 and the brake: nothing forbidden is begun, and running work ends."""
        asked_at = self.world.metadata.asked_at  # requests of a host that is cut off may arrive long afterwards
        for name, since in (("H9", self.rules.disabled_at), ("brake", self.rules.brake_at)):
            self.report.check(
                name,
                since is None or asked_at - since < UNDER_WAY_S,
                "{} {} ledger {} although that was forbidden {:.1f} s before",
                who,
                does,
                ledger,
                asked_at - (since or 0.0),
            )

    def mark_changed(self, who: str, ledger: LedgerId | None, old: KeyValue | None, new: KeyValue | None) -> None:
        if ledger is None:
            return
        if new is not None:
            if old is not None:
                self.report.situation("a mark was made anew")
            self.marked_at[ledger] = self._now()
            self._note_unreadable(ledger, new)
            if who.startswith(AUDITOR):
                self._check_delay(who, ledger, old, new)
            return
        if ledger in self.unreadable:
            self.unreadable[ledger] = self.unreadable[ledger][0], min(self._now(), self.unreadable[ledger][1])
        if not who.startswith(REPLICATOR):
            return  # an operator deletes an unreadable mark
        self.report.situation("a mark was taken back")
        if old is not None:
            self._check_unmarked(who, ledger, old)
        began, marked = self.rules.began_at.get((who, ledger), -1.0), self.marked_at.get(ledger, 0.0)
        self.report.check(
            "H6",
            marked <= began,
            "{} deletes the mark of {} of {:.3f}, it looked at {:.3f}",
            who,
            ledger,
            marked,
            began,
        )

    def is_unreadable(self, ledger: LedgerId) -> bool:
        """Return whether the ledger's mark is unreadable now."""
        return self.unreadable.get(ledger, (0.0, 0.0))[1] > self._now()

    def _note_unreadable(self, ledger: LedgerId, mark: KeyValue) -> None:
        try:
            parse_mark(self.rules.paths.mark(ledger), ledger, mark.value, 0)
        except MalformedRecord:
            self.unreadable[ledger] = self._now(), 1e9

    def _check_delay(self, who: str, ledger: LedgerId, old: KeyValue | None, new: KeyValue) -> None:
        """Check that healing waited for a lost bookie as long as the delay, unless an operator takes the bookie out."""
        key, now = self.rules.paths.mark(ledger), self._now()
        before = parse_mark(key, ledger, old.value, 0).replicas if old is not None else ()
        since = [at for at, _ in self.rules.delays if at < now - UNDER_WAY_S][-1]
        least_s = min(delay for at, delay in self.rules.delays if at >= since)
        for bookie in parse_mark(key, ledger, new.value, 0).replicas:
            if bookie in before:
                continue
            self.rules.domains.check_mark(who, ledger, bookie)
            self.rules.asked.check_mark(who, ledger, bookie)
            if bookie not in self.rules.steady or bookie in self.rules.asked.ever_left:
                continue
            if self.rules.audit_asked_at >= self.rules.lost[bookie]:
                continue
            away_s = now - self.rules.lost[bookie]
            text = "{} marks ledger {} for {} after {:.1f} s, the delay is {}"
            self.report.check("delay", away_s >= least_s, text, who, ledger, bookie, away_s, least_s)

    def _check_unmarked(self, who: str, ledger: LedgerId, old: KeyValue) -> None:
        """Check L12: a worker that deletes a mark has done all that the mark asked for."""
        key, metadata = self.rules.paths.mark(ledger), self.world.judge.facts.ledger(ledger).metadata
        try:
            mark = parse_mark(key, ledger, old.value, 0)
        except MalformedRecord:
            self.report.check("H6", False, "{} deletes the mark of {} that it cannot read", who, ledger)
            return
        if metadata is None:
            return
        named = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        began = self.rules.began_at.get((who, ledger), 0.0)  # a bookie lost later had its copies; an audit finds it
        lost = [bookie for bookie, at in self.rules.lost.items() if at <= began]
        left = sorted(bookie for bookie in mark.replicas if bookie in named and bookie in lost)
        self.report.check("L12", not left, "{} deletes the mark of {}, which still names {}", who, ledger, left)
        if metadata.closed:
            self.rules.changes.check_placed(who, ledger, metadata)
        began = self.rules.began_at.get((who, ledger), -1.0)
        if (mark.replicas and EVERY_MEMBER not in mark.replicas) or not metadata.closed:
            return
        asked = sorted({bookie for _, members in entries_of(metadata) for bookie in members})
        silent = [b for b in asked if not self._answered_since(b, began) and b not in self.rules.lost]
        text = "{} says that the copies of ledger {} are good, and {} did not answer"
        self.report.check("H7", not silent, text, who, ledger, silent)
        gone = self.rules.gone.get(ledger, began) < began and ledger not in self.unreadable
        self.report.check("H7", not gone, text, who, ledger, "any member")

    def _answered_since(self, bookie: BookieId, began: float) -> bool:
        machine = self.world.machines[bookie]
        if self.world._files is not None:
            return True  # workers may have read its files without asking it
        if self.rules.hidden.get(bookie, began) < began:
            return False
        return machine.running or not self.world.steady(bookie, began)

    def check_losses(self, waiting: WaitingLedger) -> None:
        """Check H7: an entry is reported as lost only if no member that may come back has it."""
        metadata = self.world.judge.facts.ledger(waiting.ledger).metadata
        if metadata is None or not metadata.closed:
            return
        for first, last in waiting.lost:
            for entry in range(first, last + 1):
                left = self.rules.copies.count(
                    waiting.ledger, entry, members_of(fragment_of(metadata, entry), metadata, entry)
                )
                text = "{} says that entry {} of ledger {} is lost; there are {} copies"
                self.report.check("H7", not left, text, waiting.worker, entry, waiting.ledger, left)

    def holds(self, who: str, ledger: LedgerId) -> bool:
        """Return whether the worker holds the ledger's lock now."""
        found = self.world.metadata.peek(self.rules.paths.lock(ledger))
        return found is not None and parse_holder(found.value) == _holder(who)

    def holds_lock(self, who: str, ledger: LedgerId) -> bool:
        """Return whether the worker holds the ledger's lock, or held it a moment ago."""
        if self.holds(who, ledger):
            return True
        gone = self.lock_gone_at.get((ledger, _holder(who)))
        return gone is not None and self._now() - gone < STOPPED_S


def _holder(who: str) -> str:
    """Return the holder in a host's locks: operators take theirs in the name of the command."""
    return "rebalance" if who.startswith(OPERATOR) else who
