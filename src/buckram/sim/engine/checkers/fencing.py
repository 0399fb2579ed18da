"""F1 to F17: fencing, recovery, identity and collection."""

from __future__ import annotations

from collections.abc import Callable

from buckram.errors import Code
from buckram.sim.engine.checkers.base import Checker, Insert
from buckram.sim.engine.checkers.facts import Facts, Handle, LedgerFacts, members_of, windows
from buckram.sim.engine.checkers.report import Report
from buckram.sim.engine.checkers.wire import Answer, Request
from buckram.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState

FencedOnDisk = Callable[[BookieId, LedgerId], bool | None]
"""Whether the bookie would come back with the ledger fenced or buried after losing power now; None: cannot be asked."""

UnprovenKey = Callable[[BookieId, LedgerId], bytes | None]
"""The key that the bookie has for the ledger, where it could not ask metadata whether that is the right one."""


class BookieSide(Checker):
    """F2 to F6, F14: what a bookie owes."""

    def __init__(
        self,
        facts: Facts,
        report: Report,
        fenced_on_disk: FencedOnDisk,
        now: Callable[[], float],
        disk_state: Callable[[BookieId], bytes],
        unproven: UnprovenKey,
    ) -> None:
        super().__init__(facts, report)
        self._now, self._disk_state, self._unproven = now, disk_state, unproven
        self._fenced_on_disk = fenced_on_disk
        self._asked: dict[tuple[BookieId, LedgerId], tuple[int, bytes]] = {}
        self._steps = 0

    def request_delivered(self, request: Request) -> None:
        self._steps += 1
        request.delivered_step = self._steps

    def answer_sent(self, answer: Answer) -> None:
        request = answer.request
        if request is None or self.facts.bookie(request.bookie).liar:
            return
        ledger = self.facts.ledgers.get(request.ledger)
        if ledger is None:
            return
        if ledger.key is not None and request.key is not None and request.key != ledger.key:
            refused = (
                Code.UNAUTHORIZED,
                Code.FENCED,
                Code.NO_LEDGER,
                Code.READ_ONLY,
                Code.IO_ERROR,
                Code.TOO_MANY_REQUESTS,
            )
            # Where metadata is away no bookie knows whose key is right. The right one wins as soon as it is not.
            unproven = self._unproven(request.bookie, request.ledger) == request.key
            self.report.check(
                "F14",
                answer.code in refused or unproven,
                "{} answered {} to a {} of ledger {} with a wrong key",
                request.bookie,
                answer.code.name,
                request.kind,
                request.ledger,
            )
            return
        if request.fence and (answer.code is Code.OK or answer.negative):
            self._fence_answered(ledger, request, answer)
        if request.kind == "add" and not request.recovery and request.bookie in ledger.fenced:
            late = request.delivered_step > ledger.fenced[request.bookie]
            if late:
                self.report.check(
                    "F3",
                    answer.code is not Code.OK,
                    "{} answered OK to an add of entry {} of ledger {} that came after its fence",
                    request.bookie,
                    request.entry,
                    request.ledger,
                )
            if answer.code is Code.FENCED:
                self.report.situation("late add refused by a fence")
        if answer.negative and request.kind in ("read", "batch"):
            self._negative(ledger, request)

    def _fence_answered(self, ledger: LedgerFacts, request: Request, answer: Answer) -> None:
        bookie = request.bookie
        ledger.fenced.setdefault(bookie, self._steps)
        if answer.negative:
            ledger.negatives.setdefault((bookie, request.entry), request.delivered_at or 0.0)
            self.facts.bookie(bookie).fence_negatives += 1
        # A fence that is durable stays so until other files take the place of those that it stands in.
        state = len(self.facts.bookie(bookie).incarnations), self._disk_state(bookie)
        if self._asked.get((bookie, ledger.ledger)) != state:
            fenced = self._fenced_on_disk(bookie, ledger.ledger)
            if fenced is not None:
                self._asked[bookie, ledger.ledger] = state
                self.report.check(
                    "F2",
                    fenced,
                    "{} answered a fencing read of ledger {} with {}, "
                    "but after a loss of power now it would not be fenced",
                    bookie,
                    ledger.ledger,
                    answer.code.name,
                )

    def _negative(self, ledger: LedgerFacts, request: Request) -> None:
        if ledger.deleted or ledger.repaired:
            return
        bookie, entry = request.bookie, request.entry
        # One that waits for the fence to be durable says what was so when the question came.
        asked = self._now() if request.delivered_at is None else request.delivered_at
        entries = [entry] if entry >= 0 else list(ledger.claims)
        held = any(
            bookie in ledger.claims.get(e, {}) and ledger.held_since.get((e, bookie), 0.0) <= asked for e in entries
        )
        if ledger.claims:
            self.report.check(
                "F6",
                not held or self.facts.bookie(bookie).wiped,
                "{} says that it has no entry {} of ledger {}, but it acknowledged it",
                bookie,
                entry,
                ledger.ledger,
            )

    def inserted(self, ledger: LedgerFacts, insert: Insert) -> None:
        self.report.check(
            "F14",
            insert.key_ok,
            "{} stored entry {} of ledger {} under a wrong key",
            insert.bookie,
            insert.entry,
            ledger.ledger,
        )
        if not insert.normal:
            return
        if ledger.recovery_attempts:
            self.report.check(
                "F4",
                not insert.fenced,
                "{} inserted a normal add of entry {} of ledger {} while fenced",
                insert.bookie,
                insert.entry,
                ledger.ledger,
            )
        if any(bookie == insert.bookie for bookie, _ in ledger.negatives):
            self.report.check(
                "F5",
                (insert.bookie, insert.entry) not in ledger.negatives,
                "{} told a recoverer that it has no entry {} of ledger {} and gained it by a normal add",
                insert.bookie,
                insert.entry,
                ledger.ledger,
            )

    def answer_delivered(self, answer: Answer) -> None:
        """A fence that refused an add kept F4 and, where a negative had been given, F5."""
        request = answer.request
        if request is not None and request.kind == "add" and answer.code is Code.FENCED:
            self.report.check("F4", True)
            ledger = self.facts.ledgers.get(request.ledger)
            if ledger is not None and (request.bookie, request.entry) in ledger.negatives:
                self.report.check("F5", True)

    def buried(self, ledger: LedgerFacts, bookie: BookieId) -> None:
        metadata = None if ledger.deleted else ledger.metadata
        listed = metadata is not None and any(bookie in f.ensemble for f in metadata.fragments)
        self.report.check(
            "F17",
            metadata is None or (metadata.closed and not listed),
            "{} deleted its data of ledger {}, which is {}",
            bookie,
            ledger.ledger,
            metadata.state.name if metadata else None,
        )


