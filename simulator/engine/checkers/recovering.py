"""F1, F7 to F10, F12, F13, F15, F16: what a recovery must do before and when it closes a ledger.

Not here: what it must not take for absent (`absence.py`), what bookies must do (`fencing.py`).
"""

from __future__ import annotations

from buckram.errors import Code
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState
from simulator.engine.checkers.base import Checker
from simulator.engine.checkers.facts import Facts, LedgerFacts, members_of, write_sets
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Answer, Request


class RecoveryDuties(Checker):
    """The duties of a recovery; and only recoveries, writers and repairs fence or change metadata."""

    def __init__(self, facts: Facts, report: Report) -> None:
        super().__init__(facts, report)
        self._answered: dict[tuple[str, LedgerId], dict[BookieId, bool]] = {}
        self._writing_back: dict[LedgerId, dict[str, bool]] = {}
        self._denied: dict[tuple[str, LedgerId], dict[EntryId, dict[BookieId, bool]]] = {}

    def request_sent(self, request: Request) -> None:
        ledger = self.facts.ledgers.get(request.ledger)
        if ledger is None or request.ghost:
            return
        if request.kind == "add" and request.key == ledger.key:
            self._keep_lac(ledger, request)
            if request.recovery and self.facts.recovering.get((request.client, request.ledger)):
                self._writing_back.setdefault(request.ledger, {})[request.client] = True
                active = [
                    c for c in self._writing_back[request.ledger] if self.facts.recovering.get((c, request.ledger))
                ]
                if len(active) >= 2:
                    self.report.situation("two recoverers in write-back")
        if request.kind == "write_lac" and request.key == ledger.key:
            self._keep_lac(ledger, request)
        if not request.fence or request.key != ledger.key:
            return
        recovering = self.facts.recovering.get((request.client, request.ledger), 0) > 0
        self.report.check(
            "F16", recovering, "{} fences ledger {} although it only opened it", request.client, request.ledger
        )
        fragment, metadata = ledger.recovery_fragment, ledger.metadata
        if request.entry < 0 or fragment is None or metadata is None:
            return
        self.report.check(
            "F7",
            request.bookie in members_of(fragment, metadata, request.entry),
            "{} sends the recovery read of entry {} of ledger {} to {}, the ensemble is {}",
            request.client,
            request.entry,
            request.ledger,
            request.bookie,
            fragment.ensemble,
        )
        self.report.check(
            "F9",
            request.entry >= fragment.first_entry,
            "{} reads entry {} of ledger {} in recovery, its last fragment begins at {}",
            request.client,
            request.entry,
            request.ledger,
            fragment.first_entry,
        )
        needed = metadata.write_quorum - metadata.ack_quorum + 1
        for window in write_sets(fragment, metadata):
            fenced = [b for b in window if b in ledger.fenced or self.facts.bookie(b).liar]
            self.report.check(
                "F1",
                len(fenced) >= needed,
                "{} begins to read ledger {} although only {} of {} are fenced",
                request.client,
                request.ledger,
                fenced,
                window,
            )

    def _keep_lac(self, ledger: LedgerFacts, request: Request) -> None:
        lac = request.lac if request.lac is not None else -1
        # A copy that repair makes carries the end of the closed ledger as its LAC: F10 holds for it, too.
        if lac > ledger.max_lac:
            ledger.max_lac, ledger.max_lac_source = lac, f"{request.client}'s {request.kind} of entry {request.entry}"
        if ledger.closed is not None:
            self._check_lac_within_end(ledger)

    def _check_lac_within_end(self, ledger: LedgerFacts) -> None:
        assert ledger.closed is not None
        if ledger.max_lac >= 0:
            self.report.check(
                "F10",
                ledger.max_lac <= ledger.closed[0],
                "ledger {} is closed at {}, but {} says that {} is confirmed",
                ledger.ledger,
                ledger.closed[0],
                ledger.max_lac_source,
                ledger.max_lac,
            )

    def answer_delivered(self, answer: Answer) -> None:
        request = answer.request
        if request is None or not request.fence:
            return
        who = (request.client, request.ledger)
        if answer.code is Code.OK and request.entry >= 0:
            self.report.situation("recovery found an entry above the LAC")
            ledger = self.facts.ledgers.get(request.ledger)
            denied = self._denied.get(who, {}).get(request.entry, {})
            if (
                ledger is not None
                and ledger.metadata is not None
                and (len(denied) > ledger.metadata.write_quorum - ledger.metadata.ack_quorum)
            ):
                self.report.situation("denials overruled by a copy")
        if answer.code is Code.OK or answer.negative:
            self._answered.setdefault(who, {})[request.bookie] = True
        if answer.negative and request.entry >= 0:
            self._denied.setdefault(who, {}).setdefault(request.entry, {})[request.bookie] = True

    def metadata_changed(
        self, ledger: LedgerFacts, old: LedgerMetadata | None, new: LedgerMetadata | None, who: str
    ) -> None:
        if old is None or new is None:
            return
        involved = (
            who == ledger.writer
            or self.facts.recovering.get((who, ledger.ledger), 0) > 0
            or (self.facts.repairing.get((who, ledger.ledger), 0) > 0)
        )
        self.report.check(
            "F16", involved, "{} changed the metadata of ledger {} although it only opened it", who, ledger.ledger
        )
        if old.state is LedgerState.IN_RECOVERY and not new.closed:
            self.report.check(
                "F8",
                old.last_fragment == new.last_fragment and len(old.fragments) == len(new.fragments),
                "{} changed the ensembles of ledger {} while it is in recovery",
                who,
                ledger.ledger,
            )
        if new.closed and not old.closed:
            if ledger.max_lac >= 0:
                self._check_lac_within_end(ledger)
            if old.state is LedgerState.IN_RECOVERY:
                self.report.check("F8", True)
                if who != ledger.writer:
                    self._check_evidence(ledger, old, new, who)

    def _check_evidence(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata, who: str) -> None:
        """Check F13: the recovery had enough answers of each write set, and enough denials of the next id."""
        answered = self._answered.get((who, ledger.ledger), {})
        fragment = old.last_fragment
        for window in write_sets(fragment, old):
            silent = [b for b in window if b not in answered]
            self.report.check(
                "F13",
                len(silent) < old.ack_quorum,
                "{} closed ledger {} without an answer of {}",
                who,
                ledger.ledger,
                silent,
            )
        assert new.last_entry is not None
        after = new.last_entry + 1
        denied = self._denied.get((who, ledger.ledger), {}).get(after, {})
        members = members_of(fragment, old, after)
        enough = old.write_quorum - old.ack_quorum + 1
        self.report.check(
            "F13",
            sum(b in denied for b in members) >= enough,
            "{} closed ledger {} at {}, but of {} only {} denied entry {}",
            who,
            ledger.ledger,
            new.last_entry,
            members,
            list(denied),
            after,
        )

    def recovered(self, ledger: LedgerFacts, client: str, last: EntryId, length: int) -> None:
        if ledger.closed is None or ledger.deleted:
            if not ledger.deleted:
                self.report.violate("F15", f"{client} recovered ledger {ledger.ledger}, which is not closed")
            return
        self.report.check(
            "F15",
            (last, length) == ledger.closed,
            "{} reports {} for ledger {}, metadata says {}",
            client,
            (last, length),
            ledger.ledger,
            ledger.closed,
        )

    def life_ended(self) -> None:
        for ledger in self.facts.ledgers.values():
            if ledger.recovery_attempts >= 2 and ledger.closed is not None:
                self.report.check(
                    "F12",
                    max(ledger.promised, default=-1) <= ledger.closed[0] or ledger.deleted,
                    "ledger {} after {} recoveries is closed at {}",
                    ledger.ledger,
                    ledger.recovery_attempts,
                    ledger.closed,
                )
