"""S1 to S5 in lives with a lying bookie and a MAC digest (F20): the claims of that bookie do not count.

One bookie may acknowledge without storing, deny entries, mix them up and ignore fences. With Qa >= 2 each acknowledged
entry is on at least Qa - 1 honest bookies, and no recovery that could reach one of them may end below it.
"""

from __future__ import annotations

from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata
from simulator.engine.checkers.base import Checker
from simulator.engine.checkers.facts import Facts, Handle, LedgerFacts, members_of, write_set
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.report import Report


class HonestCopies(Checker):
    """Checks nothing in lives without a lying bookie, and nothing of ledgers whose ack quorum is 1."""

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        self._inspector = inspector
        self._began: dict[tuple[str, LedgerId], float] = {}
        self._closer: dict[LedgerId, str] = {}

    def convicted(self, bookie: BookieId, who: str) -> None:
        self.report.situation("liar convicted")
        self.report.check("F21", self.facts.bookie(bookie).liar, "{} convicts {}, which never lied", who, bookie)

    def recovery_started(self, ledger: LedgerFacts, client: str) -> None:
        self._began[client, ledger.ledger] = self._inspector.now()

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        metadata = ledger.metadata
        if metadata is not None and self._applies_to(metadata) and not handle.deferred:
            honest = self._honest_holders(ledger, entry, write_set(metadata, entry))
            self.report.check(
                "S4",
                len(honest) >= metadata.ack_quorum - 1,
                "entry {} of ledger {} acknowledged with {} honest copies, ack quorum {}",
                entry,
                ledger.ledger,
                honest,
                metadata.ack_quorum,
            )
            if ledger.closed is not None and entry > ledger.closed[0]:
                self._check_entry_beyond_end(ledger, entry, write_set(metadata, entry))

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is None or old is None or not self._applies_to(new):
            return
        if new.closed and not old.closed:
            self._check_close(ledger, old, new, who)
        if old.fragments != new.fragments:
            for entry in ledger.promised:
                if new.last_entry is None or entry <= new.last_entry:
                    honest = self._honest_holders(ledger, entry, write_set(new, entry))
                    self.report.check(
                        "S3",
                        bool(honest),
                        "acknowledged entry {} of ledger {}: no honest bookie of {} holds it",
                        entry,
                        ledger.ledger,
                        write_set(new, entry),
                    )

    def _check_close(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata, who: str) -> None:
        last = new.last_entry
        assert last is not None
        self._closer[ledger.ledger] = who
        for entry in [entry for entry in ledger.promised if entry > last]:
            self._check_entry_beyond_end(ledger, entry, members_of(old.last_fragment, old, entry))
        if ledger.promised and max(ledger.promised) <= last:
            self.report.check("S1", True)
        for entry in range(last + 1):
            honest = self._honest_holders(ledger, entry, write_set(new, entry))
            self.report.check(
                "S5",
                len(honest) >= new.ack_quorum - 1,
                "ledger {} is closed at {}, but entry {} has honest copies on {} only",
                ledger.ledger,
                last,
                entry,
                honest,
            )

    def _check_entry_beyond_end(self, ledger: LedgerFacts, entry: EntryId, members: tuple[BookieId, ...]) -> None:
        """Check an acknowledged entry beyond the end: only a recovery that reached no honest holder may cause this."""
        who = self._closer[ledger.ledger]
        reachable = [b for b in self._honest_holders(ledger, entry, members) if self._could_reach(b, who, ledger)]
        self.report.check(
            "S1",
            not reachable and who != ledger.writer,
            "ledger {} was closed by {} below entry {}, which was acknowledged; although it could reach the honest {}",
            ledger.ledger,
            who,
            entry,
            reachable,
        )

    def _applies_to(self, metadata: LedgerMetadata) -> bool:
        return self.facts.liars and metadata.ack_quorum >= 2

    def _honest_holders(self, ledger: LedgerFacts, entry: EntryId, members: tuple[BookieId, ...]) -> list[BookieId]:
        return [b for b in ledger.holders(entry, members) if not self.facts.bookie(b).liar]

    def _could_reach(self, bookie: BookieId, who: str, ledger: LedgerFacts) -> bool:
        began = self._began.get((who, ledger.ledger))
        if began is None or not self.facts.bookie(bookie).running:
            return False
        return self._inspector.steady(bookie, began) and self._inspector.steady(who, began)
