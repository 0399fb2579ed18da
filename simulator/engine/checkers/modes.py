"""M1 to M8 and M10: explicit ids, deferred sync, power loss, racks, repair, identity, deletion."""

from __future__ import annotations

from buckram.errors import Code
from buckram.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState
from simulator.engine.checkers.base import Checker
from simulator.engine.checkers.facts import Facts, Handle, LedgerFacts, fragment_of, members_of, write_set, write_sets
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Answer


class Modes(Checker):
    """Inspecting a disk is slow, so M4 is checked for the first `SAMPLES` acknowledgements of each ledger only."""

    SAMPLES = 3

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        self._inspector = inspector
        self._sampled: dict[LedgerId, int] = {}
        self._collected: dict[tuple[LedgerId, BookieId], bool] = {}

    def deleted_by_bookie(self, ledger: LedgerFacts, bookie: BookieId) -> None:
        self._collected[ledger.ledger, bookie] = True

    # M1

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        if handle.explicit:
            # An append that is still pending may end in the same moment.
            ended = [handle.wanted[n] for n, result in enumerate(handle.results) if result != "failed"]
            missing = [e for e in range(entry) if e not in ended]
            again = [n for n in range(len(handle.ids)) if n != index and handle.ids[n] == entry]
            self.report.check(
                "M1",
                not missing and not again and handle.wanted[index] == entry,
                "entry {} of ledger {} acknowledged (asked for {}), missing before it: {}, twice: {}",
                entry,
                ledger.ledger,
                handle.wanted[index],
                missing,
                again,
            )
        if ledger.delete_returned:
            # Entries that recovery found may be acknowledged later: their responses were under way.
            self.report.check(
                "M10",
                ledger.closed is not None and entry <= ledger.closed[0],
                "entry {} of ledger {} acknowledged after delete had returned",
                entry,
                ledger.ledger,
            )
        metadata = ledger.metadata
        if metadata is None:
            return
        if ledger.racks:
            self._check_racks_at_ack(ledger, metadata, entry)
        if not handle.deferred:
            self._check_survives_power_loss(ledger, metadata, entry)

    def append_failed(self, ledger: LedgerFacts, handle: Handle, index: int, error: BaseException) -> None:
        if ledger.delete_returned:
            self.report.check("M10", True)
        wanted = handle.wanted[index]
        if handle.explicit and type(error).__name__ == "DuplicateEntry":
            # Calls of different kinds may reach the queue in another order than they were made in.
            self.report.check(
                "M1",
                handle.wanted.count(wanted) > 1,
                "entry id {} of ledger {} was refused as a duplicate, but is new",
                wanted,
                ledger.ledger,
            )

    # M4

    def _check_survives_power_loss(self, ledger: LedgerFacts, metadata: LedgerMetadata, entry: EntryId) -> None:
        done = self._sampled.get(ledger.ledger, 0)
        if done >= self.SAMPLES:
            return
        members = write_set(metadata, entry)
        if any(
            self.facts.bookie(b).wiped or self.facts.bookie(b).damaged or self.facts.bookie(b).liar for b in members
        ):
            return
        self._sampled[ledger.ledger] = done + 1
        holders = []
        for bookie in members:
            found = self._inspector.entries_on_disk(bookie, ledger.ledger, [entry])
            if found is None:
                return
            if found[entry]:
                holders.append(bookie)
        self.report.check(
            "M4",
            len(holders) >= metadata.ack_quorum,
            "entry {} of ledger {} is acknowledged; a loss of power now would leave it on {} of {}",
            entry,
            ledger.ledger,
            holders,
            members,
        )

    # M2, M3

    def force_returned(self, ledger: LedgerFacts, handle: Handle, head: EntryId) -> None:
        metadata = ledger.metadata
        if metadata is None or metadata.closed:
            return
        for bookie in metadata.last_fragment.ensemble:
            mine = [e for e in ledger.acked if e <= head and (e, bookie) in ledger.claimed_at]
            one = self.facts.bookie(bookie)
            if one.wiped or one.damaged or one.liar or not mine:
                continue
            found = self._inspector.entries_on_disk(bookie, ledger.ledger, mine)
            if found is not None:
                self.report.check(
                    "M2",
                    all(found.values()),
                    "force of ledger {} returned {}, but {} would lose {}",
                    ledger.ledger,
                    head,
                    bookie,
                    [e for e in mine if not found[e]],
                )

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if new is None:
            return
        if ledger.deferred and old is not None and old.state is LedgerState.OPEN:
            self.report.check(
                "M3",
                old.fragments == new.fragments,
                "{} changed the ensemble of ledger {}, whose entries are not synced",
                who,
                ledger.ledger,
            )
        if ledger.racks and (old is None or old.fragments != new.fragments):
            for fragment in new.fragments:
                if old is None or fragment not in old.fragments:
                    self._check_racks_of(ledger, new, fragment, who)
            if old is not None:
                self.report.situation("an ensemble changed under a rule of places")
        if ledger.racks and new.closed and old is not None and not old.closed:
            self._check_racks_at_close(ledger, new, who)
        recovers = self.facts.recovering.get((who, ledger.ledger))  # a recovery replaces members as writers do
        if old is not None and self.facts.repairing.get((who, ledger.ledger)) and not recovers:
            self._check_replacements(ledger, old, new, who)

    # M5, M6

    def _spans_racks(self, ledger: LedgerFacts, members: list[BookieId] | tuple[BookieId, ...]) -> bool:
        racks = dict.fromkeys(self.facts.bookie(b).rack for b in members if self.facts.bookie(b).rack is not None)
        return len(racks) >= ledger.racks

    def _check_racks_at_ack(self, ledger: LedgerFacts, metadata: LedgerMetadata, entry: EntryId) -> None:
        holders = ledger.holders(entry, write_set(metadata, entry))
        self.report.check(
            "M5",
            self._spans_racks(ledger, holders),
            "entry {} of ledger {} acknowledged with copies on {}, fewer than {} racks",
            entry,
            ledger.ledger,
            holders,
            ledger.racks,
        )

    def _check_racks_at_close(self, ledger: LedgerFacts, metadata: LedgerMetadata, who: str) -> None:
        """Check M5 at a close: writers close what was acknowledged, recoveries what they wrote back."""
        for entry in range(metadata.last_fragment.first_entry, (metadata.last_entry or -1) + 1):
            holders = ledger.holders(entry, write_set(metadata, entry))
            self.report.check(
                "M5",
                self._spans_racks(ledger, holders),
                "{} closed ledger {} with entry {} on {}, fewer than {} racks",
                who,
                ledger.ledger,
                entry,
                holders,
                ledger.racks,
            )

    def answer_sent(self, answer: Answer) -> None:
        """Count how often a copy completes an ack quorum that does not span enough racks."""
        request = answer.request
        if request is None or request.kind != "add" or answer.code is not Code.OK:
            return
        ledger = self.facts.ledgers.get(request.ledger)
        if ledger is None or not ledger.racks or ledger.metadata is None or request.entry in ledger.acked:
            return
        metadata = ledger.metadata
        holders = ledger.holders(request.entry, write_set(metadata, request.entry))
        if len(holders) >= metadata.ack_quorum and not self._spans_racks(ledger, holders):
            self.report.situation("an ack quorum in one place only")

    def _check_racks_of(self, ledger: LedgerFacts, metadata: LedgerMetadata, fragment: Fragment, who: str) -> None:
        for window in write_sets(fragment, metadata):
            if any(self.facts.unplaced(who, bookie) for bookie in window):
                continue
            self.report.check(
                "M6",
                self._spans_racks(ledger, window),
                "ledger {}: {} of {} span fewer than {} racks",
                ledger.ledger,
                window,
                fragment,
                ledger.racks,
            )

    # M7

    def _check_replacements(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata, who: str) -> None:
        firsts = [f.first_entry for f in new.fragments[1:]]
        ends = [first - 1 for first in firsts] + [new.last_entry if new.last_entry is not None else -1]
        for fragment, end in zip(new.fragments, ends, strict=True):
            before = fragment_of(old, fragment.first_entry)
            added = [b for b in fragment.ensemble if b not in before.ensemble]
            if added and not new.closed and fragment == new.last_fragment:
                self.report.check(
                    "M7",
                    False,
                    "{} put {} into the fragment of ledger {} that its writer fills",
                    who,
                    added,
                    ledger.ledger,
                )
            for bookie in added:
                needed = [e for e in range(fragment.first_entry, end + 1) if bookie in members_of(fragment, new, e)]
                missing = [e for e in needed if not ledger.claims.get(e, {}).get(bookie)]
                if missing and (ledger.ledger, bookie) in self._collected:
                    # Garbage collection came before the change of metadata; the repair checks the copy again.
                    self.report.situation("a copy was collected before metadata named it")
                    continue
                self.report.check(
                    "M7",
                    not missing,
                    "{} put {} into a fragment of ledger {} although it lacks {}",
                    who,
                    bookie,
                    ledger.ledger,
                    missing,
                )