class RecovererSide(Checker):
    """F1, F7 to F10, F12, F13, F15, F16: what a recoverer owes."""

    def __init__(self, facts: Facts, report: Report) -> None:
        super().__init__(facts, report)
        self._known: dict[tuple[str, LedgerId], dict[BookieId, bool]] = {}
        self._writing_back: dict[LedgerId, dict[str, bool]] = {}
        self._denied: dict[tuple[str, LedgerId], dict[EntryId, dict[BookieId, bool]]] = {}

    def request_sent(self, request: Request) -> None:
        ledger = self.facts.ledgers.get(request.ledger)
        if ledger is None or request.ghost:
            return
        if request.kind == "add" and request.key == ledger.key:
            self._lac(ledger, request)
            if request.recovery and self.facts.recovering.get((request.client, request.ledger)):
                self._writing_back.setdefault(request.ledger, {})[request.client] = True
                at_work = [
                    c for c in self._writing_back[request.ledger] if self.facts.recovering.get((c, request.ledger))
                ]
                if len(at_work) >= 2:
                    self.report.situation("two recoverers in write-back")
        if request.kind == "write_lac" and request.key == ledger.key:
            self._lac(ledger, request)
        if not request.fence or request.key != ledger.key:
            return
        recovering = self.facts.recovering.get((request.client, request.ledger), 0) > 0
        self.report.check(
            "F16", recovering, "{} fences ledger {} although it only opened it", request.client, request.ledger
        )
        frozen, metadata = ledger.recovery_fragment, ledger.metadata
        if request.entry < 0 or frozen is None or metadata is None:
            return
        self.report.check(
            "F7",
            request.bookie in members_of(frozen, metadata, request.entry),
            "{} sends the recovery read of entry {} of ledger {} to {}, the ensemble is {}",
            request.client,
            request.entry,
            request.ledger,
            request.bookie,
            frozen.ensemble,
        )
        self.report.check(
            "F9",
            request.entry >= frozen.first_entry,
            "{} reads entry {} of ledger {} in recovery, its last fragment begins at {}",
            request.client,
            request.entry,
            request.ledger,
            frozen.first_entry,
        )
        needed = metadata.write_quorum - metadata.ack_quorum + 1
        for window in windows(frozen, metadata):
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

    def _lac(self, ledger: LedgerFacts, request: Request) -> None:
        lac = request.lac if request.lac is not None else -1
        # A copy made by repair carries the end of the closed ledger: F10 holds for it too.
        if lac > ledger.max_lac:
            ledger.max_lac, ledger.max_lac_source = lac, f"{request.client}'s {request.kind} of entry {request.entry}"
        if ledger.closed is not None:
            self._dirty(ledger)

    def _dirty(self, ledger: LedgerFacts) -> None:
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
            self._known.setdefault(who, {})[request.bookie] = True
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
                self._dirty(ledger)
            if old.state is LedgerState.IN_RECOVERY:
                self.report.check("F8", True)
                if who != ledger.writer:
                    self._evidence(ledger, old, new, who)

    def _evidence(self, ledger: LedgerFacts, old: LedgerMetadata, new: LedgerMetadata, who: str) -> None:
        """F13: the recoverer heard of every window, and enough denials of the id after the end."""
        known = self._known.get((who, ledger.ledger), {})
        fragment = old.last_fragment
        for window in windows(fragment, old):
            unknown = [b for b in window if b not in known]
            self.report.check(
                "F13",
                len(unknown) < old.ack_quorum,
                "{} closed ledger {} without having heard of {}",
                who,
                ledger.ledger,
                unknown,
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

    def ended(self) -> None:
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


class WriterSide(Checker):
    """F11: a writer that learned of the fence acknowledges nothing any more."""

    def __init__(
        self, facts: Facts, report: Report, now: Callable[[], float], paused_since: Callable[[str], float]
    ) -> None:
        super().__init__(facts, report)
        self._now, self._paused_since = now, paused_since

    def answer_delivered(self, answer: Answer) -> None:
        request = answer.request
        if request is None or request.kind != "add" or request.recovery or answer.code is not Code.FENCED:
            return
        for handle in self.facts.handles:
            if handle.ledger == request.ledger and handle.client == request.client and handle.fenced_at is None:
                handle.fenced_at = self._now()
                self.report.check("F11", True)

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        if handle.fenced_at is None:
            return
        # What was complete before may still be told in the same moment, or after a pause of the process.
        told_late = self._now() == handle.fenced_at or self._paused_since(handle.client) >= handle.fenced_at
        self.report.check(
            "F11",
            told_late,
            "{} learned at {} that ledger {} is fenced and acknowledged entry {} later",
            handle.client,
            handle.fenced_at,
            ledger.ledger,
            entry,
        )
