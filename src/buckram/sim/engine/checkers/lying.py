"""S1 to S5 in lives with a liar under a MAC digest (F20): what it claims to hold does not count.

One bookie may acknowledge without storing, deny, mix and ignore fences. With Qa >= 2 each acknowledged entry is on
Qa - 1 honest bookies at least, and no recovery that could reach one of them may end below it.
"""

from __future__ import annotations

from collections.abc import Callable

from buckram.sim.engine.checkers.base import Checker
from buckram.sim.engine.checkers.facts import Facts, Handle, LedgerFacts, members_of, write_set
from buckram.sim.engine.checkers.report import Report
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata


class UnderALiar(Checker):
    """`steady(host, since)`: nothing was wrong with the host since then, and nothing is now."""

    def __init__(
        self, facts: Facts, report: Report, now: Callable[[], float], steady: Callable[[str, float], bool]
    ) -> None:
        super().__init__(facts, report)
        self._now, self._steady = now, steady
        self._began: dict[tuple[str, LedgerId], float] = {}
        self._closer: dict[LedgerId, str] = {}

    def convicted(self, bookie: BookieId, who: str) -> None:
        self.report.situation("liar convicted")
        self.report.check("F21", self.facts.bookie(bookie).liar, "{} convicts {}, which never lied", who, bookie)

    def recovery_begins(self, ledger: LedgerFacts, client: str) -> None:
        self._began[client, ledger.ledger] = self._now()

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        metadata = ledger.metadata
        if metadata is not None and self._judges(metadata) and not handle.deferred:
            honest = self._honest(ledger, entry, write_set(metadata, entry))
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
                self._lost(ledger, entry, write_set(metadata, entry))

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is None or old is None or not self._judges(new):
            return
        if new.closed and not old.closed:
            self._closed(ledger, old, new, who)
        if old.fragments != new.fragments:
            for entry in ledger.promised:
                if new.last_entry is None or entry <= new.last_entry:
                    honest = self._honest(ledger, entry, write_set(new, entry))
                    self.report.check(
                        "S3",
                        bool(honest),
                        "acknowledged entry {} of ledger {}: no honest bookie of {} holds it",
                        entry,
                        ledger.ledger,
                        write_set(new, entry),
                    )

    def _closed(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata, who: str) -> None:
        last = new.last_entry
        assert last is not None
        self._closer[ledger.ledger] = who
        for entry in [entry for entry in ledger.promised if entry > last]:
            self._lost(ledger, entry, members_of(old.last_fragment, old, entry))
        if ledger.promised and max(ledger.promised) <= last:
            self.report.check("S1", True)
        for entry in range(last + 1):
            honest = self._honest(ledger, entry, write_set(new, entry))
            self.report.check(
                "S5",
                len(honest) >= new.ack_quorum - 1,
                "ledger {} is closed at {}, but entry {} has honest copies on {} only",
                ledger.ledger,
                last,
                entry,
                honest,
            )

    def _lost(self, ledger: LedgerFacts, entry: EntryId, members: tuple[BookieId, ...]) -> None:
        """An acknowledged entry lies beyond the end: only a recovery that could ask no honest holder may do that."""
        who = self._closer[ledger.ledger]
        reachable = [b for b in self._honest(ledger, entry, members) if self._reached(b, who, ledger)]
        self.report.check(
            "S1",
            not reachable and who != ledger.writer,
            "ledger {} was closed by {} below entry {}, which was acknowledged; honest {} could be asked",
            ledger.ledger,
            who,
            entry,
            reachable,
        )

    def _judges(self, metadata: LedgerMetadata) -> bool:
        return self.facts.liars and metadata.ack_quorum >= 2

    def _honest(self, ledger: LedgerFacts, entry: EntryId, members: tuple[BookieId, ...]) -> list[BookieId]:
        return [b for b in ledger.holders(entry, members) if not self.facts.bookie(b).liar]

    def _reached(self, bookie: BookieId, who: str, ledger: LedgerFacts) -> bool:
        began = self._began.get((who, ledger.ledger))
        running = self.facts.bookie(bookie).running
        return began is not None and running and self._steady(bookie, began) and self._steady(who, began)
