"""S3, S4, S5, S7, S12 and F6 once more, by the bytes on the disks instead of the messages on the wire.

An inspection opens a copy of each disk, as a loss of power now would leave it. This is slow, so a ledger gets at most
`INSPECTIONS` of them. Disks that the life damaged or emptied and those of a lying bookie are not inspected; there the
acknowledgement alone counts. On all others a copy counts only if its bytes pass the digest, and an acknowledged copy
must be what the writer sent (S7).
"""

from __future__ import annotations

from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata
from simulator.engine.checkers.base import Checker
from simulator.engine.checkers.facts import Facts, Handle, LedgerFacts, behind_end, fragment_of, write_set
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.report import Report
from simulator.engine.metadata import HOST

INSPECTIONS = 4


class OnDisks(Checker):
    """Inspects disks when a ledger is closed or its metadata changes ensembles, and at the end of the life."""

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        self._inspector = inspector
        self._inspections: dict[LedgerId, int] = {}
        self._notice_s = inspector.pace.deadline_s(5.0, syncs=10, metadata_requests=6)

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is None or self.facts.restores:
            return
        if new.closed and (old is None or not old.closed):
            assert new.last_entry is not None
            self._inspect(ledger, new, list(range(new.last_entry + 1)), "S5", new.ack_quorum)
        elif old is not None and old.fragments != new.fragments:
            promised = [e for e in ledger.promised if not new.closed or e <= (new.last_entry or 0)]
            self._inspect(ledger, new, promised, "S12", new.ack_quorum)

    def life_ended(self) -> None:
        self._inspections.clear()
        for ledger in self.facts.ledgers.values():
            if ledger.metadata is not None and ledger.closed is not None and not ledger.deleted:
                promised = [e for e in ledger.promised if e <= ledger.closed[0]]
                self._inspect(ledger, ledger.metadata, promised, "S3", 1)

    def _inspect(
        self, ledger: LedgerFacts, record: LedgerMetadata, entries: list[EntryId], invariant: str, least: int
    ) -> None:
        done = self._inspections.get(ledger.ledger, 0)
        if done >= INSPECTIONS or not entries or ledger.deferred or ledger.went_back:
            return
        self._inspections[ledger.ledger] = done + 1
        held: dict[BookieId, dict[EntryId, bool] | None] = {}  # None: the disk is not inspected
        for bookie in dict.fromkeys(b for entry in entries for b in write_set(record, entry)):
            one = self.facts.bookie(bookie)
            exempt = one.wiped or one.damaged or one.liar
            copies = None if exempt else self._inspector.copies_on_disk(bookie, ledger.ledger, entries)
            held[bookie] = None if copies is None else self._check_copies(ledger, bookie, copies)
        for entry in entries:
            members = write_set(record, entry)
            holders = [b for b in members if (found := held[b]) is None or found[entry]]
            self.report.check(
                invariant,
                len(holders) >= least,
                "entry {} of ledger {} is on the disks of {}, its write set is {}",
                entry,
                ledger.ledger,
                holders,
                members,
            )

    def _check_copies(
        self, ledger: LedgerFacts, bookie: BookieId, copies: dict[EntryId, bytes | None]
    ) -> dict[EntryId, bool]:
        """Return which of the copies exist and pass the digest, and check S7.

        S7 applies only to entries that the bookie acknowledged: others may be of an earlier ledger of the same id.
        """
        good: dict[EntryId, bool] = {}
        for entry, stored in copies.items():
            found = None if stored is None else ledger.open(entry, stored)
            good[entry] = found is not None
            known = ledger.pushed.get(entry)
            if stored is not None and known is not None and ledger.claims.get(entry, {}).get(bookie):
                copy = "no valid copy" if found is None else f"a copy of length {found[2].length}"
                self.report.check(
                    "S7",
                    found is not None and found[2] == known,
                    "the disk of {} has {} of entry {} of ledger {}, the writer's has length {}",
                    bookie,
                    copy,
                    entry,
                    ledger.ledger,
                    known.length,
                )
        return good

    def bookie_started(self, bookie: BookieId) -> None:
        """Check F6: a bookie that comes back has all entries that it acknowledged and that metadata places there."""
        one = self.facts.bookie(bookie)
        if one.wiped or one.liar or self.facts.restores:
            return
        for ledger in self.facts.ledgers.values():
            record = ledger.metadata
            if record is None or ledger.deleted or ledger.repaired or ledger.went_back:
                continue
            placed = [
                entry
                for entry, claims in ledger.claims.items()
                if claims.get(bookie) and bookie in write_set(record, entry) and not behind_end(record, entry)
            ]
            copies = self._inspector.copies_on_disk(bookie, ledger.ledger, placed) if placed else {}
            denied = [entry for entry, stored in (copies or {}).items() if stored is None]
            if placed:
                self.report.check(
                    "F6",
                    not denied,
                    "{} came back and denies the entries {} of ledger {}, which it acknowledged",
                    bookie,
                    denied,
                    ledger.ledger,
                )

    # bookies that came back empty

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        """Check S4: no copy counts in a fragment older than the bookie's new disk, once the writer could notice."""
        metadata = ledger.metadata
        if metadata is None or not any(self.facts.bookie(b).reborn_at for b in write_set(metadata, entry)):
            return
        claims = ledger.claims.get(entry, {})
        holders = [
            b
            for b in write_set(metadata, entry)
            if b in claims and not self._is_outdated(ledger, metadata, b, entry, handle.client)
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

    def _is_outdated(
        self, ledger: LedgerFacts, metadata: LedgerMetadata, bookie: BookieId, entry: EntryId, client: str
    ) -> bool:
        """Return whether the fragment is older than the bookie's new, empty disk, and the writer had time to notice."""
        reborn_at = self.facts.bookie(bookie).reborn_at
        if reborn_at is None or self._inspector.now() < reborn_at + self._notice_s:
            return False
        if not (self._inspector.steady(client, reborn_at) and self._inspector.steady(HOST, reborn_at)):
            return False
        fragment = fragment_of(metadata, entry)
        began = min((at for at, record in ledger.records if fragment in record.fragments), default=reborn_at)
        return began < reborn_at
