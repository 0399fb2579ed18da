"""F2 to F6, F11, F14, F17: what bookies and writers must do about fences, keys and deleted ledgers.

Not here: what recovery must do (`recovering.py`).
"""

from __future__ import annotations

from buckram.errors import Code
from buckram.types import BookieId, EntryId, LedgerId
from simulator.engine.checkers.base import Checker, Insert
from simulator.engine.checkers.facts import Facts, Handle, LedgerFacts, behind_end
from simulator.engine.checkers.inspector import Inspector
from simulator.engine.checkers.report import Report
from simulator.engine.checkers.wire import Answer, Request


class BookieDuties(Checker):
    """F2 to F6, F14, F17: what a bookie must do."""

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        self._inspector = inspector
        self._inspected: dict[tuple[BookieId, LedgerId], tuple[int, bytes]] = {}
        """The bookie's incarnations and superblock when the fence was last inspected."""
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
                Code.QUOTA_EXCEEDED,
            )
            # While metadata is unavailable a bookie cannot know which key is right. It replaces a wrong one afterwards.
            unproven = self._inspector.unproven_key(request.bookie, request.ledger) == request.key
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
            self._check_denial(ledger, request)

    def _fence_answered(self, ledger: LedgerFacts, request: Request, answer: Answer) -> None:
        """Check F2: the fence is durable before the answer to the fencing read."""
        bookie = request.bookie
        ledger.fenced.setdefault(bookie, self._steps)
        if answer.negative:
            ledger.negatives.setdefault((bookie, request.entry), request.delivered_at or 0.0)
            self.facts.bookie(bookie).fence_negatives += 1
        # A durable fence stays durable until the bookie replaces the files that contain it.
        state = len(self.facts.bookie(bookie).incarnations), self._inspector.superblock_on_disk(bookie)
        if self._inspected.get((bookie, ledger.ledger)) != state:
            fenced = self._inspector.fenced_on_disk(bookie, ledger.ledger)
            if fenced is not None:
                self._inspected[bookie, ledger.ledger] = state
                self.report.check(
                    "F2",
                    fenced,
                    "{} answered a fencing read of ledger {} with {}, "
                    "but after a loss of power now it would not be fenced",
                    bookie,
                    ledger.ledger,
                    answer.code.name,
                )

    def _check_denial(self, ledger: LedgerFacts, request: Request) -> None:
        if ledger.deleted or ledger.repaired:
            return
        bookie, entry = request.bookie, request.entry
        # An answer that waits until the fence is durable tells what was true when the request arrived.
        asked = self._inspector.now() if request.delivered_at is None else request.delivered_at
        entries = [e for e in ([entry] if entry >= 0 else ledger.claims) if not behind_end(ledger.metadata, e)]
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
                "{} answered a recovery that it has no entry {} of ledger {} and stored it by a normal add afterwards",
                insert.bookie,
                insert.entry,
                ledger.ledger,
            )

    def answer_delivered(self, answer: Answer) -> None:
        """Count F4 when a fence refused an add, and F5 if the bookie had denied that entry before."""
        request = answer.request
        if request is not None and request.kind == "add" and answer.code is Code.FENCED:
            self.report.check("F4", True)
            ledger = self.facts.ledgers.get(request.ledger)
            if ledger is not None and (request.bookie, request.entry) in ledger.negatives:
                self.report.check("F5", True)

    def deleted_by_bookie(self, ledger: LedgerFacts, bookie: BookieId) -> None:
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


class WriterDuties(Checker):
    """F11: a writer that learned of the fence acknowledges no further entry."""

    def __init__(self, facts: Facts, report: Report, inspector: Inspector) -> None:
        super().__init__(facts, report)
        self._inspector = inspector

    def answer_delivered(self, answer: Answer) -> None:
        request = answer.request
        if request is None or request.kind != "add" or request.recovery or answer.code is not Code.FENCED:
            return
        for handle in self.facts.handles:
            if handle.ledger == request.ledger and handle.client == request.client and handle.fenced_at is None:
                handle.fenced_at = self._inspector.now()
                self.report.check("F11", True)

    def acked(self, ledger: LedgerFacts, handle: Handle, index: int, entry: EntryId) -> None:
        if handle.fenced_at is None:
            return
        # Entries that were complete before may be acknowledged in the same moment, or after a pause of the process.
        resumed_at = self._inspector.resumed_at(handle.client)
        complete_before = self._inspector.now() == handle.fenced_at or resumed_at >= handle.fenced_at
        self.report.check(
            "F11",
            complete_before,
            "{} learned at {} that ledger {} is fenced and acknowledged entry {} later",
            handle.client,
            handle.fenced_at,
            ledger.ledger,
            entry,
        )
