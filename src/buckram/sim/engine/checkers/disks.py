"""S3, S4, S5, S7, S12 and F6 once more, by what is really on the disks and not by what went over the wire.

A look opens a copy of each disk, as a loss of power now would leave it, so a ledger gets `LOOKS` of them. What was
harmed on purpose (changed bytes, an empty disk, a liar) is spared: the wire has said what it acknowledged. Everywhere
else an entry is held only where its bytes pass the digest, and what a bookie acknowledged is what the writer sent (S7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from buckram.sim.engine.checkers.base import Checker
from buckram.sim.engine.checkers.facts import Facts, Handle, LedgerFacts, fragment_of, write_set
from buckram.sim.engine.checkers.report import Report
from buckram.sim.engine.metadata import HOST
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata

if TYPE_CHECKING:
    from buckram.sim.engine.checkers.judge import Senses

LOOKS = 4


class OnDisks(Checker):
    """Looks whenever the record of a ledger changes who holds it, and at the end."""

    def __init__(self, facts: Facts, report: Report, senses: Senses) -> None:
        super().__init__(facts, report)
        self._senses = senses
        self._looks: dict[LedgerId, int] = {}
        self._noticed_s = senses.pace.patience(5.0, syncs=10, questions=6)

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is None or self.facts.restores:
            return
        if new.closed and (old is None or not old.closed):
            assert new.last_entry is not None
            self._look(ledger, new, list(range(new.last_entry + 1)), "S5", new.ack_quorum)
        elif old is not None and old.fragments != new.fragments:
            promised = [e for e in ledger.promised if not new.closed or e <= (new.last_entry or 0)]
            self._look(ledger, new, promised, "S12", new.ack_quorum)

    def ended(self) -> None:
        self._looks.clear()
        for ledger in self.facts.ledgers.values():
            if ledger.metadata is not None and ledger.closed is not None and not ledger.deleted:
                promised = [e for e in ledger.promised if e <= ledger.closed[0]]
                self._look(ledger, ledger.metadata, promised, "S3", 1)

    def _look(
        self, ledger: LedgerFacts, record: LedgerMetadata, entries: list[EntryId], invariant: str, least: int
    ) -> None:
        looks = self._looks.get(ledger.ledger, 0)
        if looks >= LOOKS or not entries or ledger.deferred or ledger.went_back:
            return
        self._looks[ledger.ledger] = looks + 1
        held: dict[BookieId, dict[EntryId, bool] | None] = {}
        for bookie in dict.fromkeys(b for entry in entries for b in write_set(record, entry)):
            one = self.facts.bookie(bookie)
            harmed = one.wiped or one.damaged or one.liar
            copies = None if harmed else self._senses.copies_on_disk(bookie, ledger.ledger, entries)
            held[bookie] = None if copies is None else self._good(ledger, bookie, copies)
        for entry in entries:
            members = write_set(record, entry)
            there = [b for b in members if (found := held[b]) is None or found[entry]]
            self.report.check(
                invariant,
                len(there) >= least,
                "entry {} of ledger {} is on the disks of {}, its write set is {}",
                entry,
                ledger.ledger,
                there,
                members,
            )

    def _good(self, ledger: LedgerFacts, bookie: BookieId, copies: dict[EntryId, bytes | None]) -> dict[EntryId, bool]:
        """Which of them are there and pass the digest. S7 goes by what it acknowledged of this ledger: it may hold what
        another ledger of the id had."""
        good: dict[EntryId, bool] = {}
        for entry, stored in copies.items():
            found = None if stored is None else ledger.open(entry, stored)
            good[entry] = found is not None
            known = ledger.pushed.get(entry)
            if stored is not None and known is not None and ledger.claims.get(entry, {}).get(bookie):
                said = "no valid copy" if found is None else f"a copy of length {found[2].length}"
                self.report.check(
                    "S7",
                    found is not None and found[2] == known,
                    "the disk of {} has {} of entry {} of ledger {}, the writer's has length {}",
                    bookie,
                    said,
                    entry,
                    ledger.ledger,
                    known.length,
                )
        return good

    def returned(self, bookie: BookieId) -> None:
        """F6: of what it acknowledged and metadata names it for it would deny nothing, however its log ends."""
        one = self.facts.bookie(bookie)
        if one.wiped or one.liar or self.facts.restores:
            return
        for ledger in self.facts.ledgers.values():
            record = ledger.metadata
            if record is None or ledger.deleted or ledger.repaired or ledger.went_back:
                continue
            owed = [
                entry
                for entry, claims in ledger.claims.items()
                if claims.get(bookie) and bookie in write_set(record, entry)
            ]
            copies = self._senses.copies_on_disk(bookie, ledger.ledger, owed) if owed else {}
            denied = [entry for entry, stored in (copies or {}).items() if stored is None]
            if owed:
                self.report.check(
                    "F6",
                    not denied,
                    "{} came back and denies the entries {} of ledger {}, which it acknowledged",
                    bookie,
                    denied,
                    ledger.ledger,
                )

    # a member that came back empty

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        """S4: it counts for nothing more in a fragment of before, once its writer has had the time to hear of it."""
        metadata = ledger.metadata
        if metadata is None or not any(self.facts.bookie(b).reborn_at for b in write_set(metadata, entry)):
            return
        claims = ledger.claims.get(entry, {})
        holders = [
            b
            for b in write_set(metadata, entry)
            if b in claims and not self._counts_no_more(ledger, metadata, b, entry, handle.client)
        ]
        self.report.check(
            "S4",
            len(holders) >= metadata.ack_quorum,
            "entry {} of ledger {} acknowledged with {}; the others of {} came back empty since",
            entry,
            ledger.ledger,
            holders,
            list(claims),
        )

    def _counts_no_more(
        self, ledger: LedgerFacts, metadata: LedgerMetadata, bookie: BookieId, entry: EntryId, client: str
    ) -> bool:
        reborn_at = self.facts.bookie(bookie).reborn_at
        if reborn_at is None or self._senses.now() < reborn_at + self._noticed_s:
            return False
        if not (self._senses.steady(client, reborn_at) and self._senses.steady(HOST, reborn_at)):
            return False
        fragment = fragment_of(metadata, entry)
        began = min((at for at, record in ledger.records if fragment in record.fragments), default=reborn_at)
        return began < reborn_at
